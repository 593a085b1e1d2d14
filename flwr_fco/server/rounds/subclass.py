"""A round through the hooks of a subclass: what they return is used, or refused."""

from __future__ import annotations

from collections.abc import Iterable
from logging import WARNING
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import log
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.server.clients.unmodified import Untrained
from flwr_fco.server.run import Run
from flwr_fco.wire.arrays import primal_vector
from flwr_fco.wire.envelope import send_and_receive
from flwr_fco.wire.metrics import as_metrics

#: Largest difference between a model that a hook returns and the primal point of its state, relative to its size.
_EQUAL = 1e-12
#: What to do instead of making messages.
_WHOM = (
    "the server knows whom it asks only from super().configure_train(server_round, arrays, config, grid). Leave "
    "messages out of what that returns, or change them; to choose the nodes of a round give "
    "participation=Participation(choose_nodes=...)"
)
#: Fields of a state that hold its point, in the dual space or itself.
_POINTS = ("dual", "primal")


def has_own_hooks(strategy: Any) -> bool:
    """Whether a subclass overrides ``configure_train`` or ``aggregate_train``.

    Parameters
    ----------
    strategy : CompositeStrategy
        The strategy of the run.
    """
    names = ("configure_train", "aggregate_train")
    ours = all(getattr(type(strategy), name).__module__.startswith("flwr_fco.server.") for name in names)
    return not ours or not strategy.__dict__.keys().isdisjoint(names)


def hooked_round(
    run: Run, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
) -> tuple[ArrayRecord, MetricRecord | None]:
    """Run a training round through the hooks of the strategy, as Flower's loop does.

    Parameters
    ----------
    run : Run
        The run behind the strategy.
    server_round : int
        Flower's round, from 1.
    arrays : ArrayRecord
        The model.
    config : ConfigRecord
        The user's train config.
    grid : flwr.serverapp.Grid
        Flower's connection to the nodes.

    Returns
    -------
    ArrayRecord
        The model after the round.
    MetricRecord
        What the hook returned as metrics.

    Raises
    ------
    ConfigurationError
        If the hooks leave out what makes a round, or return a model that no state of the algorithm has.
    """
    strategy, name = run.strategy, type(run.strategy).__name__
    run.outcome, before = None, run.snapshot()
    messages = messages_of(strategy, "configure_train", server_round, arrays, config, grid)
    own = sum(message.metadata.group_id != str(server_round) for message in messages)
    if own:
        raise ConfigurationError(
            f"{name}.configure_train returned {own} messages that are not of super().configure_train in round "
            f"{server_round}: {_WHOM}"
        )
    if run.algorithm.reads != "everyone":
        # A hook may leave messages out: nobody waits for nodes that were not asked.
        asked = {message.metadata.dst_node_id for message in messages}
        run.current.nodes = {key: node for key, node in run.current.nodes.items() if key in asked}
    answer: Any = (None, None)
    if messages or run.current.number == server_round:
        answer = strategy.aggregate_train(server_round, send_and_receive(grid, messages, run.mail.timeout))
    if not (isinstance(answer, tuple) and len(answer) == 2):
        given = "None" if answer is None else f"a {type(answer).__name__}"
        raise ConfigurationError(
            f"{name}.aggregate_train returned {given}; expected (arrays, metrics), as FedAvg returns: end it with "
            "`return super().aggregate_train(server_round, replies)`, or return what that returns, changed"
        )
    returned, metrics = answer[0], as_metrics(answer[1], f"{name}.aggregate_train")
    closed = run.outcome is not None or not messages
    if returned is not None and not isinstance(returned, ArrayRecord):
        text = f"{name}.aggregate_train returned a {type(returned).__name__} as model"
        raise ConfigurationError(f"{text}; expected an ArrayRecord or None")
    if not closed:
        if returned is not None and returned != run.primal_arrays():
            raise ConfigurationError(
                f"{name}.aggregate_train returned another model without calling super().aggregate_train: the server's "
                "state, which the clients get, has not moved. Change what super().aggregate_train(server_round, "
                "replies) returns; or put an aggregation of your own into an algorithm, as `aggregate(self, problem, "
                "state, replies)` (docs/tutorials/own-strategy.md)"
            )
        log(WARNING, "%s.aggregate_train left round %s out: the model stays as it is", name, server_round)
        run.outcome = {"skipped": 1, "num-replies": 0}
        return arrays, metrics
    if returned is not None and returned == run.primal_arrays():
        return returned, metrics
    if returned is None or returned == arrays:
        what = "None" if returned is None else "the model of before"
        _restore(run, before, f"{name}.aggregate_train returned {what}")
        return arrays, metrics
    take(run, returned, f"{name}.aggregate_train returned")
    return run.primal_arrays(), metrics


