"""Tasks: the data of all clients with a regularizer, and the metrics that a round reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from flwr_fco.datasets import FederatedDataset, PartitionedClassification, Samples
from flwr_fco.engines import Minimise, minimise
from flwr_fco.errors import FlwrFcoError
from flwr_fco.objectives import BilinearSaddle, Layout, LeastSquares, Logistic, Objective, TraceRegression, Vector
from flwr_fco.regularizers import L1, L2Squared, Regularizer, Zero
from reproduction import pooled
from reproduction.data.fmri import SyntheticBrain
from reproduction.data.graph import SparseGraphProblem
from reproduction.data.regressions import SyntheticRegression
from reproduction.data.saddle import SyntheticSaddle
from reproduction.data.saddle_objectives import QuadraticSaddle, UniversalAdversarialLogistic, pooled_bilinear
from reproduction.data.samples import together
from reproduction.problems.hinge import Hinge
from reproduction.problems.local_solvers import LOCAL_SOLVERS


@dataclass(eq=False)
class Task(ABC):
    """A problem with its data and options, as used by a run.

    Parameters
    ----------
    dataset : FederatedDataset
    regularizer : Regularizer
        psi.
    """

    dataset: Any
    regularizer: Regularizer

    #: Coefficients, or singular values, above it count as nonzero.
    threshold: ClassVar[float] = 0.0
    #: Whether a run over a graph reports means over its nodes' points, as the paper of the problem does.
    over_nodes: ClassVar[bool] = False
    #: Whether a line also reports the cost of the clients' work so far: gradients, Hessian products, both (passes over
    #: a client's data, the mean of the clients), and this process's CPU seconds without those of the evaluation.
    costs: ClassVar[bool] = False
    #: Whether the clients' losses are convex, so that a baseline can find the minimum and certify it.
    convex: ClassVar[bool] = True

    @cached_property
    def clients(self) -> list[Objective]:
        """The losses of all clients, which the server has in an experiment but never in a deployment."""
        return self.dataset.objectives()  # type: ignore[no-any-return]

    @property
    def layout(self) -> Layout:
        """The model's arrays: ``coefficients`` among them, unless the model is a network or a pair of players."""
        return self.clients[0].layout

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the starting point: zeros."""
        return self.layout.unflatten(np.zeros(self.layout.size))

    @abstractmethod
    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return metrics that are cheap enough for every round: support, rank, distance to the truth.

        Parameters
        ----------
        coefficients : ndarray of float64
            In the shape of the layout's ``coefficients``.
        """

    def scores(self, w: Vector, *, full: bool = True) -> dict[str, float]:
        """Return the metrics of a round.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        full : bool, default True
            Whether to include metrics that need a pass over the data: the objective, scores on validation data.

        Returns
        -------
        dict of str to float
        """
        found = self.structure(self.part(w))
        if full:
            found.update(self.further(w))
        return found

    def part(self, w: Vector) -> NDArray[np.float64]:
        """Return the arrays that :meth:`structure` uses: the coefficients."""
        entry = self.layout["coefficients"]
        return w[entry.block].reshape(entry.shape)

    def further(self, w: Vector) -> dict[str, float]:
        """Return metrics that need a pass over the data: the objective; of some also scores on data of no client."""
        return {"objective": self.objective(w)}

    def objective(self, w: Vector) -> float:
        """Return sum_m p_m F_m(w) + psi(w) with p_m by numbers of examples.

        Least squares with more rows than columns is evaluated through its Gram matrix: a hundred times cheaper, and
        equal to 1e-12 of the largest term.
        """
        few = sum(client.num_examples for client in self.clients) <= self.layout.size
        if few or not isinstance(self.clients[0], LeastSquares | TraceRegression):
            return pooled.composite_objective(self.clients, None, self._psi, w)
        gram, linear, constant = self._squares
        return float(w @ (gram @ w) - 2.0 * (linear @ w)) + constant + float(self._psi.value(w))

    @cached_property
    def _test(self) -> Objective:
        return self.dataset.test_objective()  # type: ignore[no-any-return]

    @cached_property
    def _psi(self) -> Any:
        return self.regularizer.bind(self.layout)

    @cached_property
    def _squares(self) -> tuple[NDArray[np.float64], Vector, float]:
        """The quadratic form of scale * sum_m p_m mean_i (<x_i, w> + b - y_i)^2."""
        size = self.layout.size
        gram = np.zeros((size, size))
        linear = np.zeros(size)
        constant = 0.0
        for share, client in zip(pooled.client_weights(self.clients), self.clients, strict=True):
            assert isinstance(client, LeastSquares | TraceRegression)
            weight = float(share) * client.scale / client.num_examples
            rows = client.features.astype(np.float64, copy=False)
            if client.intercept:
                rows = _with_ones(rows)
            gram += weight * (rows.T @ rows)
            linear += weight * (rows.T @ client.targets)
            constant += weight * float(client.targets @ client.targets)
        return gram, linear, constant

    def certificate(self, w: Vector, clients: list[Objective]) -> tuple[str, float]:
        """Return a measure of optimality of a point and its name.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        clients : list of Objective
            The pooled problem.

        Returns
        -------
        tuple of str and float
            A duality gap where psi is an l1 norm, else the norm of the proximal gradient mapping.
        """
        if isinstance(self.regularizer, L1):
            found = pooled.certify(clients, None, self.regularizer, w)
            if found.kind == "duality-gap":
                return "duality gap", found.value
        return "proximal gradient mapping", pooled.stationarity(clients, None, self.regularizer, w)

    def mean(self, values: Iterable[float]) -> float:
        """Return the mean of a number of each client, weighted by its number of examples."""
        return float(pooled.client_weights(self.clients) @ np.array(list(values)))


