"""Named problems: data on clients, a regularizer, what a round reports, and the rates to begin with.

The problems of 'Federated Composite Optimization' (Yuan, Zaheer, Reddi 2021, section 5 and appendix B), those of
'Gradient Tracking for High Dimensional Federated Optimization' (Liang, Peng, Zhang, section 7), those of 'Local
Composite Saddle Point Optimization' (Bai, Bullins 2024, section 6 and appendix A), and small ones on data that come
with scikit-learn. ``flwr-fco list`` prints them, ``flwr-fco run NAME`` runs them, and those whose number of
clients and whose regularizer can be chosen run by ``flwr run`` too (see :mod:`flwr_fco.experiments.app.run_config`).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_type_hints

import numpy as np

from flwr_fco import datasets, regularizers
from flwr_fco.core.validation import checked, suggestion
from flwr_fco.datasets import SparseGraphProblem, SyntheticBrain, SyntheticRegression
from flwr_fco.errors import ConfigurationError, DataNotFoundError
from flwr_fco.experiments.problems.tasks import (
    AdversarialTraining,
    BilinearGame,
    Classification,
    ConstrainedClassification,
    NoisyLabels,
    NonsmoothMinimum,
    PatternRecovery,
    PooledMinimum,
    QuadraticGame,
    RankRecovery,
    SparseRecovery,
    StreamingRecovery,
    Task,
)
from flwr_fco.regularizers import L1, L1Ball, L2Ball, Nuclear, PerParameter, Regularizer, Zero
from flwr_fco.strategies import STRATEGIES

__all__ = ["PROBLEMS", "REGULARIZERS", "Problem", "data_directory", "find_problem", "load_task"]

#: Environment variable with the directory in which ``mnist/`` and ``haxby-slice/`` lie.
DATA_VARIABLE = "FLWR_FCO_DATA"

#: How to get the files of a data set that the package does not bring along.
_SOURCES = MappingProxyType(
    {
        "mnist": "Or fetch it: --set source=openml",
        "haxby-slice": "Or fetch all six subjects, 300 MB each: --set fetch=true (needs nilearn)",
    }
)

#: Regularizers that one number, the strength, describes.
REGULARIZERS: Mapping[str, type[Regularizer]] = MappingProxyType(
    {name: getattr(regularizers, name) for name in ("L1", "L2Squared", "Nuclear", "Zero")}
)


#: The balls of the problems with images, and the order of their norm.
_BALLS: Mapping[str, tuple[Callable[[float], Regularizer], int]] = MappingProxyType(
    {"l1": (L1Ball, 1), "l2": (L2Ball, 2)}
)

#: One method under three names.
_DUAL_AVERAGING = ("FedDualAvg", "FedDualAvgOSP", "FedDA")
#: What the paper of the problems over a graph compares.
_ON_GRAPHS = ("DFedDA", "DFedDAGT", "DFedMid", "DReFedDAGT", "DScaffold", "FedDAGT", "ReFedDAGT", "MultistepReFedDAGT")


@dataclass(frozen=True)
class Problem:
    """An entry of :data:`PROBLEMS`.

    Parameters
    ----------
    name, description : str
    load : callable
        ``(seed, **options) -> Task``; its keyword arguments are the problem's options.
    defaults : mapping of str to number or str
        Settings of a run: rates, rounds, clients per round, batch size, local work, evaluation intervals.
    tuned : sequence of str
        The strategies that the rates were chosen for; others begin with what theory says (``client-lr=auto``).
    """

    name: str
    description: str
    load: Callable[..., Task]
    defaults: Mapping[str, int | float | str] = field(default_factory=lambda: MappingProxyType({}))
    tuned: tuple[str, ...] = _DUAL_AVERAGING

    def options(self) -> dict[str, Any]:
        """Return the problem's options in kebab-case, with their defaults."""
        given = self.load.keywords if isinstance(self.load, partial) else {}
        parameters = inspect.signature(self.load).parameters.values()
        return {
            p.name.replace("_", "-"): given.get(p.name, p.default)
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name != "variant"
        }

    def tuned_for(self, strategy: str) -> bool:
        """Whether the rates among the defaults were chosen for a strategy.

        Examples
        --------
        >>> find_problem("lasso-I").tuned_for("FedDualAvg"), find_problem("lasso-I").tuned_for("FedMid")
        (True, False)
        """
        return strategy in self.tuned

    def checked_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return options as keyword arguments of `load`.

        Parameters
        ----------
        options : mapping of str to value
            In kebab-case.

        Raises
        ------
        ConfigurationError
            If the problem has no such option, or a value is of the wrong type.
        """
        known = self.options()
        types = get_type_hints(self.load.func if isinstance(self.load, partial) else self.load)
        for key in options:
            if key not in known:
                raise ConfigurationError(
                    f"{self.name} has no option {key!r}; expected one of {', '.join(known) or 'none'}"
                )
        names = {key: key.replace("-", "_") for key in options}
        return {names[key]: checked(key, value, types[names[key]]) for key, value in options.items()}


def data_directory(name: str, path: str = "") -> Path:
    """Return where a data set's files are: `path`, else below $FLWR_FCO_DATA.

    Parameters
    ----------
    name : str
        Of the data set's directory, such as ``"mnist"``.
    path : str, default ""
        Its directory, where the user gave one.

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


