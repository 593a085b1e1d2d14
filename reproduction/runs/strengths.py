"""A path of strengths on a named problem, chosen by loss on a held-out part of every client's examples."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from flwr.app import ArrayRecord, MetricRecord

from flwr_fco.datasets import Samples
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Objective
from flwr_fco.simulation import PathResult, fit_path
from reproduction.data.samples import stream
from reproduction.problems.tasks import Task
from reproduction.runs.recorder import build_strategy
from reproduction.runs.run import clients_with
from reproduction.runs.settings import RunSettings

#: Part of the seed of the generators that choose the held-out examples, so that no other draw of the seed is the same.
_HELD_OUT = 77


def path_of_problem(
    settings: RunSettings,
    *,
    num_strengths: int = 20,
    ratio: float = 0.01,
    held_out: float = 0.25,
    on_round: Callable[[int], None] | None = None,
) -> PathResult:
    """Fit a path on a named problem in this process.

    Parameters
    ----------
    settings : RunSettings
        Its number of rounds is for each strength; the problem's own strength is not used.
    num_strengths : int, default 20
    ratio : float, default 0.01
        The smallest strength divided by the largest.
    held_out : float, default 0.25
        Share of every client's examples that is held out.
    on_round : callable, optional
        Called after each round with the number of rounds so far, over all strengths.

    Returns
    -------
    PathResult

    Raises
    ------
    ConfigurationError
        If the problem's psi has no strength, its clients have no examples to hold out, or an argument is out of range.

    Examples
    --------
    >>> settings = RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 20, "client-lr": "auto"})
    >>> len(path_of_problem(settings, num_strengths=3).points)
    3
    """
    task = settings.load()
    train, validation = split_clients(task, held_out, settings.seed)

    rounds = itertools.count(1)

    def tell(server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> None:
        if on_round is not None:
            on_round(next(rounds))

    return fit_path(
        build_strategy(settings, task.dataset.num_clients, task.regularizer),
        clients_with(train, validation),
        num_nodes=task.dataset.num_clients,
        num_rounds=settings.exchanges,
        initial_arrays=task.initial_arrays(),
        num_strengths=num_strengths,
        ratio=ratio,
        progress=False,
        callbacks=[tell],
    )


def split_clients(task: Task, held_out: float, seed: int) -> tuple[list[Objective], list[Objective]]:
    """Return the clients' losses on a random part of their examples, and on the rest.

    Parameters
    ----------
    task : Task
    held_out : float
        Share of the rest, at least one example.
    seed : int

    Raises
    ------
    ConfigurationError
        If the share is out of range, or a client has fewer than two examples.
    """
    if not 0.0 < held_out < 1.0:
        raise ConfigurationError(f"held-out={held_out!r}; expected a number between 0 and 1")
    dataset = task.dataset
    parts: tuple[list[Objective], list[Objective]] = ([], [])
    for index in range(dataset.num_clients):
        samples = dataset.client(index)
        count = len(samples.targets)
        if count < 2:
            raise ConfigurationError(
                f"client {index} has {count} example; a path holds some of them out, so it needs at least two"
            )
        order = stream(seed, _HELD_OUT, index).permutation(count)
        cut = min(count - 1, max(1, round(held_out * count)))
        for rows, part in ((np.sort(order[cut:]), parts[0]), (np.sort(order[:cut]), parts[1])):
            part.append(dataset.build_objective(Samples(samples.features[rows], samples.targets[rows])))
    return parts
