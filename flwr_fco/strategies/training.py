"""A round of training, from top to bottom: whom it asks, what they are sent, which replies count, the method's step."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from flwr.app import Message, RecordDict
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm, Problem, To
from flwr_fco.algorithms.contract.replies import Rejected, Replies
from flwr_fco.algorithms.density import sparse_entries
from flwr_fco.algorithms.dual_averaging import DualAveraging
from flwr_fco.core.computing import logger, single_threaded_blas
from flwr_fco.core.layout import Layout, NonZeros, SparseVector, all_finite, euclidean_norm, is_shorter
from flwr_fco.core.validation import short
from flwr_fco.errors import ConfigurationError, MagnitudeError, in_words
from flwr_fco.messages.protocol import Downlink, MemoryLostError, Node, Uplink
from flwr_fco.messages.records import Messages, Outbox, Task, addressed, encoder, isolated
from flwr_fco.messages.short import Form, Short, bytes_in, shorten
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.strategies import replies
from flwr_fco.strategies.nodes import TRAINING, Key, named
from flwr_fco.strategies.options import AUTO
from flwr_fco.strategies.questions import extrapolation
from flwr_fco.strategies.run import Run, advice_on

#: Times that a client is asked again: of a method that needs everyone, or that has lost its memory.
_REPEATS = 2
#: Bytes of clients' indices that the server keeps; other clients get whole vectors.
_MOST_INDICES = 2**28
#: Largest dual-to-weight ratio sent as float32.
FLOAT32_LIMIT = 1e3
#: Size of a model from which on the server looks whether most of a broadcast is zero.
_LONG = 10_000


# --- whom -------------------------------------------------------------------------------------------------------------


def choose_nodes(run: Run, number: int) -> list[Node]:
    """Return the nodes of a round, after those who have come or gone are taken note of.

    Parameters
    ----------
    run : Run
        Of the strategy.
    number : int
        Flower's round, from 1.
    """
    options = run.options
    needed = max(options.min_available_nodes, run.graph.num_rows if run.graph and not run.graph.rows else 1)
    run.needed = max(needed, len(run.roll.present)) if run.everyone and run.roll is not None else needed
    nodes = run.nodes.sample(run.grid, number, TRAINING, options.fraction_train, options.min_train_nodes, run.needed)
    if options.participation.choose_nodes is not None:
        nodes = run.nodes.chosen(options.participation.choose_nodes, number)
    if run.privacy is not None:
        nodes = run.privacy.begin_round(run.nodes.ordered, run.num_rounds, run.problem)
    run.follow()
    if run.graph is not None:
        nodes = run.graph.members(nodes)
    if run.roll is not None and run.everyone:
        late = {node.key for node in run.nodes.ordered} - run.roll.present
        if late - run.late:
            text = "%s connected after the first round and takes no part: %s needs the same clients in every round"
            logger.warning(f"{text}. To train on its data too, start again", named(late), type(options).__name__)
        run.late = late
        nodes = [node for node in run.nodes.ordered if node.key in run.roll.present]
    logger.info("configure_train: Sampled %s nodes (out of %s)", len(nodes), len(run.nodes.ordered))
    return nodes


def first_gradients(run: Run) -> None:
    """Round 0, once in a run: every client sends one gradient at the start point, with which trackers start."""
    wanted = getattr(run.options, "tracker_start", "zero") == "gradient" and hasattr(run.state, "started")
    if not wanted or run.state.round > 0 or run.state.started:
        return
    problem = run.problem
    run.problem = problem._replace(round=0)
    uplinks = weighted(run, good_replies(run, run.nodes.exchange(run, post(run, 0, run.nodes.ordered))))
    if uplinks:
        if run.ledger is not None:
            run.ledger.commit(run.method, 0, run.method.downlink(run.problem, run.state, None), uplinks)
        run.state = run.method.aggregate(run.problem, run.state, Replies(uplinks, run.mean, run.ledger))
        logger.info("Trackers start from the gradients of %s clients", len(uplinks))
    else:
        logger.warning("No client has sent a gradient that counts: trackers start at 0, if the round counts")
    run.problem = problem


# --- what they are sent -----------------------------------------------------------------------------------------------


def post(run: Run, number: int, nodes: Sequence[Node]) -> Messages:
    """Open an exchange; return its messages, which are made when somebody looks at them.

    Parameters
    ----------
    run : Run
        Of the strategy.
    number : int
        The round, 0 for first gradients.
    nodes : sequence of Node
        Whom it asks.
    """
    run.tables.look(run, nodes)
    run.current = current = replies.Round(number, nodes, run.left_out)
    current.foreign = run.nodes.foreign
    current.short = isinstance(run.options.wire, Short) and run.state.round == 0
    run.problem = run.problem._replace(asked=nodes)
    current.shapes = found = run.method.shapes(run.problem, run.state)
    if not isinstance(found, dict) or not all(isinstance(shape, tuple) for shape in found.values()):
        prefix = f"{type(run.method).__name__}.shapes returned {short(found)}"
        raise ConfigurationError(f"{prefix}; expected shapes by name, such as {{'increment': (7,)}}")
    auto = run.problem.plan.wire_dtype == "auto" and not run.options._unmodified
    current.dtype = "float32" if auto and short_wire(run.method, run.problem, run.state) else "float64"
    return _messages(run, nodes, ())


def short_wire(method: Algorithm, problem: Problem, state: Any) -> bool:
    """Whether float32 is enough for a round's messages with ``wire_dtype="auto"``, in which the dual is rounded.

    For a Euclidean float32 model it is, up to 1,000 times the size of the weights. The error of float32 is 6e-8 of the
    dual, which is about the threshold plus the weight, so at most 6e-5 of the root mean square of the non-zero weights.
    The server's dual stays float64, and increments are relative to what was sent. Clients' memories, extrapolated
    points and other methods' vectors need all digits.

    Parameters
    ----------
    method : Algorithm
        The method.
    problem : Problem
        The model's layout, psi, h, and the round's numbers.
    state : NamedTuple
        The server's state as the round begins.
    """
    kept = type(method).local is DualAveraging.local and type(problem.plan.mirror_map) is Euclidean
    if not kept or not all(entry.dtype in ("float32", "float16") for entry in problem.layout.optimized):
        return False
    primal = method.retrieve(problem, state)
    dual = state.dual
    count = np.count_nonzero(primal)
    size = np.sqrt(np.vdot(primal, primal) / count) if count else 0.0
    return bool(max(-dual.min(), dual.max()) <= FLOAT32_LIMIT * size)


def _messages(run: Run, nodes: Sequence[Node], lost: Container[Node]) -> Messages:
    """Return the messages of a round to some nodes, of whom some have lost their memory."""
    current = run.current
    options = run.options
    if options._unmodified:
        return to_all(run, nodes, run.model_message(run.last()[1], run.config))
    tasks = list(_tasks(run, nodes, lost))
    encode = encoder(run.config, options.arrayrecord_key, options.configrecord_key)
    if tasks and isinstance(options.wire, Short):
        # All tasks are one: the methods of a density have no memories.
        return to_all(run, nodes, encode(tasks[0][1]), "dual")
    current.works |= {node.node_id: down.work for node, down in tasks if down.work is not None}
    # Most of them are one object.
    distinct = {id(down): down.vectors.values() for _, down in tasks}
    sizes = {key: _bytes_down(vectors, np.dtype(current.dtype).itemsize) for key, vectors in distinct.items()}
    more = sum(array.nbytes for array in (*run.passed.values(), *run.problem.plan.spec.arrays.values()))
    current.bytes_down += sum(sizes[id(down)] + more for _, down in tasks)

    def make() -> list[Message]:
        return addressed(run.grid, [(node.node_id, encode(down)) for node, down in tasks], "train", current.number)

    return Outbox(current.number, tasks, make)


def to_all(run: Run, nodes: Sequence[Node], content: RecordDict, vector: str = "") -> Messages:
    """Return messages of the same content, made at once: clients' mods read their short form.

    Parameters
    ----------
    run : Run
        Of the strategy, with the exchange.
    nodes : sequence of Node
        Whom it asks.
    content : RecordDict
        Of the messages.
    vector : str, default ""
        The name of the vector that travels in the place of the model's arrays, if one does.
    """
    current, options = run.current, run.options
    key = options.arrayrecord_key
    if isinstance(options.wire, Short):
        sparse = {entry.name for entry in sparse_entries(run.problem.psi)}
        layout = Layout(run.problem.layout.optimized).regularizing(sparse)
        form = Form(options.wire, layout, vector, [*content[key]], options.seed)
        # Of an evaluation no value is rounded.
        current.form = form, shorten(content, key, form, exact=current.kind == "evaluate")
    current.bytes_down = len(nodes) * bytes_in(content)
    return addressed(run.grid, ((node.node_id, isolated(content)) for node in nodes), current.kind, current.number)


def _tasks(run: Run, nodes: Sequence[Node], lost: Container[Node]) -> Iterator[Task]:
    """Return the clients' tasks; those that are alike are one object."""
    seen: dict[int, Any] = {}
    alike = run.ledger is None and run.graph is None
    whole = down = None
    for node in nodes:
        if whole is None or not alike:
            whole, down = _task(run, None if alike else node.key, node in lost), None
        indices = run.indices.get(node.key) if run.indices else None
        if indices is None:
            down = down or _by_non_zeros(run, whole, seen)
            yield node, down
        else:
            # At the features that the client has reported.
            vectors = whole.vectors.items()
            at: Any = {name: SparseVector(indices, vector[indices], vector.size) for name, vector in vectors}
            yield node, whole._replace(vectors=at)


