"""Handling of training messages: the objective, the local solver that the server names, or a loop of one's own."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from logging import ERROR
from typing import Any, NamedTuple
from weakref import ref

import numpy as np
from flwr.app import Context, Message

import flwr_fco.algorithms  # noqa: F401 (a message names one of its methods)
from flwr_fco.algorithms.contract import ClientHalf, Disclosure, halves
from flwr_fco.client_apps.disclosed import check_folds
from flwr_fco.client_apps.quotas import Limits, clear_errors
from flwr_fco.core.computing import deadline, random_generator, single_threaded_blas
from flwr_fco.core.layout import Layout
from flwr_fco.core.logs import log
from flwr_fco.core.schema import Grades, Names, grades_of, names_of, schema_number
from flwr_fco.core.spec import Spec
from flwr_fco.engines.run import ENGINES, answer
from flwr_fco.errors import OTHER_MODEL, ConfigurationError, PublicError
from flwr_fco.kernels.passes import num_zeros
from flwr_fco.objectives._linear import LinearModel
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.design import SparseDesign
from flwr_fco.wire.client_state import read_state, store_pending, uplink_digest, vectors_digest
from flwr_fco.wire.downlink import read_downlink, store_plan
from flwr_fco.wire.envelope import PlanMissingError, StateMissingError, missing_reply
from flwr_fco.wire.keys import FOLDS, SCHEMA, UNITS
from flwr_fco.wire.protocol import ClientState, Downlink, Plan, ReceivedState, Uplink
from flwr_fco.wire.uplink import Sent, as_records, sent, uplink_answer

#: ``(downlink, objective, state, rng) -> answer, next state``: a client's work in a round.
LocalSolver = Callable[..., tuple[Uplink, Any]]


def find_solver(name: str) -> LocalSolver:
    """Return the local solver of the method called `name`.

    It takes a downlink, whose vectors are read-only, the client's objective and state (None for a method without one),
    the generator of this (seed, round, partition), and what the client's owner allows to leave (`disclosure`, by
    default all), and returns the client's answer and its next state.

    Raises
    ------
    ConfigurationError
        If there is none, because the server uses an algorithm that this client does not have.

    Examples
    --------
    >>> find_solver("unknown")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ConfigurationError: the server asks for the method 'unknown'; this client knows ...
    """
    return partial(answer, _half_of(name))


def _half_of(name: str) -> type[ClientHalf]:
    half: Any = halves().get(name)
    if half is None:
        raise ConfigurationError(
            f"the server asks for the method {name!r}; this client knows {', '.join(sorted(halves()))}. Import the "
            "module of the algorithm in the ClientApp, or install the server's version of flwr-fco"
        )
    if half.engine is not None and half.engine not in ENGINES:
        what = f"{half.__module__}.{half.__name__} says engine={half.engine!r}; expected one of {', '.join(ENGINES)}"
        raise ConfigurationError(f"{what}, or None for a method with a `local` of its own")
    return half  # type: ignore[no-any-return]


#: App, role, run, partition.
Key = tuple[str, str, int, int]


class KeptObjectives:
    """Objectives by key; the least recently used is evicted first.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> kept = KeptObjectives()
    >>> for partition in range(3):
    ...     kept.keep(("app", "train", 1, partition), LeastSquares(np.ones((10, 2)), np.ones(10)), limit=2)
    >>> [kept.find(("app", "train", 1, partition)) is not None for partition in range(3)]
    [False, True, True]
    """

    def __init__(self) -> None:
        self._all: OrderedDict[Key, Objective] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of objectives."""
        return len(self._all)

    def find(self, key: Key) -> Objective | None:
        """Return the objective for a key, or None."""
        kept = self._all.get(key)
        if kept is not None:
            self._all.move_to_end(key)
        return kept

    def keep(self, key: Key, objective: Objective, limit: int | None) -> None:
        """Store an objective and evict others until there are at most `limit`; None for no limit."""
        self._all[key] = objective
        while limit is not None and len(self._all) > limit:
            self._all.popitem(last=False)

    def forget(self, run_id: int) -> None:
        """Drop the objectives of a run."""
        for key in [key for key in self._all if key[2] == run_id]:
            del self._all[key]


