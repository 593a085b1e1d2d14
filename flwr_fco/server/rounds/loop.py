"""The rounds of a run: ``start`` as a function of any strategy with Flower's hooks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from logging import INFO
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid

from flwr_fco.core.files import FilePath, shown
from flwr_fco.core.logs import log
from flwr_fco.errors import ConfigurationError, NothingTrainedError, RunInterrupted, TakenOverError
from flwr_fco.results import Number, Result, numbers_of
from flwr_fco.server.rounds.divergence import DivergenceWatch
from flwr_fco.server.rounds.hooks import Callback, Hooks, Progress, RoundHooks
from flwr_fco.server.rounds.sparse_training import watches_of
from flwr_fco.server.rounds.subclass import has_own_hooks, hooked_round, messages_of
from flwr_fco.server.run import Run
from flwr_fco.wire.arrays import OTHER_NAMES
from flwr_fco.wire.envelope import send_and_receive
from flwr_fco.wire.metrics import as_metrics, joined_metrics

#: ``(round, arrays) -> metrics or None``: evaluation on the server.
EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | Mapping[str, Any] | None]


def run_rounds(
    run: Run,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    timeout: float,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
    evaluate_fn: EvaluateFunction | None,
    callbacks: Sequence[Callback | RoundHooks],
    resume: FilePath | None = None,
) -> Result:
    """Run a strategy; the arguments are those of :meth:`CompositeStrategy.start`."""
    began = time.monotonic()
    training, evaluation = (ConfigRecord() if each is None else each for each in (train_config, evaluate_config))
    hooks = Hooks(callbacks, watches_of(run.strategy))
    progress = _prepare(run, grid, initial_arrays, num_rounds, hooks, resume)
    result, watch = progress.result, progress.watch
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
                _train(run, progress, grid, number, training)
            _evaluate(run, result, grid, number, evaluation, timeout)
            _score(result, number, evaluate_fn, "Global evaluation")
            stop = _end_round(progress, number)
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
    run: Run, grid: Grid, arrays: ArrayRecord, num_rounds: int, hooks: Hooks, resume: FilePath | None
) -> Progress:
    """Begin a run, or go on with a saved one, if the total of rounds is not less than what it has done; log it."""
    run.prepare(arrays)
    # Callbacks may ask the clients before round 1.
    run.mail.grid = grid
    # The noise does not hide whose replies were left out.
    left_out = run.left_out if run.private_mean is None else []
    run.result = result = Result(arrays=arrays, left_out=left_out)
    progress = Progress(result, run.nodes, grid, hooks, DivergenceWatch(run, result))
    if resume is not None:
        run.resume(resume, progress)
        result.arrays = run.primal_arrays()
        if progress.round > num_rounds:
            what = f"num_rounds={num_rounds}, but {shown(resume)} is of round {progress.round}"
            raise ConfigurationError(f"{what}; num_rounds is the total, with the rounds before the run was stopped")
    run.progress = progress
    log(INFO, "Starting %s strategy:", type(run.strategy).__name__)
    log(INFO, "\t├── Number of rounds: %d", num_rounds)
    if resume is not None:
        log(INFO, "\t├── Resumed after round %d: %s", progress.round, shown(resume))
    # The strategy's summary needs the rates, which clients may be asked about.
    run.choose_rates(grid)
    run.strategy.summary()
    return progress


def _train(run: Run, progress: Progress, grid: Grid, number: int, config: ConfigRecord) -> None:
    """Train in a round; the model, the numbers and the save point are the result's and the progress's."""
    result, watch = progress.result, progress.watch
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


def _end_round(progress: Progress, number: int) -> bool:
    """Call the callbacks after a round; return whether one of them ends the run."""
    result, numbers = progress.result, dict[str, Number]()
    # The names of all numbers of a round are those of `Result.rows`.
    for prefix, history in progress.histories().items() if progress.hooks.wants_numbers else ():
        if prefix != "callbacks":
            numbers |= numbers_of(prefix, history.get(number, {}))
    metrics = result.train_metrics_clientapp.get(number)
    stop, added = progress.hooks.end_round(number, result.arrays, metrics, numbers)
    if added:
        result.callback_metrics[number] = added
    return stop


def _score(result: Result, number: int, evaluate_fn: EvaluateFunction | None, title: str) -> None:
    """Evaluate a round's model on the server."""
    if evaluate_fn is not None:
        scores = as_metrics(evaluate_fn(number, result.arrays), "evaluate_fn", f" after round {number}")
        _keep(result.evaluate_metrics_serverapp, number, scores, title)


def _keep(history: dict[int, MetricRecord], number: int, metrics: MetricRecord | None, title: str) -> None:
    if metrics is not None:
        log(INFO, "\t└──> %s: %s", title, metrics)
        history[number] = metrics