def _task(run: Run, key: Key | None, is_lost: bool) -> Downlink:
    """Return a client's task, or that of all; with the memory itself for a client that has lost it."""
    member = None if run.ledger is None or key is None else run.ledger.member(key)
    to = None if key is None else To(key, begins=member is not None and not member.digest)
    found: Any = run.method.downlink(run.problem, run.state, to)
    if not isinstance(found, Downlink):
        raise ConfigurationError(f"{type(run.method).__name__}.downlink returned {short(found)}; expected a Downlink")
    down = found._replace(pass_through=run.passed, dtype=run.current.dtype)
    return down if member is None else down._replace(stamp=member.digest, restored=member.memory if is_lost else None)


def _by_non_zeros(run: Run, down: Downlink, seen: dict[int, Any]) -> Downlink:
    """Return a task for clients that have not reported their features: shorter while most of it is zero."""
    if not ((run.indices or run.current.number <= 1) and run.method.sparse and run.options.wire.sparse):
        return down
    for vector in down.vectors.values():
        if id(vector) not in seen:
            # With its source: an id is unique only as long as its object lives.
            short = vector.size >= _LONG and is_shorter(int(np.count_nonzero(vector)), vector.size)
            seen[id(vector)] = vector, NonZeros.of(vector) if short else vector
    return down._replace(vectors={name: seen[id(vector)][1] for name, vector in down.vectors.items()})