LoadObjective = Callable[[Context], Objective]
_UNREADABLE = "the server's message cannot be read"

#: Objectives of this process by (app, role, run, partition). Not in the app itself: Flower's simulation may pickle the
#: app with every message, and all copies must find the objectives that the first one loaded.
_objectives = KeptObjectives()
#: Plans already checked, with the limits they were checked against; keyed by identity, as every message has one.
_allowed_plans: dict[int, tuple[Plan, Limits]] = {}
#: What objectives say of their names, by identity, as a user's may have no hash. 100,000 names take longer than a step.
_schemas: dict[int, tuple[ref[Objective], float]] = {}


class Task(NamedTuple):
    """A client's task in a round, as read from the server's message.

    Parameters
    ----------
    message : Message
        The message to answer.
    context : Context
        The node's context.
    downlink : Downlink
        The content of the server's message.
    state : mapping of str to ndarray, or None
        The client's state; None if the client starts or restarts, or the method has no client state.
    rng : numpy.random.Generator
        The generator for (seed, round, partition).
    """

    message: Message
    context: Context
    downlink: Downlink
    state: ClientState | None
    round: int
    rng: np.random.Generator

    def answer(self, uplink: Uplink, state: Any, num_examples: int) -> Message:
        """Return the reply, and hold the client's next state until the server says whether the reply was used.

        Parameters
        ----------
        state : mapping of str to ndarray
            The client's next state; None for a method without client state.
        """
        plan, stamp = self.downlink.plan, self.downlink.stamp
        reply = uplink_answer(self.message, uplink, num_examples=num_examples, wire_dtype=plan.wire_dtype)
        if stamp is not None:
            store_pending(self.context, stamp, self.round, self.state, state, uplink_digest(reply.content))
        return reply


def begin(message: Message, context: Context, limits: Limits, *, as_sent: bool = False) -> Task:
    """Read a training message and check the limits that do not depend on the client's data.

    Parameters
    ----------
    as_sent : bool, default False
        Whether to keep the server's vectors in the precision received; otherwise they are converted to float64.

    Raises
    ------
    PlanMissingError, StateMissingError
        If the client lacks the plan or state that the message refers to; `missing_reply` asks for it.
    FlwrFcoError
        If the message cannot be read or exceeds the limits.
    """
    with clear_errors(_UNREADABLE):
        downlink = read_downlink(message, context, limits.check_header, as_sent=as_sent)
        plan, stamp = downlink.plan, downlink.stamp
        _check_plan(plan, limits)
        number = int(message.metadata.group_id)
        rng = random_generator(plan.seed, number, partition_of(context))
        state = None if stamp is None else read_state(context, stamp, plan.layout.size)
    return Task(message, context, downlink, None if state is None else ReceivedState(state), number, rng)


def _check_plan(plan: Plan, limits: Limits) -> None:
    checked = _allowed_plans.get(id(plan))
    if checked is None or checked[1] is not limits:
        limits.check_plan(plan)
        # Bind psi and h, and refuse incompatible pairs, so that a local solver's calls to them cannot fail.
        plan.h.require(plan.psi)
        if len(_allowed_plans) >= 64:
            _allowed_plans.clear()
        _allowed_plans[id(plan)] = plan, limits


