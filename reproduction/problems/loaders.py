"""Functions that build the tasks of the named problems from a seed and the problem's options."""

from __future__ import annotations

import os
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from flwr_fco import datasets, regularizers
from flwr_fco.datasets import PartitionedClassification
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1, L1Ball, L2Ball, Nuclear, PerParameter, Simplex, Zero
from reproduction.data import DataNotFoundError
from reproduction.data import images as real_images
from reproduction.data.fmri import SyntheticBrain, load_haxby
from reproduction.data.graph import SparseGraphProblem
from reproduction.data.regressions import EqualRegression, SyntheticRegression, Variant, lasso_data, low_rank_data
from reproduction.data.saddle import AdversarialImages, SyntheticSaddle
from reproduction.problems import tasks
from reproduction.problems.tasks import Task

#: Environment variable with the directory that contains ``mnist/`` and ``haxby-slice/``.
DATA_VARIABLE = "FLWR_FCO_DATA"

#: How to get the files of a data set that is not part of the package.
_SOURCES = MappingProxyType(
    {
        "mnist": "Or fetch it: --set source=openml",
        "haxby-slice": "Or fetch all six subjects, 300 MB each: --set fetch=true (needs nilearn)",
    }
)

_Images = Literal["digits", "mnist", "cifar10"]


def data_directory(name: str, path: str = "") -> Path:
    """Return the directory of a data set: `path`, or a directory below $FLWR_FCO_DATA.

    Parameters
    ----------
    name : str
        Name of the data set's directory, such as ``"mnist"``.
    path : str, default ""
        Its directory, if the user gave one.

    Returns
    -------
    Path

    Raises
    ------
    DataNotFoundError
        If it does not exist.

    Examples
    --------
    >>> import tempfile
    >>> data_directory("mnist", tempfile.gettempdir()).is_dir()
    True
    """
    above = os.environ.get(DATA_VARIABLE, "")
    directory = Path(path or above, "" if path else name)
    if (path or above) and directory.is_dir():
        return directory
    found = f"{directory} does not exist" if path or above else f"nothing says where the files of {name} are"
    raise DataNotFoundError(
        f"{found}; expected the data set's directory. Give it by --set path=DIRECTORY, or set {DATA_VARIABLE} to the "
        f"directory in which {name}/ lies. {_SOURCES.get(name, '')}".rstrip()
    )


def lasso(seed: int, *, variant: Variant, strength: float = 0.2) -> Task:
    """Return the first paper's sparse recovery."""
    return tasks.SparseRecovery(lasso_data(variant, seed), L1(strength))


def low_rank(seed: int, *, variant: Variant, strength: float = 0.5) -> Task:
    """Return the first paper's recovery of a matrix."""
    return tasks.RankRecovery(low_rank_data(variant, seed), Nuclear(strength))


def small_lasso(
    seed: int,
    *,
    strength: float = 0.1,
    num_features: int = 64,
    num_ones: int = 8,
    num_clients: int = 16,
    examples_per_client: int = 32,
    equal: bool = False,
    spread: float = 1.0,
    disagreement: float = 0.0,
) -> Task:
    """Return sparse recovery of any size."""
    if not 0 < num_ones <= num_features:
        raise ConfigurationError(f"num-ones={num_ones}; expected 1 .. num-features={num_features}")
    truth = (np.arange(num_features) < num_ones).astype(np.float64)
    kind = EqualRegression if equal else SyntheticRegression
    data = kind(truth, num_clients, examples_per_client, seed, spread=spread, disagreement=disagreement)
    return tasks.SparseRecovery(data, L1(strength))


