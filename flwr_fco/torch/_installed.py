"""Explains what to install if PyTorch is missing; imported before anything that needs it."""

from flwr_fco.errors import NotInstalledError

try:
    # Not `import torch`, which also succeeds for any folder of that name on the path.
    import torch.optim  # noqa: F401
except ImportError as error:
    raise NotInstalledError("flwr_fco.torch needs PyTorch: pip install torch (the extra [torch])") from error
