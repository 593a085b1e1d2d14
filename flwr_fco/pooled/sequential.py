"""Dual extrapolation on one machine, without Flower, with the same steps as FeDualEx's clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector, all_finite
from flwr_fco.core.validation import checked
from flwr_fco.engines.client import pairs
from flwr_fco.engines.extragradient import extrapolations
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean, MirrorMap
from flwr_fco.objectives.base import Objective
from flwr_fco.regularizers import Regularizer, Zero
from flwr_fco.regularizers.base import Proximable
from flwr_fco.work import FirstOrder

__all__ = ["Extrapolation", "dual_extrapolation"]

Operator = Callable[[Vector], Vector]


class Extrapolation(NamedTuple):
    """Result of dual extrapolation.

    Parameters
    ----------
    last : ndarray of float64, shape (d,)
        z_T = retrieve(omega_T, step_size T).
    ergodic : ndarray of float64, shape (d,)
        The mean of the half steps z_{t+1/2}, t < T, to which the theorems apply.
    dual : ndarray of float64, shape (d,)
        omega_T.
    elapsed : float
        step_size T.
    """

    last: Vector
    ergodic: Vector
    dual: Vector
    elapsed: float


def dual_extrapolation(
    operator: Objective | Operator,
    start: Vector | None = None,
    *,
    steps: int,
    step_size: float,
    regularizer: Proximable | None = None,
    mirror_map: MirrorMap | None = None,
    batch_size: int | None = None,
    rng: np.random.Generator | None = None,
    callback: Callable[[Extrapolation], object] | None = None,
) -> Extrapolation:
    """Solve a composite monotone inclusion, such as min_x max_y f(x, y) + psi_1(x) - psi_2(y), by dual extrapolation.

    For t < T::

        half  = retrieve(omega_t - step_size g(retrieve(omega_t, step_size t)), step_size (t + 1))
        omega_{t+1} = omega_t - step_size g(half)

    with retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). This is FeDualEx with one client, server_lr = 1 and all
    steps in one round. Each step evaluates the operator twice, on separate batches if it is stochastic.

    Parameters
    ----------
    operator : Objective or callable
        An objective, whose gradient is g (for a :class:`flwr_fco.objectives.SaddleObjective`
        g = (grad_x f, -grad_y f)), or a function that takes a point and returns g at it as an array of the same shape,
        stochastic or not. The function may store and change its argument.
    start : ndarray of float64, shape (d,), optional
        z_0; omega_0 is grad h(z_0). By default the primal point of the dual 0; required if the operator is a function.
    steps : int
        T.
    step_size : float
        eta; at most 1 / beta, where g is beta-Lipschitz in the norm in which h is 1-strongly convex.
    regularizer : Regularizer or BoundRegularizer, optional
        psi; none by default. For an objective it is bound to the objective's arrays; for a function it acts on the
        vector.
    mirror_map : MirrorMap, optional
        h; Euclidean by default.
    batch_size : int, optional
        Size of an objective's batches; None for exact operators, without randomness.
    rng : numpy.random.Generator, optional
        Generator of an objective's batches; required with `batch_size`.
    callback : callable, optional
        Called after each step with an :class:`Extrapolation` of the steps so far (it costs one retrieval).

    Raises
    ------
    ConfigurationError
        If an argument has the wrong type, `steps` is not a whole number >= 1, `step_size` is not a finite number > 0,
        `start` is not finite, `batch_size` is given without `rng` or with a function, a function is given without a
        start, or the geometry cannot be combined with psi. During the steps: if a function's result does not have the
        point's shape, or the dual overflows.

    Notes
    -----
    Without noise and with eta <= 1 / beta, Gap(ergodic) <= B / (eta T) after any T steps, where B is the largest
    Bregman divergence from z_0 (theorem 4). With noise of variance sigma^2 (in the dual norm) and
    eta <= 1 / (sqrt(3) beta), the expected gap is at most B / (eta T) + 3 sigma^2 eta (theorem 3). Neither bound holds
    for `last`.

    Differs from the paper in: 1. psi has the weight t + 1 in the half step, as in algorithm 1 and in the proofs;
    algorithms 3 and 4 print t.

    References
    ----------
    Bai, Bullins: Local Composite Saddle Point Optimization (ICLR 2024), algorithm 3 (stochastic), algorithm 4 (exact).

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.regularizers import Box
    >>> result = dual_extrapolation(
    ...     lambda z: np.array([z[1], -z[0]]), np.ones(2), steps=200, step_size=0.5, regularizer=Box(-1.0, 1.0)
    ... )
    >>> bool(np.abs(result.last).max() < 1e-6)
    True
    """
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or steps < 1:
        raise ConfigurationError(f"steps={steps!r}; expected a whole number >= 1")
    step_size = checked("step_size", step_size, float)
    if not 0.0 < step_size < np.inf:
        raise ConfigurationError(f"step_size={step_size!r}; expected a finite number > 0")
    if not isinstance(operator, Objective) and (isinstance(operator, type) or not callable(operator)):
        raise ConfigurationError(f"operator={operator!r}; expected an objective or a function")
    if regularizer is not None and (isinstance(regularizer, type) or not hasattr(regularizer, "prox")):
        raise ConfigurationError(f"regularizer={regularizer!r}; expected a regularizer, such as L1(0.1)")
    checked("mirror_map", mirror_map, MirrorMap | None)
    checked("rng", rng, np.random.Generator | None)
    checked("callback", callback, Callable[[Extrapolation], Any] | None)
    psi: Proximable = Zero() if regularizer is None else regularizer
    h: MirrorMap = Euclidean() if mirror_map is None else mirror_map
    work = FirstOrder(steps=int(steps), batch_size=batch_size)
    if isinstance(operator, Objective):
        if batch_size is not None and rng is None:
            raise ConfigurationError(f"batch_size={batch_size} draws batches: give rng=, a numpy.random.Generator")
        if isinstance(psi, Regularizer):
            psi = psi.bind(operator.layout)
        h = h.bind(operator.layout)
        add_operator: Callable[[Vector, Any, float, Vector], None] = operator.add_gradient
        batches = operator.batches(np.random.default_rng() if rng is None else rng, work, per_step=2)
        start = h.start(operator.layout.size, psi) if start is None else start
    elif start is None:
        raise ConfigurationError("a function has no size: give start=, a vector")
    elif batch_size is not None:
        raise ConfigurationError(
            f"batch_size={batch_size}: a function has no batches; draw them in it, or give an objective"
        )
    else:
        add_operator = _adder(operator)
        batches = iter([None] * work.num_draws(1, 2))
    h.require(psi)
    first = np.asarray(start, dtype=np.float64)
    if not np.isfinite(first).all():
        raise ConfigurationError("start holds NaN or infinite numbers; expected finite ones")
    dual = np.asarray(h.gradient(first), dtype=np.float64).copy()
    total = np.zeros_like(dual)

    def so_far(count: int) -> Extrapolation:
        elapsed = step_size * count
        return Extrapolation(h.retrieve(dual, elapsed, psi), total / count, dual.copy(), elapsed)

    count = 0
    for half in extrapolations(
        dual,
        pairs(batches),
        elapsed=0.0,
        step_size=step_size,
        retrieve=lambda z, t, out: h.retrieve(z, t, psi, out),
        add_operator=add_operator,
    ):
        total += half
        count += 1
        if not all_finite(dual):
            raise ConfigurationError(
                f"the dual is not finite after step {count}: step_size={step_size:g} is too large for it, or "
                "the operator returns NaN or infinite numbers"
            )
        if callback is not None:
            callback(so_far(count))
    return so_far(count)


def _adder(operator: Operator) -> Callable[[Vector, Any, float, Vector], None]:
    def add(point: Vector, batch: Any, scale: float, out: Vector) -> None:
        # A copy, because the steps overwrite their points.
        value = np.asarray(operator(point.copy()))
        if value.shape != out.shape or value.dtype.kind not in "fiub":
            raise ConfigurationError(
                f"the operator returned shape {value.shape} and dtype {value.dtype}; expected real numbers of shape "
                f"{out.shape}, that of the point"
            )
        out += scale * value

    return add