def haxby(
    seed: int, *, path: str = "", fetch: bool = False, strength: float = 1e-3, num_held_out: int = 2, split: int = -1
) -> Task:
    """Return the scans of one subject, or of all six if they are fetched."""
    # Nilearn has its own download directory, unless one is given.
    place = (path or None) if fetch else data_directory("haxby-slice", path)
    scans = load_haxby(place, fetch=fetch)
    folds = scans.folds(num_held_out)
    # Each seed has its own split, so bands over seeds also cover the held-out sessions.
    chosen = seed % len(folds) if split < 0 else split
    if chosen >= len(folds):
        raise ConfigurationError(f"split={split}; expected 0 .. {len(folds) - 1}, or -1: the seed chooses")
    return tasks.Scans(scans.split(folds[chosen]), L1(strength))


def synthetic_brain(
    seed: int, *, strength: float = 1e-2, num_clients: int = 12, num_voxels: int = 39_912, contrast: float = 0.5
) -> Task:
    """Return scans of smooth noise with a smooth pattern."""
    data = SyntheticBrain(num_clients, num_voxels, contrast=contrast, seed=seed)
    return tasks.PatternRecovery(data, L1(strength))


def in_balls(
    seed: int,
    *,
    variant: Literal["digits", "mnist"],
    network: bool,
    ball: Literal["l1", "l2"] = "l1",
    radius: float = 1000.0,
    width: int = 100,
    source: Literal["files", "openml"] = "files",
    path: str = "",
    num_clients: int = 100,
    alpha: float = 0.3,
    num_examples: int = 6000,
) -> Task:
    """Return images and a linear model in a ball, or the first paper's network, each kernel in a ball."""
    images = _images(variant, seed, source, path, num_clients, num_examples, alpha)
    psi, order = (L1Ball(radius), 1) if ball == "l1" else (L2Ball(radius), 2)
    if not network:
        return tasks.ConstrainedClassification(images, psi, order)
    from reproduction.problems import networks

    pixels = images.train.features.shape[1]
    data = networks.NetworkImages(images, networks.two_layers(pixels, width, images.num_classes), (pixels,))
    return networks.ConstrainedNetwork(data, psi, order, seed)


def _images(
    variant: _Images, seed: int, source: str, path: str, num_clients: int, num_examples: int, alpha: float | None = None
) -> PartitionedClassification:
    """Return images on clients, labels by Dirichlet(alpha), or without one an even random split."""
    if source != "files" and variant != "mnist":
        raise ConfigurationError(f"source={source!r}; expected 'files' for {variant}")
    if variant == "digits":
        return datasets.digits(num_clients, alpha, seed=seed)
    place = None if source == "openml" else data_directory(variant, path)
    if place is None or variant == "mnist":
        found = real_images.mnist(place)
    else:
        # One .npz file with part of the images, or the directory of the binary batches.
        packed = sorted(place.glob("*.npz"))
        found = real_images.cifar10(packed[0] if packed else place)
    return real_images.on_clients(found, num_clients, alpha, num_examples=num_examples or None, seed=seed)


def table_of_scikit_learn(
    seed: int,
    *,
    variant: Literal["digits", "breast_cancer"],
    strength: float,
    regularizer: Literal["L1", "L2Squared", "Nuclear", "Zero"] = "L1",
    num_clients: int = 10,
    alpha: float = 0.3,
    train_fraction: float = 0.75,
) -> Task:
    """Return the labelled rows of a data set that comes with scikit-learn."""
    data = getattr(datasets, variant)(num_clients, alpha, train_fraction, seed)
    psi = Zero() if regularizer == "Zero" else getattr(regularizers, regularizer)(strength)
    return tasks.Classification(data, psi)


def sparse_graph(
    seed: int,
    *,
    variant: Literal["linear", "logistic"],
    strength: float = 0.0,
    num_clients: int = 16,
    dimension: int = 1024,
    num_nonzero: int = 16,
    scale: float = 5.0,
    spread: float = 5.0,
    noise: float = 1.0,
    sampling: Literal["examples", "gradients"] = "examples",
    truncation: float = 0.0,
) -> Task:
    """Return the second paper's data: fresh examples in every step."""
    sizes = (num_clients, dimension, num_nonzero, scale, spread, noise)
    data = SparseGraphProblem(variant, *sizes, sampling, truncation, seed=seed)
    return tasks.StreamingRecovery(data, L1(strength) if strength else Zero())