def _lasso(seed: int, *, variant: datasets.Variant, strength: float = 0.2) -> Task:
    return SparseRecovery(datasets.lasso(variant, seed), L1(strength))


def _resized_lasso(seed: int, *, strength: float = 0.2, regularizer: str = "L1", num_clients: int = 64) -> Task:
    # The paper's data set I is the first 64 clients; more or fewer are drawn from the same distribution.
    data = replace(datasets.lasso("I", seed), num_clients=num_clients)
    return SparseRecovery(data, _regularizer(regularizer, strength))


def _low_rank(seed: int, *, variant: datasets.Variant, strength: float = 0.5) -> Task:
    return RankRecovery(datasets.low_rank(variant, seed), Nuclear(strength))


def _small_lasso(
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
    if not 0 < num_ones <= num_features:
        raise ConfigurationError(f"num-ones={num_ones}; expected 1 .. num-features={num_features}")
    truth = (np.arange(num_features) < num_ones).astype(np.float64)
    kind = datasets.EqualRegression if equal else SyntheticRegression
    data = kind(truth, num_clients, examples_per_client, seed, spread=spread, disagreement=disagreement)
    return SparseRecovery(data, L1(strength))


def _haxby(
    seed: int, *, path: str = "", fetch: bool = False, strength: float = 1e-3, num_held_out: int = 2, split: int = -1
) -> Task:
    # Nilearn has a place of its own for what it fetches, unless one is given.
    place = (path or None) if fetch else data_directory("haxby-slice", path)
    scans = datasets.load_haxby(place, fetch=fetch)
    folds = scans.folds(num_held_out)
    # A seed of its own split: bands over seeds are bands over held-out sessions too.
    chosen = seed % len(folds) if split < 0 else split
    if chosen >= len(folds):
        raise ConfigurationError(f"split={split}; expected 0 .. {len(folds) - 1}, or -1: the seed chooses")
    return Classification(scans.split(folds[chosen]), L1(strength), threshold=1e-4)


def _synthetic_brain(
    seed: int, *, strength: float = 1e-2, num_clients: int = 12, num_voxels: int = 39_912, contrast: float = 0.5
) -> Task:
    data = SyntheticBrain(num_clients, num_voxels, contrast=contrast, seed=seed)
    return PatternRecovery(data, L1(strength))


def _mnist(
    seed: int,
    *,
    ball: str = "l1",
    radius: float = 1000.0,
    source: str = "files",
    path: str = "",
    num_clients: int = 100,
    alpha: float = 0.3,
    by_label: bool = False,
    num_examples: int = 6000,
) -> Task:
    _require_ball(ball)
    data = _mnist_images(seed, source, path, num_clients, alpha, by_label=by_label, num_examples=num_examples)
    return _in_ball(data, ball, radius)


def _femnist(
    seed: int,
    *,
    fetch: bool = False,
    ball: str = "l1",
    radius: float = 1000.0,
    num_clients: int = 100,
    num_classes: int = 10,
    test_fraction: float = 0.1,
) -> Task:
    _require_ball(ball)
    if not fetch:
        raise DataNotFoundError(
            "fetch=False; FEMNIST has no files that could be given: fetch it from the Hugging Face hub by --set "
            "fetch=true (needs flwr-datasets[vision], which keeps a copy)"
        )
    images = datasets.femnist(num_clients, num_classes=num_classes, test_fraction=test_fraction, seed=seed)
    return _in_ball(images, ball, radius)


def _require_ball(ball: str) -> None:
    if ball not in _BALLS:
        raise ConfigurationError(f"ball={ball!r}; expected 'l1' or 'l2'")


def _in_ball(images: datasets.PartitionedImages, ball: str, radius: float) -> Task:
    kind, order = _BALLS[ball]
    return ConstrainedClassification(images, kind(radius), order)


def _mnist_images(
    seed: int,
    source: str,
    path: str,
    num_clients: int,
    alpha: float,
    *,
    by_label: bool = False,
    num_examples: int = 0,
    num_classes: int = 10,
) -> datasets.PartitionedImages:
    """Return MNIST, or FEMNIST with its 10 or 62 classes."""
    if source not in ("files", "openml", "femnist"):
        raise ConfigurationError(f"source={source!r}; expected 'files' (MNIST's, see path), 'openml' or 'femnist'")
    if source == "femnist":
        # A client is a writer: there is nothing to split.
        return datasets.femnist(num_clients, num_classes=num_classes, seed=seed)
    return datasets.mnist(
        data_directory("mnist", path) if source == "files" else None,
        num_clients,
        alpha,
        by_label=by_label,
        num_examples=num_examples or None,
        seed=seed,
    )


def _digits(
    seed: int,
    *,
    strength: float = 2e-3,
    regularizer: str = "L1",
    num_clients: int = 10,
    alpha: float = 0.3,
    train_fraction: float = 0.75,
) -> Task:
    data = datasets.digits(num_clients, alpha, train_fraction, seed)
    return Classification(data, _regularizer(regularizer, strength))


def _breast_cancer(
    seed: int,
    *,
    strength: float = 1e-2,
    regularizer: str = "L1",
    num_clients: int = 10,
    alpha: float = 0.3,
    train_fraction: float = 0.75,
) -> Task:
    data = datasets.breast_cancer(num_clients, alpha, train_fraction, seed)
    return Classification(data, _regularizer(regularizer, strength))


def _regularizer(name: str, strength: float) -> Regularizer:
    if name not in REGULARIZERS:
        raise ConfigurationError(
            f"regularizer={name!r}; expected one of {', '.join(REGULARIZERS)}{suggestion(name, REGULARIZERS)}"
        )
    return Zero() if name == "Zero" else REGULARIZERS[name](strength)  # type: ignore[call-arg]


def _sparse_graph(
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
    data = SparseGraphProblem(
        variant,
        num_clients,
        dimension,
        sparsity=num_nonzero,
        scale=scale,
        spread=spread,
        noise=noise,
        sampling=sampling,  # type: ignore[arg-type]  # checked there
        truncation=truncation,
        seed=seed,
    )
    return StreamingRecovery(data, L1(strength) if strength else Zero())


def _bilinear(
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
    if start not in ("uniform", "projected", "zero"):
        raise ConfigurationError(f"start={start!r}; expected 'uniform', 'projected' or 'zero'")
    sizes = {"rows": rows, "columns": columns, "noise": noise, "spread": spread, "seed": seed}
    own: Regularizer
    if variant == "sparse":
        data, own = datasets.sparse_bilinear(num_clients, bound=bound, **sizes), L1(strength, bound=bound)  # type: ignore[arg-type]
    else:
        data, own = datasets.low_rank_bilinear(num_clients, **sizes), Nuclear(strength, bound=bound)  # type: ignore[arg-type]
    return BilinearGame(data, PerParameter({"x": own, "y": own}), start, seed)


def _quadratic(
    seed: int,
    *,
    num_clients: int = 10,
    rows: int = 30,
    columns: int = 60,
    curvature: float = 1.0,
    noise: float = 0.1,
    spread: float = 0.5,
) -> Task:
    sizes = {"rows": rows, "columns": columns, "noise": noise, "spread": spread, "seed": seed}
    return QuadraticGame(datasets.quadratic_saddles(num_clients, curvature=curvature, **sizes))  # type: ignore[arg-type]


def _adversarial(
    seed: int,
    *,
    variant: Literal["digits", "mnist", "cifar10"],
    strength: float = 0.1,
    bound: float = 0.05,
    intercept: bool = False,
    num_clients: int = 100,
    num_examples: int = 0,
    source: str = "files",
    path: str = "",
) -> Task:
    images = _images(variant, seed, source, path, num_clients, num_examples)
    regularizer = PerParameter({"perturbation": L1(strength, bound=bound)})
    return AdversarialTraining(datasets.AdversarialImages(images, intercept), regularizer, bound, seed)


def _images(
    variant: Literal["digits", "mnist", "cifar10"],
    seed: int,
    source: str,
    path: str,
    num_clients: int,
    num_examples: int,
) -> datasets.PartitionedClassification:
    """Return images, evenly and at random on the clients."""
    _require_source(variant, source)
    if variant == "digits":
        return datasets.digits(num_clients, None, seed=seed)
    if variant == "mnist":
        directory = data_directory("mnist", path) if source == "files" else None
        return datasets.mnist(directory, num_clients, None, num_examples=num_examples or None, seed=seed)
    place = data_directory(variant, path)
    # One .npz file with part of the images, or the directory of the binary batches.
    packed = sorted(place.glob("*.npz"))
    return datasets.cifar10(packed[0] if packed else place, num_clients, num_examples=num_examples or None, seed=seed)


def _require_source(variant: str, source: str) -> None:
    known = ("files", "openml") if variant == "mnist" else ("files",)
    if source not in known:
        raise ConfigurationError(f"source={source!r}; expected {' or '.join(map(repr, known))} for {variant}")


def _two_layers(
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
    from flwr_fco.experiments.problems import networks

    if variant == "digits":
        images = datasets.digits(num_clients, alpha, seed=seed)
    else:
        images = _mnist_images(seed, source, path, num_clients, alpha, num_examples=num_examples, num_classes=62)
    pixels = images.train.features.shape[1]
    data = networks.NetworkImages(images, networks.two_layers(pixels, width, images.num_classes), (pixels,))
    return networks.ConstrainedNetwork(data, L1Ball(radius), 1, seed)


def _adversarial_network(
    seed: int,
    *,
    variant: Literal["digits", "cifar10"],
    strength: float = 0.1,
    bound: float = 0.05,
    num_clients: int = 100,
    num_examples: int = 0,
    source: str = "files",
    path: str = "",
) -> Task:
    from flwr_fco.experiments.problems import networks

    images = _images(variant, seed, source, path, num_clients, num_examples)
    shape = (1, 8, 8) if variant == "digits" else (3, 32, 32)
    network = networks.AttackedNetwork(shape, images.num_classes)
    regularizer = PerParameter({"perturbation": L1(strength, bound=bound)})
    return networks.AdversarialNetwork(networks.NetworkImages(images, network, shape), regularizer, bound, seed)


def _pooled_logistic(
    seed: int,
    *,
    variant: Literal["digits", "mnist", "cifar10"],
    source: str = "files",
    path: str = "",
    num_clients: int = 8,
    num_examples: int = 0,
    l2: float = 1e-2,
) -> Task:
    data: datasets.FederatedDataset
    if variant == "digits":
        _require_source(variant, source)
        # The others are split evenly.
        data = datasets.digits(num_clients, 0.3, 0.75, seed)
    else:
        data = _images(variant, seed, source, path, num_clients, num_examples)
    return PooledMinimum(data, l2)


def _support_vectors(
    seed: int, *, num_clients: int = 8, alpha: float = 10.0, train_fraction: float = 0.75, l2: float = 0.1
) -> Task:
    return NonsmoothMinimum(datasets.breast_cancer(num_clients, alpha, train_fraction, seed), l2)


def _convex_logistic(seed: int, *, num_clients: int = 8, num_examples: int = 200, num_features: int = 10) -> Task:
    return PooledMinimum(NoisyLabels(num_clients, num_examples, num_features, seed), 0.0)


def _defaults(
    client_lr: float,
    server_lr: float,
    num_rounds: int,
    clients_per_round: int,
    batch_size: int,
    local_epochs: int = 1,
    objective_every: int = 10,
) -> Mapping[str, int | float]:
    return MappingProxyType(
        {
            "client-lr": client_lr,
            "server-lr": server_lr,
            "num-rounds": num_rounds,
            "clients-per-round": clients_per_round,
            "batch-size": batch_size,
            "local-epochs": local_epochs,
            "objective-every": objective_every,
        }
    )


def _registry() -> dict[str, Problem]:
    synthetic = _defaults(1e-3, 1.0, 500, 10, 10)
    ones = {"I": 512, "II": 64, "III": 8, "IV": 512}
    ranks = {"I": 16, "II": 4, "III": 1, "IV": 16}
    found = []
    sizes: dict[datasets.Variant, int] = {"I": 64, "II": 64, "III": 64, "IV": 256}
    for variant, clients in sizes.items():
        found.append(
            Problem(
                f"lasso-{variant}",
                f"sparse recovery: 1,024 features, {ones[variant]} ones; {clients} clients, l1 norm",
                partial(_lasso, variant=variant, strength=0.5 if variant == "III" else 0.2),
                synthetic,
            )
        )
    found.append(
        Problem(
            "lasso",
            "sparse recovery: lasso-I for any number of clients, any of the named regularizers",
            _resized_lasso,
            synthetic,
        )
    )
    for variant, clients in sizes.items():
        found.append(
            Problem(
                f"low-rank-{variant}",
                f"low-rank recovery: 32 x 32, rank {ranks[variant]}; {clients} clients, nuclear norm",
                partial(_low_rank, variant=variant),
                synthetic,
            )
        )
    found += [
        Problem(
            "lasso-small",
            "sparse recovery in seconds: 64 features, 8 ones; 16 clients, l1 norm",
            _small_lasso,
            _defaults(1e-2, 1.0, 200, 8, 8, objective_every=1),
        ),
        Problem(
            "haxby",
            "fMRI, face against house (needs nibabel, and the files or fetch=true): a session a client, l1 norm",
            _haxby,
            _defaults(1e-2, 1.0, 300, 10, 1, objective_every=1),
        ),
        Problem(
            "synthetic-brain",
            "fMRI in size: 39,912 voxels of smooth noise with a smooth pattern; 12 sessions, l1 norm",
            _synthetic_brain,
            _defaults(1e-3, 1.0, 100, 10, 1, objective_every=10),
        ),
        Problem(
            "mnist-l1-ball",
            "MNIST (IDX files, or source=openml, femnist): 100 clients, Dirichlet labels, ||w||_1 <= 1000",
            partial(_mnist, ball="l1", radius=1000.0),
            _defaults(1e-2, 1.0, 100, 10, 10, 10, 5),
        ),
        Problem(
            "mnist-l2-ball",
            "MNIST (IDX files, or source=openml, femnist): 100 clients, Dirichlet labels, ||w||_2 <= 10",
            partial(_mnist, ball="l2", radius=10.0),
            _defaults(1e-2, 1.0, 100, 10, 10, 10, 5),
        ),
        Problem(
            "femnist",
            "FEMNIST (with fetch=true, needs flwr-datasets[vision]): a writer a client, 10 or 62 classes, "
            "||w||_1 <= 1000; ball=l2 with a radius",
            _femnist,
            _defaults(1e-2, 1.0, 100, 10, 10, 10, 5),
        ),
        Problem(
            "two-layers-mnist",
            "a network of two hidden layers, each kernel with ||w||_1 <= 1000 (needs PyTorch): MNIST, 100 clients",
            partial(_two_layers, variant="mnist"),
            _defaults(3e-2, 1.0, 40, 10, 10, 10, 5),
        ),
        Problem(
            "two-layers-digits",
            "the same (needs PyTorch) on scikit-learn's digits: 10 clients, each kernel with ||w||_1 <= 100",
            partial(_two_layers, variant="digits", radius=100.0, num_clients=10),
            _defaults(3e-2, 1.0, 40, 10, 10, 10, 5),
        ),
        Problem(
            "digits",
            "scikit-learn's digits: 10 clients, Dirichlet labels, l1 norm",
            _digits,
            _defaults(0.1, 10.0, 300, 10, 32),
        ),
        Problem(
            "breast-cancer",
            "scikit-learn's breast cancer: 10 clients, Dirichlet labels, l1 norm",
            _breast_cancer,
            _defaults(0.05, 1.0, 200, 10, 32),
        ),
    ]
    graph = MappingProxyType(
        {
            **_defaults(0.1, 1.0, 300, 0, 10, objective_every=10),
            "structure-every": 10,
            "local-steps": 10,
            "mirror-map": "p-norm(12)",
        }
    )
    exact = _defaults(0.1, 1.0, 50, 0, 0, objective_every=1)
    images: tuple[tuple[Literal["digits", "mnist", "cifar10"], str], ...] = (
        ("digits", "scikit-learn's digits, Dirichlet labels"),
        ("mnist", "MNIST (IDX files, or source=openml), an even split"),
        ("cifar10", "CIFAR-10 (binary files or an .npz), an even split"),
    )
    for image, about in images:
        load = partial(_pooled_logistic, variant=image)
        about = f"multinomial logistic regression to the last digits: {about}; 8 clients, l2 term, no psi"
        found.append(Problem(f"logistic-{image}", about, load, exact))
    found += [
        Problem(
            "svm-breast-cancer",
            "support vector machines to the last digits: breast cancer, 8 clients, hinge loss and l2 term, no psi",
            _support_vectors,
            exact,
            # Its loss is not smooth: no rate follows from theory.
            tuple(STRATEGIES),
        ),
        Problem(
            "logistic-convex",
            "logistic regression without an l2 term on noisy labels: convex, not strongly; 8 clients, no psi",
            _convex_logistic,
            exact,
        ),
    ]
    kinds: tuple[Literal["linear", "logistic"], ...] = ("linear", "logistic")
    for kind in kinds:
        about = f"sparse {kind} regression over a graph, fresh examples in every step; 16 clients, no psi by default"
        found.append(
            Problem(f"sparse-{kind}-graph", about, partial(_sparse_graph, variant=kind), graph, tuned=_ON_GRAPHS)
        )
    return {problem.name: problem for problem in [*found, *_saddle_points()]}


def _saddle_points() -> list[Problem]:
    """Return the problems of the third paper: every client takes part, K = 10 local steps unless told otherwise."""

    def defaults(
        client_lr: float, server_lr: float, num_rounds: int, steps: int, batch: int
    ) -> Mapping[str, int | float]:
        shared = _defaults(client_lr, server_lr, num_rounds, 0, batch, objective_every=1)
        return MappingProxyType({**shared, "local-steps": steps})

    adversarial = "universal adversarial training of logistic regression, attack with l1 norm in a box;"
    kinds: dict[Literal["digits", "mnist", "cifar10"], tuple[str, int, int]] = {
        "digits": ("scikit-learn's digits, 10 clients", 10, 20),
        "mnist": ("MNIST (IDX files, or source=openml), 100 clients", 100, 20),
        "cifar10": ("CIFAR-10 (binary batches or .npz), 100 clients", 100, 40),
    }
    networks: tuple[Literal["digits", "cifar10"], ...] = ("digits", "cifar10")
    return [
        Problem(
            "bilinear-l1",
            "bilinear saddle point, 600 against 300 numbers, l1 norms in boxes; 100 equal clients, noise",
            partial(_bilinear, variant="sparse"),
            defaults(0.03, 0.3, 20, 10, 1),
            ("FeDualEx", "FedDualAvg"),
        ),
        Problem(
            "bilinear-nuclear",
            "bilinear saddle point, 600 x 20 against 300 x 20, nuclear norms in spectral balls; 100 equal clients",
            partial(_bilinear, variant="low-rank"),
            defaults(0.1, 1.0, 20, 10, 1),
            ("FeDualEx", "FedDualAvg"),
        ),
        Problem(
            "quadratic-saddle",
            "strongly convex-concave saddle point, 60 against 30 numbers, no psi; 10 unequal clients, noise",
            _quadratic,
            defaults(0.01, 1.0, 200, 1, 1),
        ),
        *(
            Problem(
                f"adversarial-{kind}",
                f"{adversarial} {about}",
                partial(_adversarial, variant=kind, num_clients=clients),
                defaults(0.1, 1.0, rounds, 5, 32),
                ("FeDualEx",),
            )
            for kind, (about, clients, rounds) in kinds.items()
        ),
        *(
            Problem(
                f"adversarial-network-{kind}",
                "universal adversarial training of a convolutional network (needs PyTorch), attack with l1 norm in a "
                f"box; {kinds[kind][0]}",
                partial(_adversarial_network, variant=kind, num_clients=kinds[kind][1]),
                defaults(0.1, 1.0, 100, 5, 32),
            )
            for kind in networks
        ),
    ]


#: All problems by name.
PROBLEMS: Mapping[str, Problem] = MappingProxyType(_registry())


def find_problem(name: str) -> Problem:
    """Return the problem of that name.

    Parameters
    ----------
    name : str

    Returns
    -------
    Problem

    Raises
    ------
    ConfigurationError
        If there is none.

    Examples
    --------
    >>> find_problem("lasso-III").options()
    {'strength': 0.5}
    """
    if name not in PROBLEMS:
        raise ConfigurationError(f"problem={name!r}; expected one of {', '.join(PROBLEMS)}{suggestion(name, PROBLEMS)}")
    return PROBLEMS[name]


def load_task(name: str, seed: int = 0, options: Mapping[str, Any] | None = None) -> Task:
    """Return a problem with its data; the last few are kept, so runs of one process share them.

    Parameters
    ----------
    name : str
        Of the problem.
    seed : int, default 0
        Of the data and their split over clients.
    options : mapping, optional
        The problem's options, in kebab-case.

    Returns
    -------
    Task

    Raises
    ------
    ConfigurationError
        If there is no such problem or option, or a value is of the wrong type or out of range.
    DataNotFoundError
        If the problem's files are not there.

    Examples
    --------
    >>> task = load_task("lasso-small", options={"num-clients": 4})
    >>> sorted(task.structure(task.dataset.coefficients))
    ['density', 'f1', 'precision', 'recall', 'recovery-error']
    """
    # Checked before the cache, where True would be 1.0.
    checked_options = find_problem(name).checked_options(options or {})
    return _load(name, seed, tuple(sorted(checked_options.items())))


@lru_cache(maxsize=4)
def _load(name: str, seed: int, options: tuple[tuple[str, Any], ...]) -> Task:
    return PROBLEMS[name].load(seed, **dict(options))
