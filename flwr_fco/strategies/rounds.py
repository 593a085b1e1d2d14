"""The rounds of a run: ``start``, with callbacks, files, and the result so far whatever ends it."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord

from flwr_fco.core.computing import logger
from flwr_fco.core.validation import of_type, plain, short, takes
from flwr_fco.errors import ConfigurationError, NothingTrainedError, RunInterrupted, in_words
from flwr_fco.messages.records import Outbox
from flwr_fco.results import Number, Result, part_of
from flwr_fco.strategies.checkpoint import Saved
from flwr_fco.strategies.replies import NO_REPLY
from flwr_fco.strategies.run import Run

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


def run_rounds(
    run: Run, callbacks: Callbacks, num_rounds: int, configs: Mapping[str, ConfigRecord], evaluate_fn: Any, resume: Any
) -> Result:
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
                found = strategy.configure_train(number, result.arrays, configs["train"], run.grid)
                messages = _messages(found, f"{name}.configure_train", run)
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
            found = strategy.configure_evaluate(number, result.arrays, configs["evaluate"], run.grid)
            messages = _messages(found, f"{name}.configure_evaluate", run)
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
        warnings.warn(f"{name}: the model is not of all clients. {part}", UserWarning, stacklevel=3)
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
    if run.arrays != result.arrays == run.earlier.get("arrays"):
        run.take(result.arrays, f"{who} returned")
    _keep(result.train_metrics_clientapp, number, metrics, who)


def _messages(answer: Any, who: str, run: Run) -> Sequence[Message]:
    """Return the messages of a hook, as a subclass has changed them: who is left out is not missed."""
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
