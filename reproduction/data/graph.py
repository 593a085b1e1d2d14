"""The sparse regressions over a graph of Liang, Peng, Zhang (section 7, D.1.3): clients that differ, a sparse optimum.

Every client has a dense model; the common part of these models is sparse. Clients draw new examples for every local
step (streaming), so the losses are expectations. These have a closed form, so the optimum and the gap are exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

from flwr_fco.datasets import FederatedDataset, Samples
from flwr_fco.engines import FirstOrder
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Batch, Layout, LeastSquares, Logistic, Objective, Vector
from reproduction.data.draws import add_drawn_linear_gradient, add_drawn_logistic_gradient
from reproduction.data.samples import check_sizes, check_whole, stream

# Purpose of a stream of random numbers: the first number of its key.
_TRUTH = 0
_EFFECT = 1
_CLIENT = 2
#: Gauss-Hermite nodes for expectations over one normal variable, in the standard normal's scale.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(201)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()
#: sigmoid' at the nodes of a trapezoidal rule, whose error is far below rounding for this analytic function.
_POINTS = np.arange(-40.0, 40.25, 0.25)
_SLOPES = expit(_POINTS) * expit(-_POINTS)


def _mean_slope(spread: float) -> float:
    """Return E[sigmoid'(spread t)], t ~ N(0, 1)."""
    if spread <= 1.0:
        return float(_WEIGHTS @ (expit(spread * _NODES) * expit(-spread * _NODES)))
    # Substitute u = spread t: with a wide density, nodes for t would miss sigmoid', which has a width of about one.
    density = np.exp(-0.5 * (_POINTS / spread) ** 2) / (spread * np.sqrt(2.0 * np.pi))
    return float(0.25 * (_SLOPES @ density))


@dataclass(frozen=True, eq=False)
class SparseGraphProblem(FederatedDataset):
    """Linear or logistic regression whose clients have dense models with a sparse common optimum.

    The paper does not state the size of its models; the sizes here are from the authors' public code. The common model
    has the values sign (|N(0, 1)| + 1) scale in the first `sparsity` coordinates and 0 elsewhere.

    Below, `own_m` (or `own`) is the model of client m, from which its examples are drawn.

    Linear: x = (1, N(0, I)), y = <x, own> + N(0, noise^2), loss 1/2 (y - <x, w>)^2. own_m is the common model plus an
    effect: N(0, spread^2) on the support, (Dirichlet(1, .., 1) - 1/M) spread off it. The effects off the support sum to
    0 over the clients, so the optimum w*, the mean of the clients' models, is sparse. The gap is 1/2 ||w - w*||^2.

    Logistic: x = N(0, I), P(y = 1) = sigmoid(<x, own>). The own_m come in pairs (alpha_i, beta_i), (alpha_i, -beta_i)
    with alpha_i = common + N(0, spread^2) on the support and beta_i = N(0, spread^2) elsewhere. With kappa(n) = E
    sigmoid'(n t) (Stein's identity) the mean gradient is w kappa(||w||) - mean_m own_m kappa(||own_m||), so the optimum
    is sparse and found by one root find.

    Parameters
    ----------
    kind : {"linear", "logistic"}
        The regression.
    num_clients : int, default 16
        M; even for the logistic problem.
    dimension : int, default 1024
        d.
    sparsity : int, default 16
        s, non-zero coordinates of the optimum.
    scale : float, default 5.0
        Scale of the common model's coordinates. The default gives the dual of the linear optimum a norm of about 1,300
        for p = 12, as in the authors' experiment.
    spread : float, default 5.0
        Scale of the clients' effects.
    noise : float, default 1.0
        Standard deviation of the noise; linear only.
    sampling : {"examples", "gradients"}, default "examples"
        How a minibatch's gradient is drawn. ``"gradients"`` draws it from its exact distribution, with d normal numbers
        instead of d per example, which makes a run several times faster. See :class:`StreamingObjective`.
    truncation : float, default 0.0
        Only for the linear problem with ``"examples"``: truncate the normal covariates at this many standard deviations
        and rescale them to variance 1, which does not change the optimum or the gap. 0: no truncation, as in the
        experiments.
    examples_per_client : int, default 100
        The number of examples in an epoch, and of rows in :meth:`client`.
    seed : int, default 0
        Seed of the problem.

    Raises
    ------
    ConfigurationError
        If a number is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> problem = SparseGraphProblem("linear", num_clients=4, dimension=20, sparsity=3)
    >>> int(np.count_nonzero(problem.optimum)), problem.gap(problem.optimum)
    (3, 0.0)
    >>> bool(np.count_nonzero(problem.models[0]) == 20)
    True
    """

    kind: Literal["linear", "logistic"]
    num_clients: int = 16
    dimension: int = 1024
    sparsity: int = 16
    scale: float = 5.0
    spread: float = 5.0
    noise: float = 1.0
    sampling: Literal["examples", "gradients"] = "examples"
    truncation: float = 0.0
    examples_per_client: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "num_clients", "dimension", "sparsity", "examples_per_client")
        if self.sparsity > self.dimension:
            raise ConfigurationError(f"sparsity={self.sparsity} is above dimension={self.dimension}")
        if self.kind == "logistic" and self.num_clients % 2:
            raise ConfigurationError(f"num_clients={self.num_clients}; the logistic problem has clients in pairs: even")
        if self.truncation and (self.kind != "linear" or self.sampling != "examples"):
            raise ConfigurationError(
                f"truncation={self.truncation!r} with kind={self.kind!r} and sampling={self.sampling!r}; expected 0, "
                "or linear and examples: gradients are drawn for normal covariates"
            )
        check_sizes(self, "spread", "noise", "truncation")
        check_sizes(self, "scale", positive=True)

    @cached_property
    def layout(self) -> Layout:
        """The model's layout: one array, ``coefficients``."""
        return Layout.from_arrays({"coefficients": np.empty(self.dimension)})

    @cached_property
    def models(self) -> NDArray[np.float64]:
        """The models of all clients, shape (M, d)."""
        effects = stream(self.seed, _EFFECT)
        common = stream(self.seed, _TRUTH).standard_normal(self.sparsity)
        common = self.scale * np.copysign(np.abs(common) + 1.0, common)
        groups = self.num_clients
        outside = self.dimension - self.sparsity
        if self.kind == "linear":
            on_support = common + self.spread * effects.standard_normal((groups, self.sparsity))
            shares = effects.dirichlet(np.ones(groups), outside).T
            return np.hstack([on_support, self.spread * (shares - 1.0 / groups)])
        alpha = common + self.spread * effects.standard_normal((groups // 2, self.sparsity))
        beta = self.spread * effects.standard_normal((groups // 2, outside))
        # Pairs are consecutive: client 2i has beta_i, client 2i + 1 has -beta_i.
        model = np.repeat(np.hstack([alpha, beta]), 2, axis=0)
        model[1::2, self.sparsity :] *= -1.0
        return model

    @cached_property
    def optimum(self) -> Vector:
        """The minimiser w* of the mean of the clients' expected losses."""
        from scipy.optimize import brentq

        optimum = np.zeros(self.dimension)
        if self.kind == "linear":
            # Off the support the effects sum to 0 only up to rounding; the exact value is 0.
            optimum[: self.sparsity] = self.models[:, : self.sparsity].mean(axis=0)
            return optimum
        pull = self._pull[: self.sparsity]
        size = float(np.linalg.norm(pull))
        length = brentq(lambda n: n * _mean_slope(n) - size, 0.0, 1e3 + 10.0 * self.scale, xtol=1e-14)
        optimum[: self.sparsity] = pull * (length / size)
        return optimum

    @cached_property
    def _pull(self) -> Vector:
        """mean_m own_m kappa(||own_m||): minus the mean gradient of the logistic losses at 0."""
        slopes = [_mean_slope(float(np.linalg.norm(model))) for model in self.models]
        return np.asarray(np.mean(self.models * np.array(slopes)[:, None], axis=0))

    def value(self, w: Vector) -> float:
        """Return the mean of the clients' expected losses at a point of shape (d,)."""
        if self.kind == "linear":
            return 0.5 * (self.noise**2 + float(((self.models - w) ** 2).sum()) / self.num_clients)
        softplus = float(_WEIGHTS @ np.logaddexp(0.0, float(np.linalg.norm(w)) * _NODES))
        return softplus - float(w @ self._pull)

    def gap(self, w: Vector) -> float:
        """Return the optimality gap of a point of shape (d,): exactly 1/2 ||w - w*||^2 for the linear problem."""
        if self.kind == "linear":
            difference = w - self.optimum
            return 0.5 * float(difference @ difference)
        return self.value(w) - self.value(self.optimum)

    def draw(self, index: int, rng: np.random.Generator, count: int) -> Samples:
        """Return new examples of a client.

        Parameters
        ----------
        index : int
            0 .. num_clients - 1.
        rng : numpy.random.Generator
            Draws the examples.
        count : int
            Number of examples.

        Returns
        -------
        Samples
            Targets are real numbers (linear), or -1 and +1 (logistic).
        """
        features = self._covariates(rng, count)
        if self.kind == "linear":
            features[:, 0] = 1.0
            return Samples(features, features @ self.models[index] + self.noise * rng.standard_normal(count))
        hit = rng.random(count) < expit(features @ self.models[index])
        return Samples(features, np.where(hit, 1.0, -1.0))

    def _covariates(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        if not self.truncation:
            return rng.standard_normal((count, self.dimension))
        inside = 2.0 * float(ndtr(self.truncation)) - 1.0
        density = float(np.exp(-0.5 * self.truncation**2) / np.sqrt(2.0 * np.pi))
        deviation = np.sqrt(1.0 - 2.0 * self.truncation * density / inside)
        return np.asarray(ndtri(0.5 + inside * (rng.random((count, self.dimension)) - 0.5)) / deviation)

    def gradient_deviation(self, batch_size: int | None) -> float:
        """Return the largest standard deviation of an entry of a minibatch's gradient at 0; linear only.

        Parameters
        ----------
        batch_size : int or None
            None for the exact gradient, without noise.

        Examples
        --------
        >>> SparseGraphProblem("linear", num_clients=4, dimension=20, sparsity=3).gradient_deviation(None)
        0.0
        """
        if self.kind != "linear":
            raise ConfigurationError(f"kind={self.kind!r}; expected 'linear'")
        if batch_size is None:
            return 0.0
        # The variance of <x, v> x_j with x = (1, normal), v = -own is ||v||^2 + v_j^2.
        squares = self.models**2
        largest = squares.sum(axis=1) + squares[:, 1:].max(axis=1, initial=0.0)
        return float(np.sqrt((largest + self.noise**2).max() / batch_size))

    def client(self, index: int) -> Samples:
        """Return `examples_per_client` examples of a client, always the same."""
        self._check_index(index)
        return self.draw(index, stream(self.seed, _CLIENT, index), self.examples_per_client)

    def build_objective(self, examples: Samples, **options: Any) -> Objective:
        """Return the objective on given examples: ``LeastSquares`` or ``Logistic`` without an intercept."""
        if self.kind == "linear":
            return LeastSquares(*examples, **{"scale": 0.5, "intercept": False, **options})
        return Logistic(*examples, **{"intercept": False, **options})

    def objective(self, index: int, **options: Any) -> Objective:
        """Return a client's streaming objective, which has no options.

        On a fixed sample, the objective is `build_objective(client(index))`.
        """
        self._check_index(index)
        if options:
            raise ConfigurationError(f"a streaming objective has no options, got {sorted(options)}")
        return StreamingObjective(self, index)


def batch_sizes(num_examples: int, work: FirstOrder, per_step: int = 1) -> list[int]:
    """Return the sizes of a round's batches.

    Examples
    --------
    >>> batch_sizes(5, FirstOrder(steps=4, batch_size=2))
    [2, 2, 1, 2]
    """
    assert work.batch_size is not None
    count, rest = divmod(num_examples, work.batch_size)
    epoch = [work.batch_size] * count + [rest] * (rest > 0)
    draws = work.num_draws(num_examples, per_step)
    return (epoch * -(-draws // len(epoch)))[:draws]


class _Draw(NamedTuple):
    """The random numbers of a minibatch's gradient: two per row in the margins' plane, one extra, and all others."""

    inside: NDArray[np.float64]
    extra: Vector
    outside: NDArray[np.float32]


class StreamingObjective(Objective):
    """A client's expected loss; a batch is a draw of new examples from the round's generator.

    ``value`` and ``gradient`` without a batch are expectations, in closed form.

    With ``sampling="gradients"`` no examples are generated. A row's loss depends on x only through its products with
    one or two vectors (w - own; or own and w), and the component of a normal x orthogonal to these vectors is
    independent of the products. So, given the rows' derivatives c_i, the part of the gradient sum_i c_i x_i / b outside
    the plane of these vectors is one normal vector times sqrt(sum_i c_i^2) / b. The gradient has the same distribution
    as with examples, and is a function of w and of the numbers drawn by :meth:`batches`.

    Parameters
    ----------
    problem : SparseGraphProblem
        The problem.
    index : int
        Number of the client.

    Examples
    --------
    >>> import numpy as np
    >>> problem = SparseGraphProblem("linear", num_clients=4, dimension=20, sparsity=3)
    >>> objective = problem.objective(1)
    >>> bool(np.allclose(objective.gradient(problem.models[1]), 0.0))
    True
    """

    def __init__(self, problem: SparseGraphProblem, index: int) -> None:
        self.problem = problem
        self.index = index
        self.layout = problem.layout
        self.num_examples = problem.examples_per_client
        self._model: Vector = problem.models[index]

    @cached_property
    def _pull(self) -> Vector:
        return self._model * _mean_slope(float(np.linalg.norm(self._model)))

    @cached_property
    def _direction(self) -> tuple[Vector, float]:
        size = float(np.linalg.norm(self._model))
        return self._model / size, size

    def value(self, w: Vector) -> float:
        """Return the expected loss."""
        if self.problem.kind == "linear":
            difference = w - self._model
            return 0.5 * (self.problem.noise**2 + float(difference @ difference))
        softplus = float(_WEIGHTS @ np.logaddexp(0.0, float(np.linalg.norm(w)) * _NODES))
        return softplus - float(w @ self._pull)

    def lipschitz(self, norm: str = "l2") -> float:
        """Return the largest curvature of the expected loss in either norm: 1 (linear) or 1/4 (logistic)."""
        return 1.0 if self.problem.kind == "linear" else 0.25

    def add_gradient(self, w: Vector, batch: Batch, scale: float, out: Vector) -> None:
        """Add scale times the gradient of the expected loss, or of the mean over a batch, to `out` in place."""
        if batch is None:
            if self.problem.kind == "linear":
                out += scale * (w - self._model)
            else:
                out += scale * (w * _mean_slope(float(np.linalg.norm(w))) - self._pull)
        elif self.problem.sampling == "gradients":
            if self.problem.kind == "linear":
                along = batch.inside[:, 0]
                noise = self.problem.noise
                add_drawn_linear_gradient(along, batch.extra, batch.outside, w, self._model, noise, scale, out)
            else:
                first, size = self._direction
                add_drawn_logistic_gradient(batch.inside, batch.extra, batch.outside, w, first, size, scale, out)
        else:
            examples, rows = batch
            # Row by row: a pass over all examples at once would add them in another order.
            examples.add_gradient(w, rows, scale, out)

    def gradient(self, w: Vector, batch: Batch = None, out: Vector | None = None) -> Vector:
        """Return the gradient of the expected loss, or of the mean over a batch."""
        found = np.zeros(w.size) if out is None else out
        found[:] = 0.0
        self.add_gradient(w, batch, 1.0, found)
        return found

    def batches(self, rng: np.random.Generator, work: FirstOrder, per_step: int = 1) -> Iterator[Batch]:
        """Yield the loss on new examples and its rows, or a gradient's random numbers, for each batch; or None."""
        if work.batch_size is None:
            yield from super().batches(rng, work, per_step)
            return
        sizes = batch_sizes(self.num_examples, work, per_step)
        if self.problem.sampling == "gradients":
            for size in sizes:
                extra = rng.standard_normal(size) if self.problem.kind == "linear" else rng.random(size)
                # Noise in single precision, because drawing it takes half of a step's time.
                outside = rng.standard_normal(self.problem.dimension, dtype=np.float32)
                yield _Draw(rng.standard_normal((size, 2)), extra, outside)
            return
        # Draw the whole round's examples at once: reproducing a run bit for bit requires this order in the stream.
        examples = self.problem.build_objective(self.problem.draw(self.index, rng, sum(sizes)))
        for end, size in zip(np.cumsum(sizes), sizes, strict=True):
            yield examples, np.arange(end - size, end)

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return the expected loss and the problem's optimality gap."""
        return {"loss": self.value(w), "gap": self.problem.gap(w)}
