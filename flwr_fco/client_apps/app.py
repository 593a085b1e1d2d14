"""The ClientApp: handlers for training, evaluation, questions and the handshake."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fco.algorithms.contract import Disclosure
from flwr_fco.client_apps.answers import find_answer, server_buffers
from flwr_fco.client_apps.disclosed import as_bins_may_leave, recorded
from flwr_fco.client_apps.quotas import Limits, clear_errors
from flwr_fco.client_apps.training import (
    ClientData,
    LoadObjective,
    TrainingHandler,
    check_layout,
    names_of_objective,
    partition_of,
    schema_of,
)
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.core.validation import AT_LEAST_ONE, checked
from flwr_fco.errors import ConfigurationError
from flwr_fco.wire.arrays import primal_vector, vectors_of
from flwr_fco.wire.envelope import names_reply, partition_reply, reply
from flwr_fco.wire.keys import SCHEMA
from flwr_fco.wire.queries import answer_records, read_question
from flwr_fco.wire.questions import BINS

#: Flower moves its own name for this type between releases.
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]

_PRIVACY_MODS = ("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod")
_SECURE_MODS = ("secagg_mod", "secaggplus_mod")


def client_app(
    load_objective: LoadObjective,
    *,
    load_evaluation_objective: LoadObjective | None = None,
    mods: Sequence[Mod] | None = None,
    limits: Limits | None = None,
    disclosure: Disclosure | None = None,
    max_objectives: int | None = None,
) -> ClientApp:
    """Return a ClientApp that serves every strategy of this package.

    Parameters
    ----------
    load_objective : callable
        ``(context) -> Objective``: the client's loss on its training data. Called once per process, run and
        partition, and again if the objective was evicted (see `max_objectives`); ``context.node_config`` has
        ``partition-id`` and ``num-partitions``.
    load_evaluation_objective : callable, optional
        The loss on the data for federated evaluation; by default the training data.
    mods : sequence of callable, optional
        Flower mods. Those for differential privacy are refused: they clip differences of models.
    limits : Limits, optional
        What a server may ask of this client; by default ``Limits()``. A message that exceeds the limits or cannot be
        read raises an error that says why; Flower turns it into an error reply, and the SuperNode continues.
    disclosure : Disclosure, optional
        What may leave this client, as its owner says; by default there is no limit. With one, even ``Disclosure()``,
        each message is a line of the log: what the server asked for, and what was sent, or why it was refused.
    max_objectives : int, optional
        Maximum number of objectives that one process keeps; by default all that it has loaded. Above it, the least
        recently used ones are evicted. For a simulation of more data than the memory holds; data can also be a memory
        map (``np.load(path, mmap_mode="r")``).

    Returns
    -------
    flwr.clientapp.ClientApp
        Handles training, evaluation, questions (:mod:`flwr_fco.wire.questions`) and the handshake that tells the server
        the partition id.

    Raises
    ------
    ConfigurationError
        If `load_objective` is not a function, `mods` is not a sequence of functions, a mod clips replies, or
        `max_objectives` is not positive or `disclosure` no Disclosure.

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
    _check_loads("load_objective", load_objective)
    if load_evaluation_objective is not None:
        _check_loads("load_evaluation_objective", load_evaluation_objective)
    _end_quickly()
    allowed = Limits() if limits is None else limits
    own = checked_mods(mods)
    # Outside of the others: what they change leaves as they have changed it.
    app = _App(mods=own if disclosure is None else [recorded, *own])
    discloses = checked("disclosure", Disclosure() if disclosure is None else disclosure, Disclosure)
    identity = uuid4().hex
    most = checked("max_objectives", max_objectives, int | None, AT_LEAST_ONE)
    training = ClientData(load_objective, identity, "train", most, discloses)
    evaluation = training
    if load_evaluation_objective is not None:
        evaluation = ClientData(load_evaluation_objective, identity, "evaluate", most, discloses)
    handler = TrainingHandler(training, allowed)
    app.train()(handler)
    app.alone = None if own or disclosure is not None else handler
    app.evaluate()(EvaluationHandler(evaluation))
    app.query("question")(QuestionHandler(training, evaluation, allowed))

    @app.query("names")
    def names(message: Message, context: Context) -> Message:
        objective = training.objective(context, partition_of(context), "the names of its columns and classes")
        return reply(message, names_reply(*names_of_objective(objective)))

    @app.query("partition")
    def partition(message: Message, context: Context) -> Message:
        return reply(message, partition_reply(context))

    return app


