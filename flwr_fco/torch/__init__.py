"""PyTorch (extra ``torch``): optimisers, a model's loss as an Objective, and the client half for your own ClientApp."""

from flwr_fco.errors import NotInstalledError

try:
    # Not `import torch`, which also succeeds for any folder of that name on the path.
    import torch.optim  # noqa: F401
except ImportError as error:
    raise NotInstalledError("flwr_fco.torch needs PyTorch: pip install torch (the extra [torch])") from error

from flwr_fco.torch.client import ClientApp, LocalTraining, local_training
from flwr_fco.torch.objective import TorchBatch, TorchObjective
from flwr_fco.torch.optim import CompositeOptimizer, DualAveraging, ProximalSGD, tensor_prox

__all__ = ["ClientApp", "CompositeOptimizer", "DualAveraging", "LocalTraining", "ProximalSGD", "TorchBatch"]
__all__ += ["TorchObjective", "local_training", "tensor_prox"]