class ClientData(NamedTuple):
    """A client's data in one role, as an objective loaded once per process, run and partition, within the limit.

    Parameters
    ----------
    load : callable
        ``(context) -> Objective``.
    app : str
        Identifies the ClientApp.
    role : {"train", "evaluate"}
        Which of a client's data these are.
    max_objectives : int or None
        Maximum number of objectives that this process keeps; None for no limit.
    disclosure : Disclosure
        What the client's owner allows to leave.
    """

    load: LoadObjective
    app: str
    role: str
    max_objectives: int | None
    disclosure: Disclosure

    def objective(self, context: Context, partition: int, what: str) -> Objective:
        """Return the objective of this node, which has this partition, for an answer that its owner allows.

        Only such an objective is kept; `what` is the name of the answer.
        """
        key = (self.app, self.role, context.run_id, partition)
        kept = _objectives.find(key)
        if kept is not None:
            return kept
        loaded: Any = self._loaded(context)
        if not isinstance(loaded, Objective):
            # Do not show the value: it may be the client's data, and the error message goes to the server.
            plain = loaded is None or isinstance(loaded, str | int | float)
            description = repr(loaded) if plain else f"a {type(loaded).__name__}"
            example = "flwr_fco.objectives.Logistic(features, labels)"
            raise ConfigurationError(f"load_objective returned {description}; expected an Objective such as {example}")
        count: Any = loaded.num_examples
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            wrong = f"the objective has num_examples={count!r}; expected a whole number >= 1"
            raise ConfigurationError(f"{wrong}. A client without examples has no loss: leave it out of the federation")
        self.disclosure.check(loaded, what)
        _objectives.keep(key, loaded, self.max_objectives)
        return loaded

    def _loaded(self, context: Context) -> Any:
        try:
            return self.load(context)
        except Exception as error:
            if isinstance(error, PublicError) or not self.disclosure.limits_rows:
                raise
            # Its text may hold values of single rows, such as labels, and goes to the server.
            log(ERROR, "Run %s: this site's data cannot be loaded", context.run_id, exc_info=error)
            raise ConfigurationError(
                f"this site's data cannot be loaded ({type(error).__name__}). The reason is in its own log: its owner "
                "limits what is said of few rows, and a text may be about one"
            ) from None


@dataclass(frozen=True)
class TrainingHandler:
    """Handles training messages by running the local solver that the message names."""

    data: ClientData
    limits: Limits

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        try:
            task = begin(message, context, self.limits)
        except (PlanMissingError, StateMissingError) as error:
            return missing_reply(message, error)
        downlink, partition = task.downlink, partition_of(context)
        solve = self._solver(downlink.plan)
        with single_threaded_blas():
            answer = solve(context, partition, downlink, task.state, task.rng)
        return task.answer(*answer)

    def learn(self, contexts: Sequence[Context], plan: Spec, digest: str, header: str) -> None:
        """Store a run's plan from a server in this process for its clients, as a first message would.

        There is at least one context; `digest` and `header` are the plan's hash and JSON.
        """
        with clear_errors(_UNREADABLE):
            self.limits.check_header(header)
            _check_plan(store_plan(contexts, plan, digest, header), self.limits)

    def exchange(
        self,
        contexts: Sequence[Context],
        tasks: Sequence[tuple[Downlink, ClientState | None]],
        server_round: int,
        wire_dtype: str,
    ) -> Iterator[Sent]:
        """Yield the clients' replies to a server in this process, without messages, computing each when it is needed.

        A client's task is its downlink, as read from a message, and its state; `wire_dtype` is the precision in which
        its vectors came, and of the reply's.
        """
        if not tasks:
            return
        plan = tasks[0][0].plan
        solve = self._solver(plan)
        for context, (downlink, state) in zip(contexts, tasks, strict=True):
            before, partition = None if state is None else ReceivedState(state), partition_of(context)
            rng = random_generator(plan.seed, server_round, partition)
            uplink, after, num_examples = solve(context, partition, downlink, before, rng)
            answer = sent(uplink, num_examples, wire_dtype)
            if downlink.stamp is not None:
                vectors = answer.vectors
                digest = vectors_digest(vectors, uplink.elapsed) if vectors else uplink_digest(as_records(answer))
                store_pending(context, downlink.stamp, server_round, before, after, digest)
                answer = answer._replace(digest=digest)
            yield answer

    def _solver(self, plan: Plan) -> Callable[..., tuple[Uplink, Any, int]]:
        """Return ``(context, partition, downlink, state, rng) -> uplink, next state, number of examples`` for a plan.

        What is the same for all clients of a round is looked up once. It is not kept with the plan: who defines an
        algorithm anew in a notebook has the same plan.
        """
        half, data, limits, layout = _half_of(plan.solver), self.data, self.limits, plan.layout
        signature = layout.signature
        what, passes_through = f"a round of training ({plan.solver})", bool(layout.passed_through)
        checked: tuple[Any, ...] = ()

        def solve(
            context: Context, partition: int, downlink: Downlink, state: ClientState | None, rng: np.random.Generator
        ) -> tuple[Uplink, Any, int]:
            nonlocal checked
            objective, numbers = data.objective(context, partition, what), downlink.numbers
            if objective.layout.signature != signature:
                check_layout(objective.layout, layout)
            task = downlink.client_lr, downlink.elapsed, downlink.work, numbers, objective.num_examples
            if task != checked:
                limits.check_downlink(downlink, task[-1])
                checked = task
            if passes_through:
                objective.load_buffers(downlink.pass_through)
            if numbers and FOLDS in numbers:
                check_folds(downlink, data.disclosure, context)
            # As `Limits.clock`, which takes longer.
            before, deadline.at = deadline.at, limits.end()
            try:
                uplink, after = answer(half, downlink, objective, state, rng, data.disclosure)
            finally:
                deadline.at = before
            # As in the compiled loops, a class that records no losses is not queried.
            if type(objective).take_training_loss is not Objective.take_training_loss:
                loss = objective.take_training_loss()
                if loss is not None and math.isfinite(loss):
                    uplink = uplink._replace(metrics={"loss": loss, **uplink.metrics})
            if passes_through:
                uplink = uplink._replace(pass_through=objective.buffers())
            schema = schema_of(objective)
            if schema:
                uplink = uplink._replace(metrics={**uplink.metrics, SCHEMA: schema})
            if numbers and UNITS in numbers:
                uplink = uplink._replace(units=_units_of(objective))
            return uplink, after, objective.num_examples

        return solve


