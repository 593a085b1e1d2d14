"""Detection of diverged runs, with the cause and the last good model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import log
from flwr_fco.errors import DivergedError, ProtocolError
from flwr_fco.results import Result
from flwr_fco.server.options import AUTO, serves_unmodified
from flwr_fco.server.parts import under
from flwr_fco.server.replies.bounds import TOO_LONG
from flwr_fco.server.run import Run
from flwr_fco.wire.arrays import NOT_FINITE

#: A model with this many times the first models' norm has diverged. No convergent run grows like that: with
#: sufficiently small steps a run never moves further in a round than in the first ones, so its solution would be a
#: million rounds away.
_TOO_LARGE = 1e6
#: A model with at most this many times the first models' norm is worth keeping.
_GOOD = 10.0
#: Maximum number of rollbacks in a row.
_IN_A_ROW = 3
#: Rounds in a row with only overlong increments after which a run has diverged; less than `evict_after`.
_TOO_LONG_IN_A_ROW = 2


class DivergenceWatch:
    """Checks the model after each round, and tracks its norm from round to round.

    A run has diverged when the norm of its model exceeds 1e6 times the largest of: the norm of the initial model, the
    norm after the first round that counted, sqrt(d) (coefficients of size 1). That first round has only to be finite:
    it may be the one that finds the units of the model. The last good model is the last one with at most ten times
    that size.

    Parameters
    ----------
    run : Run
        The run, which has been prepared.
    result : Result
        Of the run, with the initial model.

    Attributes
    ----------
    good : (int, ArrayRecord)
        The last good model and its round.
    stops : bool
        Whether a divergence stops the run; not after a warning.
    rolled_back, ever_rolled_back : bool
        Whether this round was rolled back to the result's arrays, or any.

    Examples
    --------
    >>> from flwr_fco.strategies import FedDualAvg, run_of
    >>> run, result = run_of(FedDualAvg()), Result(arrays=ArrayRecord({"w": Array(np.zeros(4))}))
    >>> run.prepare(result.arrays)
    >>> watch = DivergenceWatch(run, result)
    >>> [watch.look(number, ArrayRecord(), np.full(4, 10.0**number)) for number in (1, 5, 6)]
    ['', '', '']
    >>> watch.look(8, ArrayRecord(), np.full(4, 1e8))
    'the norm of the model is 2e+08; it was 20 in the first rounds'
    >>> watch.good[0]
    1
    """

    def __init__(self, run: Run, result: Result) -> None:
        self._run, self._result = run, result
        self.stops, self.rolled_back, self.ever_rolled_back = True, False, False
        self._times, self._too_long = 0, 0
        self._keeps = run.strategy.on_divergence == "rollback"
        if self._keeps:
            run.keep_state()
        w = run.as_vector(result.arrays)
        self._scale, self._first = max(math.sqrt(w.size), _norm(w)), True
        self.good = (0, result.arrays)

    def look(self, server_round: int, arrays: ArrayRecord, w: Vector) -> str:
        """Check the model after a round; return what is wrong with it, or an empty string.

        Parameters
        ----------
        server_round : int
            Flower's round, from 1.
        arrays : ArrayRecord
            The model.
        w : ndarray of float64
            The model's entries, all or only those that may be non-zero.
        """
        norm = _norm(w)
        if self._first and math.isfinite(norm):
            self._first, self._scale = False, max(self._scale, norm)
        if not norm <= _TOO_LARGE * self._scale:
            return f"the norm of the model is {norm:.2g}; it was {self._scale:.2g} in the first rounds"
        if norm <= _GOOD * self._scale:
            self.good = (server_round, arrays)
        return ""

    def round_done(self, number: int, arrays: ArrayRecord, outcome: Mapping[str, float | int] | None) -> bool:
        """Check a round, of which `outcome` was counted; return whether it has ended with a model.

        Raises
        ------
        DivergedError
            If the run has diverged and the strategy must stop.
        """
        self.rolled_back = False
        if outcome is None:
            return False
        run, skipped = self._run, bool(outcome["skipped"])
        try:
            entries = run.as_vector(arrays)
        except ProtocolError:
            self._diverged(number, "the model is too large for its dtype")
            return False
        if not self.stops:
            return True
        if not skipped:
            reason = self.look(number, arrays, entries)
            self._diverged(number, "" if run.algorithm.holds else reason)
            if self._keeps and self.good[0] == number:
                run.keep_state()
                self._times = 0
        elif run.overflowed:
            self._diverged(number, "the update overflows")
        elif not outcome["num-replies"] and self._all_left_out(number, NOT_FINITE):
            self._diverged(number, "the local steps of all clients overflow", locally=True)
        # A private round does not report its number of replies.
        too_long = skipped and not outcome.get("num-replies", 1) and self._all_left_out(number, TOO_LONG)
        self._too_long = self._too_long + 1 if too_long else 0
        if self._too_long >= _TOO_LONG_IN_A_ROW:
            self._diverged(number, "the increments of all clients are far longer than ever before")
        return True

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the size of the first models, and the last good model; or that the watch is off, after a warning."""
        if not self.stops:
            return {"over": np.array(True)}
        number, arrays = self.good
        sizes = np.array([self._scale, self._first, number])
        return {"sizes": sizes, **{f"good/{name}": array.numpy() for name, array in arrays.items()}}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned."""
        self.stops = self.stops and "over" not in arrays
        if self.stops:
            self._scale, first, number = arrays["sizes"].tolist()
            good = ArrayRecord({name: Array(value) for name, value in under("good/", arrays).items()})
            self._first, self.good = bool(first), (int(number), good)

    def _all_left_out(self, number: int, why: str) -> bool:
        """Whether there were replies in a round, and all of them were left out for this reason."""
        reasons = [entry.reason for entry in self._run.left_out if entry.round == number]
        return bool(reasons) and all(why in reason for reason in reasons)

    def _diverged(self, number: int, reason: str, *, locally: bool = False) -> None:
        if not reason or not self.stops:
            return
        run, (good_round, good) = self._run, self.good
        text = f"{type(run.strategy).__name__} diverged in round {number}: {reason}. {_advice(run, locally)}"
        if self._keeps and self._times < _IN_A_ROW:
            self._times += 1
            self.rolled_back = self.ever_rolled_back = True
            self._result.arrays = run.roll_back()
            answered = ", ".join(str(run.current.nodes[node]) for node in sorted(run.current.answered)[:20])
            log(WARNING, "%s The run goes on from round %s. Answers of: %s", text, good_round, answered)
            return
        if run.strategy.on_divergence == "warn":
            log(WARNING, '%s The run goes on (on_divergence="warn").', text)
            self.stops = False
            return
        self._result.arrays = good
        raise DivergedError(
            f"{text} The last good model, of round {good_round}, is the error's `arrays`, the rounds so far are its "
            '`result`; on_divergence="rollback" goes on from the last good state, "warn" from this one',
            number,
            self._result,
            good_round,
        )


def _advice(run: Run, locally: bool) -> str:
    """Return the rate that was too large, and advice."""
    client_lr, server_lr = run.problem.client_lr, run.problem.server_lr
    if serves_unmodified(run.strategy):
        return "The rate of the clients' own training is too large for these data, or that of the server; lower them."
    if isinstance(nu := getattr(run.strategy, "nu", None), float):
        return f"nu={nu:g} is too large for these data; try {nu / 10:g}, or scale the features and targets."
    if math.isnan(client_lr):
        return "Its steps are too large for these data: lower its rates, or scale the features and targets."
    if getattr(run.strategy, "client_lr", None) == AUTO:
        text = "is what theory says of the clients' losses: scale the features and targets, or give a smaller one."
        return f"client_lr={client_lr:g} {text}"
    too = "is too large for these data; try"
    if locally:
        return f"client_lr={client_lr:g} {too} {client_lr / 10:g}, or fewer local steps."
    if server_lr > 1.0:
        first = f"server_lr={server_lr:g} with client_lr={client_lr:g} {too} server_lr=1 first"
        return f"{first}, then client_lr={client_lr / 10:g}."
    # A method's server need not have a learning rate.
    rates = f"client_lr={client_lr:g}" + ("" if math.isnan(server_lr) else f" with server_lr={server_lr:g}")
    return f"{rates} {too} client_lr={client_lr / 10:g}."


def _norm(w: Vector) -> float:
    # A dot product with itself needs no second array; if it overflows, the norm is too large anyway.
    return math.sqrt(np.vdot(w, w))
