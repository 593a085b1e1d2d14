"""Steps to minimisers of quadratic models: the client half of Fast-FedDA, C-FedDA and MC-FedDA."""

from __future__ import annotations

from typing import ClassVar

from flwr_fco.algorithms.contract import Client, ClientHalf, Memory, Moved
from flwr_fco.core.clock import timed
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ProtocolError
from flwr_fco.mirror_maps.quadratic_models import LowerModel, accumulated, liang_weights
from flwr_fco.wire.protocol import Downlink


class FastDualAveraging(ClientHalf):
    """Local steps, each to the minimiser of the quadratic model built from all previous steps.

    The message has the vectors ``gradients``, ``points``, ``primal`` and, unless it is zero, ``anchor``; the numbers
    ``steps`` (number of gradients so far), ``rounds`` (of the stage), ``radius`` and ``strength``. Options of the plan:
    ``variant``, ``constrained`` (C-FedDA), ``convexity``, ``anchor-weight``, ``smoothness``, ``last-point``. The client
    sends the increment of the gradients' sum (Liang: mean) and, if the local points are used, that of the points'; its
    elapsed time is its number of steps. In Liang's variant the last step ends after its gradient; the server completes
    it on the averaged sums.

    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022);
    Liang, Peng, Zhang: the variant of their experiments.
    """

    name: ClassVar[str] = "fast_dual_averaging"
    engine: ClassVar[str | None] = None

    @staticmethod
    def local(client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Take the steps of the plan's variant."""
        _check(downlink)
        plan, numbers, options = downlink.plan, downlink.numbers, downlink.plan.options
        convexity, anchor_weight, smoothness = (
            float(options[name]) for name in ("convexity", "anchor-weight", "smoothness")
        )
        anchor = downlink.vectors.get("anchor")
        model = LowerModel(
            plan.h,
            plan.psi,
            numbers["strength"],
            numbers["radius"],
            convexity,
            anchor_weight,
            smoothness if options["constrained"] else None,
            anchor,
            None if anchor is None else plan.h.gradient(anchor),
        )
        steps = _bao if options["variant"] == "bao" else _liang
        return steps(downlink, client, model)


def _check(downlink: Downlink) -> None:
    """Refuse numbers for which a quadratic model has no minimiser."""
    options, numbers = downlink.plan.options, downlink.numbers
    variant, constrained = options["variant"], options["constrained"]
    if variant not in ("bao", "liang"):
        raise ProtocolError(f"the plan's variant is {variant!r}; expected 'bao' or 'liang'")
    for name in ("steps", "rounds", "radius", "strength"):
        if numbers[name] < 0:
            raise ProtocolError(f"the server's {name} is {numbers[name]!r}; expected a number >= 0")
    values: dict[str, float] = {}
    for name in ("convexity", "anchor-weight", "smoothness"):
        value = options[name]
        if isinstance(value, str) or value < 0:
            raise ProtocolError(f"the plan's {name} is {value!r}; expected a number >= 0")
        values[name] = value
    needed = ["smoothness" if constrained else "convexity"]
    if variant == "bao":
        needed = ["convexity", "anchor-weight"]
    if not any(values[name] > 0 for name in needed):
        raise ProtocolError(f"the plan's {' and '.join(needed)} are 0; expected a number > 0")


def _bao(downlink: Downlink, client: Client, model: LowerModel) -> tuple[dict[str, Vector], Moved]:
    plan, vectors, numbers = downlink.plan, downlink.vectors, downlink.numbers
    options = plan.options
    gradients, points, primal = vectors["gradients"].copy(), vectors["points"].copy(), vectors["primal"]
    batches = list(client.objective.batches(client.rng, downlink.first_order))
    # C-FedDA's model uses the weights at the end of the round in every step.
    end = numbers["steps"] + len(batches)
    for k, batch in enumerate(timed(batches), start=1):
        client.objective.add_gradient(primal, batch, 1.0, gradients)
        steps = end if options["constrained"] else numbers["steps"] + k
        count = numbers["rounds"] + 1.0 if options["constrained"] else steps
        primal = model.bao_point(gradients, points, steps, count)
        if not options["constrained"] and (options["last-point"] or k < len(batches)):
            points += plan.h.gradient(primal)
    sent = {"increment": gradients - vectors["gradients"]}
    if not options["constrained"]:
        sent["point-increment"] = points - vectors["points"]
    return sent, Moved(sent["increment"], float(len(batches)), len(batches))


def _liang(downlink: Downlink, client: Client, model: LowerModel) -> tuple[dict[str, Vector], Moved]:
    plan, vectors = downlink.plan, downlink.vectors
    gradients, points, primal = vectors["gradients"].copy(), vectors["points"].copy(), vectors["primal"]
    batches = list(client.objective.batches(client.rng, downlink.first_order))
    first = int(downlink.numbers["steps"]) + 1
    for step, batch in enumerate(timed(batches), start=first):
        a, before, after = liang_weights(step)
        gradients *= before / after
        client.objective.add_gradient(primal, batch, -a / after, gradients)
        if step == first + len(batches) - 1:
            break
        primal = model.liang_point(gradients, points, step)
        points = accumulated(points, plan.h.gradient(primal), step)
    sent = {"increment": gradients - vectors["gradients"], "point-increment": points - vectors["points"]}
    return sent, Moved(sent["increment"], float(len(batches)), len(batches))