class SparseRecovery(Task):
    """A linear model with a known sparse truth.

    Parameters
    ----------
    dataset : SyntheticRegression
    regularizer : Regularizer
    threshold : float, default 1e-2
    """

    dataset: SyntheticRegression
    threshold = 1e-2

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return precision, recall, F1 and density of the support, and the distance to the truth."""
        truth = self.dataset.coefficients
        return {
            **pooled.support_scores(coefficients, truth, self.threshold)._asdict(),
            "density": pooled.density(coefficients, self.threshold),
            "recovery-error": pooled.recovery_error(coefficients, truth),
        }


class RankRecovery(Task):
    """A linear model on matrices with a known truth of low rank.

    Parameters
    ----------
    dataset : SyntheticRegression
    regularizer : Regularizer
    threshold : float, default 1e-2
        Singular values above it count as nonzero.
    """

    dataset: SyntheticRegression
    threshold = 1e-2

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the rank and the distance to the truth in the Frobenius norm."""
        # Singular values cannot be computed beyond the range of floats; such a run has diverged anyway.
        finite = bool(np.isfinite(coefficients).all())
        rank = pooled.numerical_rank(coefficients, self.threshold) if finite else min(coefficients.shape)
        return {"rank": float(rank), "recovery-error": pooled.recovery_error(coefficients, self.dataset.coefficients)}

    @cached_property
    def _held_out(self) -> Objective:
        parts = (self.dataset.held_out(index, 16) for index in range(self.dataset.num_clients))
        return self.dataset.build_objective(together(parts))

    def further(self, w: Vector) -> dict[str, float]:
        """Return also the mean squared error on other examples of the clients."""
        return {**super().further(w), "validation-mse": self._held_out.metrics(w)["mse"]}


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

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the density."""
        return {"density": pooled.density(coefficients, self.threshold)}

    def further(self, w: Vector) -> dict[str, float]:
        """Return also accuracy, loss and regularized loss on the test part, and the accuracy in training."""
        metrics = self._test.metrics(w)
        return {
            **super().further(w),
            "accuracy": metrics["accuracy"],
            "validation-loss": metrics["loss"],
            "validation-objective": metrics["loss"] + float(self._psi.value(w)),
            "training-accuracy": self.mean(client.metrics(w)["accuracy"] for client in self.clients),
        }


class Scans(Classification):
    """Classification of scans, of whose maps a coefficient above 1e-4 counts as nonzero."""

    threshold = 1e-4


@dataclass(eq=False)
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

    order: int

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the density, and the norm that the ball bounds: it shows from when on the constraint binds."""
        norm = float(np.linalg.norm(coefficients.reshape(-1), self.order))
        return {**super().structure(coefficients), "norm": norm}


