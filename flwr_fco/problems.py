"""Named problems: data on clients, a regularizer, what a round reports, and the rates to begin with.

The problems of 'Federated Composite Optimization' (Yuan, Zaheer, Reddi 2021, section 5 and appendix B), those of
'Gradient Tracking for High Dimensional Federated Optimization' (Liang, Peng, Zhang, section 7), and two small ones on
data that come with scikit-learn. ``flwr-fco list`` prints them, ``flwr-fco run NAME`` runs them.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco import datasets
from flwr_fco.datasets import (
    FederatedDataset,
    PartitionedClassification,
    SparseGraphProblem,
    SyntheticBrain,
    SyntheticRegression,
)
from flwr_fco.errors import ConfigurationError, DataNotFoundError
from flwr_fco.metrics import (
    client_weights,
    composite_objective,
    density,
    lasso_duality_gap,
    logistic_duality_gap,
    numerical_rank,
    recovery_error,
    stationarity,
    support_scores,
)
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective, TraceRegression
from flwr_fco.parameters import Layout, Vector
from flwr_fco.reference import centralized_solution
from flwr_fco.regularizers import L1, L1Ball, L2Ball, Nuclear, Regularizer, Zero

__all__ = [
    "PROBLEMS",
    "BaselineSolution",
    "Problem",
    "Task",
    "data_directory",
    "find_problem",
    "load_task",
    "solve_baseline",
]

#: Environment variable with the directory in which ``mnist/`` and ``haxby-slice/`` lie.
DATA_VARIABLE = "FLWR_FCO_DATA"
_DEFAULT_DATA = Path("..", "shared", "data")


class Task(ABC):
    """A problem with its data and options: what a run is about.

    Parameters
    ----------
    dataset : FederatedDataset
    regularizer : Regularizer
        psi.
    """

    #: Whether a run over a graph reports means over its nodes' points, as the paper of the problem does.
    over_nodes: ClassVar[bool] = False

    def __init__(self, dataset: FederatedDataset, regularizer: Regularizer) -> None:
        self.dataset, self.regularizer = dataset, regularizer

    @cached_property
    def clients(self) -> list[Objective]:
        """The losses of all clients: what an experiment's server has, never a deployment's."""
        return self.dataset.objectives()

    @property
    def layout(self) -> Layout:
        """The model's arrays, one of which is ``coefficients``."""
        return self.clients[0].layout

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the start point: zeros."""
        return self.layout.unflatten(np.zeros(self.layout.size))

    @abstractmethod
    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return what is cheap enough for every round: support, rank, distance to the truth.

        Parameters
        ----------
        coefficients : ndarray of float64
            In the shape of the layout's ``coefficients``.
        """

    def validation(self, w: Vector) -> dict[str, float]:
        """Return scores on data that no client has; nothing by default."""
        return {}

    def scores(self, w: Vector, *, full: bool = True) -> dict[str, float]:
        """Return what a round reports.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        full : bool, default True
            Also what needs a pass over the data: the objective, scores on validation data.

        Returns
        -------
        dict of str to float
        """
        entry = self.layout["coefficients"]
        found = self.structure(w[entry.block].reshape(entry.shape))
        if full:
            found["objective"] = self.objective(w)
            found.update(self.validation(w))
        return found

    def objective(self, w: Vector) -> float:
        """Return sum_m p_m F_m(w) + psi(w) with p_m by numbers of examples.

        Least squares with more rows than columns is evaluated through its Gram matrix: a hundred times cheaper, and
        equal to 1e-12 of the largest term.
        """
        if self._gram is None:
            return composite_objective(self.clients, None, self._psi, w)
        return self._gram.value(w) + float(self._psi.value(w))

    @cached_property
    def _psi(self) -> Any:
        return self.regularizer.bind(self.layout)

    @cached_property
    def _gram(self) -> _PooledSquares | None:
        first = self.clients[0]
        if not isinstance(first, LeastSquares | TraceRegression):
            return None
        if sum(client.num_examples for client in self.clients) <= self.layout.size:
            return None
        return _PooledSquares.of(self.clients)

    def certificate(self, w: Vector, clients: list[Objective] | None = None) -> tuple[str, float]:
        """Return a measure of optimality of a point and its name.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        clients : list of Objective, optional
            The pooled problem; all clients by default.

        Returns
        -------
        tuple of str and float
            A duality gap where psi is an l1 norm, else the norm of the proximal gradient mapping.
        """
        pooled = self.clients if clients is None else clients
        if isinstance(self.regularizer, L1):
            least_squares = isinstance(pooled[0], LeastSquares | TraceRegression)
            gap = lasso_duality_gap if least_squares else logistic_duality_gap
            return "duality gap", gap(pooled, None, self.regularizer.strength, w)
        return "proximal gradient mapping", stationarity(pooled, None, self.regularizer, w)


