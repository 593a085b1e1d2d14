"""Functions that build the tasks of the named problems from a seed and the problem's options."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from flwr_fco import datasets, regularizers
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1, L1Ball, L2Ball, Nuclear, PerParameter, Regularizer, Simplex, Zero
from reproduction.data import DataNotFoundError, regressions, saddle
from reproduction.data import images as real_images
from reproduction.data.fmri import SyntheticBrain, load_haxby
from reproduction.data.graph import SparseGraphProblem
from reproduction.data.images import PartitionedImages
from reproduction.data.regressions import EqualRegression, SyntheticRegression, Variant
from reproduction.problems import tasks
from reproduction.problems.tasks import Task
from reproduction.values import suggestion

#: Environment variable with the directory that contains ``mnist/`` and ``haxby-slice/``.
DATA_VARIABLE = "FLWR_FCO_DATA"

#: How to get the files of a data set that is not part of the package.
_SOURCES = MappingProxyType(
    {
        "mnist": "Or fetch it: --set source=openml",
        "haxby-slice": "Or fetch all six subjects, 300 MB each: --set fetch=true (needs nilearn)",
    }
)

#: Regularizers with the strength as their only parameter.
REGULARIZERS: Mapping[str, type[Regularizer]] = MappingProxyType(
    {name: getattr(regularizers, name) for name in ("L1", "L2Squared", "Nuclear", "Zero")}
)

#: The balls of the problems with images, and the order of their norm.
_BALLS: Mapping[str, tuple[Callable[[float], Regularizer], int]] = MappingProxyType(
    {"l1": (L1Ball, 1), "l2": (L2Ball, 2)}
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
    if path or above:
        directory = Path(path) if path else Path(above) / name
        if directory.is_dir():
            return directory
        found = f"{directory} does not exist"
    else:
        found = f"nothing says where the files of {name} are"
    raise DataNotFoundError(
        f"{found}; expected the data set's directory. Give it by --set path=DIRECTORY, or set {DATA_VARIABLE} to the "
        f"directory in which {name}/ lies. {_SOURCES.get(name, '')}".rstrip()
    )


def lasso(seed: int, *, variant: Variant, strength: float = 0.2) -> Task:
    """Return the first paper's sparse recovery."""
    return tasks.SparseRecovery(regressions.lasso(variant, seed), L1(strength))


def low_rank(seed: int, *, variant: Variant, strength: float = 0.5) -> Task:
    """Return the first paper's recovery of a matrix."""
    return tasks.RankRecovery(regressions.low_rank(variant, seed), Nuclear(strength))


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
    return tasks.Classification(scans.split(folds[chosen]), L1(strength), threshold=1e-4)


def synthetic_brain(
    seed: int, *, strength: float = 1e-2, num_clients: int = 12, num_voxels: int = 39_912, contrast: float = 0.5
) -> Task:
    """Return scans of smooth noise with a smooth pattern."""
    data = SyntheticBrain(num_clients, num_voxels, contrast=contrast, seed=seed)
    return tasks.PatternRecovery(data, L1(strength))


def mnist(
    seed: int,
    *,
    ball: str = "l1",
    radius: float = 1000.0,
    source: str = "files",
    path: str = "",
    num_clients: int = 100,
    alpha: float = 0.3,
    num_examples: int = 6000,
) -> Task:
    """Return images and a linear model in a ball."""
    _require_ball(ball)
    images = _mnist_images(seed, source, path, num_clients, num_examples, alpha=alpha)
    return _in_ball(images, ball, radius)


def femnist(
    seed: int,
    *,
    fetch: bool = False,
    ball: str = "l1",
    radius: float = 1000.0,
    num_clients: int = 100,
    num_classes: int = 10,
    test_fraction: float = 0.1,
) -> Task:
    """Return images whose clients are writers, and a linear model in a ball; nothing is downloaded unless requested."""
    _require_ball(ball)
    if not fetch:
        raise DataNotFoundError(
            "fetch=False; FEMNIST has no files that could be given: fetch it from the Hugging Face hub by --set "
            "fetch=true (needs flwr-datasets[vision], which keeps a copy)"
        )
    images = real_images.femnist(num_clients, num_classes=num_classes, test_fraction=test_fraction, seed=seed)
    return _in_ball(images, ball, radius)


def _require_ball(ball: str) -> None:
    if ball not in _BALLS:
        raise ConfigurationError(f"ball={ball!r}; expected 'l1' or 'l2'")


def _in_ball(images: PartitionedImages, ball: str, radius: float) -> Task:
    kind, order = _BALLS[ball]
    return tasks.ConstrainedClassification(images, kind(radius), order)


def _mnist_images(
    seed: int, source: str, path: str, num_clients: int, num_examples: int, num_classes: int = 10, **split: Any
) -> PartitionedImages:
    """Return MNIST, or FEMNIST with its 10 or 62 classes."""
    if source not in ("files", "openml", "femnist"):
        raise ConfigurationError(f"source={source!r}; expected 'files' (MNIST's, see path), 'openml' or 'femnist'")
    if source == "femnist":
        # Each client is a writer, so there is nothing to split.
        return real_images.femnist(num_clients, num_classes=num_classes, seed=seed)
    place = data_directory("mnist", path) if source == "files" else None
    return real_images.mnist(place, num_clients, num_examples=num_examples or None, seed=seed, **split)


def table_of_scikit_learn(
    seed: int,
    *,
    variant: Literal["digits", "breast_cancer"],
    strength: float,
    regularizer: str = "L1",
    num_clients: int = 10,
    alpha: float = 0.3,
    train_fraction: float = 0.75,
) -> Task:
    """Return the labelled rows of a data set that comes with scikit-learn."""
    data = getattr(datasets, variant)(num_clients, alpha, train_fraction, seed)
    return tasks.Classification(data, _regularizer(regularizer, strength))


