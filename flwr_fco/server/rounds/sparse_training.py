"""A network that becomes sparse while it is trained: what goes wrong with it is said, with what helps."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from typing import Any

import numpy as np

from flwr_fco.core.logs import log
from flwr_fco.results import Number
from flwr_fco.server.rounds.loop import Runnable

#: An array with less than this share of the model's density holds up the whole network.
_NEARLY_EMPTY = 0.1
#: A loss that had come down to the first of these shares of that of round 1, and is back at the second.
_LEARNT, _LOST = 0.8, 0.95


class SparseTraining:
    """Warns of a run that is too short, of arrays that are nearly empty, and of a loss that is back where it began.

    Parameters
    ----------
    needed : int
        How many rounds the run should have.
    rounds : int or None
        In how many rounds the user says that the density is reached.
    """

    def __init__(self, needed: int, rounds: int | None) -> None:
        self._needed, self._rounds = needed, rounds

    def on_run_begin(self, strategy: Runnable, num_rounds: int) -> None:
        """Say before round 1 that a run is too short.

        Parameters
        ----------
        strategy : Runnable
        num_rounds : int
        """
        self._strategy, self._num_rounds = strategy, num_rounds
        self._told: set[str] = set()
        self._losses: dict[str, tuple[float, float]] = {}
        if num_rounds < self._needed:
            text = (
                "%s rounds are too few for this density: a network that loses so many weights so soon tends to stay at "
                "chance, as it does if it is pruned. Give %s rounds or more, or a larger density"
            )
            log(WARNING, text, num_rounds, self._needed)
        elif self._rounds is not None and self._rounds > num_rounds:
            log(WARNING, "density_rounds=%s: the run ends after %s, before it is reached", self._rounds, num_rounds)

    def on_round_end(self, server_round: int, arrays: Any, metrics: Mapping[str, Number]) -> None:
        """Look at the arrays and the losses of a round.

        Parameters
        ----------
        server_round : int
        arrays : ArrayRecord
        metrics : mapping of str to number
        """
        self._look_at_arrays(server_round, arrays)
        for name in (name for name in metrics if "loss" in name):
            now = float(metrics[name])
            first, least = self._losses.setdefault(name, (now, now))
            self._losses[name] = first, min(least, now)
            over = server_round == self._num_rounds > 1
            # Where a loss of 0 is reported, or one that has no sign, there is nothing to compare.
            if now >= _LOST * first > 0.0 and (least <= _LEARNT * first or over) and "loss" not in self._told:
                self._told.add("loss")
                text = (
                    "round %s: %s is %.4g, where it was in round 1 (%.4g): the network has lost more weights than it "
                    "can do without. Give more rounds, a larger density, a larger density_rounds, or leave its small "
                    'layers whole: regularizer=PerParameter({"NAME": Zero()})'
                )
                log(WARNING, text, server_round, name, now, first)

    def _look_at_arrays(self, server_round: int, arrays: Any) -> None:
        """Name the arrays that have become nearly empty, each once."""
        w = self._strategy.as_vector(arrays)
        entries = [entry for entry in self._strategy.plan.layout.optimized if entry.regularized and entry.size]
        kept = {entry.name: int(np.count_nonzero(w[entry.block])) for entry in entries}
        density = sum(kept.values()) / max(1, sum(entry.size for entry in entries))
        for entry in entries:
            if kept[entry.name] > _NEARLY_EMPTY * density * entry.size or entry.name in self._told:
                continue
            self._told.add(entry.name)
            text = (
                "round %s: %s of the %s entries of %r are left, and %.2g of all: a nearly empty layer holds up the "
                'network. Take density=... with density_scope="layers", which allots the entries to layers, or '
                "leave this one whole: regularizer=PerParameter({%r: Zero()})"
            )
            log(WARNING, text, server_round, kept[entry.name], entry.size, entry.name, density, entry.name)
