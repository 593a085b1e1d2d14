"""One thread: on networks as small as these, threads wait for each other most of the time."""

import sys
from pathlib import Path

# Tests of this folder share `networks`; pytest's importlib mode does not put their folder on the path.
sys.path.insert(0, str(Path(__file__).parent))

try:
    import torch.optim

    torch.set_num_threads(1)
except ImportError:  # every test says so
    pass