class PatternRecovery(Task):
    """Scans of a synthetic brain: accuracy on held-out sessions, and recovery of the relevant voxels.

    Parameters
    ----------
    dataset : SyntheticBrain
    regularizer : Regularizer
    threshold : float, default 1e-4
        Coefficients above it count as non-zero.
    """

    dataset: SyntheticBrain
    threshold = 1e-4

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the density, and the share of the chosen voxels that are inside the pattern."""
        inside = pooled.support_scores(coefficients, self.dataset.pattern, self.threshold).precision
        return {"density": pooled.density(coefficients, self.threshold), "precision": inside}

    @cached_property
    def _test(self) -> Objective:
        return self.dataset.build_objective(together(self.dataset.held_out(index) for index in range(2)))

    def further(self, w: Vector) -> dict[str, float]:
        """Return also accuracy and regularized loss on two sessions that no client has."""
        accuracy, loss = (self._test.metrics(w)[name] for name in ("accuracy", "loss"))
        return {**super().further(w), "accuracy": accuracy, "validation-objective": loss + float(self._psi.value(w))}


class PooledMinimum(Task):
    """A smooth strongly convex problem whose pooled minimiser a method should reach to full precision.

    Logistic regression with two or more classes. A column of ones is the intercept, and the l2 term acts on it like on
    all other parameters.

    Parameters
    ----------
    dataset : FederatedDataset
    l2 : float
        mu: the modulus of strong convexity of every client's loss.
    l2_as_psi : bool, default False
        Whether the l2 term is psi instead of part of the clients' losses.
    local_solver : str, optional
        One of the :data:`~reproduction.problems.local_solvers.LOCAL_SOLVERS`; by default the library's.
    """

    dataset: FederatedDataset
    costs: ClassVar[bool] = True
    #: How the reference is found.
    exact: ClassVar[Minimise] = Minimise(tolerance=1e-12)

    def __init__(self, dataset: FederatedDataset, l2: float, l2_as_psi: bool = False, local_solver: str = "") -> None:
        super().__init__(dataset, L2Squared(l2) if l2_as_psi else Zero())
        self.l2 = l2
        self.l2_as_psi = l2_as_psi
        self.local_solver = local_solver

    @cached_property
    def clients(self) -> list[Objective]:
        """The losses of all clients."""
        l2 = 0.0 if self.l2_as_psi else self.l2
        losses = [self._objective(self.dataset.client(index), l2) for index in range(self.dataset.num_clients)]
        if self.local_solver:
            for loss in losses:
                loss.minimiser = partial(LOCAL_SOLVERS[self.local_solver], loss)
        return losses

    def _objective(self, examples: Samples, l2: float) -> Objective:
        with_ones = Samples(_with_ones(examples.features), examples.targets)
        return self.dataset.build_objective(with_ones, l2=l2, intercept=False)

    @cached_property
    def reference(self) -> tuple[Vector, float]:
        """The pooled minimiser and its value, certified to 1e-12: by the gradient's norm, or a gap without gradients.

        Raises
        ------
        FlwrFcoError
            If it is not as good as that.
        """
        parts = (self.dataset.client(index) for index in range(self.dataset.num_clients))
        found = minimise(self._objective(together(parts), self.l2), self.exact)
        wrong = found.gap if self.exact.rule == "gap" else found.gradient_norm
        if not wrong <= self.exact.tolerance:
            raise FlwrFcoError(f"the reference solution is known to {wrong:.2e} only; expected 1e-12. Give a larger l2")
        return found.point, self._value_and_norm(found.point)[0]

    def scores(self, w: Vector, *, full: bool = True) -> dict[str, float]:
        """Return the relative energy error (E - E*) / E*, the distance to the minimiser, and the gradient's norm.

        Parameters
        ----------
        w : ndarray of float64, shape (layout.size,)
        full : bool, default True
            Also the objective.

        Returns
        -------
        dict of str to float
        """
        solution, least = self.reference
        value, norm = self._value_and_norm(w)
        # A difference of two values is uncertain by their rounding; a logarithmic axis needs more than 0.
        error = max((value - least) / abs(least), 1e-17)
        found = {"energy-error": float(error), "distance": float(np.linalg.norm(w - solution))}
        if norm is not None:
            found["gradient-norm"] = norm
        if full:
            found["objective"] = value
        return found

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return :meth:`scores` without the objective."""
        return self.scores(coefficients.reshape(-1), full=False)

    def _value_and_norm(self, w: Vector) -> tuple[float, float | None]:
        """Return E and the norm of its gradient, in one pass over the data."""
        total = 0.0
        slope = np.zeros(w.size)
        for share, client in zip(pooled.client_weights(self.clients), self.clients, strict=True):
            value, gradient = client.value_and_gradient(w)
            total += float(share) * value
            slope += float(share) * gradient
        if self.l2_as_psi:
            total = total + float(self._psi.value(w))
            slope = slope + self.l2 * w
        return total, float(np.linalg.norm(slope))


