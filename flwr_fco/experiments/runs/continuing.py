"""A strategy that goes on where its state was saved: the rounds of ``start`` count on from there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from flwr_fco.core.layout import Vector
from flwr_fco.server.rounds.hooks import Callback
from flwr_fco.server.rounds.loop import EvaluateFunction, run_rounds
from flwr_fco.strategies import CompositeStrategy


class ContinuedStrategy:
    """What the loop of ``start`` needs of a strategy, with rounds that count from where the state was saved.

    The rounds decide the samples of clients and of examples, so the run goes on to the bits of one that was never
    stopped if the strategy's clients remember nothing, or the server keeps a ledger of what they remember. Otherwise
    the strategy lets the memories begin anew, as it does when nodes lose them.

    Parameters
    ----------
    strategy : CompositeStrategy
        With the settings of the one that saved the state.
    state : Path
        What :meth:`CompositeStrategy.save_state` wrote.
    done : int
        The rounds that had been done, >= 1.
    """

    def __init__(self, strategy: CompositeStrategy, state: Path, done: int) -> None:
        self._strategy, self._state, self._done = strategy, state, done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)

    def prepare(self, initial_arrays: ArrayRecord) -> None:
        """Restore the state; the model tells the layout alone."""
        self._strategy.prepare(initial_arrays)
        self._strategy.load_state(self._state)

    def train_round(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Run the round that is as many rounds after the saved one."""
        return self._strategy.train_round(self._done + server_round, arrays, config, grid)

    def certificate(self, server_round: int, grid: Grid, w: Vector) -> dict[str, float]:
        """Return the metrics of that round's certificate, if one is due."""
        return self._strategy.certificate(self._done + server_round, grid, w)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int,
        *,
        evaluate_fn: EvaluateFunction,
        callbacks: Sequence[Callback],
        **configs: None,
    ) -> Result:
        """Run the rounds that are left; the arguments are those of :meth:`CompositeStrategy.start` that a run gives.

        `num_rounds` counts those done before, and so do the rounds that `evaluate_fn` and the callbacks are given.
        """

        def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            # The start point was evaluated before the run was stopped, and so was the model of the saved round.
            return evaluate_fn(self._done + server_round, arrays) if server_round else None

        def shifted(callback: Callback) -> Callback:
            return lambda number, arrays, metrics: callback(self._done + number, arrays, metrics)

        return run_rounds(
            cast(CompositeStrategy, self),
            grid,
            initial_arrays,
            num_rounds - self._done,
            timeout=3600,
            train_config=ConfigRecord(),
            evaluate_config=ConfigRecord(),
            evaluate_fn=evaluate,
            callbacks=[shifted(callback) for callback in callbacks],
        )
