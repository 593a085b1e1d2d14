"""Dual extrapolation and mirror prox on one machine, without Flower: what the clients of FeDualEx and FedMiP do."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flwr_fco.engines import FirstOrder
from flwr_fco.errors import FlwrFcoError
from flwr_fco.mirror_maps import Euclidean, MirrorMap
from flwr_fco.objectives import Objective, Vector
from flwr_fco.regularizers import Regularizer, Zero


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
    """

    last: Vector
    ergodic: Vector
    dual: Vector


def dual_extrapolation(
    objective: Objective,
    start: Vector | None = None,
    *,
    steps: int,
    step_size: float,
    regularizer: Regularizer | None = None,
    mirror_map: MirrorMap | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    callback: Callable[[Extrapolation], object] | None = None,
    mirror_prox: bool = False,
) -> Extrapolation:
    """Solve a composite monotone inclusion, such as min_x max_y f(x, y) + psi_1(x) - psi_2(y), by dual extrapolation.

    For t < T::

        half  = retrieve(omega_t - step_size g(retrieve(omega_t, step_size t)), step_size (t + 1))
        omega_{t+1} = omega_t - step_size g(half)

    with retrieve(z, t) = argmin_w -<z, w> + t psi(w) + h(w). This is FeDualEx with one client, server_lr = 1 and all
    steps in one round. Each step evaluates the operator twice, on separate batches if it is stochastic.

    Parameters
    ----------
    objective : Objective
        Its gradient is g; for a :class:`flwr_fco.objectives.SaddleObjective` g = (grad_x f, -grad_y f).
    start : ndarray of float64, shape (d,), optional
        z_0; omega_0 is grad h(z_0). By default the primal point of the dual 0.
    steps : int
        T.
    step_size : float
        eta; at most 1 / beta, where g is beta-Lipschitz in the norm in which h is 1-strongly convex.
    regularizer : Regularizer, optional
        psi; none by default.
    mirror_map : MirrorMap, optional
        h; Euclidean by default.
    batch_size : int, optional
        None for exact operators, without randomness.
    seed : int, default 0
        Of the batches.
    callback : callable, optional
        Called after each step with an :class:`Extrapolation` of the steps so far (it costs one retrieval).

    mirror_prox : bool, default False
        Whether every step begins anew from its point: mirror prox, as the clients of FedMiP with ``server_prox=False``
        take it, for which the bound of theorem 4 holds as well. That is CoMP, a baseline of the paper's table 2 (He,
        Juditsky, Nemirovski 2015)::

            half    = retrieve(grad h(z_t) - step_size g(z_t), step_size)
            z_{t+1} = retrieve(grad h(z_t) - step_size g(half), step_size)

    Raises
    ------
    FlwrFcoError
        If the dual overflows, or the geometry cannot be combined with psi.

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
    """
    psi = (regularizer or Zero()).bind(objective.layout)
    h = (mirror_map or Euclidean()).bind(objective.layout)
    h.require(psi)
    dual = np.array(h.gradient(h.start(objective.layout.size, psi) if start is None else start))
    total = np.zeros_like(dual)
    work = FirstOrder(steps=steps, batch_size=batch_size)
    batches = objective.batches(np.random.default_rng(seed), work, per_step=2)
    weight = 0
    for t in range(steps):
        half = dual.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # an error says it
            objective.add_gradient(h.retrieve(dual, step_size * weight, psi), next(batches), -step_size, half)
            half = h.retrieve(half, step_size * (weight + 1), psi)
            objective.add_gradient(half, next(batches), -step_size, dual)
        total += half
        if not np.isfinite(dual).all():
            raise FlwrFcoError(f"the dual is not finite after step {t + 1}: step_size={step_size:g} is too large")
        last = h.retrieve(dual, step_size * (weight + 1), psi)
        found = Extrapolation(last, total / (t + 1), dual.copy())
        if mirror_prox:
            dual = np.array(h.gradient(last))
        else:
            weight += 1
        if callback is not None:
            callback(found)
    return found
