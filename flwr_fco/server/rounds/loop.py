"""The rounds of a run: ``start`` as a function of any strategy with Flower's hooks."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.core.files import shown
from flwr_fco.core.logs import log
from flwr_fco.errors import (
    ConfigurationError,
    DivergedError,
    NothingTrainedError,
    ProtocolError,
    RunInterrupted,
    TakenOverError,
)
from flwr_fco.results import Number, Result, numbers_of
from flwr_fco.server.options import AUTO, serves_unmodified
from flwr_fco.server.replies.bounds import TOO_LONG
from flwr_fco.server.rounds.divergence import DivergenceWatch
from flwr_fco.server.rounds.hooks import Callback, Hooks, Progress, RoundHooks
from flwr_fco.server.rounds.sparse_training import watches_of
from flwr_fco.server.rounds.subclass import has_own_hooks, hooked_round, messages_of
from flwr_fco.server.run import Run
from flwr_fco.wire.arrays import NOT_FINITE, OTHER_NAMES
from flwr_fco.wire.envelope import send_and_receive
from flwr_fco.wire.metrics import as_metrics, joined_metrics

#: Maximum number of rollbacks in a row.
_IN_A_ROW = 3
#: Rounds in a row with only overlong increments after which a run has diverged; less than `evict_after`.
_TOO_LONG_IN_A_ROW = 2
#: ``(round, arrays) -> metrics or None``: evaluation on the server.
EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | Mapping[str, Any] | None]


def run_rounds(
    run: Run,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    *,
    timeout: float,
    train_config: ConfigRecord,
    evaluate_config: ConfigRecord,
    evaluate_fn: EvaluateFunction | None,
    callbacks: Sequence[Callback | RoundHooks],
    resume: str | os.PathLike[str] | None = None,
) -> Result:
    """Run a strategy; the arguments are those of :meth:`CompositeStrategy.start`."""
    began = time.monotonic()
    progress, watch = _prepare(run, grid, initial_arrays, num_rounds, callbacks, resume)
    run.progress, hooks, result = progress, progress.hooks, progress.result
    _introduce(run, grid, progress.round, num_rounds, resume)
    number = -1
    try:
        progress.begin(run.strategy, num_rounds)
        run.claims.take_wanted()
        if resume is None:
            _score(result, 0, evaluate_fn, "Initial global evaluation results")
            progress.save_point(0, complete=True)
        for number in () if progress.stopped else range(progress.round + progress.complete, num_rounds + 1):
            log(INFO, "")
            log(INFO, "[ROUND %s/%s]", number, num_rounds)
            if number > progress.round:
                hooks.call("on_round_begin", number, result.arrays)
                _train(run, progress, watch, grid, number, train_config)
            _evaluate(run, result, grid, number, evaluate_config, timeout)
            _score(result, number, evaluate_fn, "Global evaluation")
            stop = _end_round(hooks, result, number)
            ended = "a callback ended it" if stop else run.finished()
            progress.save_point(number, complete=True, stopped=bool(ended), last=bool(ended) or number == num_rounds)
            if ended:
                log(INFO, "The run is over after round %s: %s", number, ended)
                break
    except BaseException as error:
        # Not in the middle of a round, when the state may be half of the next one.
        mine = not isinstance(error, TakenOverError)
        if mine and (progress.round == number or run.current.number < number):
            hooks.call("on_save_point", progress.round, True)
        done = max(result.train_metrics_clientapp, default=0)
        if isinstance(error, KeyboardInterrupt):
            raise RunInterrupted(f"interrupted after {done} of {num_rounds} rounds", result) from None
        error.add_note(f"The result of the {done} rounds before is the strategy's `result`.")
        raise
    finally:
        hooks.call("on_run_end", result)
    log(INFO, "")
    log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
    tried = run.outcome is not None or result.train_metrics_clientapp
    if tried and run.state.round == 0 and watch.stops and not watch.ever_rolled_back:
        raise NothingTrainedError(_why_nothing(run, result), result)
    for line in ("", "Final results:", "", *(f"\t{line}" for line in str(result).splitlines()), ""):
        log(INFO, "%s", line)
    return result


def _prepare(
    run: Run,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    callbacks: Sequence[Callback | RoundHooks],
    resume: str | os.PathLike[str] | None,
) -> tuple[Progress, _Watch]:
    """Begin a run, or go on with a saved one; return its progress, and the watch over its model."""
    hooks = Hooks(callbacks, watches_of(run.strategy))
    run.prepare(initial_arrays)
    # Callbacks may ask the clients before round 1.
    run.mail.grid = grid
    # The noise does not hide whose replies were left out.
    left_out = run.left_out if run.private_mean is None else []
    run.result = result = Result(arrays=initial_arrays, left_out=left_out)
    watch = _Watch(run, result)
    progress = Progress(result, run.nodes, grid, hooks, watch)
    if resume is not None:
        _resume(run, resume, progress, num_rounds)
    return progress, watch


def _introduce(run: Run, grid: Grid, done: int, num_rounds: int, resume: str | os.PathLike[str] | None) -> None:
    """Log what begins after `done` rounds: the strategy's summary needs the rates, which clients may be asked about."""
    log(INFO, "Starting %s strategy:", type(run.strategy).__name__)
    log(INFO, "\t├── Number of rounds: %d", num_rounds)
    if resume is not None:
        log(INFO, "\t├── Resumed after round %d: %s", done, shown(resume))
    run.choose_rates(grid)
    run.strategy.summary()