class _PooledSquares(NamedTuple):
    """scale * sum_m p_m mean_i (<x_i, w> + b - y_i)^2 as a quadratic form."""

    gram: NDArray[np.float64]
    linear: Vector
    constant: float

    @classmethod
    def of(cls, clients: list[Objective]) -> _PooledSquares:
        size = clients[0].layout.size
        gram, linear, constant = np.zeros((size, size)), np.zeros(size), 0.0
        for share, client in zip(client_weights(clients), clients, strict=True):
            assert isinstance(client, LeastSquares | TraceRegression)
            weight = float(share) * client.scale / client.num_examples
            rows = client.features.astype(np.float64, copy=False)
            if client.intercept:
                rows = np.column_stack([rows, np.ones(len(rows))])
            gram += weight * (rows.T @ rows)
            linear += weight * (rows.T @ client.targets)
            constant += weight * float(client.targets @ client.targets)
        return cls(gram, linear, constant)

    def value(self, w: Vector) -> float:
        """Return the value at a point."""
        return float(w @ (self.gram @ w) - 2.0 * (self.linear @ w)) + self.constant


class SparseRecovery(Task):
    """A linear model with a known sparse truth.

    Parameters
    ----------
    dataset : SyntheticRegression
    regularizer : Regularizer
    threshold : float, default 1e-2
        Coefficients above it count as non-zero.
    """

    dataset: SyntheticRegression

    def __init__(self, dataset: SyntheticRegression, regularizer: Regularizer, threshold: float = 1e-2) -> None:
        super().__init__(dataset, regularizer)
        self.threshold = threshold

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return precision, recall, F1 and density of the support, and the distance to the truth."""
        truth = self.dataset.coefficients
        precision, recall, f1 = support_scores(coefficients, truth, self.threshold)
        return {
            "precision": precision,
            "recall": recall,
            "f1": f1,
            "density": density(coefficients, self.threshold),
            "recovery-error": recovery_error(coefficients, truth),
        }


class RankRecovery(Task):
    """A linear model on matrices with a known truth of low rank.

    Parameters
    ----------
    dataset : SyntheticRegression
    regularizer : Regularizer
    threshold : float, default 1e-2
        Singular values above it count.
    """

    dataset: SyntheticRegression

    def __init__(self, dataset: SyntheticRegression, regularizer: Regularizer, threshold: float = 1e-2) -> None:
        super().__init__(dataset, regularizer)
        self.threshold = threshold

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the rank and the distance to the truth in the Frobenius norm."""
        # Singular values do not exist beyond the range of floats; a run that is there has diverged anyway.
        finite = bool(np.isfinite(coefficients).all())
        rank = numerical_rank(coefficients, self.threshold) if finite else min(coefficients.shape)
        return {"rank": float(rank), "recovery-error": recovery_error(coefficients, self.dataset.coefficients)}

    @cached_property
    def _held_out(self) -> Objective:
        parts = [self.dataset.held_out(index, 16) for index in range(self.dataset.num_clients)]
        features = np.concatenate([part.features for part in parts])
        targets = np.concatenate([part.targets for part in parts])
        return self.dataset.build_objective(datasets.Samples(features, targets))

    def validation(self, w: Vector) -> dict[str, float]:
        """Return the mean squared error on other examples of the clients."""
        return {"validation-mse": self._held_out.metrics(w)["mse"]}


class Classification(Task):
    """Classification with a test part.

    Parameters
    ----------
    dataset : PartitionedClassification
    regularizer : Regularizer
    threshold : float, default 0.0
        Coefficients above it count as non-zero.
    """

    dataset: PartitionedClassification

    def __init__(self, dataset: PartitionedClassification, regularizer: Regularizer, threshold: float = 0.0) -> None:
        super().__init__(dataset, regularizer)
        self.threshold = threshold

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the density."""
        return {"density": density(coefficients, self.threshold)}

    @cached_property
    def _test(self) -> Logistic | MultinomialLogistic:
        return self.dataset.test_objective()

    def validation(self, w: Vector) -> dict[str, float]:
        """Return accuracy, loss and regularized loss on the test part, and the accuracy in training."""
        metrics = self._test.metrics(w)
        shares = client_weights(self.clients)
        correct = [client.metrics(w)["accuracy"] for client in self.clients]
        return {
            "accuracy": metrics["accuracy"],
            "validation-loss": metrics["loss"],
            "validation-objective": metrics["loss"] + float(self._psi.value(w)),
            "training-accuracy": float(shares @ np.array(correct)),
        }


class ConstrainedClassification(Classification):
    """Classification with a model in a ball around 0.

    Parameters
    ----------
    dataset : PartitionedClassification
    regularizer : Regularizer
        The ball.
    order : {1, 2}
        Of its norm.
    """

    def __init__(self, dataset: PartitionedClassification, regularizer: Regularizer, order: int) -> None:
        super().__init__(dataset, regularizer)
        self.order = order

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the density, and the norm that the ball bounds: it shows from when on the constraint binds."""
        norm = float(np.linalg.norm(coefficients.reshape(-1), self.order))
        return {**super().structure(coefficients), "norm": norm}


