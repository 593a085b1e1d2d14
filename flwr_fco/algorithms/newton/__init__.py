"""A federated proximal Newton method on a working set."""
