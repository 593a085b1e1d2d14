"""The rounds of a run: ``start``, with callbacks, and the result so far whatever ends it; and a run as a file.

What changes in a run are the attributes that its parts name in `saved`, and nothing else.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import fields, is_dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray

from flwr_fco.algorithms.density import rounds_of
from flwr_fco.core.computing import logger
from flwr_fco.core.files import FilePath, json_object, read_npz, shown, write_npz
from flwr_fco.core.layout import all_finite
from flwr_fco.core.spec import decode, encode
from flwr_fco.core.validation import of_type, plain, short, takes
from flwr_fco.errors import ConfigurationError, NothingTrainedError, RunInterrupted, in_words
from flwr_fco.messages.records import Messages, Outbox
from flwr_fco.results import Number, Result, part_of
from flwr_fco.strategies.nodes import Member
from flwr_fco.strategies.replies import NO_REPLY, LeftOut
from flwr_fco.strategies.run import Run
from flwr_fco.strategies.training import check_forms

#: A callback's methods.
_METHODS = ("on_run_begin", "on_round_begin", "on_round_end", "on_save_point", "on_run_end")
#: Return value of ``on_round_end``: nothing, whether to stop, or a pair of that and metrics to add to the round's.
Answer = tuple[bool, Mapping[str, Number]] | bool | None


class Callbacks:
    """The callbacks of a run.

    Parameters
    ----------
    callbacks : sequence of callable or callback
        The user's.

    Raises
    ------
    ConfigurationError
        If one is neither a function of three arguments nor has a callback's methods.

    Examples
    --------
    >>> Callbacks([lambda number, arrays, metrics: number == 3]).end_round(3, Result())
    True
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        if not isinstance(callbacks, Iterable):
            raise ConfigurationError(f"callbacks is {of_type(callbacks)}; expected a list, such as [callback]")
        self._all = tuple(callbacks)
        for each in self._all:
            if isinstance(each, type) or not (_is_object(each) or (callable(each) and takes(each, 3))):
                expected = "expected a function (round, arrays, metrics), or an object with `on_round_end`"
                raise ConfigurationError(f"callback {each!r}: {expected}, as those of flwr_fco.callbacks")

    def call(self, method: str, *arguments: Any) -> None:
        """Call a method on all callbacks that have it."""
        for callback in self._all:
            if hasattr(callback, method):
                getattr(callback, method)(*arguments)

    def end_round(self, number: int, result: Result) -> bool:
        """Call all callbacks after a round, and keep the metrics that they add; return whether one ends the run.

        Parameters
        ----------
        number : int
            Flower's round, from 1.
        result : Result
            Functions get its metrics of training, objects all of the round's, with those that earlier ones have added.
        """
        stop = False
        metrics = result.train_metrics_clientapp.get(number)
        added = dict[str, Number]()
        numbers = result.numbers(number) if any(map(_is_object, self._all)) else {}
        for callback in self._all:
            if not _is_object(callback):
                stop = _read(callback, callback(number, result.arrays, metrics), adds=False)[0] or stop
            elif hasattr(callback, "on_round_end"):
                wants, more = _read(callback, callback.on_round_end(number, result.arrays, numbers | added), adds=True)
                stop = wants or stop
                added |= {name: plain(value) for name, value in more.items()}
        if added:
            result.callback_metrics[number] = added
        return stop

    def end_run(self, result: Result) -> None:
        """Call all callbacks after a run, whichever of them raise: one holds a lock."""
        with ExitStack() as stack:
            for callback in [each for each in reversed(self._all) if hasattr(each, "on_run_end")]:
                stack.callback(callback.on_run_end, result)

    def saves_to(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a callback saves the run to a path."""
        paths = [each.path for each in self._all if hasattr(each, "on_save_point") and hasattr(each, "path")]
        return os.path.realpath(path) in map(os.path.realpath, paths)

    def savers(self) -> dict[str, Any]:
        """Return the callbacks with a state to save, by class name and index."""
        found: dict[str, Any] = {}
        for callback in self._all:
            if hasattr(callback, "to_arrays") and hasattr(callback, "from_arrays"):
                name = type(callback).__name__
                found[f"{name}-{sum(type(other).__name__ == name for other in found.values())}"] = callback
        return found


def _is_object(callback: Any) -> bool:
    return any(hasattr(callback, method) for method in _METHODS)


def _read(callback: Any, answer: Any, *, adds: bool) -> tuple[bool, Mapping[str, Any]]:
    """Return whether an answer ends the run, and the metrics that it adds; other truthy values than True are errors."""
    wants, more = answer if adds and isinstance(answer, tuple) and len(answer) == 2 else (answer, {})
    if getattr(wants, "shape", None) == ():
        # The result of a NumPy or PyTorch comparison.
        wants = wants.item()
    says = wants is None or isinstance(wants, bool)
    # What a checkpoint can hold.
    kinds = int, float, str, list, type(None)
    kept = isinstance(more, Mapping) and all(isinstance(plain(own), kinds) for own in more.values())
    if not says or not kept:
        expected = "True, False or None" + (", or that and a mapping of numbers" if adds else "")
        prefix = f"callback {callback!r} returned {of_type(answer if says else wants)}"
        raise ConfigurationError(f"{prefix}; expected {expected}: where it says True, the run ends")
    return bool(wants), more


# --- the rounds -------------------------------------------------------------------------------------------------------


def run_rounds(run: Run, callbacks: Callbacks, num_rounds: int, configs: Any, evaluate_fn: Any, resume: Any) -> Result:
    """Do the rounds of a run that has begun; the arguments are those of :meth:`CompositeStrategy.start`."""
    strategy: Any = run.options
    began = time.monotonic()
    name = type(strategy).__name__
    result = run.result
    strategy._saved = saved = Saved(run, callbacks)
    if resume is not None:
        saved.load(resume, num_rounds)
    if saved.stopped:
        text = "%s was over after round %s, and stays so; for more rounds take its model as initial_arrays"
        logger.warning(text, resume, run.number)
    logger.info("Starting %s strategy:", name)
    logger.info("\t├── Number of rounds: %d", num_rounds)
    if (own := strategy._density) and num_rounds < (needed := math.ceil(4.0 * math.log2(1.0 / own.share))):
        text = "density=%g in %d rounds: to be as good as FedAvg's, networks often need %d rounds, and deep ones more"
        logger.warning(text, own.share, num_rounds, needed)
    strategy.summary()
    # The state between two rounds, which an error saves; not while a round ends, and half of the run has changed.
    settled: Any = None
    try:
        callbacks.call("on_run_begin", strategy, num_rounds)
        saved.load_callbacks()
        if resume is None:
            if evaluate_fn is not None:
                _keep(result.evaluate_metrics_serverapp, 0, evaluate_fn(0, result.arrays), "evaluate_fn after round 0")
            callbacks.call("on_save_point", 0, False)
        first = run.number if saved.unfinished else run.number + 1
        for number in () if saved.stopped else range(first, num_rounds + 1):
            logger.info("[ROUND %s/%s]", number, num_rounds)
            # Of a private round that was released before the run was killed, the rest is to be done.
            if not saved.unfinished:
                callbacks.call("on_round_begin", number, result.arrays)
                messages = _messages(run, "train", number, configs)
                replies = run.nodes.exchange(run, messages) if len(messages) else []
                settled = None
                # What is saved of a private round is at least the model: the rest is to be done.
                saved.unfinished = run.privacy is not None
                try:
                    if len(messages) or run.current.number == number:
                        _aggregate(strategy, run, number, replies)
                    if run.privacy is not None:
                        # Before anything about the round is published: it is never released again with other noise.
                        callbacks.call("on_save_point", number, False)
                except BaseException:
                    # An error holds the model too: also of one that has interrupted this very saving.
                    if run.privacy is not None and run.number == number:
                        result.train_metrics_clientapp.setdefault(number, MetricRecord(run.privacy.metrics()))
                        callbacks.call("on_save_point", number, False)
                    raise
                # As large as the model each: not beside those of the next round.
                del replies
            messages = _messages(run, "evaluate", number, configs)
            if len(messages):
                replies = run.nodes.exchange(run, messages)
                scores = strategy.aggregate_evaluate(number, replies)
                _keep(result.evaluate_metrics_clientapp, number, scores, f"{name}.aggregate_evaluate")
            if evaluate_fn is not None:
                scores = evaluate_fn(number, result.arrays)
                _keep(result.evaluate_metrics_serverapp, number, scores, f"evaluate_fn after round {number}")
            ended = "a callback ended it" if callbacks.end_round(number, result) else run.finished()
            saved.stopped = bool(ended)
            saved.unfinished = False
            callbacks.call("on_save_point", number, bool(ended) or number == num_rounds)
            settled = run.state
            if ended:
                logger.info("The run is over after round %s: %s", number, ended)
                break
    except BaseException as error:
        done = max(result.train_metrics_clientapp, default=0)
        if settled is run.state and not run.changing and run.privacy is None:
            # A private run is saved with each round that it releases.
            callbacks.call("on_save_point", run.number, True)
        if isinstance(error, KeyboardInterrupt):
            raise RunInterrupted(f"interrupted after {done} of {num_rounds} rounds", result) from None
        if done:
            error.add_note(f"The result after round {done} is the strategy's `result`.")
        raise
    finally:
        callbacks.end_run(result)
    logger.info("Strategy execution finished in %.2fs", time.monotonic() - began)
    if result.train_metrics_clientapp and run.state.round == 0 and not (run.watch.over or run.earlier):
        raise NothingTrainedError(_why_nothing(run, result), result=result)
    if part := part_of(result):
        warnings.warn(f"{name}: the model is not of all {part}", UserWarning, stacklevel=3)
    for line in str(result).splitlines():
        logger.info("\t%s", line)
    return result


def _aggregate(strategy: Any, run: Run, number: int, replies: Sequence[Message]) -> None:
    """Keep the model and the metrics of a round of training."""
    result = run.result
    who = f"{type(strategy).__name__}.aggregate_train"
    answer = strategy.aggregate_train(number, replies)
    arrays, metrics = pair = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
    if pair is not answer or not isinstance(arrays, ArrayRecord | None):
        prefix = f"{who} returned {of_type(arrays)}"
        raise ConfigurationError(f"{prefix}; expected (ArrayRecord or None, metrics), as super().aggregate_train")
    if arrays is not None and not run.closed:
        text = f"{who} returned a model without calling super().aggregate_train, which takes the method's step"
        advice = "or make a method, with `aggregate(self, problem, state, replies)` (docs/tutorials/own-strategy.md)"
        raise ConfigurationError(f"{text}. Call it with the replies as you have changed them, {advice}")
    result.arrays = result.arrays if arrays is None else arrays
    # Of a step that leaves the model as it is, nothing but the hook says so.
    if arrays is None or run.arrays != result.arrays == run.earlier.get("arrays"):
        vars(run).update(run.earlier)
    _keep(result.train_metrics_clientapp, number, metrics, who)


def _messages(run: Run, kind: str, number: int, configs: Mapping[str, Any]) -> Messages:
    """Return the messages of a hook, as a subclass has changed them: who is left out is not missed."""
    who = f"{type(run.options).__name__}.configure_{kind}"
    answer: Any = getattr(run.options, f"configure_{kind}")(number, run.result.arrays, configs[kind], run.grid)
    if isinstance(answer, Outbox):
        return answer
    many = isinstance(answer, Iterable) and not isinstance(answer, str | Mapping)
    messages: list[Any] = list(answer) if many else [None]
    if others := [each for each in messages if not isinstance(each, Message)]:
        odd = short(answer) if others == [None] else f"{short(others[0])} among its messages"
        expected = f"expected messages: end it with `return super().{who.partition('.')[2]}(server_round, arrays, "
        raise ConfigurationError(f"{who} returned {odd}; {expected}config, grid)`")
    if messages and not run.everyone:
        asked = {each.metadata.dst_node_id for each in messages}
        run.current.nodes = {node_id: node for node_id, node in run.current.nodes.items() if node_id in asked}
    return messages


def _keep(history: dict[int, MetricRecord], number: int, found: Any, who: str) -> None:
    """Keep the metrics that a hook of the user's has returned."""
    if found is not None:
        history[number] = metrics_of(found, who, ", or None")
        logger.info("\t└──> %s: %s", who.rpartition(".")[2], history[number])


def metrics_of(found: Any, who: str, otherwise: str) -> MetricRecord:
    """Return the metrics that a function of the user's has returned.

    Parameters
    ----------
    found : Any
        MetricRecord or mapping of str to number.
    who, otherwise : str
        Begin the error, and say what else may be returned.

    Raises
    ------
    ConfigurationError
        If it is something else.
    """
    if not isinstance(found, Mapping | MetricRecord):
        raise ConfigurationError(f"{who} returned {of_type(found)}; expected a MetricRecord{otherwise}")
    if isinstance(found, MetricRecord):
        return found
    with in_words(f"{who} returned metrics that are no numbers", ConfigurationError):
        return MetricRecord({name: plain(value) for name, value in found.items()})


def _why_nothing(run: Run, result: Result) -> str:
    """Return why no round counted, most frequent reasons first."""
    text = f"{type(run.options).__name__}: no round counted, so the model is still the initial one: "
    reasons = Counter(row.reason[:400] for row in result.left_out if row.kind == "train")
    if not reasons:
        last: Mapping[str, Any] = result.train_metrics_clientapp[max(result.train_metrics_clientapp)]
        replies = int(last.get("num-replies", 0))
        all_there = replies >= run.options.participation.min_replies and not run.overflowed
        why = ", whose weights are all 0" if all_there else "; lower min_replies or wait for more clients"
        return f"{text}{replies} good replies in the last one{why}"
    whys = "; ".join(f"{count} replies: {reason}" for reason, count in reasons.most_common(3))
    others = f"; and {len(reasons) - 3} other reasons" if len(reasons) > 3 else ""
    none = f" Do the ClientApp's functions return a Message, in {run.timeout:g} seconds?" * ([*reasons] == [NO_REPLY])
    return f"{text}{whys}{others}. All are in the error's `result.left_out`.{none}"


# --- values as a file -------------------------------------------------------------------------------------------------

_VERSION = 8
#: Entries of arrays that one array of the file holds as rows, with others like them: each costs time.
_SHORT = 2**14
_damaged = partial(in_words, kind=ConfigurationError, passing=ConfigurationError)
#: Begins the names of arrays in a file.
_TREE = "tree"
#: Options that may differ between a run and its resumption.
MAY_CHANGE = {"fraction_evaluate", "min_train_nodes", "min_evaluate_nodes", "min_available_nodes", "bounds"}
MAY_CHANGE |= {"train_metrics_aggr_fn", "evaluate_metrics_aggr_fn", "on_divergence", "certificate_every"}
#: What is compared by what it means in a run of so many rounds.
MAY_CHANGE |= {"participation", "density"}


def save(path: FilePath, about: str, tree: Any, *, secret: bool = False) -> None:
    """Write a tree of dicts, lists, tuples, sets, texts, bytes, numbers, arrays and sparse vectors.

    Parameters
    ----------
    path : path-like
        Ends in ``.npz``; the file is replaced as a whole.
    about : str
        Whose it is: the settings that a resumed run must share.
    tree : Any
        The values.
    secret : bool, default False
        Whether only its owner may read the file.

    Examples
    --------
    Memories of 60,000 clients are one array, as a file of so many would not be read again:

    >>> from flwr_fco.core.files import read_npz
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     save(f"{folder}/run.npz", "a run", {number: np.array([number, 1.0]) for number in range(60_000)})
    ...     sorted(read_npz(f"{folder}/run.npz")), load(f"{folder}/run.npz", "a run")[59_999]
    (['0', 'checksum', 'tree'], array([5.9999e+04, 1.0000e+00]))
    """
    arrays: dict[str, NDArray[Any]] = {}
    saved = {"about": about, "version": _VERSION, "tree": encode(tree, _TREE, arrays)}
    alike: dict[Any, list[str]] = {}
    for name, array in arrays.items():
        if array.ndim and array.size <= _SHORT:
            alike.setdefault((array.dtype.str, array.shape), []).append(name)
    arrays |= {f"{i}": np.stack([arrays.pop(name) for name in names]) for i, names in enumerate(alike.values())}
    arrays["tree"] = np.frombuffer(json.dumps({**saved, "rows": [*alike.values()]}).encode(), np.uint8)
    arrays["checksum"] = np.array(_checksum(arrays))
    write_npz(path, arrays, secret=secret)


def load(path: FilePath, about: str) -> Any:
    """Return the tree of a file.

    Raises
    ------
    ConfigurationError
        If the file is damaged, or of a run with other settings.
    """
    arrays = read_npz(path)
    if "tree" not in arrays or str(arrays.pop("checksum", "")) != _checksum(arrays):
        raise ConfigurationError(f"{shown(path)} is no saved run, or is damaged; take an earlier copy")
    with _damaged(f"{shown(path)} is damaged", advice="; take an earlier copy"):
        saved = json_object(arrays["tree"].tobytes())
        version, whose = saved["version"], saved["about"]
        if version != _VERSION or whose != about:
            pairs = zip(str(whose).splitlines(), about.splitlines(), strict=False)
            apart = [f"{there[:150]}, here {here[:150]}" for there, here in pairs if there != here]
            why = f": {'; '.join(apart[:3])}" if apart else " by another version of flwr-fco"
            raise ConfigurationError(f"{shown(path)} was saved with other settings{why}")
        # Of another version they may be no values of this one.
        for i, names in enumerate(saved.get("rows", ())):
            arrays |= zip(names, arrays.pop(f"{i}"), strict=True)
        return decode(saved["tree"], _TREE, arrays, math.inf)


def _text(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"array {hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]}"
    if is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({', '.join(_text(getattr(value, f.name)) for f in fields(value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key!r}: {_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_text, value))}]"
    return "a function" if callable(value) else repr(value)


def _checksum(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {arrays[name].shape} ".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.dtype.kind != "U" else array.tobytes())
    return digest.hexdigest()


# --- a run as a file --------------------------------------------------------------------------------------------------


class Saved:
    """A run as a file: its parts, the metrics so far, the callbacks, and in one process the clients' contexts.

    Parameters
    ----------
    run : Run
        The run.
    callbacks : Callbacks
        Of the run.

    Attributes
    ----------
    private : bool
        Whether no round may be released again, with other noise.
    stopped : bool
        Whether the run is over after its last round.
    unfinished : bool
        Whether the last round has been trained, and not yet evaluated.
    """

    saved = ("stopped", "unfinished")

    def __init__(self, run: Run, callbacks: Any) -> None:
        self._run = run
        self._callbacks = callbacks
        self.private = run.privacy is not None
        self.stopped = self.unfinished = False
        self._of_callbacks: Mapping[str, Any] = {}
        #: Of each history the last round of its lines, and the lines.
        self._texts: dict[str, tuple[int, bytes]] = {}

    @cached_property
    def _about(self) -> str:
        """The settings that a resumed run must share, one a line."""
        run = self._run
        h = run.method.setting(run.given, None).mirror_map
        around = "" if h is run.given.mirror_map else f"\nmap around the initial arrays: {_text(h)}"
        kind, model = type(run.options), f"{run.problem.plan.solver} {run.given.layout!r}{around}"
        kept = [option.name for option in fields(run.options) if option.init and option.name not in MAY_CHANGE]
        lines = [f"{name}={_text(getattr(run.options, name))}" for name in kept]
        lines += [f"density={density.share!r} of {density.scope}"] if (density := run.options._density) else []
        return "\n".join([f"{kind.__module__}.{kind.__qualname__}", model, *lines])

    @property
    def _parts(self) -> dict[str, Any]:
        """All that changes, by name."""
        run = self._run
        parts = {"run": run, "cap": run.cap, "ledger": run.roll, "graph": run.graph, "nodes": run.nodes, "saved": self}
        parts |= {"momentum": run.momentum, "untrained": run.untrained, "watch": run.watch, "privacy": run.privacy}
        parts["noise"] = run.privacy and run.privacy.stream
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def _histories(self) -> dict[str, dict[int, Any]]:
        return {**self._run.result.histories, "callbacks": self._run.result.callback_metrics}

    def save(self, path: FilePath) -> None:
        """Write the file.

        Parameters
        ----------
        path : path-like
            Ends in ``.npz``.

        Raises
        ------
        OSError
            If it cannot be written.
        """
        run = self._run
        # A private run's last round may be no result yet, where an error has ended it.
        sent = {} if self.private or run.result.arrays == run.arrays else run.result.arrays
        tree = {
            "parts": {name: {key: getattr(part, key) for key in part.saved} for name, part in self._parts.items()},
            "histories": {name: self._lines(name, history) for name, history in self._histories.items()},
            # What a hook or a callback has made of the model is sent, and trained, in the next round.
            "sent": {name: own.numpy() for name, own in sent.items()},
            "left out": run.left_out,
            "callbacks": {name: dict(each.to_arrays()) for name, each in self._callbacks.savers().items()},
            "num nodes": getattr(run.grid, "num_nodes", None),
            "nodes": run.grid.states() if hasattr(run.grid, "states") else {},
            "density rounds": run.options._density and rounds_of(run.options._density, run.num_rounds),
        }
        save(path, self._about, tree, secret=self.private)

    def _lines(self, name: str, history: Mapping[int, Any]) -> bytes:
        """Return a history as lines of JSON: those of earlier rounds are made once, however often a run is saved."""
        done, text = self._texts.get(name, (-1, b""))
        for number in [number for number in history if number > done]:
            text += f"{json.dumps([number, dict(history[number])])}\n".encode()
            done = number
        self._texts[name] = done, text
        return text

    def read(self, path: FilePath) -> Any:
        """Return the tree of a file of this strategy and model.

        Raises
        ------
        ConfigurationError
            If it is none.
        """
        return load(path, self._about)

    def load(self, path: FilePath, num_rounds: int) -> None:
        """Go on from a file.

        Parameters
        ----------
        path : path-like
            Of :meth:`save`.
        num_rounds : int
            The total, with the rounds before the run was stopped.

        Raises
        ------
        ConfigurationError
            If it is no file of this strategy and model, or of other nodes, or the rest of the run depends on a number
            of rounds that is not its own.
        """
        tree = self.read(path)
        with _damaged(f"{shown(path)} is damaged", advice="; take an earlier copy"):
            self._check_rest(path, tree, num_rounds)
            self._restore(tree)

    def _check_rest(self, path: FilePath, tree: Mapping[str, Any], num_rounds: int) -> None:
        """Refuse a file that is whole, and that this run cannot go on from."""
        density = self._run.options._density
        private = tree["parts"].get("privacy")
        done = tree["parts"]["run"]["number"]
        nodes, here = tree["num nodes"], getattr(self._run.grid, "num_nodes", None)
        wrong = ""
        if density is not None and rounds_of(density, num_rounds) != (before := tree["density rounds"]):
            wrong = f"is of a run whose density falls otherwise: give density={replace(density, rounds=before)!r}"
        elif private is not None and 0 < private["rounds"] < num_rounds:
            wrong = f"is accounted for {private['rounds']} rounds, and this run is to have {num_rounds}"
        elif done > num_rounds:
            wrong = f"is of round {done}, and num_rounds={num_rounds}: it is the total, with the rounds before the stop"
        elif None not in (nodes, here) and nodes != here:
            wrong = f"is of a run of {nodes} nodes, and there are {here}: resume with the nodes that the run had"
        elif self.private and not self._callbacks.saves_to(path):
            wrong = "is of a private run, which goes on only where it saves itself, or its next rounds could be "
            wrong += f"released again, with other noise: add Checkpoint({os.fspath(path)!r}) to callbacks"
        if wrong:
            raise ConfigurationError(f"{shown(path)} {wrong}")

    def _restore(self, tree: Mapping[str, Any]) -> None:
        run = self._run
        parts = tree["parts"]
        state = type(run.state)._make(parts["run"]["state"])
        good = parts["watch"]["good"][0]
        rows = None if run.graph is None else sorted(parts["graph"]["rows"].values())
        check_forms(run.state, state, None if rows is None else len(rows) or 1)
        if rows and rows != [*range(len(rows))]:
            raise ValueError(f"its graph has the rows {rows}")
        if (good.shape, good.dtype) != (run.point.shape, run.point.dtype) or not all(map(all_finite, (good, *state))):
            raise ValueError("the state or the last good model is not finite, or of another model")
        parts["run"]["state"] = state
        if run.roll is not None:
            parts["ledger"]["members"] = known = {k: Member(*own) for k, own in parts["ledger"]["members"].items()}
            for key, member in known.items():
                memory = [] if member.memory is None else [member.memory[name] for name in run.roll.names]
                sound = all(own.shape == (run.roll.size,) and all_finite(getattr(own, "values", own)) for own in memory)
                sound = sound and isinstance(member.sent, tuple) and isinstance(member.digest, str)
                if not sound or not 0.0 <= (member.examples or 0.0) < np.inf:
                    raise ValueError(f"the memory of {key} is not finite, or not of {run.roll.size} numbers")
        if not all(0.0 <= length < np.inf and count >= 0 for length, count in parts["cap"]["usual"].values()):
            raise ValueError("a usual length is none")
        for name, part in self._parts.items():
            for key in part.saved:
                held, here = parts[name][key], getattr(part, key)
                if here is not None and not isinstance(held, int | float if isinstance(here, float) else type(here)):
                    raise ValueError(f"its {key} is a {type(held).__name__}, expected a {type(here).__name__}")
                setattr(part, key, held)
        if run.graph is not None and run.graph.rows:
            run.graph.topology = run.graph.of_size(len(run.graph.rows))
        given = run.given if run.untrained is None else run.given_without(run.untrained)
        setting = run.method.setting(given, run.state)
        run.problem = run.problem_of(setting)
        run.setting = setting
        run.show(run.seen(run.problem, run.state, run.average) if run.state.round else run.point, run.passed)
        changed = {name: Array(value) for name, value in tree["sent"].items()}
        run.result.arrays = ArrayRecord(changed) if changed else run.arrays.copy()
        run.left_out.extend(LeftOut(*row) for row in tree["left out"])
        for name, history in self._histories.items():
            kind: Any = dict if name == "callbacks" else MetricRecord
            lines = map(json.loads, tree["histories"][name].splitlines())
            history.update({int(number): kind(row) for number, row in lines})
        if tree["nodes"] and hasattr(run.grid, "restore"):
            run.grid.restore(tree["nodes"])
        self._of_callbacks = tree["callbacks"]

    def load_callbacks(self) -> None:
        """Restore the callbacks' states, after they were called at the beginning of the run.

        Raises
        ------
        ConfigurationError
            If they are other callbacks' states.
        """
        for name, callback in self._callbacks.savers().items():
            problem = f"the saved state of {name} is not this callback's"
            with _damaged(problem, advice="; resume with the callbacks that the run had"):
                if name in self._of_callbacks:
                    callback.from_arrays(self._of_callbacks[name])