def messages_of(
    strategy: Any, hook: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
) -> list[Message]:
    """Return the messages of ``configure_train`` or ``configure_evaluate``.

    Parameters
    ----------
    strategy : CompositeStrategy
        The strategy of the run.
    hook : {"configure_train", "configure_evaluate"}
        Which of them.
    server_round, arrays, config, grid
        As in :func:`hooked_round`; the config is that of the hook.

    Raises
    ------
    ConfigurationError
        If it returns None, or something else that is no messages.
    """
    returned = getattr(strategy, hook)(server_round, arrays, config, grid)
    messages = list(returned) if isinstance(returned, Iterable) else [returned]
    odd = [own for own in messages if not isinstance(own, Message)]
    if odd:
        given = "None" if returned is None else f"a {type(returned).__name__}"
        held = f" that holds a {type(odd[0]).__name__}" if odd[0] is not returned else ""
        raise ConfigurationError(
            f"{type(strategy).__name__}.{hook} returned {given}{held}; expected messages: end it with `return super()."
            f"{hook}(server_round, arrays, config, grid)`, or with `return []` to ask nobody in a round"
        )
    return messages


def check_configured(run: Run, server_round: int) -> None:
    """Raise an error unless ``configure_train`` has begun this round, whose replies have not been aggregated.

    Parameters
    ----------
    run : Run
        The run behind the strategy.
    server_round : int
        The round.
    """
    if run.current.number != server_round:
        what = f"aggregate_train was called for round {server_round}, but configure_train for {run.current.number}"
        raise ConfigurationError(f"{what}; call them in turn, as `start` does: {_WHOM}")
    if run.outcome is not None:
        what = f"aggregate_train was called twice for round {server_round}: each call is a step of the server."
        raise ConfigurationError(f"{what} Call it once, with the replies that count")


def take(run: Run, arrays: ArrayRecord, who: str) -> None:
    """Take a model into the state, so that the clients get it: a state whose primal point it is.

    The point's change in the dual space is added to the state's dual (of a method that averages models, the change
    itself); entries that become 0 come to where psi makes them 0. Then retrieve(state) must be the model.

    Parameters
    ----------
    run : Run
        The run behind the strategy.
    arrays : ArrayRecord
        The model.
    who : str
        Who returned it, for the message: the beginning of a sentence.

    Raises
    ------
    ConfigurationError
        If there is no such state.
    """
    if arrays == run.primal_arrays():
        return
    assert run.layout is not None
    try:
        point, passed = primal_vector(run.layout, arrays)
    except (ProtocolError, ValueError) as error:
        raise ConfigurationError(f"{who} arrays that are no model of this run: {error}") from error
    if run.state.round == 0:
        run.move_to(run.algorithm.init(run.problem, point), passed, initial=arrays)
        return
    shown = run.as_vector(run.primal_arrays())
    if np.array_equal(point, shown):
        run.move_to(run.state, passed)
        return
    why = _why_not(run)
    state = None if why else _state_at(run, point, shown)
    if state is None:
        raise ConfigurationError(
            f"{who} a model that the server has not made, and the clients would never get it: "
            f"{why or _no_such_state(run, point, shown)}"
        )
    untrained = run.parts.get("untrained")
    if isinstance(untrained, Untrained):
        untrained.take(run.layout, point, shown)
    run.move_to(state, passed)


