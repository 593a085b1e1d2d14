"""Methods for saddle points: the client halves of FeDualEx and FedMiP."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flwr_fco.algorithms.contract import Client, Memory, Moved
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.algorithms.mirror_descent import PrimalSteps
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch
from flwr_fco.wire.protocol import Downlink


class DualExtrapolation(DualAveraging):
    """Steps of the dual against the operator at extrapolated points, with two new batches each.

    For k < K, with t = elapsed + client_lr k::

        half = retrieve(dual - client_lr g(retrieve(dual, t)), t + client_lr)
        dual <- dual - client_lr g(half)

    The plan's option ``trajectory`` asks for omega_{k+1/2} - omega_0, k = 0..K-1, too. Bai, Bullins: Local Composite
    Saddle Point Optimization (ICLR 2024), algorithm 1.
    """

    name: ClassVar[str] = "dual_extrapolation"
    engine: ClassVar[str | None] = "extragradient"
    sparse: ClassVar[tuple[str, bool] | None] = None


class MirrorProx(PrimalSteps):
    """Proximal steps along the operator at extrapolated points, with two new batches each.

    For k < K::

        half   = retrieve(grad h(primal) - client_lr g(primal), client_lr)
        primal <- retrieve(grad h(primal) - client_lr g(half), client_lr)

    The plan's option ``trajectory`` asks for z_{k+1/2} - z_0, k = 0..K-1, too. Bai, Bullins: Local Composite Saddle
    Point Optimization (ICLR 2024), algorithm 2 (appendix H).
    """

    name: ClassVar[str] = "mirror_prox"
    engine: ClassVar[str | None] = None

    @staticmethod
    def local(client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Take the steps, and keep the half points if they are asked for."""
        plan, rate, add_operator = client.plan, client.rate, client.objective.add_gradient
        start = downlink.vectors["primal"]
        half, halves = np.empty_like(start), list[Vector]()

        def step(primal: Vector, pair: Batch) -> None:
            dual = plan.h.gradient(primal)
            moved = dual.copy()
            add_operator(primal, pair[0], -rate, moved)
            plan.point(moved, rate, half)
            add_operator(half, pair[1], -rate, dual)
            plan.point(dual, rate, primal)
            if plan.options["trajectory"]:
                halves.append(half - start)

        moved = client.take_steps(start, step, in_pairs=True)
        sent = {"increment": moved.increment}
        if plan.options["trajectory"]:
            sent["trajectory"] = np.array(halves)
        return sent, moved