class _App(ClientApp):
    """A ClientApp that knows its training handler, as long as nothing acts around it: no mod and no lifespan."""

    alone: TrainingHandler | None = None

    def lifespan(self) -> Any:
        """Return Flower's decorator."""
        self.alone = None
        return super().lifespan()


def training_handler(app: ClientApp) -> TrainingHandler | None:
    """Return what :func:`client_app` registered for training, if a call of it does all that a call of the app does."""
    return app.alone if type(app) is _App else None


@dataclass(frozen=True)
class EvaluationHandler:
    """Handles evaluation messages by the metrics of the client's objective."""

    data: ClientData

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        objective = self.data.objective(context, partition_of(context), "an evaluation")
        with clear_errors("the server's model cannot be read"):
            primal, buffers = primal_vector(objective.layout, vectors_of(message.content))
            if buffers:
                objective.load_buffers(buffers)
        metrics = MetricRecord({"num-examples": int(objective.num_examples)})
        with single_threaded_blas():
            for name, value in objective.metrics(primal).items():
                metrics[name] = float(value)
        schema = schema_of(objective)
        if schema and any(SCHEMA in config for config in message.content.config_records.values()):
            metrics[SCHEMA] = schema
        # Discard losses recorded by an evaluation or a question: they do not belong to the next training round.
        objective.take_training_loss()
        return reply(message, RecordDict({"metrics": metrics}))


@dataclass(frozen=True)
class QuestionHandler:
    """Handles questions about the training data, and about those of evaluations where they are held out."""

    training: ClientData
    evaluation: ClientData
    limits: Limits

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message."""
        limits, discloses = self.limits, self.training.disclosure
        with clear_errors("the server's question cannot be read"):
            limits.check_question_header(message.content.get("fco-question"))
            asked = read_question(message.content)
            limits.check_question(asked)
            answers = find_answer(asked.kind)
        held_out = asked.kind == "validation"
        data, asks = self.evaluation if held_out else self.training, f"an answer to its question {asked.kind!r}"
        objective = data.objective(context, partition_of(context), asks)
        check_layout(objective.layout, asked.layout)
        with limits.clock(), single_threaded_blas(), server_buffers(objective, asked.pass_through):
            answer = answers(asked, objective)
            if asked.kind == BINS:
                answer = as_bins_may_leave(answer, asked, objective, discloses, context)
        objective.take_training_loss()
        if held_out:
            separate = self.evaluation is not self.training
            answer = answer._replace(numbers={**answer.numbers, "held-out": float(separate)})
        answer = answer._replace(schema=schema_of(objective))
        return reply(message, answer_records(answer, num_examples=objective.num_examples))


def _check_loads(name: str, load: object) -> None:
    if not callable(load):
        what = f"{name} is a {type(load).__name__}; expected a function (context) -> Objective"
        here = "For an objective that is here already: lambda context: objectives[context.node_config['partition-id']]"
        raise ConfigurationError(f"{what}. {here}")


def checked_mods(mods: Sequence[Mod] | None) -> list[Mod]:
    """Return a client's mods as a list.

    Raises
    ------
    ConfigurationError
        If it is not a sequence of functions, or a mod clips replies or masks them.
    """
    functions: Any = () if mods is None else mods
    if not isinstance(functions, Sequence) or not all(map(callable, functions)):
        raise ConfigurationError(f"mods={mods!r}; expected a list of functions (message, context, call_next)")
    for mod in functions:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in _PRIVACY_MODS:
            raise ConfigurationError(
                f"the mod {name} clips (reply - what was received). The clients of flwr_fco reply with increments of "
                "a dual vector, so it would clip the wrong thing. Leave it out; noise must act on the increments."
            )
        if name in _SECURE_MODS:
            raise ConfigurationError(
                f"the mod {name} speaks with SecAggPlusWorkflow of Flower's legacy API, which runs no strategy of the "
                "Message API, this package's among them: every message would end in a KeyError. Leave it out"
            )
    return list(functions)


def _end_quickly() -> None:
    """Skip the garbage collection at exit, which is slow after Numba, in a process Flower starts for one message."""
    if Path(sys.argv[0]).name == "flwr-clientapp":
        gc.freeze()
        # Python's collection at exit takes a fifth of the process's time.
        atexit.register(gc.freeze)
