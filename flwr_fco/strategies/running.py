"""The rounds of a run: what ``start`` does, as a function of any strategy with Flower's hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from logging import INFO
from typing import TYPE_CHECKING

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from flwr_fco.strategies.contract import ServerHalf
from flwr_fco.strategies.options import RateOptions, rate_text

if TYPE_CHECKING:
    from flwr_fco.strategies.base import CompositeStrategy

__all__ = ["Callback", "EvaluateFunction", "run_rounds", "settings_tree"]

#: Called after each round with the round, the primal arrays and the round's metrics; True ends the run.
Callback = Callable[[int, ArrayRecord, MetricRecord | None], bool | None]
#: ``(round, arrays) -> metrics or None``: evaluation on the server.
EvaluateFunction = Callable[[int, ArrayRecord], MetricRecord | None]


def run_rounds(
    strategy: CompositeStrategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_rounds: int,
    *,
    timeout: float,
    train_config: ConfigRecord,
    evaluate_config: ConfigRecord,
    evaluate_fn: EvaluateFunction | None,
    callbacks: Sequence[Callback],
) -> Result:
    """Run a strategy; the arguments are those of :meth:`CompositeStrategy.start`."""
    strategy.prepare(initial_arrays)
    log(INFO, "Starting %s strategy:", type(strategy).__name__)
    log(INFO, "\t├── Number of rounds: %d", num_rounds)
    strategy.summary()
    result, arrays, began = Result(arrays=initial_arrays), initial_arrays, time.monotonic()
    if evaluate_fn is not None:
        _keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, arrays), "Initial global evaluation results")
    for number in range(1, num_rounds + 1):
        log(INFO, "")
        log(INFO, "[ROUND %s/%s]", number, num_rounds)
        messages = strategy.configure_train(number, arrays, train_config, grid)
        replies = grid.send_and_receive(messages, timeout=timeout)
        aggregated, metrics = strategy.aggregate_train(number, replies)
        arrays = arrays if aggregated is None else aggregated
        result.arrays = arrays
        _keep(result.train_metrics_clientapp, number, metrics, "Aggregated MetricRecord")
        messages = strategy.configure_evaluate(number, arrays, evaluate_config, grid)
        if messages:
            scores = strategy.aggregate_evaluate(number, grid.send_and_receive(messages, timeout=timeout))
            _keep(result.evaluate_metrics_clientapp, number, scores, "Aggregated MetricRecord")
        if evaluate_fn is not None:
            _keep(result.evaluate_metrics_serverapp, number, evaluate_fn(number, arrays), "Global evaluation")
        stops = [callback(number, arrays, metrics) for callback in callbacks]
        if any(stops):
            log(INFO, "A callback ended the run after round %s", number)
            break
    log(INFO, "")
    log(INFO, "Strategy execution finished in %.2fs", time.monotonic() - began)
    return result


def _keep(history: dict[int, MetricRecord], number: int, metrics: MetricRecord | None, title: str) -> None:
    if metrics is not None:
        log(INFO, "\t└──> %s: %s", title, metrics)
        history[number] = metrics


def settings_tree(strategy: ServerHalf) -> None:
    """Log the settings of a strategy as a tree, as Flower's strategies do."""
    where = "" if strategy.layout is None else f" on {', '.join(strategy.layout.regularized_names) or 'nothing'}"
    normalized = ", local work normalised" if getattr(strategy, "normalize_local_work", False) else ""
    lines = [
        ("Regularizer", f"{strategy.regularizer}{where} (scope: {strategy.scope})"),
        ("Mirror map", f"{strategy.mirror_map}"),
        ("Local work", f"{strategy.work()}"),
        ("Weights", f"{strategy.weighting}{normalized}"),
        ("Output", f"{strategy.averaging}"),
        ("Seed", f"{strategy.seed}"),
        *strategy.settings(),
        ("Minimum replies", f"{strategy.min_replies}"),
    ]
    options: object = strategy
    if isinstance(options, RateOptions):
        rates = f"client ({rate_text(options.client_lr)}) | server ({rate_text(options.server_lr)})"
        lines.insert(2, ("Learning rates", rates))
    log(INFO, "\t├──> %s settings:", type(strategy).__name__)
    for i, (title, text) in enumerate(lines):
        log(INFO, "\t│\t%s %s: %s", "└──" if i == len(lines) - 1 else "├──", title, text)
