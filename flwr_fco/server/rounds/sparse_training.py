"""Warnings, with remedies, for a network that becomes sparse during training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from logging import INFO, WARNING
from typing import Any

import numpy as np

from flwr_fco.algorithms.density import rounds_needed, rounds_of
from flwr_fco.core.layout import Entry
from flwr_fco.core.logs import log
from flwr_fco.results import Number
from flwr_fco.server.options import density_of, serves_unmodified
from flwr_fco.server.rounds.hooks import RoundHooks

#: An array with less than this fraction of the model's density blocks the whole network.
_NEARLY_EMPTY = 0.1
#: Fractions of the loss in round 1: a loss that had fallen to the first and is back at the second is lost again.
_LEARNT, _LOST = 0.8, 0.95
#: Words of metrics that are better the larger they are, and how far above its first value one has risen.
_SCORES, _ROSE = {"accuracy", "acc", "auc", "f1", "precision", "recall"}, 1.1


def watches_of(options: Any) -> Sequence[RoundHooks]:
    """Return what looks after a network that becomes sparse while it is trained, if this is one.

    Parameters
    ----------
    options : CompositeStrategy
        The strategy.
    """
    density = density_of(options)
    return () if density is None else (SparseTraining(density.share, density.rounds),)


class SparseTraining:
    """Warns about a run that is too short, arrays that are nearly empty, and a loss that is back at its start.

    Parameters
    ----------
    density : float
        Fraction of entries that are not 0 in the end.
    rounds : int or None
        Number of rounds in which the density is reached, if the user has set it.
    """

    def __init__(self, density: float, rounds: int | None) -> None:
        self._density, self._rounds = density, rounds

    def on_run_begin(self, strategy: Any, num_rounds: int) -> None:
        """Warn before round 1 if the run is too short.

        Parameters
        ----------
        strategy : CompositeStrategy
            The strategy of the run.
        num_rounds : int
            Number of rounds of the run.
        """
        self._run, self._num_rounds = strategy._fco, num_rounds
        self._told: set[str] = set()
        #: By metric: the first and the least loss, and the first score.
        self._losses: dict[str, tuple[float, float]] = {}
        self._scores: dict[str, float] = {}
        #: Most entries that were not 0, by array.
        self._fullest = self._kept(self._run.primal_arrays())
        matrices = [entry for entry in self._run.plan.layout.optimized if len(entry.shape) >= 2]
        self._what, layers = "network" if len(matrices) > 1 else "model", sum(e.regularized for e in matrices)
        needed = rounds_needed(self._density, layers)
        if num_rounds < needed:
            text = (
                "%s rounds are too few for this density: a network that loses so many weights so soon tends to stay "
                "near chance, as it does if it is pruned. Most networks of %s layers need %s for 95 %% of FedAvg's "
                "accuracy, at least half of them three times as many for 99 %%: give more rounds, or a larger density"
            )
            log(WARNING, text, num_rounds, layers, needed)
        elif self._rounds is not None and self._rounds > num_rounds:
            log(WARNING, "Density(rounds=%s): the run ends after %s, before it is reached", self._rounds, num_rounds)
        passed = (entry.name for entry in self._run.plan.layout.passed_through)
        statistics = [name for name in passed if name.endswith("running_var")]
        if statistics and serves_unmodified(strategy):
            text = (
                "%s and others are statistics of clients that train all weights, not of the model that is cut: count "
                "them anew, torch.optim.swa_utils.update_bn(loader, model), before you evaluate or use it"
            )
            log(INFO, text, statistics[0])

    def on_run_end(self, result: Any) -> None:
        """Warn if all rounds have gone by, and the model is of one before the density was reached.

        Parameters
        ----------
        result : Result
            Of the run.
        """
        state, needed = self._run.state, min(rounds_of(self._rounds, self._num_rounds), self._num_rounds)
        ended = len(result.train_metrics_clientapp) >= self._num_rounds
        if ended and state is not None and state.elapsed < needed:
            text = (
                "the model is that of round %.0f, and its density comes to %g in round %s: rounds that a hook has "
                "taken back, or that were skipped, do not lower it. Give more rounds"
            )
            log(WARNING, text, state.elapsed, self._density, needed)

    def on_round_end(self, server_round: int, arrays: Any, metrics: Mapping[str, Number]) -> None:
        """Check the arrays and the losses of a round.

        Parameters
        ----------
        server_round : int
            Flower's round, from 1.
        arrays : ArrayRecord
            The model.
        metrics : mapping of str to number
            Numbers of the round.
        """
        if (self._run.outcome or {}).get("skipped"):
            return
        self._look_at_arrays(server_round, arrays)
        for name in metrics:
            words, now = {*re.findall("[a-z]+", name.lower())}, float(metrics[name])
            if words & _SCORES:
                self._scores.setdefault(name, now)
            if "loss" not in words:
                continue
            first, least = self._losses.setdefault(name, (now, now))
            self._losses[name] = first, min(least, now)
            # A reported loss of 0, or a negative one, cannot be compared; and a better score is no loss of weights.
            better = any(float(metrics[score]) > _ROSE * at for score, at in self._scores.items() if score in metrics)
            lost = now >= _LOST * first > 0.0 and least <= _LEARNT * first and not better
            if lost and "loss" not in self._told:
                self._told.add("loss")
                text = (
                    "round %s: %s is %.4g, where it was in round 1 (%.4g), after %.4g: the %s has lost more weights "
                    "than it can do without. Give more rounds, a larger density, more of its `rounds`, or leave its "
                    'small layers whole: regularizer=PerParameter({"NAME": Zero()})'
                )
                log(WARNING, text, server_round, name, now, first, least, self._what)

    @property
    def _entries(self) -> list[Entry]:
        """Arrays that psi acts on."""
        return [entry for entry in self._run.plan.layout.optimized if entry.regularized and entry.size]

    def _kept(self, arrays: Any) -> dict[str, int]:
        """Return how many entries of each of them are not 0."""
        w = self._run.as_vector(arrays)
        return {entry.name: int(np.count_nonzero(w[entry.block])) for entry in self._entries}

    def _look_at_arrays(self, server_round: int, arrays: Any) -> None:
        """Warn about arrays that have become nearly empty, once for each."""
        entries, kept = self._entries, self._kept(arrays)
        density = sum(kept.values()) / max(1, sum(entry.size for entry in entries))
        for entry in entries:
            fullest = self._fullest[entry.name] = max(kept[entry.name], self._fullest.get(entry.name, 0))
            # An array that begins at 0 has lost nothing.
            empty = kept[entry.name] <= _NEARLY_EMPTY * density * entry.size and kept[entry.name] < fullest
            if not empty or entry.name in self._told:
                continue
            self._told.add(entry.name)
            text = (
                "round %s: %s of the %s entries of %r are left, and %.2g of all: a nearly empty layer holds up the "
                '%s. Take Density(..., scope="layers"), which allots the entries to layers, or '
                "leave this one whole: regularizer=PerParameter({%r: Zero()})"
            )
            log(WARNING, text, server_round, kept[entry.name], entry.size, entry.name, density, self._what, entry.name)