def _regularizer(name: str, strength: float) -> Regularizer:
    if name not in REGULARIZERS:
        raise ConfigurationError(
            f"regularizer={name!r}; expected one of {', '.join(REGULARIZERS)}{suggestion(name, REGULARIZERS)}"
        )
    return Zero() if name == "Zero" else REGULARIZERS[name](strength)  # type: ignore[call-arg]


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
    sampling: str = "examples",
    truncation: float = 0.0,
) -> Task:
    """Return the second paper's data: fresh examples in every step."""
    options: dict[str, Any] = {"scale": scale, "spread": spread, "noise": noise, "sampling": sampling}
    data = SparseGraphProblem(
        variant, num_clients, dimension, sparsity=num_nonzero, truncation=truncation, seed=seed, **options
    )
    return tasks.StreamingRecovery(data, L1(strength) if strength else Zero())


def bilinear(
    seed: int,
    *,
    variant: Literal["sparse", "low-rank"],
    strength: float = 0.1,
    bound: float = 0.05,
    num_clients: int = 100,
    rows: int = 300,
    columns: int = 600,
    noise: float = 0.1,
    spread: float = 0.0,
    start: str = "uniform",
) -> Task:
    """Return the third paper's games."""
    if start not in ("uniform", "projected", "zero"):
        raise ConfigurationError(f"start={start!r}; expected 'uniform', 'projected' or 'zero'")
    sizes: dict[str, Any] = {"rows": rows, "columns": columns, "noise": noise, "spread": spread, "seed": seed}
    own: Regularizer
    if variant == "sparse":
        data, own = saddle.sparse_bilinear(num_clients, bound=bound, **sizes), L1(strength, bound=bound)
    else:
        data, own = saddle.low_rank_bilinear(num_clients, **sizes), Nuclear(strength, bound=bound)
    return tasks.BilinearGame(data, PerParameter({"x": own, "y": own}), start, seed)


def matrix_game(
    seed: int, *, num_clients: int = 100, rows: int = 300, columns: int = 600, noise: float = 0.1, spread: float = 0.0
) -> Task:
    """Return a game on two simplices, where the entropies are the geometry."""
    data = saddle.matrix_games(num_clients, rows=rows, columns=columns, noise=noise, spread=spread, seed=seed)
    return tasks.SimplexGame(data, PerParameter({"x": Simplex(), "y": Simplex()}))


def quadratic(
    seed: int,
    *,
    num_clients: int = 10,
    rows: int = 30,
    columns: int = 60,
    curvature: float = 1.0,
    noise: float = 0.1,
    spread: float = 0.5,
) -> Task:
    """Return a game whose saddle point is known."""
    sizes: dict[str, Any] = {"rows": rows, "columns": columns, "noise": noise, "spread": spread, "seed": seed}
    return tasks.QuadraticGame(saddle.quadratic_saddles(num_clients, curvature=curvature, **sizes))


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
    source: str = "files",
    path: str = "",
) -> Task:
    """Return the third paper's attacks on all images at once, on a linear classifier or on the paper's network."""
    if network:
        # Before the data are searched for, because the error says what to install.
        from reproduction.problems import networks
    images = _images(variant, seed, source, path, num_clients, num_examples)
    regularizer = PerParameter({"perturbation": L1(strength, bound=bound)})
    if not network:
        return tasks.AdversarialTraining(saddle.AdversarialImages(images, intercept), regularizer, bound, seed)
    shape = (1, 8, 8) if variant == "digits" else (3, 32, 32)
    attacked = networks.NetworkImages(images, networks.AttackedNetwork(shape, images.num_classes), shape)
    return networks.AdversarialNetwork(attacked, regularizer, bound, seed)


def _images(
    variant: _Images, seed: int, source: str, path: str, num_clients: int, num_examples: int
) -> datasets.PartitionedClassification:
    """Return images, distributed evenly and at random over the clients."""
    _require_source(variant, source)
    if variant == "digits":
        return datasets.digits(num_clients, None, seed=seed)
    if variant == "mnist":
        return _mnist_images(seed, source, path, num_clients, num_examples, alpha=None)
    place = data_directory(variant, path)
    # One .npz file with part of the images, or the directory of the binary batches.
    packed = sorted(place.glob("*.npz"))
    return real_images.cifar10(
        packed[0] if packed else place, num_clients, num_examples=num_examples or None, seed=seed
    )


def _require_source(variant: str, source: str) -> None:
    known = ("files", "openml") if variant == "mnist" else ("files",)
    if source not in known:
        raise ConfigurationError(f"source={source!r}; expected {' or '.join(map(repr, known))} for {variant}")


def two_layers(
    seed: int,
    *,
    variant: Literal["digits", "mnist"],
    radius: float = 1000.0,
    width: int = 100,
    source: str = "files",
    path: str = "",
    num_clients: int = 100,
    alpha: float = 0.3,
    num_examples: int = 6000,
) -> Task:
    """Return the first paper's network, each kernel in a ball."""
    from reproduction.problems import networks

    if variant == "digits":
        images = datasets.digits(num_clients, alpha, seed=seed)
    else:
        images = _mnist_images(seed, source, path, num_clients, num_examples, 62, alpha=alpha)
    pixels = images.train.features.shape[1]
    data = networks.NetworkImages(images, networks.two_layers(pixels, width, images.num_classes), (pixels,))
    return networks.ConstrainedNetwork(data, L1Ball(radius), 1, seed)


def pooled_logistic(
    seed: int,
    *,
    variant: _Images,
    source: str = "files",
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