def saddle(
    seed: int,
    *,
    variant: Literal["sparse", "low-rank", "game", "quadratic"],
    strength: float = 0.1,
    bound: float = 0.05,
    num_clients: int = 100,
    rows: int = 300,
    columns: int = 600,
    curvature: float = 1.0,
    noise: float = 0.1,
    spread: float = 0.0,
    start: Literal["uniform", "projected", "zero"] = "uniform",
) -> Task:
    """Return the third paper's games, one on two simplices, or one whose saddle point is known."""
    sizes: dict[str, Any] = {"num_clients": num_clients, "rows": rows, "columns": columns, "bound": bound}
    data = SyntheticSaddle(variant, **sizes, noise=noise, spread=spread, seed=seed, curvature=curvature)
    if variant == "game":
        return tasks.SimplexGame(data, PerParameter({"x": Simplex(), "y": Simplex()}))
    if variant == "quadratic":
        return tasks.QuadraticGame(data, Zero(), start)
    own = L1(strength, bound=bound) if variant == "sparse" else Nuclear(strength, bound=bound)
    return tasks.BilinearGame(data, PerParameter({"x": own, "y": own}), start, seed)


def adversarial(
    seed: int,
    *,
    variant: _Images,
    network: bool,
    strength: float = 0.1,
    bound: float = 0.05,
    intercept: bool = False,
    num_clients: int = 100,
    num_examples: int = 0,
    source: Literal["files", "openml"] = "files",
    path: str = "",
) -> Task:
    """Return the third paper's attacks on all images at once, on a linear classifier or on the paper's network."""
    if network:
        # Before the data are searched for, because the error says what to install.
        from reproduction.problems import networks
    images = _images(variant, seed, source, path, num_clients, num_examples)
    regularizer = PerParameter({"perturbation": L1(strength, bound=bound)})
    if not network:
        return tasks.AdversarialTraining(AdversarialImages(images, intercept), regularizer, bound, seed)
    shape = (1, 8, 8) if variant == "digits" else (3, 32, 32)
    attacked = networks.NetworkImages(images, networks.AttackedNetwork(shape, images.num_classes), shape)
    return networks.AdversarialNetwork(attacked, regularizer, bound, seed)


def pooled_logistic(
    seed: int,
    *,
    variant: _Images,
    source: Literal["files", "openml"] = "files",
    path: str = "",
    num_clients: int = 8,
    num_examples: int = 0,
    l2: float = 1e-2,
    l2_as_psi: bool = False,
    local_solver: Literal["", "aogm", "lbfgs"] = "",
) -> Task:
    """Return the fourth paper's problem, with its l2 term as part of the losses or as psi."""
    data = _images(variant, seed, source, path, num_clients, num_examples)
    if variant == "digits":
        # The remaining rows are split evenly.
        data = datasets.digits(num_clients, 0.3, 0.75, seed)
    return tasks.PooledMinimum(data, l2, l2_as_psi, local_solver)


def support_vectors(
    seed: int, *, num_clients: int = 8, alpha: float = 10.0, train_fraction: float = 0.75, l2: float = 0.1
) -> Task:
    """Return the fourth paper's nonsmooth problem."""
    return tasks.NonsmoothMinimum(datasets.breast_cancer(num_clients, alpha, train_fraction, seed), l2)


def convex_logistic(seed: int, *, num_clients: int = 8, num_examples: int = 200, num_features: int = 10) -> Task:
    """Return a problem that is convex but not strongly convex."""
    return tasks.PooledMinimum(tasks.NoisyLabels(num_clients, num_examples, num_features, seed), 0.0)
