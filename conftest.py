"""The examples in docstrings of what needs PyTorch run where it is installed; tests/pytorch says what to install."""

try:
    import torch.optim  # noqa: F401
except ImportError:
    collect_ignore = ["flwr_fco/torch", "reproduction/problems/networks.py"]