def _units_of(objective: Objective) -> Grades:
    """Return grades of the deviations of a linear model's dense columns, none of a column that is mostly zero.

    Where most rows are 0, as a pixel's at the edge, a deviation says how many are not, and little of the unit.
    """
    design = objective.design if isinstance(objective, LinearModel) and objective.tells_units else None
    if design is None or isinstance(design, SparseDesign):
        return []
    empty = 2 * num_zeros(design.matrix) > design.shape[0]
    return grades_of(np.where(empty, 0.0, design.deviations()))


def names_of_objective(objective: Objective) -> tuple[Names, Names]:
    """Return the names of an objective's columns and of its classes."""
    return names_of(objective.feature_names), names_of(objective.class_names)


def schema_of(objective: Objective) -> float:
    """Return the number of an objective's names of columns and classes, which it keeps as long as it lives."""
    key = id(objective)
    kept = _schemas.get(key)
    if kept is None:
        # Costs a tenth of `weakref.finalize`, for every new client.
        alive = ref(objective, lambda _: _schemas.pop(key, None))
        kept = _schemas[key] = alive, schema_number(*names_of_objective(objective))
    return kept[1]


def forget_objectives(run_id: int) -> None:
    """Drop the objectives of a run from this process's memory."""
    _objectives.forget(run_id)


def partition_of(context: Context) -> int:
    """Return the partition id, or the node id if there is none; node ids change with every run."""
    return int(context.node_config.get("partition-id", context.node_id))


def check_layout(client: Layout, server: Layout) -> None:
    """Compare names and shapes; the server determines which arrays psi acts on, and their dtypes.

    Raises
    ------
    ConfigurationError
        If they differ.
    """
    if client.signature != server.signature:
        passing = [entry.name for entry in server.passed_through if entry.name in client.shapes]
        advice = "Give `start` initial arrays with the objective's names and shapes, in its order"
        if passing:
            advice = (
                "Arrays of whole numbers or booleans are no part of the model, nor is what "
                f"Arrays(pass_through=) names: here {', '.join(passing)}. Give floating-point initial arrays, "
                "such as np.zeros(10)"
            )
        elif set(client.shapes) == set(server.shapes) and client.shapes != server.shapes:
            advice += (
                "; where the classes of the clients' labels differ, give all of them the same num_classes=, or an "
            )
            advice += "estimator's client_app and fit the same classes="
        what = f"{OTHER_MODEL} {server.shapes}, this client's objective has {client.shapes}"
        raise ConfigurationError(f"{what}. {advice}")
