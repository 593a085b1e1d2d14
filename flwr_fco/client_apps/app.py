"""The ClientApp: reads the message, finds the data, runs the local solver that the message names, answers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fco.client_apps.answers import find_answer, own_buffers
from flwr_fco.client_apps.quotas import Limits, cannot_read, clear_errors
from flwr_fco.client_apps.solvers.table import find_solver
from flwr_fco.client_apps.threads import single_threaded_blas
from flwr_fco.core.layout import Layout, Vector
from flwr_fco.core.randomness import random_generator
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.objectives.base import Objective
from flwr_fco.wire import records
from flwr_fco.wire.protocol import Downlink, Plan, ReceivedState

__all__ = ["LoadObjective", "client_app", "forget_objectives"]

LoadObjective = Callable[[Context], Objective]
#: Flower's own name for this type moves between its releases.
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

#: Objectives of this process by (app, role, run, partition). Not in the app itself: Flower's simulation may pickle it
#: with every message, and the copies of one app must find what the first of them has loaded.
_objectives: dict[tuple[str, str, int, int], Objective] = {}

_UNREADABLE = "the server's message cannot be read"
_PRIVACY_MODS = ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")


def client_app(
    load_objective: LoadObjective,
    *,
    load_evaluation_objective: LoadObjective | None = None,
    mods: Sequence[Mod] | None = None,
    limits: Limits | None = None,
) -> ClientApp:
    """Return a ClientApp that serves every strategy of this package.

    Parameters
    ----------
    load_objective : callable
        ``(context) -> Objective``: the client's loss on its training data. Called once per process, run and
        partition; ``context.node_config`` has ``partition-id`` and ``num-partitions``.
    load_evaluation_objective : callable, optional
        The loss on the data for federated evaluation; by default the training data.
    mods : sequence of callable, optional
        Flower mods. Those for differential privacy are refused: they clip differences of models.
    limits : Limits, optional
        What a server may ask of this client; by default ``Limits()``. A message beyond it, or one that cannot be read,
        is an error that says why; Flower turns it into an error reply, and the SuperNode goes on.

    Returns
    -------
    flwr.clientapp.ClientApp
        With handlers for training, evaluation, questions (:mod:`flwr_fco.wire.questions`) and the handshake that tells
        the server the partition id.

    Raises
    ------
    ConfigurationError
        If there is no function to load an objective with, `mods` is no sequence of functions, or a mod clips what the
        client answers.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco.objectives import LeastSquares
    >>> def load(context):
    ...     rng = np.random.default_rng(int(context.node_config["partition-id"]))
    ...     features = rng.standard_normal((20, 3))
    ...     return LeastSquares(features, features @ np.ones(3))
    >>> app = client_app(load)
    """
    for name, load in (("load_objective", load_objective), ("load_evaluation_objective", load_evaluation_objective)):
        if not (callable(load) or (load is None and name == "load_evaluation_objective")):
            raise ConfigurationError(
                f"{name} is a {type(load).__name__}; expected a function (context) -> Objective. For an objective that "
                "is here already: lambda context: objectives[context.node_config['partition-id']]"
            )
    allowed = Limits() if limits is None else limits
    app = ClientApp(mods=checked_mods(mods))
    identity = uuid4().hex

    def training_objective(context: Context) -> Objective:
        return _objective(load_objective, (identity, "train", context.run_id, _partition(context)), context)

    def evaluation_objective(context: Context) -> Objective:
        if load_evaluation_objective is None:
            return training_objective(context)
        key = (identity, "evaluate", context.run_id, _partition(context))
        return _objective(load_evaluation_objective, key, context)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        before = None
        try:
            downlink = read_checked(message, context, allowed)
            plan, stamp = downlink.plan, downlink.stamp
            solver = find_solver(plan.solver)
            server_round = int(message.metadata.group_id)
            rng = random_generator(plan.seed, server_round, _partition(context))
            if stamp is not None:
                before = records.read_state(context, stamp, plan.layout.size)
                before = None if before is None else ReceivedState(before)
        except records.PlanMissingError:
            return records.reply(message, records.plan_missing_reply())
        except records.StateMissingError as error:
            altered = isinstance(error, records.StateAlteredError)
            return records.reply(message, records.state_missing_reply(altered=altered))
        except FlwrFcoError:
            raise
        except Exception as error:
            # As `with clear_errors(...)`, which every message would have to pay for.
            raise cannot_read(_UNREADABLE, error) from error
        objective = training_objective(context)
        _check_layout(objective.layout, plan.layout)
        allowed.check_downlink(downlink, objective.num_examples)
        if id(plan) not in _fitting_plans:
            with clear_errors(_UNREADABLE):
                _require_fit(plan)
        passes_through = bool(plan.layout.passed_through)
        if passes_through:
            objective.load_buffers(downlink.pass_through)
        with allowed.clock(single_threaded=True):
            uplink, after = solver(downlink, objective, before, rng)
        loss = objective.take_training_loss()
        if loss is not None and math.isfinite(loss):
            uplink = uplink._replace(metrics={"loss": loss, **uplink.metrics})
        if passes_through:
            uplink = uplink._replace(pass_through=objective.buffers())
        answer = records.uplink_records(
            uplink, num_examples=objective.num_examples, wire_dtype=plan.wire_dtype, request=message.content
        )
        if stamp is not None:
            records.store_pending(context, stamp, server_round, before, after, answer)
        return records.reply(message, answer)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        objective = evaluation_objective(context)
        with clear_errors("the server's model cannot be read"):
            primal = _read_model(message, objective)
        metrics = MetricRecord({"num-examples": int(objective.num_examples)})
        with single_threaded_blas():
            for name, value in objective.metrics(primal).items():
                metrics[name] = float(value)
        # What an evaluation or a question leaves is not the loss of the next round's training.
        objective.take_training_loss()
        return records.reply(message, RecordDict({"metrics": metrics}))

    @app.query("question")
    def question(message: Message, context: Context) -> Message:
        with clear_errors("the server's question cannot be read"):
            allowed.check_question_header(message.content.get("fco-question"))
            asked = records.read_question(message.content)
            allowed.check_question(asked)
            answers = find_answer(asked.kind)
        held_out = asked.kind == "validation"
        objective = evaluation_objective(context) if held_out else training_objective(context)
        _check_layout(objective.layout, asked.layout)
        with allowed.clock(single_threaded=True), own_buffers(objective, asked.pass_through):
            answer = answers(asked, objective)
        objective.take_training_loss()
        if held_out:
            own_data = load_evaluation_objective is not None
            answer = answer._replace(numbers={**answer.numbers, "held-out": float(own_data)})
        return records.reply(message, records.answer_records(answer, num_examples=objective.num_examples))

    @app.query("partition")
    def partition(message: Message, context: Context) -> Message:
        return records.reply(message, records.partition_reply(context))

    return app


def checked_mods(mods: Sequence[Mod] | None) -> list[Mod]:
    """Return a client's mods as a list.

    Parameters
    ----------
    mods : sequence of callable, optional

    Raises
    ------
    ConfigurationError
        If it is no sequence of functions, or a mod clips what the client answers.
    """
    given: Any = () if mods is None else mods
    if not isinstance(given, Sequence) or not all(map(callable, given)):
        raise ConfigurationError(f"mods={mods!r}; expected a list of functions (message, context, call_next)")
    for mod in given:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in _PRIVACY_MODS:
            raise ConfigurationError(
                f"the mod {name} clips (reply - what was received). The clients of flwr_fco reply with increments of "
                "a dual vector, so it would clip the wrong thing. Leave it out; noise must act on the increments."
            )
    return list(given)


def forget_objectives(run_id: int) -> None:
    """Drop the objectives of a run, and the last message, from this process's memory."""
    records.forget_downlink()
    for key in [key for key in _objectives if key[2] == run_id]:
        del _objectives[key]