class PatternRecovery(Task):
    """Scans of a synthetic brain: how well held-out sessions are classified, and by which voxels.

    Parameters
    ----------
    dataset : SyntheticBrain
    regularizer : Regularizer
    threshold : float, default 1e-4
        Coefficients above it count as non-zero.
    """

    dataset: SyntheticBrain

    def __init__(self, dataset: SyntheticBrain, regularizer: Regularizer, threshold: float = 1e-4) -> None:
        super().__init__(dataset, regularizer)
        self.threshold = threshold

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the density, and the share of the chosen voxels that are inside the pattern."""
        inside = support_scores(coefficients, self.dataset.pattern, self.threshold).precision
        return {"density": density(coefficients, self.threshold), "precision": inside}

    @cached_property
    def _test(self) -> Objective:
        parts = [self.dataset.held_out(index) for index in range(2)]
        features = np.concatenate([part.features for part in parts])
        targets = np.concatenate([part.targets for part in parts])
        return self.dataset.build_objective(datasets.Samples(features, targets))

    def validation(self, w: Vector) -> dict[str, float]:
        """Return accuracy and regularized loss on two sessions that no client has."""
        metrics = self._test.metrics(w)
        return {
            "accuracy": metrics["accuracy"],
            "validation-objective": metrics["loss"] + float(self._psi.value(w)),
        }


class StreamingRecovery(Task):
    """Clients that draw fresh examples, with a sparse optimum of the expected loss that is known exactly.

    Parameters
    ----------
    dataset : SparseGraphProblem
    regularizer : Regularizer
    """

    over_nodes: ClassVar[bool] = True
    dataset: SparseGraphProblem

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the l1 and the Euclidean distance to the optimum without psi, and the expected loss above it."""
        optimum = self.dataset.optimum
        return {
            "l1-error": recovery_error(coefficients, optimum, norm="l1"),
            "recovery-error": recovery_error(coefficients, optimum),
            "gap": self.dataset.gap(coefficients),
        }

    def objective(self, w: Vector) -> float:
        """Return the mean of the clients' expected losses, plus psi."""
        return self.dataset.value(w) + float(self._psi.value(w))

    def certificate(self, w: Vector, clients: list[Objective] | None = None) -> tuple[str, float]:
        """Return the norm of the proximal gradient mapping: an expectation has no dual problem in rows."""
        pooled = self.clients if clients is None else clients
        return "proximal gradient mapping", stationarity(pooled, None, self.regularizer, w)


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
    """

    name: str
    description: str
    load: Callable[..., Task]
    defaults: Mapping[str, int | float | str] = field(default_factory=lambda: MappingProxyType({}))

    def options(self) -> dict[str, Any]:
        """Return the problem's options in kebab-case, with their defaults."""
        given = self.load.keywords if isinstance(self.load, partial) else {}
        parameters = inspect.signature(self.load).parameters.values()
        return {
            p.name.replace("_", "-"): given.get(p.name, p.default)
            for p in parameters
            if p.kind is p.KEYWORD_ONLY and p.name != "variant"
        }


