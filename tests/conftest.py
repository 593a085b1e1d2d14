"""Settings of all tests."""

import os

# Ray and Flower report usage over the network otherwise.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