def _partition(context: Context) -> int:
    """Return the partition id; a node without one is known by its node id, which is new in every run."""
    return int(context.node_config.get("partition-id", context.node_id))


def _objective(load: LoadObjective, key: tuple[str, str, int, int], context: Context) -> Objective:
    objective = _objectives.get(key)
    if objective is None:
        loaded: Any = load(context)
        if not isinstance(loaded, Objective):
            # Not its contents: it may be the client's data, and the message goes to the server.
            plain = loaded is None or isinstance(loaded, str | int | float)
            found = repr(loaded) if plain else f"a {type(loaded).__name__}"
            raise ConfigurationError(
                f"load_objective returned {found}; expected an Objective such as "
                "flwr_fco.objectives.Logistic(features, labels)"
            )
        objective = loaded
        count: Any = objective.num_examples
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise ConfigurationError(
                f"the objective has num_examples={count!r}; expected a whole number >= 1. A client without examples "
                "has no loss: leave it out of the federation"
            )
        _objectives[key] = objective
    return objective


def read_checked(message: Message, context: Context, limits: Limits) -> Downlink:
    """Return what the server says, within the limits that need no data to be known.

    Parameters
    ----------
    message : Message
    context : Context
    limits : Limits
    """
    downlink = records.read_downlink(message, context, limits.check_header)
    plan = downlink.plan
    known = _allowed_plans.get(id(plan))
    if known is None or known[1] is not limits:
        limits.check_plan(plan)
        _remember(_allowed_plans, plan, limits)
    return downlink


#: Plans that were looked at, with what they were held against; by their identity, for one comes with every message.
_allowed_plans: dict[int, tuple[Plan, Limits]] = {}
_fitting_plans: dict[int, tuple[Plan, None]] = {}
_Fact = TypeVar("_Fact")


def _remember(known: dict[int, tuple[Plan, _Fact]], plan: Plan, fact: _Fact) -> None:
    if len(known) >= 64:
        known.clear()
    known[id(plan)] = (plan, fact)


def _require_fit(plan: Plan) -> None:
    """Bind psi and h, and refuse those that do not fit each other: what a local solver asks of them cannot fail."""
    plan.h.require(plan.psi)
    _remember(_fitting_plans, plan, None)


def _read_model(message: Message, objective: Objective) -> Vector:
    """Return the model of an evaluation message, its buffers being loaded into the objective."""
    if not objective.layout.passed_through:
        return records.read_primal(message.content, objective.layout)
    (arrays,) = message.content.array_records.values()
    primal, buffers = records.primal_vector(objective.layout, arrays)
    objective.load_buffers(buffers)
    return primal


def _check_layout(own: Layout, server: Layout) -> None:
    """Compare names and shapes: which arrays psi acts on, and their dtypes, are the server's business."""
    if own.signature != server.signature:
        passing = [entry.name for entry in server.passed_through if entry.name in own.shapes]
        advice = "Give `start` initial arrays with the objective's names and shapes, in its order"
        if passing:
            advice = (
                "Arrays of whole numbers or booleans are no part of the model, nor is what pass_through= names: here "
                f"{', '.join(passing)}. Give floating-point initial arrays, such as np.zeros(10)"
            )
        elif set(own.shapes) == set(server.shapes) and own.shapes != server.shapes:
            advice += "; where the classes of the clients' labels differ, give all of them the same num_classes="
        raise ConfigurationError(
            f"the server's model is {server.shapes}, this client's objective has {own.shapes}. {advice}"
        )