def traffic(run: Run, good: Sequence[replies.Reply]) -> dict[str, Any]:
    """Return the bytes of arrays in a round's messages, and how many minimisations were stopped early.

    Parameters
    ----------
    run : Run
        Of the strategy.
    good : sequence of replies.Reply
        The replies that count.
    """
    counts: dict[str, Any] = {"bytes-down": run.current.bytes_down}
    if run.options._unmodified or run.current.form is not None:
        counts["bytes-up"] = sum(bytes_in(reply.content) for reply in good)
    else:
        held = [vectors for reply in good for vectors in (reply.value.vectors, reply.value.pass_through)]
        counts["bytes-up"] = sum(part.nbytes for vectors in held for part in vectors.values())
    if run.current.form is not None:
        model = sum(len(array.data) for array in run.arrays.values())
        counts["bytes-fedavg"] = (len(run.current.nodes) + len(good)) * model
    # They have been checked: what is no list is a number.
    if capped := [own for reply in good if not isinstance(own := reply.value.metrics.get("capped", []), list)]:
        counts["num-capped"] = sum(value > 0.0 for value in capped)
    return counts


def _bytes_down(vectors: Iterable[Any], item: int) -> int:
    """Return the bytes of vectors whose numbers take so many each in a message."""
    parts = [part for each in vectors for part in (each.parts if isinstance(each, SparseVector) else (each,))]
    return sum(part.size * (item if part.dtype.kind == "f" else part.itemsize) for part in parts)


# --- which replies count ----------------------------------------------------------------------------------------------


def good_replies(run: Run, answered: Iterable[Message]) -> list[replies.Reply]:
    """Return the replies that count; clients that have lost their memory, or are needed, are asked again.

    Parameters
    ----------
    run : Run
        Of the strategy.
    answered : iterable of Message
        As they came.
    """
    read = partial(replies.read, run)
    good, bad = replies.collect(run.current, answered, read)
    lost = set[Node]()
    for _ in range(_REPEATS):
        lost |= {node for node, why in bad if isinstance(why, MemoryLostError)}
        again = [node for node in run.current.nodes.values() if node not in good and (run.everyone or node in lost)]
        if not again or run.grid is None:
            break
        found, more = replies.collect(run.current, run.nodes.exchange(run, _messages(run, again, lost)), read)
        good |= found
        # Of who is asked again the last reason counts, once.
        bad = [(node, why) for node, why in dict([*bad, *more]).items() if node not in good]
    counted = run.current.settle(good, bad)
    if run.compares:
        # In a private run no reply says whether another one counts.
        discloses = run.method.discloses
        uplinks = [reply.value for reply in counted]
        losses = [name for name in run.current.shapes if discloses.get(name) == "losses"]
        counted = run.current.without(counted, replies.objections(run, uplinks, lengths=not discloses, losses=losses))
    if run.method.sparse:
        _note_indices(run, counted)
    return counted


