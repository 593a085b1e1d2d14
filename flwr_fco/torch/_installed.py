"""Says what to install where PyTorch is missing; imported before anything that needs it."""

from flwr_fco.errors import NotInstalledError

try:
    # Not `import torch`: any folder of that name on the path would do for it.
    import torch.optim  # noqa: F401
except ImportError as error:
    raise NotInstalledError("flwr_fco.torch needs PyTorch: pip install torch") from error
