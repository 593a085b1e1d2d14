"""Figures 1 and 2 of Liang, Peng, Zhang: sparse regression over a chain of 16 nodes, gradient tracking and baselines.

Errors are averaged over the nodes. Settings are those that the authors' code has for the linear problem; the rates are
halved by its plateau rule (:class:`flwr_fco.strategies.Plateau`) on the first node-averaged l1 error. MReFedDA-GT runs
on the complete graph, Fast-FedDA with the server's mean, all with the same data for everybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flwr_fco.client_apps import client_app
from flwr_fco.datasets import SparseGraphProblem, sparse_linear_graph, sparse_logistic_graph
from flwr_fco.metrics import recovery_error
from flwr_fco.mirror_maps import PNorm
from flwr_fco.regularizers import L1
from flwr_fco.simulation import simulate
from flwr_fco.strategies import (
    CompositeStrategy,
    DFedDA,
    DFedDAGT,
    DFedMid,
    FastFedDA,
    MultistepReFedDAGT,
    Plateau,
    Stage,
)
from flwr_fco.strategies.decentralized import GraphStrategy
from flwr_fco.topology import chain

__all__ = ["Curve", "Verdict", "gt_fig1", "gt_fig2", "verdict_table"]

#: Makes a strategy from the two rates and whatever its plateau rule does with them.
Make = Callable[[Callable[[float], Any]], CompositeStrategy]


class Curve(NamedTuple):
    """What one method measured, averaged over nodes; the mean over seeds.

    Parameters
    ----------
    method : str
    rounds : tuple of int
    l1, l2, gap : tuple of float
        L1 error, L2 error and optimality gap after these rounds.
    l1_spread : tuple of float
        Largest minus smallest L1 error over the seeds.
    """

    method: str
    rounds: tuple[int, ...]
    l1: tuple[float, ...]
    l2: tuple[float, ...]
    gap: tuple[float, ...]
    l1_spread: tuple[float, ...]


class Verdict(NamedTuple):
    """A claim of the paper beside what was measured.

    Parameters
    ----------
    claim : str
    measured : str
    holds : bool
    """

    claim: str
    measured: str
    holds: bool


def _linear_methods(rounds: int) -> dict[str, Make]:
    p_norm, common = PNorm(12.0), {"local_steps": 10, "batch_size": 10}
    stages = [Stage(300) for _ in range(max(1, rounds // 300 + 1))]

    def averaged(rate: Callable[[float], Any]) -> MultistepReFedDAGT:
        return MultistepReFedDAGT(
            stages=stages,
            radius_squared=25_000.0,
            restart_window=100,
            sparsity=16,
            mirror_map=p_norm,
            client_lr=0.1,
            **common,  # type: ignore[arg-type]
        )

    def graph(cls: type[DFedDA]) -> Make:
        return lambda rate: cls(
            mixing=chain(16),
            mirror_map=p_norm,
            client_lr=rate(0.1),
            server_lr=rate(1.0),
            **common,  # type: ignore[arg-type]
        )

    return {
        "MReFedDA-GT": averaged,
        "DFedDA-GT": graph(DFedDAGT),
        "DFedDA": graph(DFedDA),
        "DFedMid": lambda rate: DFedMid(
            mixing=chain(16),
            regularizer=L1(0.1),
            client_lr=rate(1e-3),
            server_lr=rate(1.0),
            **common,  # type: ignore[arg-type]
        ),
        "Fast-FedDA": lambda rate: FastFedDA(
            variant="liang",
            convexity=8.0,
            regularizer=L1(0.3),
            weighting="uniform",
            **common,  # type: ignore[arg-type]
        ),
    }


def _node_points(strategy: CompositeStrategy) -> np.ndarray[Any, Any]:
    """Return the primal points over which errors are averaged: the nodes', or the server's."""
    if isinstance(strategy, GraphStrategy) and not strategy.central:
        return strategy.node_primals()
    return strategy.output_point(strategy.state)[None, :]


def _measure(
    make: Make, problem: SparseGraphProblem, rounds: int, checkpoints: Sequence[int], seed: int
) -> list[tuple[float, float, float]]:
    """Return L1 error, L2 error and gap at the checkpoints."""
    optimum, found = problem.optimum, []
    strategy: CompositeStrategy | None = None

    def l1_error(arrays: Any) -> float:
        assert strategy is not None
        return float(np.mean([recovery_error(w, optimum, norm="l1") for w in _node_points(strategy)]))

    def note(number: int, arrays: Any, metrics: Any) -> None:
        if number in checkpoints:
            assert strategy is not None
            points = _node_points(strategy)
            scores = [
                (recovery_error(w, optimum, norm="l1"), recovery_error(w, optimum), problem.gap(w)) for w in points
            ]
            found.append(tuple(float(value) for value in np.mean(scores, axis=0)))

    plateau = Plateau(l1_error)
    strategy = make(plateau.rate)
    strategy.fraction_evaluate = 0.0
    strategy.seed = seed
    objectives = problem.objectives()
    simulate(
        strategy,
        client_app(lambda context: objectives[int(context.node_config["partition-id"])]),
        num_nodes=problem.num_clients,
        num_rounds=rounds,
        initial_arrays={"coefficients": np.zeros(problem.dimension)},
        callbacks=[plateau, note],
        progress=False,
    )
    return found  # type: ignore[return-value]


def _curves(
    methods: dict[str, Make], problems: Iterable[SparseGraphProblem], rounds: int, checkpoints: tuple[int, ...]
) -> list[Curve]:
    problems = list(problems)
    curves = []
    for name, make in methods.items():
        runs = np.array([_measure(make, problem, rounds, checkpoints, problem.seed) for problem in problems])
        mean, spread = runs.mean(axis=0), np.ptp(runs[:, :, 0], axis=0)
        columns = [tuple(float(value) for value in column) for column in mean.T]
        curves.append(Curve(name, checkpoints, columns[0], columns[1], columns[2], tuple(map(float, spread))))
    return curves


def _order(curves: Sequence[Curve]) -> Verdict:
    """Return the verdict on the order of the L1 errors in the end."""
    last = {curve.method: curve.l1[-1] for curve in curves}
    ours, others = ("MReFedDA-GT", "DFedDA-GT", "DFedDA"), ("DFedMid", "Fast-FedDA")
    holds = last[ours[0]] < last[ours[1]] < last[ours[2]] < min(last[name] for name in others)
    text = ", ".join(f"{name} {value:.3g}" for name, value in last.items())
    return Verdict("L1 error: MReFedDA-GT < DFedDA-GT < DFedDA < DFedMid, Fast-FedDA", text, holds)


def _tracking(curves: Sequence[Curve]) -> Verdict:
    last = {curve.method: curve.l1[-1] for curve in curves}
    measured = f"{last['DFedDA-GT']:.3g} with, {last['DFedDA']:.3g} without"
    return Verdict("Tracking lowers the L1 error of DFedDA", measured, last["DFedDA-GT"] < last["DFedDA"])


def gt_fig1(*, quick: bool = False, seeds: Sequence[int] = (0,)) -> tuple[list[Curve], list[Verdict]]:
    """Return figure 1, the linear problem: M = 16, d = 1,024, s = 16, K = 10, batch 10, p = 12, chain.

    Parameters
    ----------
    quick : bool, default False
        100 rounds in place of 3,000: only that everything runs; the verdicts are about round 3,000.
    seeds : sequence of int, default (0,)
        Each is a problem and a run of its own.

    Returns
    -------
    list of Curve
        One a method.
    list of Verdict
    """
    rounds, checkpoints = (100, (10, 100)) if quick else (3000, (100, 300, 1000, 3000))
    problems = [sparse_linear_graph(seed=seed) for seed in seeds]
    curves = _curves(_linear_methods(rounds), problems, rounds, checkpoints)
    return curves, [_order(curves), _tracking(curves)]


def gt_fig2(*, quick: bool = False, seeds: Sequence[int] = (0,)) -> tuple[list[Curve], list[Verdict]]:
    """Return a part of figure 2, the logistic problem: DFedDA with and without tracking (no radius to choose).

    Parameters
    ----------
    quick : bool, default False
        100 rounds in place of 3,000.
    seeds : sequence of int, default (0,)

    Returns
    -------
    list of Curve
        One a method.
    list of Verdict
    """
    rounds, checkpoints = (100, (10, 100)) if quick else (3000, (100, 300, 1000, 3000))
    problems = [sparse_logistic_graph(seed=seed) for seed in seeds]
    methods = {name: make for name, make in _linear_methods(rounds).items() if name in ("DFedDA-GT", "DFedDA")}
    curves = _curves(methods, problems, rounds, checkpoints)
    return curves, [_tracking(curves)]


def verdict_table(curves: Sequence[Curve], verdicts: Sequence[Verdict]) -> str:
    """Return curves and verdicts as Markdown tables.

    Parameters
    ----------
    curves : sequence of Curve
    verdicts : sequence of Verdict

    Examples
    --------
    >>> print(verdict_table([], [Verdict("a claim", "1 < 2", True)]))
    | method | round | L1 error (spread over seeds) | L2 error | gap |
    |---|---|---|---|---|
    <BLANKLINE>
    | claim | measured | holds |
    |---|---|---|
    | a claim | 1 < 2 | yes |
    """
    lines = ["| method | round | L1 error (spread over seeds) | L2 error | gap |", "|---|---|---|---|---|"]
    for curve in curves:
        for i, number in enumerate(curve.rounds):
            values = f"{curve.l1[i]:.3g} ({curve.l1_spread[i]:.2g}) | {curve.l2[i]:.3g} | {curve.gap[i]:.3g}"
            lines.append(f"| {curve.method} | {number:,} | {values} |")
    lines += ["", "| claim | measured | holds |", "|---|---|---|"]
    lines += [f"| {v.claim} | {v.measured} | {'yes' if v.holds else 'no'} |" for v in verdicts]
    return "\n".join(lines)
