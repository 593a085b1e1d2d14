"""The callbacks of a run, and its progress, which is saved with the strategy's state."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.core.files import json_object, parse_json
from flwr_fco.core.logs import printable
from flwr_fco.core.validation import takes
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.results import Number, Result
from flwr_fco.server.clients.nodes import Nodes
from flwr_fco.server.parts import under
from flwr_fco.server.replies.checks import LeftOut

#: Called after each round with the round, the primal arrays and the round's metrics; True ends the run.
Callback = Callable[[int, ArrayRecord, MetricRecord | None], bool | None]
#: Return value of ``on_round_end``: nothing, whether to stop, or a pair of that and metrics to add to the round's.
Answer = tuple[bool, Mapping[str, Number]] | bool | None

_METHODS = ("on_run_begin", "on_round_begin", "on_round_end", "on_save_point", "on_run_end")


def _read(callback: Any, answer: Any, *, adds: bool) -> tuple[bool, Mapping[str, Any]]:
    """Return whether an answer ends the run, and the metrics that it adds, if a callback's may.

    Other truthy values than True are rejected, as they would end the run by accident.
    """
    wants, more = answer if adds and isinstance(answer, tuple) and len(answer) == 2 else (answer, {})
    if hasattr(wants, "item"):
        # The result of a NumPy or PyTorch comparison; with more than one element there is no item.
        with suppress(TypeError, ValueError, RuntimeError):
            wants = wants.item()
    says = wants is None or isinstance(wants, bool)
    if not says or not isinstance(more, Mapping):
        expected = "True, False or None" + (", or that and a mapping of numbers" if adds else "")
        what = f"callback {callback!r} returned a {type(answer if says else wants).__name__}"
        raise ConfigurationError(f"{what}; expected {expected}: where it says True, the run ends")
    return bool(wants), more


class RoundHooks(Protocol):
    """An object that a run calls after each round, and around it if it has the other methods.

    The methods are those of :class:`flwr_fco.callbacks.Callback`.
    """

    def on_round_end(self, server_round: int, arrays: ArrayRecord, metrics: Mapping[str, Number]) -> Answer:
        """Return whether to stop, and metrics to add."""


class Hooks:
    """The callbacks of a run.

    Parameters
    ----------
    callbacks : sequence of callable or callback
        The user's callbacks.
    first : sequence of callback, default ()
        The strategy's callbacks, which are called first.

    Raises
    ------
    ConfigurationError
        If a callback is neither a function nor has any callback method.

    Examples
    --------
    >>> Hooks([lambda number, arrays, metrics: number == 3]).end_round(3, ArrayRecord(), None, {})
    (True, {})
    """

    def __init__(self, callbacks: Sequence[Any], first: Sequence[Any] = ()) -> None:
        if not isinstance(callbacks, Iterable):
            raise ConfigurationError(f"callbacks is a {type(callbacks).__name__}; expected a list, such as [callback]")
        self._callbacks = (*first, *callbacks)
        #: Whether any callback is an object, which gets all numbers of a round.
        self.wants_numbers = any(map(self._is_object, self._callbacks))
        self._begin_round()
        for callback in self._callbacks:
            if isinstance(callback, type) or not (self._is_object(callback) or callable(callback)):
                raise ConfigurationError(
                    f"callback {callback!r}: expected a function (round, arrays, metrics), or an object with "
                    "on_round_end(round, arrays, metrics) such as those of flwr_fco.callbacks"
                )
            if not self._is_object(callback) and not takes(callback, 3):
                what = f"callback {callback!r} does not take three arguments"
                raise ConfigurationError(f"{what}; expected a function (round, arrays, metrics)")

    def _begin_round(self) -> None:
        #: Number of callbacks that have seen the end of the current round, whether one wants to stop, and added
        #: metrics.
        self._ended, self._stop, self._added = 0, False, dict[str, Number]()

    @staticmethod
    def _is_object(callback: Any) -> bool:
        return any(hasattr(callback, method) for method in _METHODS)

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method on all callbacks that have it.

        Parameters
        ----------
        method : str
            Name of the method.
        *arguments
            Its arguments.
        """
        for callback in self._callbacks:
            if hasattr(callback, method):
                getattr(callback, method)(*arguments)

    def end_round(
        self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None, numbers: Mapping[str, Number]
    ) -> tuple[bool, dict[str, Number]]:
        """Call all callbacks after a round; return whether any wants to stop, and the metrics that they add.

        Parameters
        ----------
        server_round : int
            Flower's round, from 1.
        arrays : ArrayRecord
            The model.
        metrics : MetricRecord or None
            Training metrics, passed to functions.
        numbers : mapping of str to number
            All numbers of the round, passed to objects together with the metrics added by earlier callbacks.

        Raises
        ------
        ConfigurationError
            If a callback returns an invalid answer.
        """
        # A callback may fail: a resumed run continues after the callbacks that have seen the round.
        for callback in self._callbacks[self._ended :]:
            stop = False
            more: Mapping[str, Any] = {}
            if not self._is_object(callback):
                stop, _ = _read(callback, callback(server_round, arrays, metrics), adds=False)
            elif hasattr(callback, "on_round_end"):
                answer = callback.on_round_end(server_round, arrays, {**numbers, **self._added})
                stop, more = _read(callback, answer, adds=True)
            self._stop = stop or self._stop
            # Includes NumPy numbers, such as a float32 model's norm: JSON and trackers accept only Python numbers.
            for name, value in more.items():
                numpys = isinstance(value, np.generic | np.ndarray) and value.size == 1
                self._added[name] = value.item() if numpys else value
            self._ended += 1
        stop, added = self._stop, self._added
        self._begin_round()
        return stop, added

    def _savers(self) -> dict[str, Any]:
        """Return the callbacks with a state to save, by class name and index."""
        savers: dict[str, Any] = {}
        for callback in self._callbacks:
            if hasattr(callback, "to_arrays") and hasattr(callback, "from_arrays"):
                name = type(callback).__name__
                savers[f"{name}-{sum(type(other).__name__ == name for other in savers.values())}"] = callback
        return savers

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state of the callbacks, and which of them have seen the current round."""
        arrays = {"ended": np.array(json.dumps([self._ended, self._stop, self._added]))}
        for name, callback in self._savers().items():
            arrays.update({f"{name}/{key}": np.asarray(value) for key, value in callback.to_arrays().items()})
        return arrays

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned; a callback that is new in the run starts without a state."""
        ended, stop, added = parse_json(str(arrays["ended"]))
        numbers = isinstance(added, dict) and all(type(value) in (int, float) for value in added.values())
        if type(ended) is not int or ended < 0 or type(stop) is not bool or not numbers:
            raise ValueError(f"{ended!r:.50}, {stop!r:.50}, {added!r:.50}")
        self._ended, self._stop, self._added = ended, stop, added
        for name, callback in self._savers().items():
            if saved := under(f"{name}/", arrays):
                callback.from_arrays(saved)


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
    watch : DivergenceWatch
        The watch over the model.

    Attributes
    ----------
    round : int
        Last round whose replies have been aggregated.
    complete : bool
        Whether that round is over, including its evaluation and callbacks.
    stopped : bool
        Whether a callback ended the run after that round.
    """

    def __init__(self, result: Result, nodes: Nodes, grid: Grid, hooks: Hooks, watch: Any) -> None:
        self.result, self._nodes, self.hooks, self.watch = result, nodes, hooks, watch
        self.round, self.complete, self.stopped = 0, True, False
        self._in_process = hasattr(grid, "from_arrays")
        self._saves: dict[str, Any] = {"watch": watch, **({"nodes": grid} if self._in_process else {})}
        self._of_hooks: Mapping[str, NDArray[Any]] | None = None

    def histories(self) -> dict[str, dict[int, Any]]:
        """Return the result's metrics by round, under the names of :meth:`Result.rows`."""
        return {**dict(self.result._histories()), "callbacks": self.result.callback_metrics}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the whole progress as arrays."""
        record = {
            "progress": [self.round, self.complete, self.stopped],
            "informed": sorted(self._nodes.informed) if self._in_process else [],
            "left-out": self.result.left_out,
            **{name: {n: dict(row) for n, row in history.items()} for name, history in self.histories().items()},
        }
        arrays = {"run": np.frombuffer(json.dumps(record).encode(), dtype=np.uint8)}
        for owner, saves in {**self._saves, "hooks": self.hooks}.items():
            arrays.update({f"{owner}/{name}": value for name, value in saves.to_arrays().items()})
        return arrays

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore what :meth:`to_arrays` returned; callbacks are restored later, by :meth:`begin`."""
        record = json_object(arrays["run"].tobytes())
        self.round, self.complete, self.stopped = (int(record["progress"][0]), *map(bool, record["progress"][1:]))
        for name, history in self.histories().items():
            make: Any = dict if name == "callbacks" else MetricRecord
            history.update({int(number): make(row) for number, row in record[name].items()})
        for row in record["left-out"]:
            found = LeftOut(*row)
            self.result.left_out.append(found._replace(reason=printable(str(found.reason))))
        for owner, saves in self._saves.items():
            if saved := under(f"{owner}/", arrays):
                saves.from_arrays(saved)
                if owner == "nodes":
                    self._nodes.informed = set(record["informed"])
        self._of_hooks = under("hooks/", arrays)

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