@dataclass(frozen=True)
class NoisyLabels(FederatedDataset):
    """Logistic regression with labels drawn from the model, so that no hyperplane separates them.

    Parameters
    ----------
    num_clients : int
    num_examples : int
        Of each client.
    num_features : int
        Every client's features are shifted by a client-specific vector.
    seed : int
    """

    num_clients: int
    num_examples: int
    num_features: int
    seed: int

    def client(self, index: int) -> Samples:
        """Return the examples of a client."""
        self._check_index(index)
        rng = np.random.default_rng((self.seed, index))
        features = rng.standard_normal((self.num_examples, self.num_features)) + rng.standard_normal(self.num_features)
        truth = np.linspace(-1.0, 1.0, self.num_features)
        labels = (features @ truth + rng.logistic(size=self.num_examples) > 0.0).astype(np.int64)
        return Samples(features, labels)

    def build_objective(self, examples: Samples, **options: Any) -> Logistic:
        """Return the logistic loss."""
        return Logistic(examples.features, examples.targets, **options)


class NonsmoothMinimum(PooledMinimum):
    """Support vector machines, hinge loss plus l2 term: strongly convex but not smooth.

    Parameters
    ----------
    dataset : FederatedDataset
    l2 : float
    """

    exact = Minimise(1e-12, "gap", 1_000_000)

    def _objective(self, examples: Samples, l2: float) -> Objective:
        return Hinge(_with_ones(examples.features), examples.targets, l2=l2)

    def _value_and_norm(self, w: Vector) -> tuple[float, float | None]:
        """Return only E: at its minimiser a subgradient may have any norm."""
        return self.objective(w), None


def _with_ones(features: NDArray[Any]) -> NDArray[Any]:
    """Return the features with a column of ones."""
    return np.column_stack([features, np.ones(len(features), dtype=features.dtype)])


class StreamingRecovery(Task):
    """Clients that draw fresh examples; the sparse optimum of the expected loss is known exactly.

    Parameters
    ----------
    dataset : SparseGraphProblem
    regularizer : Regularizer
    """

    over_nodes: ClassVar[bool] = True
    dataset: SparseGraphProblem

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the l1 and the Euclidean distance to the optimum without psi, and the expected loss above it.

        ``support-recovery`` is the share of the optimum's support among the model's largest entries, as many as it has.
        """
        optimum = self.dataset.optimum
        support = np.flatnonzero(optimum)
        largest = np.argpartition(np.abs(coefficients), -support.size)[-support.size :]
        return {
            "l1-error": pooled.recovery_error(coefficients, optimum, norm="l1"),
            "recovery-error": pooled.recovery_error(coefficients, optimum),
            "gap": self.dataset.gap(coefficients),
            "support-recovery": float(np.isin(largest, support).mean()),
        }

    def objective(self, w: Vector) -> float:
        """Return the mean of the clients' expected losses, plus psi."""
        return self.dataset.value(w) + float(self._psi.value(w))

    def certificate(self, w: Vector, clients: list[Objective]) -> tuple[str, float]:
        """Return the norm of the proximal gradient mapping: an expected loss has no dual problem over examples."""
        return "proximal gradient mapping", pooled.stationarity(clients, None, self.regularizer, w)


@dataclass(eq=False)
class BilinearGame(Task):
    """A saddle-point problem: the duality gap in closed form, and the structure of both players, which is all cheap.

    Parameters
    ----------
    dataset : SyntheticSaddle
        ``"sparse"`` or ``"low-rank"``.
    regularizer : Regularizer
        psi, the sum of the players' own convex functions.
    start : {"uniform", "projected", "zero"}
        The data set's random start point, its projection onto psi's constraints, or 0.
    start_seed : int
        Seed of the random starting point.
    """

    dataset: SyntheticSaddle
    start: str = "uniform"
    start_seed: int = 0

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the start point."""
        if self.start == "zero":
            return super().initial_arrays()
        arrays = self.dataset.start(self.start_seed)
        if self.start == "projected":
            # A constraint's prox is its projection for any step, and with step 0 only constraints remain.
            arrays = self.layout.unflatten(self._psi.prox(self.layout.flatten(arrays), 0.0))
        return arrays

    def scores(self, w: Vector, *, full: bool = True) -> dict[str, float]:
        """Return the structure of both players."""
        return self.structure(w)

    @cached_property
    def _pooled(self) -> Any:
        # The mean of bilinear functions is bilinear: an evaluation costs one product, not one per client.
        clients: Any = self.clients
        return pooled_bilinear(clients, pooled.client_weights(clients))

    @cached_property
    def _diameter(self) -> float:
        """The largest 1/2 ||z - z_0||^2 over the box, B in the paper's theorems."""
        start = self.layout.flatten(self.initial_arrays())
        return 0.5 * float(((self.dataset.bound + np.abs(start)) ** 2).sum())

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return gap, residual, densities and ranks, and for vectors in a box ``diameter``, the theorems' B.

        Outside the constraints the gap is infinite.

        Parameters
        ----------
        coefficients : ndarray of float64
            Both players, the flat vector.
        """
        found = pooled.saddle_metrics([self._pooled], None, self.regularizer, coefficients)
        return found if self.dataset.kind == "low-rank" else {**found, "diameter": self._diameter}


class SimplexGame(BilinearGame):
    """A matrix game on two simplices, from the uniform distributions.

    Parameters
    ----------
    dataset : SyntheticSaddle
        ``"game"``.
    regularizer : Regularizer
        The two simplices.
    """

    @cached_property
    def _pooled(self) -> Any:
        # Clients differ in pairs around the matrix of the data set, their mean.
        return BilinearSaddle(self.dataset.matrix.T)

    @cached_property
    def _diameter(self) -> float:
        """The theorems' B with entropies: log(rows) + log(columns)."""
        return float(np.log([self.dataset.rows, self.dataset.columns]).sum())