def data_directory(name: str, path: str = "") -> Path:
    """Return where a data set's files are: `path`, else below $FLWR_FCO_DATA, else below ../shared/data.

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
    directory = Path(path) if path else Path(os.environ.get(DATA_VARIABLE, _DEFAULT_DATA)) / name
    if not directory.is_dir():
        raise DataNotFoundError(
            f"{directory} does not exist; expected the data set's directory. Give it by --set path=DIRECTORY, or set "
            f"{DATA_VARIABLE} to the directory in which {name}/ lies."
        )
    return directory


def _lasso(seed: int, *, variant: datasets.Variant, strength: float = 0.2) -> Task:
    return SparseRecovery(datasets.lasso(variant, seed), L1(strength))


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
) -> Task:
    if not 0 < num_ones <= num_features:
        raise ConfigurationError(f"num-ones={num_ones}; expected 1 .. num-features={num_features}")
    truth = (np.arange(num_features) < num_ones).astype(np.float64)
    return SparseRecovery(SyntheticRegression(truth, num_clients, examples_per_client, seed), L1(strength))


def _haxby(seed: int, *, path: str = "", strength: float = 1e-3, num_held_out: int = 2, split: int = -1) -> Task:
    scans = datasets.load_haxby(data_directory("haxby-slice", path))
    splits = list(scans.splits(num_held_out))
    # A seed of its own split: bands over seeds are bands over held-out sessions too.
    chosen = seed % len(splits) if split < 0 else split
    if chosen >= len(splits):
        raise ConfigurationError(f"split={split}; expected 0 .. {len(splits) - 1}, or -1: the seed chooses")
    return Classification(splits[chosen], L1(strength), threshold=1e-4)


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
    balls: dict[str, tuple[Callable[[float], Regularizer], int]] = {"l1": (L1Ball, 1), "l2": (L2Ball, 2)}
    if ball not in balls:
        raise ConfigurationError(f"ball={ball!r}; expected 'l1' or 'l2'")
    if source not in ("files", "openml", "femnist"):
        raise ConfigurationError(f"source={source!r}; expected 'files' (MNIST's, see path), 'openml' or 'femnist'")
    if source == "femnist":
        # A client is a writer: there is nothing to split.
        data = datasets.femnist(num_clients, seed=seed)
    else:
        data = datasets.mnist(
            data_directory("mnist", path) if source == "files" else None,
            num_clients,
            alpha,
            by_label=by_label,
            num_examples=num_examples or None,
            seed=seed,
        )
    kind, order = balls[ball]
    return ConstrainedClassification(data, kind(radius), order)


def _digits(seed: int, *, strength: float = 2e-3, num_clients: int = 10, alpha: float = 0.3) -> Task:
    return Classification(datasets.digits(num_clients, alpha, seed=seed), L1(strength))


def _breast_cancer(seed: int, *, strength: float = 1e-2, num_clients: int = 10, alpha: float = 0.3) -> Task:
    return Classification(datasets.breast_cancer(num_clients, alpha, seed=seed), L1(strength))


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
        seed=seed,
    )
    return StreamingRecovery(data, L1(strength) if strength else Zero())


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
            "fMRI, face against house (needs nibabel and the files): a session a client, l1 norm",
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
    kinds: tuple[Literal["linear", "logistic"], ...] = ("linear", "logistic")
    for kind in kinds:
        about = f"sparse {kind} regression over a graph, fresh examples in every step; 16 clients, no psi by default"
        found.append(Problem(f"sparse-{kind}-graph", about, partial(_sparse_graph, variant=kind), graph))
    return {problem.name: problem for problem in found}


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
        raise ConfigurationError(f"problem={name!r}; expected one of {', '.join(PROBLEMS)}")
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
    return _load(name, seed, tuple(sorted((options or {}).items())))


@lru_cache(maxsize=4)
def _load(name: str, seed: int, options: tuple[tuple[str, Any], ...]) -> Task:
    problem = find_problem(name)
    known = problem.options()
    given: dict[str, Any] = {}
    for key, value in options:
        if key not in known:
            raise ConfigurationError(f"{name} has no option {key!r}; it has {', '.join(known) or 'none'}")
        given[key.replace("-", "_")] = _of_type(key, value, type(known[key]))
    return problem.load(seed, **given)


def _of_type(key: str, value: Any, wanted: type) -> Any:
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not wanted:
        raise ConfigurationError(f"{key}={value!r} is a {type(value).__name__}; expected {wanted.__name__}")
    return value


class BaselineSolution(NamedTuple):
    """What a baseline found.

    Parameters
    ----------
    w : ndarray of float64, shape (layout.size,)
    certificate : str
        Name of the measure of optimality.
    gap : float
        Its value: 0 at the minimiser of the data that the baseline saw.
    """

    w: Vector
    certificate: str
    gap: float


def solve_baseline(task: Task, kind: str, *, client: int = 0, tol: float = 1e-6) -> BaselineSolution:
    """Return the solution without a federation: accelerated proximal gradient on gathered data, with its certificate.

    Parameters
    ----------
    task : Task
    kind : {"centralized", "local"}
        The data of all clients, or of one.
    client : int, default 0
        Which, for ``"local"``.
    tol : float, default 1e-6
        Relative norm of the proximal gradient mapping at which to stop.

    Returns
    -------
    BaselineSolution

    Raises
    ------
    ConfigurationError
        If there is no such kind or client.

    Examples
    --------
    >>> found = solve_baseline(load_task("lasso-small"), "centralized")
    >>> found.certificate, found.gap < 1e-4
    ('duality gap', True)
    """
    if kind == "centralized":
        clients = task.clients
    elif kind == "local":
        clients = [task.dataset.objective(client)]
    else:
        raise ConfigurationError(f"baseline={kind!r}; expected 'centralized' or 'local'")
    w = centralized_solution(clients, task.regularizer, tol=tol)
    name, gap = task.certificate(w, clients)
    return BaselineSolution(w, name, gap)