def _why_not(run: Run) -> str:
    """Return why no model can be taken into the states of this run; an empty string if it can."""
    algorithm, options = run.algorithm, run.strategy
    if algorithm.memory or run.graph is not None:
        return (
            f"the clients of {type(options).__name__} remember what they have sent, which belongs to the server's "
            "model. Take FedDualAvg, FedMid or FedAvgSubgradient for changes on the server"
        )
    if not run.average.idle:
        return f"with output={options.output!r} the model is no point of the state. Take output='last'"
    if _field_of(run.state, run.problem.layout.size) is None:
        return f"the state of {type(options).__name__} holds more than a point. Take FedDualAvg or FedMid"
    return ""


def _no_such_state(run: Run, point: Vector, shown: Vector) -> str:
    density = getattr(run.strategy, "density", None)
    psi = run.problem.plan.regularizer if density is None else f"a density of {density}"
    woken = (shown == 0.0) & (point != 0.0)
    names = [entry.name for entry in run.problem.layout.optimized if woken[entry.block].any()]
    whole = ""
    if density is not None and names:
        whole = f"; keep an array whole that you set, regularizer=PerParameter({{{names[0]!r}: Zero()}})"
    return (
        f"it is the primal point of no dual near the present one under psi = {psi}. An entry "
        "that psi has made 0 must stay 0 (noise on it would vanish with the next round, and a privacy claim with it), "
        f"and a constraint must hold{f'; here zeros of {names[0]!r} are not 0' if names else ''}. Change the other "
        f"entries only{whole}; for noise take privacy=GaussianDP(...), or no psi"
    )


def _state_at(run: Run, point: Vector, shown: Vector) -> Any:
    """Return the state near the present one whose primal point is `point`; None if there is none."""
    state, problem = run.state, run.problem
    field = _field_of(state, point.size)
    assert field is not None
    # The user sees rounded numbers; what was not changed keeps its last digits.
    changed = point != shown
    present = run.algorithm.retrieve(problem, state)
    target = np.where(changed, point, present)
    value = getattr(state, field).copy()
    if field == "dual":
        # In this order: what is much smaller than before keeps its digits.
        value[changed] = (value - problem.h.gradient(present) + problem.h.gradient(target))[changed]
    else:
        value[changed] = target[changed]
    zeros = target == 0.0
    # An entry that becomes 0 lies on the edge of psi's threshold, where rounding decides; and of those that are 0, some
    # would be among the largest if the others have become smaller. A dual of 0 is sure to stay 0.
    for clear in (lambda found: zeros & (found != 0.0), lambda found: zeros, None):
        moved = state._replace(**{field: value})
        found = run.point_of(moved)
        close = np.abs(found - target) <= _EQUAL * np.maximum(np.abs(target), np.abs(value))
        if np.all(close) and np.array_equal(found == 0.0, zeros):
            return moved
        value = value if clear is None else np.where(clear(found), 0.0, value)
    return None


def _field_of(state: Any, size: int) -> str | None:
    """Return the name of the field that holds the state's point; None if there is none."""
    fields: dict[str, Any] = state._asdict()
    return next((name for name in _POINTS if name in fields and np.shape(fields[name]) == (size,)), None)


def _restore(run: Run, before: Any, who: str) -> None:
    """Take a round back, of which a hook keeps nothing."""
    if before is None or run.state is before[0]:
        return
    why = _why_not(run)
    if why:
        raise ConfigurationError(f"{who}, so that the round does not count, but {why}")
    run.move_to(*before)
    run.outcome = {**(run.outcome or {}), "skipped": 1, "taken-back": 1}