def _resume(run: Run, path: str | os.PathLike[str], progress: Progress, num_rounds: int) -> None:
    """Go on from a saved run, if the total of rounds is not less than what it has done."""
    run.resume(path, progress)
    progress.result.arrays = run.primal_arrays()
    if progress.round > num_rounds:
        raise ConfigurationError(
            f"num_rounds={num_rounds}, but {shown(path)} is of round {progress.round}; num_rounds is the total, "
            "with the rounds before the run was stopped"
        )


def _train(run: Run, progress: Progress, watch: _Watch, grid: Grid, number: int, config: ConfigRecord) -> None:
    """Train in a round; the model, the numbers and the save point are the result's and the progress's."""
    result = progress.result
    run.claims.check()
    train = partial(hooked_round, run) if has_own_hooks(run.strategy) else run.train_round
    aggregated, metrics = train(number, result.arrays, config, grid)
    if metrics is not None:
        # Before the watch, which may end the run with an error: its result includes the numbers of that round.
        result.train_metrics_clientapp[number] = metrics
    if run.private_mean is not None:
        # Before anything about the round is published: it must never be run again with other noise.
        try:
            progress.round, progress.complete, progress.stopped = number, False, False
            run.move_on()
            progress.save_point(number, complete=False)
        except BaseException:
            result.train_metrics_clientapp.pop(number, None)
            raise
    result.arrays = result.arrays if aggregated is None else aggregated
    sound = watch.round_done(number, result.arrays, run.outcome)
    added: dict[str, float] = {"rolled-back": 1} if watch.rolled_back else {}
    if run.outcome is not None and sound:
        added |= run.certificate(number, grid, result.arrays)
    if added:
        metrics = result.train_metrics_clientapp[number] = joined_metrics(metrics or MetricRecord(), added)
    _keep(result.train_metrics_clientapp, number, metrics, "Aggregated MetricRecord")
    if run.private_mean is None:
        progress.save_point(number, complete=False)


def _evaluate(run: Run, result: Result, grid: Grid, number: int, config: ConfigRecord, timeout: float) -> None:
    """Ask the clients for their evaluations of a round's model."""
    messages = messages_of(run.strategy, "configure_evaluate", number, result.arrays, config, grid)
    if messages:
        scores = run.strategy.aggregate_evaluate(number, send_and_receive(grid, messages, timeout))
        scores = as_metrics(scores, f"{type(run.strategy).__name__}.aggregate_evaluate")
        _keep(result.evaluate_metrics_clientapp, number, scores, "Aggregated MetricRecord")


def _why_nothing(run: Run, result: Result) -> str:
    """Return why no round counted, most frequent reasons first."""
    counts: Mapping[str, Any] = run.outcome or next(iter(result.train_metrics_clientapp.values()))
    text = f"{type(run.strategy).__name__}: no round counted, so the model is still the initial one: "
    reasons = Counter(entry.first_line[:200] for entry in result.left_out if entry.kind == "train")
    if not reasons:
        if counts.get("taken-back"):
            return f"{text}aggregate_train returned None, or the model of before, in every round"
        replies, least = int(counts.get("num-replies", 0)), run.strategy.participation.min_replies
        if replies >= least and not run.overflowed:
            return f"{text}{replies} good replies in the last one, whose weights are all 0"
        return f"{text}{replies} good replies in the last one; lower min_replies or wait for more clients"
    whys = "; ".join(f"{count} replies: {reason}" for reason, count in reasons.most_common(3))
    more = len(reasons) - 3
    advice = " Give `start` the arrays that the clients return." if all(OTHER_NAMES in why for why in reasons) else ""
    others = f"; and {more} other reasons" if more > 0 else ""
    return f"{text}{whys}{others}. All are in the error's `result.left_out`.{advice}"


