"""Problems whose model is a PyTorch network; imported only when one of them is loaded, because it needs PyTorch.

The papers' theory covers convex functions: neither it nor its bounds apply to these problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fco.torch import TorchObjective  # first: it says what to install

# isort: split
import torch
from torch import Tensor, nn
from torch.nn import functional

from flwr_fco.datasets import Samples
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Vector
from reproduction.data.samples import ImagesOnClients
from reproduction.problems.tasks import AdversarialTraining, Task


def two_layers(pixels: int, width: int, num_classes: int) -> nn.Sequential:
    """Return a fully connected network of two hidden layers with rectifiers.

    Parameters
    ----------
    pixels, width, num_classes : int

    Raises
    ------
    ConfigurationError
        If a layer would be empty.

    Examples
    --------
    >>> [tuple(p.shape) for p in two_layers(64, 16, 10).parameters() if p.ndim > 1]
    [(16, 64), (16, 16), (10, 16)]
    """
    if width < 1:
        raise ConfigurationError(f"width={width}; expected a whole number >= 1")
    return nn.Sequential(
        nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, num_classes)
    )


class AttackedNetwork(nn.Module):
    """A convolutional network, with a perturbation that is added to all images.

    Layers of 16, 32 and 64 filters of 3 x 3, each with a rectifier and a 2 x 2 max-pooling, and a linear one (A.4 of
    Bai, Bullins: Local Composite Saddle Point Optimization, ICLR 2024, which does not say how edges are padded: here
    with a row of zeros).

    Parameters
    ----------
    shape : tuple of int
        Shape of an image: channels, rows, columns; at least 8 x 8.
    num_classes : int

    Examples
    --------
    >>> network = AttackedNetwork((3, 32, 32), 10)
    >>> network(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5, 10])
    """

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = shape[0]
        for filters in (16, 32, 64):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels = filters
        side = (shape[1] // 8) * (shape[2] // 8)
        self.classifier = nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * side, num_classes))
        # The opponent's move: one perturbation for all images, whatever the batch.
        self.perturbation = nn.Parameter(torch.zeros(shape))

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of perturbed images.

        Parameters
        ----------
        images : Tensor, shape (n, channels, rows, columns)
        """
        return self.classifier(images + self.perturbation)  # type: ignore[no-any-return]


def _cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def _right(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores.argmax(dim=1) == labels).to(torch.float64).mean()


def _scores(model: nn.Module, batch: Any) -> Mapping[str, float | Tensor]:
    """Return the metrics of an evaluation except the loss; for an attacked network, also those without the attack."""
    images, labels = batch
    found = {"accuracy": _right(model(images), labels)}
    if isinstance(model, AttackedNetwork):
        scores = model.classifier(images)
        found["clean-accuracy"] = _right(scores, labels)
        found["clean-loss"] = functional.cross_entropy(scores, labels)
    return found


@dataclass(frozen=True, eq=False)
class NetworkImages(ImagesOnClients):
    """Classified images on clients, for a network.

    Parameters
    ----------
    images : PartitionedClassification
        Data such as :func:`reproduction.data.images.mnist`; an image is a row: pixels row by row, with a pixel's
        channels together.
    network : torch.nn.Module
        Shared by all objectives: each of their calls sets its parameters.
    shape : tuple of int
        Shape of an image as the network's input: (pixels,), or channels, rows, columns.

    Examples
    --------
    >>> from flwr_fco.datasets import digits
    >>> data = NetworkImages(digits(num_clients=4), two_layers(64, 8, 10), (64,))
    >>> data.objective(0).layout.regularized_names
    ('0.weight', '2.weight', '4.weight')
    """

    network: nn.Module
    shape: tuple[int, ...]

    def build_objective(self, examples: Samples, **options: Any) -> TorchObjective:
        """Return the network's cross entropy on some images; for an attacked network, the attack ascends and has psi.

        Parameters
        ----------
        examples : Samples
        **options
            Keyword arguments of :class:`flwr_fco.torch.TorchObjective`.
        """
        pixels = examples.features.astype(np.float32, copy=False)
        if len(self.shape) == 3:
            channels, *sides = self.shape
            pixels = pixels.reshape(-1, *sides, channels).transpose(0, 3, 1, 2)
        tensors = torch.from_numpy(np.ascontiguousarray(pixels)), torch.from_numpy(examples.targets.astype(np.int64))
        if isinstance(self.network, AttackedNetwork):
            options = {"maximize": "perturbation", "apply_to": "perturbation", **options}
        return TorchObjective(self.network, _cross_entropy, tensors, scores=_scores, **options)

    def start(self, seed: int) -> dict[str, NDArray[Any]]:
        """Return PyTorch's initial parameters of the network for a seed; PyTorch's generator is restored afterwards.

        Parameters
        ----------
        seed : int
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for module in self.network.modules():
                if isinstance(module, nn.Linear | nn.Conv2d):
                    module.reset_parameters()
        return {name: tensor.detach().numpy().copy() for name, tensor in self.network.state_dict().items()}


@dataclass(eq=False)
class ConstrainedNetwork(Task):
    """A network with each kernel in a ball around 0: losses, accuracies and the largest norm of a kernel.

    Parameters
    ----------
    dataset : NetworkImages
    regularizer : Regularizer
        The ball, applied to each kernel separately.
    order : {1, 2}
        Of its norm.
    start_seed : int
        Of the start point: PyTorch's initial parameters, the kernels projected onto their balls.
    """

    convex: ClassVar[bool] = False
    dataset: NetworkImages
    order: int
    start_seed: int

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the start point."""
        w = self.layout.flatten(self.dataset.start(self.start_seed))
        # A constraint's prox is its projection for any step.
        return self.layout.unflatten(self._psi.prox(w, 1.0))

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the fraction of nonzero kernel entries, and the largest norm of a kernel.

        Parameters
        ----------
        coefficients : ndarray of float64
            The flat vector.
        """
        views = self.layout.views(coefficients)
        kernels = [views[name].reshape(-1) for name in self.layout.regularized_names]
        nonzero = sum(int(np.count_nonzero(kernel)) for kernel in kernels)
        return {
            "density": nonzero / sum(kernel.size for kernel in kernels),
            "norm": max(float(np.linalg.norm(kernel, self.order)) for kernel in kernels),
        }

    def part(self, w: Vector) -> NDArray[np.float64]:
        """Return all parameters."""
        return w

    def further(self, w: Vector) -> dict[str, float]:
        """Return the training loss, and accuracies and loss on the training and on the test images."""
        training = [client.metrics(w) for client in self.clients]
        test = self._test.metrics(w)
        return {
            # In the ball psi is 0; a float32 model can be outside by a rounding error, which `norm` shows.
            "objective": self.mean(own["loss"] for own in training),
            "training-accuracy": self.mean(own["accuracy"] for own in training),
            "accuracy": test["accuracy"],
            "validation-loss": test["loss"],
        }


class AdversarialNetwork(AdversarialTraining):
    """A network against one perturbation of all images: :class:`AdversarialTraining` for a network.

    Parameters
    ----------
    dataset : NetworkImages
        Of an :class:`AttackedNetwork`.
    regularizer : Regularizer
        psi of the perturbation.
    start : float
        D: the perturbation starts at random in [-D, D], the network at PyTorch's initial parameters.
    start_seed : int
        Of the start point.
    """

    dataset: NetworkImages

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the start point."""
        perturbation = super().initial_arrays()["perturbation"]
        return {**self.dataset.start(self.start_seed), "perturbation": perturbation.astype(np.float32)}
