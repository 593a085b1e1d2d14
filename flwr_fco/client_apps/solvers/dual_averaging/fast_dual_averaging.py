"""Local steps on quadratic lower models: the client half of Fast-FedDA, C-FedDA and MC-FedDA."""

from __future__ import annotations

import numpy as np

from flwr_fco.client_apps.quotas import timed
from flwr_fco.client_apps.solvers.table import local_solver
from flwr_fco.errors import ProtocolError
from flwr_fco.mirror_maps.quadratic_models import LowerModel, accumulated, liang_weights
from flwr_fco.objectives.base import Objective
from flwr_fco.wire.protocol import Downlink, Uplink


@local_solver("fast_dual_averaging")
def fast_dual_averaging(
    downlink: Downlink, objective: Objective, state: None, rng: np.random.Generator
) -> tuple[Uplink, None]:
    """Take local steps, each to the minimiser of the quadratic model built from all previous steps.

    Parameters
    ----------
    downlink : Downlink
        The server's message, with the vectors ``gradients``, ``points``, ``primal`` and, unless it is zero, ``anchor``;
        the numbers ``steps`` (number of gradients so far), ``rounds`` (of the stage), ``radius`` and ``strength``.
        Options of the plan: ``variant``, ``constrained`` (C-FedDA), ``convexity``, ``anchor-weight``, ``smoothness``,
        ``last-point``.
    objective : Objective
    state : None
    rng : numpy.random.Generator

    Returns
    -------
    Uplink
        ``increment`` of the gradients' sum (Liang: mean) and, if the local points are used, ``point-increment``;
        ``elapsed`` is the number of steps. In Liang's variant the last step ends after its gradient; the server
        completes it on the averaged sums.
    None
        No client state.

    References
    ----------
    Bao, Crawshaw, Luo, Liu: Fast composite optimization and statistical recovery in federated learning (ICML 2022);
    Liang, Peng, Zhang: the variant of their experiments.
    """
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
    return steps(downlink, objective, model, rng), None


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


def _bao(downlink: Downlink, objective: Objective, model: LowerModel, rng: np.random.Generator) -> Uplink:
    plan, vectors, numbers = downlink.plan, downlink.vectors, downlink.numbers
    options = plan.options
    gradients, points, primal = vectors["gradients"].copy(), vectors["points"].copy(), vectors["primal"]
    batches = list(objective.batches(rng, downlink.first_order))
    # C-FedDA's model uses the weights at the end of the round in every step.
    end = numbers["steps"] + len(batches)
    for k, batch in enumerate(timed(batches), start=1):
        objective.add_gradient(primal, batch, 1.0, gradients)
        steps = end if options["constrained"] else numbers["steps"] + k
        count = numbers["rounds"] + 1.0 if options["constrained"] else steps
        primal = model.bao_point(gradients, points, steps, count)
        if not options["constrained"] and (options["last-point"] or k < len(batches)):
            points += plan.h.gradient(primal)
    sent = {"increment": gradients - vectors["gradients"]}
    if not options["constrained"]:
        sent["point-increment"] = points - vectors["points"]
    return Uplink(sent, float(len(batches)), len(batches))


def _liang(downlink: Downlink, objective: Objective, model: LowerModel, rng: np.random.Generator) -> Uplink:
    plan, vectors = downlink.plan, downlink.vectors
    gradients, points, primal = vectors["gradients"].copy(), vectors["points"].copy(), vectors["primal"]
    batches = list(objective.batches(rng, downlink.first_order))
    first = int(downlink.numbers["steps"]) + 1
    for step, batch in enumerate(timed(batches), start=first):
        a, before, after = liang_weights(step)
        gradients *= before / after
        objective.add_gradient(primal, batch, -a / after, gradients)
        if step == first + len(batches) - 1:
            break
        primal = model.liang_point(gradients, points, step)
        points = accumulated(points, plan.h.gradient(primal), step)
    sent = {"increment": gradients - vectors["gradients"], "point-increment": points - vectors["points"]}
    return Uplink(sent, float(len(batches)), len(batches))