def _note_indices(run: Run, found: Sequence[replies.Reply]) -> None:
    """Keep the indices of the clients' features, from their last replies."""
    for node in run.current.nodes.values() if run.indices else ():
        run.indices.pop(node.key, None)
    for reply in found:
        vector = reply.value.vectors.get("increment")
        if isinstance(vector, SparseVector) and is_shorter(vector.indices.size, vector.size):
            run.indices[reply.node.key] = vector.indices
    held = sum(indices.nbytes for indices in run.indices.values())
    while held > _MOST_INDICES:
        held -= run.indices.pop(next(iter(run.indices))).nbytes


def weighted(run: Run, good: Sequence[replies.Reply]) -> list[Uplink]:
    """Return the uplinks of good replies with weights that sum to 1; none if all weights are 0."""
    weights = replies.weights_of([reply.value.examples for reply in good], run.options.weighting == "uniform")
    return [reply.value._replace(weight=weight) for reply, weight in zip(good, weights, strict=bool(weights))]


# --- the method's step ------------------------------------------------------------------------------------------------


def step(run: Run, good: list[replies.Reply], least: int) -> tuple[list[replies.Reply], list[Uplink], bool]:
    """Take the method's step with the good replies; return those that it has not rejected, and whether it was taken.

    Parameters
    ----------
    run : Run
        Of the strategy.
    good : list of replies.Reply
        The good replies.
    least : int
        The smallest number with which a step is taken.
    """
    while True:
        uplinks = weighted(run, good)
        if len(good) < least or not uplinks:
            return good, uplinks, False
        try:
            return good, uplinks, update(run, uplinks)
        except Rejected as error:
            wrong = error.uplink.node
            good = [reply for reply in good if reply.node != wrong]
            run.current.leave_out([(wrong or Node(0, None), str(error))])


def update(run: Run, uplinks: Sequence[Uplink]) -> bool:
    """Take the method's step; False, and nothing changes, if it overflows.

    Parameters
    ----------
    run : Run
        Of the strategy.
    uplinks : sequence of Uplink
        The replies that count, with weights.
    """
    before, problem, chosen = run.state, run.problem, run.chosen
    if getattr(run.options, "server_lr", None) == AUTO:
        chosen = {**chosen, "server_lr": extrapolation(uplinks)}
        problem = problem._replace(server_lr=chosen["server_lr"])
        run.reasons["server_lr"] = "FedExP's, of the last increments"
    # These are kept only if the step is: what they hold is replaced, never written into.
    momentum, untrained = copy(run.momentum), copy(run.untrained)
    try:
        with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore"):
            given = run.given
            if untrained is not None:
                untrained.observe(given.layout, uplinks)
                given = run.given_without(untrained)
                if given.layout != problem.layout:
                    # Psi leaves alone what nobody trains, from this very step on.
                    problem = problem.with_plan(run.plan_of(run.setting_of(given, before)))
            passed = _averaged_arrays(run, uplinks)
            after = run.method.aggregate(problem, before, Replies(uplinks, momentum or run.mean, run.ledger))
            _check_state(run, before, after)
            setting = run.setting_of(given, after)
            following = run.problem_of(setting)
            stage = setting.stage != run.setting.stage
            total, count = (None, 0) if stage else run.average
            if run.averages and not stage:
                # Of a round those that the state carries, or else the last one: the model, of the psi that follows.
                points = getattr(after, "points", ())
                for each in points if len(points) else [run.method.retrieve(following, after)]:
                    total = each if total is None else total + each
                    count += 1
            point = run.seen(following, after, (total, count))
            if not all(map(all_finite, (point, *passed.values()))):
                raise MagnitudeError("the model is not finite")
    except MagnitudeError as error:
        logger.warning("aggregate_train: the update overflows, the state stays as it is: lower the rates (%s)", error)
        run.overflowed = True
        return False
    new: dict[str, Any] = {"state": after, "passed": passed, "setting": setting, "chosen": chosen}
    new |= {"problem": following._replace(server_lr=problem.server_lr), "average": (total, count)}
    new |= {"momentum": momentum, "untrained": untrained}
    if run.ledger is None and run.graph is None and run.privacy is None:
        run.earlier = {name: getattr(run, name) for name in (*new, "point", "arrays", "over")}
    if run.ledger is not None:
        run.ledger.commit(run.method, run.current.number, run.method.downlink(problem, before, None), uplinks)
        run.moved = euclidean_norm(point - run.point) / run.size
        if stage:
            run.ledger.restart()
    elif run.roll is not None:
        run.roll.note_weights(uplinks)
    vars(run).update(new)
    run.show(point, passed)
    return True


