"""The watch over a run's model: a run that diverges ends in an error that holds its last sound model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from flwr.app import MetricRecord

from flwr_fco.core.layout import euclidean_norm
from flwr_fco.core.logs import logger
from flwr_fco.errors import DivergedError, NothingTrainedError
from flwr_fco.messages.arrays import NOT_FINITE, model_record
from flwr_fco.results import Result
from flwr_fco.strategies.options import AUTO
from flwr_fco.strategies.replies import TOO_LONG

#: A model with this many times the first models' norm has diverged: with steps that are small enough a run never moves
#: further in a round than in the first ones, so its solution would be a million rounds away.
_TOO_LARGE = 1e6
#: A norm that no units of columns explain, after the first round too: of counts' exponentials nothing comes back.
_ABSURD = 1e30
#: A model with at most this many times the first models' norm is worth keeping.
_GOOD = 10.0
#: Times the median move at which an error names the client.
_MUCH = 10.0
#: Rounds in a row in which all replies are far too long, or none has the method's form, after which a run ends.
_IN_A_ROW = 2
#: Rounds in a row in which nobody's reply counts and somebody's steps overflow: who is asked alone may have bad data.
_MOST_ALONE = 10


class Watch:
    """Looks at the model after each round.

    The norm is compared with the largest of those of the initial model and of the model after the first round that
    counted, and sqrt(d), coefficients of size 1. That first round may find the model's units: it ends below 1e30.

    Parameters
    ----------
    run : Run
        The run.

    Attributes
    ----------
    good : (ndarray, dict of str to ndarray)
        The last good model, of round `good_round`: its point, and its arrays that pass through.
    """

    saved = ("scale", "good", "good_round", "over")

    def __init__(self, run: Any) -> None:
        self._run = run
        self.scale = max(math.sqrt(run.point.size), euclidean_norm(run.point))
        self.good = run.point, run.passed
        self.good_round = 0
        self.over = False
        self._too_long = self._malformed = self._alone = 0
        self._round: tuple[int, Mapping[str, Any]] = (0, {})

    def look(self, number: int, replied: int, *, skipped: bool, metrics: Mapping[str, Any]) -> None:
        """Look at a round.

        Parameters
        ----------
        number : int
            Flower's round, from 1.
        replied : int
            Number of good replies.
        skipped : bool
            Whether the state stays as it was.
        metrics : mapping of str to number
            Of the round, which belong to the result of a run that ends with it.

        Raises
        ------
        DivergedError
            If the run has diverged, and the strategy does not only warn.
        NothingTrainedError
            If no client's replies can ever count.
        """
        run = self._run
        if self.over:
            return
        self._round = number, metrics
        left_out = run.current.left_out if run.privacy is None else 0
        reasons = [row.reason for row in run.left_out[-left_out:] if row.round == number] if left_out else []
        # One liar is no half of three, and without half of the clients the others go astray.
        half = 2 * sum(TOO_LONG in reason for reason in reasons) >= max(replied + len(reasons), 3)
        self._too_long = self._too_long + 1 if half else 0
        overflows = [NOT_FINITE in own or "overflows" in own for own in reasons if not replied]
        together = all(overflows) and (len(overflows) > 1 or len(run.nodes.ordered) == 1)
        self._alone = (_MOST_ALONE if together else self._alone + 1) if any(overflows) else 0
        if self._too_long >= _IN_A_ROW:
            self._end(number, "the increments of half of the clients or more are far longer than at first")
        elif not skipped:
            self._look_at(number)
        elif run.overflowed:
            self._end(number, "the update overflows")
        elif self._alone >= _MOST_ALONE:
            self._end(number, "the local steps of all clients overflow", locally=True)
        hopeless = not replied and 0 < run.current.malformed == run.current.left_out
        self._malformed = self._malformed + 1 if hopeless and run.state.round == 0 else 0
        if self._malformed >= _IN_A_ROW:
            prefix = f"no client's reply can count, in {_IN_A_ROW} rounds in a row: {run.left_out[-1].reason}"
            raise NothingTrainedError(f"{type(run.options).__name__}: {prefix}", self._result())

    def _look_at(self, number: int) -> None:
        run = self._run
        norm = euclidean_norm(run.point)
        if run.state.round == 1 and norm < _ABSURD:
            self.scale = max(self.scale, norm)
        if norm <= _GOOD * self.scale:
            self.good, self.good_round = (run.point, run.passed), number
        # A method whose steps each lower the objective may go far.
        if not norm <= _TOO_LARGE * self.scale and not run.method.discloses:
            self._end(number, f"the norm of the model is {norm:.2g}; it was {self.scale:.2g} in the first rounds")

    def _end(self, number: int, reason: str, *, locally: bool = False) -> None:
        run = self._run
        text = f"{type(run.options).__name__} diverged in round {number}: {reason}. {advice_on(run, locally)}"
        if locally and run.state.round == 0:
            text += " NaN in the data, or in a loss of one's own, looks the same."
        if run.options.on_divergence == "warn":
            logger.warning('%s The run goes on (on_divergence="warn").', text)
            self.over = True
            return
        result = self._result()
        result.arrays = model_record(run.given.layout, *self.good)
        node, times = run.cap.far
        # Of a private run's replies nothing is said.
        if times >= _MUCH and run.privacy is None:
            text += f" The last reply of {node} moves the model {times:.3g} times as far as the median client's: if it"
            text += " lies, run without it, or with a robust aggregation (docs/how-to/robustness.md)."
        text += f" The last good model, of round {self.good_round}, is the error's `arrays`, the rounds so far are its"
        raise DivergedError(f'{text} `result`; on_divergence="warn" goes on', number, result, self.good_round)

    def _result(self) -> Result:
        number, metrics = self._round
        result: Result = self._run.result
        result.train_metrics_clientapp[number] = MetricRecord(dict(metrics))
        return result


def advice_on(run: Any, locally: bool) -> str:
    """Return the rate that was too large, and advice."""
    options: Any = run.options
    client_lr, server_lr = run.problem.client_lr, run.problem.server_lr
    scale, too = "or scale the features and targets", "is too large for these data; try"
    if options._unmodified:
        return "The rate of the clients' own training is too large for these data, or that of the server; lower them."
    if isinstance(nu := getattr(options, "nu", None), float):
        return f"nu={nu:g} {too} {nu / 10:g}, alpha > 0 if a loss is not strongly convex, {scale}."
    if math.isnan(client_lr):
        return f"Its steps are too large for these data: lower its rates, {scale}."
    if getattr(options, "client_lr", None) == AUTO:
        return f"client_lr={client_lr:g} is what theory says of the clients' losses: give a smaller one, {scale}."
    if locally:
        return f"client_lr={client_lr:g} {too} {client_lr / 10:g}, or fewer local steps."
    with_server = "" if math.isnan(server_lr) else f" with server_lr={server_lr:g}"
    first = "server_lr=1 first, then " if server_lr > 1.0 else ""
    return f'client_lr={client_lr:g}{with_server} {too} client_lr="auto", or {first}client_lr={client_lr / 10:g}.'