class _Watch:
    """Checks the model after each round for divergence."""

    def __init__(self, run: Run, result: Result) -> None:
        self._run, self._result = run, result
        #: Whether this round was rolled back to the result's arrays.
        self.rolled_back = False
        self.ever_rolled_back = False
        self._times, self._too_long = 0, 0
        self._keeps = run.strategy.on_divergence == "rollback"
        if self._keeps:
            run.keep_state()
        self._watch: DivergenceWatch | None = DivergenceWatch(result.arrays, run.as_vector(result.arrays))

    @property
    def stops(self) -> bool:
        """Whether a divergence stops the run."""
        return self._watch is not None

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
        if self._watch is None:
            return True
        if not skipped:
            reason = self._watch.look(number, arrays, entries)
            self._diverged(number, "" if run.algorithm.holds else reason)
            if self._keeps and self._watch.good[0] == number:
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
        """Return the state of the watch; or that it is off, after a warning."""
        return {"over": np.array(True)} if self._watch is None else self._watch.to_arrays()

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned."""
        if "over" in arrays or self._watch is None:
            self._watch = None
        else:
            self._watch.from_arrays(arrays)

    def _all_left_out(self, number: int, why: str) -> bool:
        """Whether there were replies in a round, and all of them were left out for this reason."""
        reasons = [entry.reason for entry in self._run.left_out if entry.round == number]
        return bool(reasons) and all(why in reason for reason in reasons)

    def _diverged(self, number: int, reason: str, *, locally: bool = False) -> None:
        if not reason or self._watch is None:
            return
        run, (good_round, good) = self._run, self._watch.good
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
            self._watch = None
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
        return (
            f"client_lr={client_lr:g} is what theory says of the clients' losses: scale the features and targets, or "
            "give a smaller one."
        )
    if locally:
        return f"client_lr={client_lr:g} is too large for these data; try {client_lr / 10:g}, or fewer local steps."
    if server_lr > 1.0:
        return (
            f"server_lr={server_lr:g} with client_lr={client_lr:g} is too large for these data; try server_lr=1 first, "
            f"then client_lr={client_lr / 10:g}."
        )
    # Scaffnew's server has no learning rate.
    rates = f"client_lr={client_lr:g}" + ("" if math.isnan(server_lr) else f" with server_lr={server_lr:g}")
    return f"{rates} is too large for these data; try client_lr={client_lr / 10:g}."


def _end_round(hooks: Hooks, result: Result, number: int) -> bool:
    """Call the callbacks after a round; return whether one of them ends the run."""
    metrics = result.train_metrics_clientapp.get(number)
    numbers = _numbers(result, number) if hooks.wants_numbers else {}
    stop, added = hooks.end_round(number, result.arrays, metrics, numbers)
    if added:
        result.callback_metrics[number] = added
    return stop


def _numbers(result: Result, number: int) -> dict[str, Number]:
    """Return all numbers of a round under the names of :meth:`Result.rows`."""
    histories = {
        "train": result.train_metrics_clientapp,
        "evaluate": result.evaluate_metrics_clientapp,
        "server": result.evaluate_metrics_serverapp,
    }
    numbers: dict[str, Number] = {}
    for prefix, history in histories.items():
        if number in history:
            numbers.update(numbers_of(prefix, history[number]))
    return numbers


def _score(result: Result, number: int, evaluate_fn: EvaluateFunction | None, title: str) -> None:
    """Evaluate a round's model on the server."""
    if evaluate_fn is None:
        return
    scores = as_metrics(evaluate_fn(number, result.arrays), "evaluate_fn", f" after round {number}")
    _keep(result.evaluate_metrics_serverapp, number, scores, title)


def _keep(history: dict[int, MetricRecord], number: int, metrics: MetricRecord | None, title: str) -> None:
    if metrics is not None:
        log(INFO, "\t└──> %s: %s", title, metrics)
        history[number] = metrics