def _check_state(run: Run, before: Any, after: Any) -> None:
    who = f"{type(run.method).__name__}.aggregate"
    if type(after) is not type(before) or after.round != before.round + 1:
        of_round = f" of round {after.round}" if type(after) is type(before) else ""
        prefix = f"{who} returned {short(after)}{of_round}"
        raise ConfigurationError(f"{prefix}; expected a {type(before).__name__} whose round is {before.round + 1}")
    if run.graph is None:
        with in_words(who, ConfigurationError, "; a state keeps its shapes and dtypes"):
            check_forms(before, after)
    if wrong := [name for name, value in zip(after._fields, after, strict=True) if not all_finite(value)]:
        raise MagnitudeError(f"{wrong[0]} is not finite")


def check_forms(before: Any, after: Any, rows: int | None = None) -> None:
    """Check that a state has the shapes and dtypes of another one; of what its class lets grow only the dtypes.

    Parameters
    ----------
    before, after : NamedTuple
        States of one method.
    rows : int, optional
        Nodes of a graph: what has an axis of them had one row for all as the run began.

    Raises
    ------
    ValueError
        If it has not.
    """
    for name, *pair in zip(before._fields, before, after, strict=True):
        shapes = [() if name in getattr(after, "grows", ()) else np.shape(value) for value in pair]
        dtypes = [getattr(value, "dtype", None) for value in pair]
        grown = rows is not None and shapes[0] and shapes[1] == (rows, *shapes[0][1:])
        if not (grown or shapes[0] == shapes[1]) or dtypes[0] != dtypes[1]:
            raise ValueError(f"changes the form of {name!r} from {dtypes[0] or 'a number'}{list(shapes[0])}")


def _averaged_arrays(run: Run, uplinks: Sequence[Uplink]) -> dict[str, NDArray[Any]]:
    """Return the arrays that pass through: centres of floating ones, lower medians of the others."""
    result = dict(run.passed)
    for name, old in result.items():
        values = [(up.pass_through[name], up.weight) for up in uplinks if name in up.pass_through]
        shares = replies.weights_of([weight for _, weight in values], uniform=False)
        if not shares:
            continue
        if old.dtype.kind == "f":
            centre = run.mean.of([value.astype(np.float64).ravel() for value, _ in values], shares)
            result[name] = centre.reshape(old.shape).astype(old.dtype)
        else:
            # Of a counter it is a scalar.
            result[name] = np.asarray(np.sort(np.array([own for own, _ in values]), axis=0)[(len(values) - 1) // 2])
    return result


def give_up(run: Run, uplinks: Sequence[Uplink]) -> None:
    """Drop the memories of clients that were asked in vain, round after round; of a method that needs all, end the run.

    Parameters
    ----------
    run : Run
        Of the strategy.
    uplinks : sequence of Uplink
        The replies that count.

    Raises
    ------
    ConfigurationError
        If the method needs everyone.
    """
    roll: Any = run.roll
    patience = run.options.participation.evict_after
    roll.miss(roll.present if run.everyone else [node.key for node in run.current.nodes.values()], uplinks)
    if run.ledger is not None and not run.everyone and roll.missed:
        run.follow()
    if run.everyone and (gone := {key for key, missed in roll.missed.items() if missed >= patience}):
        reasons = (row.reason for row in reversed(run.left_out) if Node(row.node_id, row.partition_id).key in gone)
        said = next(reasons, "not connected").removesuffix(replies.HONEST)
        # A method that diverges may do so at one client first.
        honest = f". If it is honest: {advice_on(run, locally=False)}" if replies.TOO_LONG in said else ""
        silent = f"{named(gone)} gave no good reply in {patience} rounds in a row (the last one: {said})"
        advice = "Mend it and resume from the last checkpoint, leave it out, or take a strategy that samples clients"
        raise ConfigurationError(f"{silent}, and {type(run.options).__name__} needs every client. {advice}{honest}")
