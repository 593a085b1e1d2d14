"""The progress of a run: saved with the strategy's state, so that a killed run can be resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.core.files import json_object
from flwr_fco.core.texts import printable
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.results import Result
from flwr_fco.server.clients.nodes import Nodes
from flwr_fco.server.replies.checks import LeftOut
from flwr_fco.server.rounds.hooks import Hooks


class Saves(Protocol):
    """An object with a state to save: the protocol of parts."""

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays to save."""

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned."""


class Progress:
    """The progress of a run, and the state outside the strategy.

    Parameters
    ----------
    result : Result
        Result so far; modified by :meth:`from_arrays`.
    nodes : Nodes
        The nodes, with those that have the plan.
    grid : flwr.serverapp.Grid
        Grid; the memories of its nodes are saved if it has them (the in-process grid does).
    hooks : Hooks
        The callbacks.
    watch : Saves
        The divergence watch.

    Attributes
    ----------
    round : int
        Last round whose replies have been aggregated.
    complete : bool
        Whether that round is over, including its evaluation and callbacks.
    stopped : bool
        Whether a callback ended the run after that round.
    """

    def __init__(self, result: Result, nodes: Nodes, grid: Grid, hooks: Hooks, watch: Saves) -> None:
        self.result, self._nodes, self.hooks = result, nodes, hooks
        self.round, self.complete, self.stopped = 0, True, False
        self._saves: dict[str, Saves] = {"watch": watch}
        saver: Any = grid
        self._in_process = hasattr(saver, "from_arrays")
        if self._in_process:
            self._saves["nodes"] = saver
        self._of_hooks: Mapping[str, NDArray[Any]] | None = None

    def _histories(self) -> dict[str, dict[int, Any]]:
        result = self.result
        return {
            "train": result.train_metrics_clientapp,
            "evaluate": result.evaluate_metrics_clientapp,
            "server": result.evaluate_metrics_serverapp,
            "callbacks": result.callback_metrics,
        }

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the whole progress as arrays."""
        record = {
            "progress": [self.round, self.complete, self.stopped],
            "informed": sorted(self._nodes.informed) if self._in_process else [],
            "left-out": self.result.left_out,
            **{name: {n: dict(row) for n, row in history.items()} for name, history in self._histories().items()},
        }
        arrays = {"run": np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)}
        for owner, saves in {**self._saves, "hooks": self.hooks}.items():
            arrays.update({f"{owner}/{name}": value for name, value in saves.to_arrays().items()})
        return arrays

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned; callbacks are restored later, by :meth:`begin`."""
        record = json_object(arrays["run"].tobytes())
        self.round, self.complete, self.stopped = (int(record["progress"][0]), *map(bool, record["progress"][1:]))
        for name, history in self._histories().items():
            make: Any = dict if name == "callbacks" else MetricRecord
            history.update({int(number): make(row) for number, row in record[name].items()})
        for row in record["left-out"]:
            found = LeftOut(*row)
            self.result.left_out.append(found._replace(reason=printable(str(found.reason))))
        for owner, saves in self._saves.items():
            if saved := _under(owner, arrays):
                saves.from_arrays(saved)
                if owner == "nodes":
                    self._nodes.informed = set(record["informed"])
        self._of_hooks = _under("hooks", arrays)

    def begin(self, strategy: Any, num_rounds: int) -> None:
        """Tell the callbacks that the run begins, and restore their saved states.

        Parameters
        ----------
        strategy : CompositeStrategy
            The strategy of the run.
        num_rounds : int
            Number of rounds of the run.
        """
        self.hooks.call("on_run_begin", strategy, num_rounds)
        if self._of_hooks is None:
            return
        try:
            self.hooks.from_arrays(self._of_hooks)
        except FlwrFcoError:
            raise
        except (LookupError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            raise ConfigurationError(
                f"the saved states of the callbacks are not those of this run's: {error!r}. Resume with the callbacks "
                "that the run had, or take an earlier copy"
            ) from error

    def save_point(self, number: int, *, complete: bool, stopped: bool = False, last: bool = False) -> None:
        """Record the progress of the run, and tell the callbacks that it can be resumed from here.

        Parameters
        ----------
        number : int
            The round.
        complete, stopped : bool
            See the attributes.
        last : bool, default False
            Whether this is the last save point.
        """
        self.round, self.complete, self.stopped = number, complete, stopped
        self.hooks.call("on_save_point", number, last)


def _under(owner: str, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of one owner, by their own names."""
    start = f"{owner}/"
    return {name.removeprefix(start): value for name, value in arrays.items() if name.startswith(start)}