class QuadraticGame(BilinearGame):
    """Strongly convex-concave quadratics without psi, with a known saddle point, to show the effect of unequal clients.

    Parameters
    ----------
    dataset : SyntheticSaddle
        ``"quadratic"``.
    """

    @cached_property
    def _pooled(self) -> Any:
        clients: Any = self.clients
        return QuadraticSaddle.pooled(clients, pooled.client_weights(clients))

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the duality gap and the Euclidean distance to the saddle point.

        Parameters
        ----------
        coefficients : ndarray of float64
            Both players, the flat vector.
        """
        distance = float(np.linalg.norm(coefficients - self._pooled.solution))
        return {"gap": pooled.duality_gap([self._pooled], None, self.regularizer, coefficients), "distance": distance}


@dataclass(eq=False)
class AdversarialTraining(Task):
    """A classifier against one perturbation of all images: losses, accuracies with and without it, and its structure.

    Parameters
    ----------
    dataset : reproduction.data.saddle.AdversarialImages
        Images for a linear classifier or for a network.
    regularizer : Regularizer
        psi of the perturbation.
    start : float
        D: the perturbation starts at random in [-D, D].
    start_seed : int
        Of the start point.
    """

    threshold = 1e-5
    start: float
    start_seed: int

    def initial_arrays(self) -> dict[str, NDArray[Any]]:
        """Return a classifier of zeros and a random perturbation in the box.

        For a classifier of zeros all perturbations have the same loss, so a perturbation of 0 would stay 0 in the first
        step.
        """
        arrays = super().initial_arrays()
        drawn = np.random.default_rng(self.start_seed).uniform(-self.start, self.start, arrays["perturbation"].shape)
        return {**arrays, "perturbation": drawn}

    def structure(self, coefficients: NDArray[np.float64]) -> dict[str, float]:
        """Return the density and the mean absolute value of the perturbation.

        Parameters
        ----------
        coefficients : ndarray of float64
            The perturbation.
        """
        size = float(np.abs(coefficients).mean())
        return {"density": pooled.density(coefficients, self.threshold), "attack-size": size}

    def part(self, w: Vector) -> NDArray[np.float64]:
        """Return the perturbation."""
        return self.layout.views(w)["perturbation"]

    def further(self, w: Vector) -> dict[str, float]:
        """Return losses and accuracies.

        ``training-loss`` is the mean over all clients' perturbed images. On the test images there are ``accuracy`` and
        ``loss`` without the perturbation, ``attacked-accuracy`` and ``attacked-loss`` with it; for linear classifiers
        also ``hardened-accuracy``: under the worst perturbation in the box, without its price (a network's loss is not
        convex in the perturbation, so the worst one is unknown).
        """
        found = {"training-loss": self.mean(client.value(w) for client in self.clients)}
        metrics = self._test.metrics(w)
        for name in ("accuracy", "loss"):
            found |= {name: metrics[f"clean-{name}"], f"attacked-{name}": metrics[name]}
        if isinstance(self._test, UniversalAdversarialLogistic):
            strongest = pooled.strongest_perturbation(self._test, w, self.start)
            found["hardened-accuracy"] = self._test.metrics(strongest)["accuracy"]
        return found
