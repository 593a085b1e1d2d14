"""The ClientApp: a task comes in, the method's half runs on the client's loss, a reply goes out.

:meth:`Client.answer` is all of it, without Flower; :meth:`Client.train` does the same for messages. Questions about the
loss are answered by functions of it, which are registered by the question's kind.
"""

from __future__ import annotations

import atexit
import gc
import math
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import uuid4

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

import flwr_fco.algorithms  # noqa: F401 (a task names one of its methods)
from flwr_fco import engines
from flwr_fco.algorithms.contract import Algorithm, method_of
from flwr_fco.algorithms.newton.asking import folds_of
from flwr_fco.algorithms.newton.path import NewtonPath
from flwr_fco.certificates import LARGEST_LOSS, reported_at
from flwr_fco.client_apps.disclosure import Disclosure, Next, Rows, answered
from flwr_fco.core.computing import logger, own_turn, random_generator, single_threaded_blas
from flwr_fco.core.layout import Layout, SparseVector
from flwr_fco.core.schema import listed, names_of
from flwr_fco.core.validation import AT_LEAST_ONE, Choice, checked, describe, of_type, takes
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.messages import protocol, records
from flwr_fco.messages.protocol import Answer, ClientState, Described, Downlink, MemoryLostError, Question, Uplink
from flwr_fco.messages.records import digest_of, model_vector, pack, record_of, stamp_of
from flwr_fco.objectives import Objective, design
from flwr_fco.objectives.linear import Linear
from flwr_fco.work import FirstOrder, Minimise

LoadObjective = Callable[[Context], Objective]
Mod = Callable[[Message, Context, Next], Message]
#: Columns above which no scales are said.
_MOST_COLUMNS = 50_000
#: What a strategy should start from.
_ALIKE = "initial arrays with the objective's names and shapes, in its order"
_ABOVE_ZERO = {"range": (lambda value: value > 0.0, "a number > 0")}


@dataclass(frozen=True)
class Limits(Choice):
    """What a client's owner lets a server ask for; a task beyond a limit is refused before any work is done.

    The defaults exceed every run in the papers by orders of magnitude.

    Parameters
    ----------
    max_steps : int, default 1000000
        Local steps in a round, including those asked for as epochs.
    max_iterations : int, default 1000000
        Iterations of a minimisation; points and folds that a message asks about.
    max_parameters : int, default 100000000
        Numbers in the model, in all points that a message asks about with their Hessian blocks, and in a reply that
        holds the points of all local steps; eight bytes each.
    max_plan : int, default 1000000
        Characters in the plan's JSON (regularizer, mirror map, names of arrays).

    Raises
    ------
    ConfigurationError
        If a limit is not a number > 0.

    Examples
    --------
    >>> Limits(max_steps=500).max_steps
    500.0
    """

    max_steps: float = field(default=1_000_000, metadata=_ABOVE_ZERO)
    max_iterations: float = field(default=1_000_000, metadata=_ABOVE_ZERO)
    max_parameters: float = field(default=100_000_000, metadata=_ABOVE_ZERO)
    max_plan: float = field(default=1_000_000, metadata=_ABOVE_ZERO)

    def check(self, limit: str, asked: float, request: str, unit: str) -> None:
        """Refuse more than a limit allows.

        Parameters
        ----------
        limit : str
            Its name.
        asked : float
            The number.
        request, unit : str
            What the server asks for, before the number and after it.

        Raises
        ------
        ConfigurationError
            If it is more.
        """
        most = getattr(self, limit)
        if asked > most:
            number = f"{asked:g}" if asked < 1e15 else f"over 10^{len(str(int(asked))) - 1}"
            text = f"the server asks for {request} {number} {unit}; this client allows {limit}={most:g}"
            raise ConfigurationError(f"{text}. Its owner can raise it: client_app(..., limits=Limits({limit}=...))")

    def check_task(self, down: Downlink, num_examples: int | None) -> None:
        """Refuse too much work.

        Parameters
        ----------
        down : Downlink
            The task.
        num_examples : int or None
            The client's, on which the steps of an epoch depend; None for a training loop of its own.
        """
        work = down.local_work
        size = down.plan.layout.size
        points = int(down.numbers.get(protocol.POINTS, 1))
        folds = down.numbers.get(protocol.FOLDS, 0.0)
        self.check("max_parameters", points * size, "a model of" if points == 1 else "points with", "parameters")
        if not isinstance(work, FirstOrder):
            request = "a minimisation of" if isinstance(work, Minimise) else "passes over rows, of points and folds:"
            self.check("max_iterations", work.max_iterations * (points + max(folds, 0.0)), request, "iterations")
        elif num_examples is not None:
            steps = work.num_draws(num_examples)
            self.check("max_steps", steps, f"{work}:", "local steps")
            if down.plan.sends_every_step:
                self.check("max_parameters", steps * size, f"all {steps} local points:", "numbers in the reply")

    def check_blocks(self, down: Downlink, names: Sequence[str]) -> None:
        """Refuse too many entries of Hessian blocks: of k coordinates of a point, k (k + 1) / 2.

        Parameters
        ----------
        down : Downlink
            The task.
        names : sequence of str
            Of vectors, of which the first that is there has these coordinates; without any there is no block.
        """
        vectors = cast(Any, down.vectors)
        size = down.plan.layout.size
        on = next((vectors.as_sent(name) for name in names if name in vectors), np.zeros(0))
        counts = np.bincount(getattr(on, "indices", np.arange(on.size)) // size)
        entries = counts.size * size + int((counts * (counts + 1) // 2).sum())
        self.check("max_parameters", entries, "gradients and Hessian blocks:", "numbers")


# --- answers to questions, by their kind ------------------------------------------------------------------------------

#: ``(question, objective) -> Answer``.
AnswerFunction = Callable[[Question, Objective], Answer]


class Kind(NamedTuple):
    """A kind of question.

    Parameters
    ----------
    answer : callable
        ``(question, objective) -> Answer``.
    hessians : int
        How many matrices of second derivatives, or of their size, an answer takes, by which it may be refused.
    division : callable or None
        ``(question, objective) -> (what says how the rows are divided, the rows of each part)``, of an answer about
        parts of the rows, which their owner may not allow.
    of : type
        Of which losses it is.
    """

    answer: AnswerFunction
    hessians: int = 0
    division: Callable[[Question, Objective], tuple[bytes, Iterable[Rows]]] | None = None
    of: Any = Objective


_KINDS: dict[str, Kind] = {}


def answers_to(kind: str, **about: Any) -> Callable[[AnswerFunction], AnswerFunction]:
    """Return a decorator of a function that answers questions of a kind, at clients that import its module.

    Parameters
    ----------
    kind : str
        Kind of question.
    **about
        As of :class:`Kind`.

    Examples
    --------
    >>> find_answer("gradient").answer is gradient
    True
    """

    def register(answer: AnswerFunction) -> AnswerFunction:
        _KINDS[kind] = Kind(answer, **about)
        return answer

    return register


def find_answer(kind: str) -> Kind:
    """Return a kind of question.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    if kind not in _KINDS:
        problem = f"the server asks a question of the kind {kind!r}; this client answers {', '.join(sorted(_KINDS))}"
        raise ConfigurationError(f"{problem}. Install the server's version of flwr-fco, or take model.client_app")
    return _KINDS[kind]


@contextmanager
def server_buffers(objective: Objective, passed: Mapping[str, NDArray[Any]]) -> Iterator[None]:
    """Temporarily replace an objective's arrays that are not optimised with the server's.

    Parameters
    ----------
    passed : mapping of str to ndarray
        All of these arrays, or an empty mapping to keep the objective's own.
    """
    before = {name: np.array(array) for name, array in objective.buffers().items()}
    try:
        if before and passed:
            objective.load_buffers(passed)
        yield
    finally:
        if before:
            objective.load_buffers(before)


@answers_to("gradient")
def gradient(question: Question, objective: Objective) -> Answer:
    """Return the loss and its full gradient at ``primal``."""
    value, vector = objective.value_and_gradient(question.vectors["primal"])
    return Answer({"loss": float(value)}, {"gradient": np.asarray(vector, dtype=np.float64)})


@answers_to("validation")
def validation(question: Question, objective: Objective) -> Answer:
    """Return the loss of the held-out data at ``primal``, and what none is below."""
    least = -LARGEST_LOSS if objective.least is None else float(objective.least)
    return Answer({"loss": float(objective.value(question.vectors["primal"])), "least": least})


@answers_to("duality")
def duality(question: Question, objective: Objective) -> Answer:
    """Return a client's part of a duality gap; see :func:`flwr_fco.certificates.reported_at`."""
    return Answer(*reported_at(objective, question.vectors["primal"], question.numbers))


@answers_to("smoothness")
def smoothness(question: Question, objective: Objective) -> Answer:
    """Return Lipschitz constants of the gradients of minibatches, and the strong convexity.

    The question has the vector ``primal`` and the number ``batch-size``, 0 for full batches. The answer has ``l2`` and
    ``l1``, :meth:`Objective.batch_lipschitz` in either norm, and ``convexity``, 0 if unknown. If the objective does not
    know the l2 constant, ``probed`` is 1 and ``l2`` is that of :meth:`Objective.smoothness_near` at ``primal``; ``l1``
    is at most ``l2``. For a non-smooth loss both constants are 0.
    """
    batch = int(question.numbers["batch-size"]) or None
    convexity = _known(objective.strong_convexity) or 0.0
    if not objective.smooth:
        return Answer({"l2": 0.0, "l1": 0.0, "convexity": convexity, "probed": 1.0})
    l2, l1 = (_known(partial(objective.batch_lipschitz, batch, norm)) for norm in ("l2", "l1"))
    largest = objective.smoothness_near(question.vectors["primal"], batch) if l2 is None else l2
    # No entry of a Hessian is larger than its largest eigenvalue.
    entry = largest if l1 is None else min(l1, largest)
    return Answer({"l2": largest, "l1": entry, "convexity": convexity, "probed": float(l2 is None)})


def _known(constant: Callable[[], float]) -> float | None:
    try:
        return float(constant())
    except ConfigurationError:
        return None


# --- losses -----------------------------------------------------------------------------------------------------------

#: The losses of this process by app, role, run and partition: Flower may pickle an app with every message, and all
#: copies must find what the first one has loaded.
_objectives: OrderedDict[tuple[str, str, int, int], Objective] = OrderedDict()


def forget_objectives(run_id: int) -> None:
    """Drop a run's losses from this process."""
    # A copy: another thread may load meanwhile.
    for key in [key for key in [*_objectives] if key[2] == run_id]:
        del _objectives[key]


def task_of(message: Message, limits: Limits, *, as_sent: bool = False) -> tuple[int, Downlink]:
    """Return the round and the task of a training message.

    Parameters
    ----------
    message : Message
        From a server.
    limits : Limits
        What it may ask for.
    as_sent : bool, default False
        Whether vectors keep the precision in which they came.

    Raises
    ------
    ConfigurationError, ProtocolError, SpecError
        If it cannot be read, or its plan is too long.
    """
    down = records.decode_downlink(message.content, limits.max_plan, as_sent=as_sent)
    with in_words("the message's round cannot be read"):
        return int(message.metadata.group_id), down


@dataclass(eq=False)
class Client:
    """What a client does with tasks and questions.

    Parameters
    ----------
    load, load_evaluation : callable
        ``(context) -> Objective``; the second for evaluations on other data, or None.
    limits : Limits
        What a server may ask for.
    disclosure : Disclosure
        What may leave.
    is_recorded : bool
        Whether the owner has said so.
    most : int or None
        Most losses that this process keeps.
    """

    load: LoadObjective
    load_evaluation: LoadObjective | None
    limits: Limits
    disclosure: Disclosure
    is_recorded: bool
    most: int | None
    _identity: str = field(default_factory=lambda: uuid4().hex)
    #: The last task and loss that were checked against the limits, and the method: most of a round are alike.
    _allowed: tuple[Any, Any] = (None, None)

    # --- a round of training --------------------------------------------------------------------------------------

    def train(self, message: Message, context: Context) -> Message:
        """Answer a training message."""
        with single_threaded_blas():
            up = self.answer(context, *task_of(message, self.limits))
        return Message(records.encode_uplink(up), reply_to=message)

    def answer(self, context: Context, number: int, down: Downlink) -> Uplink | None:
        """Do a task.

        Parameters
        ----------
        context : Context
            The client's.
        number : int
            The round.
        down : Downlink
            The task, as it was received.

        Returns
        -------
        Uplink or None
            None if the memory that the task's stamp names is not here.
        """
        plan = down.plan
        try:
            memory = recall(context, down)
        except MemoryLostError:
            return None
        objective = self.objective(context, "train", f"a round of training ({plan.solver})")
        method, examples = self._check(down, objective)
        if "block" in method.discloses:
            self.limits.check_blocks(down, ("wanted",) if isinstance(method, NewtonPath) else ("working-set", "primal"))
        if plan.layout.passed_through:
            objective.load_buffers(down.pass_through)
        if self.is_recorded and isinstance(down.local_work, FirstOrder):
            down = down._replace(work=self.disclosure.allowed(down.local_work, examples, context))
        rng = random_generator(plan.seed, number, records.partition_of(context))
        seed = plan.seed
        if self.disclosure.limits_rows:
            # Drawn again for each message: the same rows in batches of two sizes would differ in a few of them.
            rng = np.random.default_rng()
            folds = int(down.numbers.get(protocol.FOLDS, 0))
            seed = self.disclosure.secret(context, drawn=folds > 0 and not down.numbers["first"])
            if folds > 0:
                self.disclosure.check_division(objective, folds_of(objective, folds, seed), "folds", folds, context)
        up = engines.Client(down, objective, rng, seed).answer(method, memory)
        # A class that records no losses is not asked for one, as in the compiled loops.
        records_losses = type(objective).take_training_loss is not Objective.take_training_loss
        loss = objective.take_training_loss() if records_losses else None
        metrics = up.metrics if loss is None or not math.isfinite(loss) else {"loss": float(loss), **up.metrics}
        held = objective.buffers() if plan.layout.passed_through else {}
        passed = {name: np.asarray(own) for name, own in held.items()}
        up = up._replace(examples=float(examples), metrics=metrics, pass_through=passed)
        return as_it_leaves(context, number, method, down, memory, up)

    def _check(self, down: Downlink, objective: Objective) -> tuple[Algorithm, int]:
        """Refuse what the owner does not allow, and another model; return the method and the number of examples."""
        plan, examples = down.plan, objective.num_examples
        asked = plan, down.client_lr, down.numbers, down.work, objective.layout.signature, examples
        # In variables: another thread may set them meanwhile.
        before, method = self._allowed
        if asked != before:
            self.limits.check_task(down, examples)
            # A pair of psi and h that a client cannot combine is an error here, not in its first step.
            plan.h.require(plan.psi)
            check_layout(objective.layout, plan.layout)
        # Of an equal plan of another run the method may be another class of this name, defined anew.
        if before is None or before[0] is not plan:
            method = method_of(plan.solver, plan.options)
        # Also when equal: to compare with the same objects is quicker, and most of a round have them.
        self._allowed = asked, method
        return method, examples

    def objective(self, context: Context, role: str, purpose: str) -> Objective:
        """Return the client's loss; the first time it is loaded, and its owner's limits are checked.

        Parameters
        ----------
        context : Context
            The client's.
        role : {"train", "evaluate"}
            On which of its data.
        purpose : str
            What it is needed for.
        """
        own = self.load_evaluation if role == "evaluate" else None
        key = (self._identity, "evaluate" if own else "train", context.run_id, records.partition_of(context))
        found = _objectives.get(key)
        if found is None:
            found = self._loaded(context, own or self.load)
            self.disclosure.check(found, purpose)
            _objectives[key] = found
            while self.most is not None and len(_objectives) > self.most:
                _objectives.popitem(last=False)
        elif self.most is not None:
            _objectives[key] = _objectives.pop(key, found)
        found.recall(context.state)
        return found

    def _loaded(self, context: Context, load: LoadObjective) -> Objective:
        try:
            with own_turn():
                found: Any = load(context)
        except Exception as error:
            self.disclosure.hide(error, "this site's data cannot be loaded", context)
        if not isinstance(found, Objective):
            # The value may be the client's data, and the error goes to the server.
            said = repr(found) if found is None or isinstance(found, str | int | float) else of_type(found)
            example = "flwr_fco.objectives.Logistic(features, labels)"
            raise ConfigurationError(f"load_objective returned {said:.100}; expected an Objective such as {example}")
        # A client without examples has no loss: it is left out of the federation.
        for name, kind, within in (("layout", Layout, {}), ("num_examples", int, AT_LEAST_ONE)):
            if not hasattr(found, name):
                advice = "set it in __init__, or call super().__init__(...) there"
                raise ConfigurationError(f"{type(found).__name__} has no {name}; {advice}")
            checked(f"{name} of the objective", getattr(found, name), kind, within)
        return found

    # --- evaluations and questions --------------------------------------------------------------------------------

    def evaluate(self, message: Message, context: Context) -> Message:
        """Answer an evaluation with the metrics of the server's model."""
        objective = self.objective(context, "evaluate", "an evaluation")
        with in_words("the server's model cannot be read"):
            primal, passed = model_vector(objective.layout, records.only(ArrayRecord, message.content))
            if passed:
                objective.load_buffers(passed)
        with single_threaded_blas():
            found: Any = objective.metrics(primal)
        said = f"{type(objective).__name__}.metrics(w), by default {{'loss': value(w)}}"
        with in_words(said, ConfigurationError, "; expected numbers by name"):
            metrics = {name: float(value) for name, value in found.items()}
        # Losses that an evaluation records do not belong to the next round of training.
        objective.take_training_loss()
        record = MetricRecord({"num-examples": int(objective.num_examples), **metrics})
        return Message(RecordDict({records.METRICS: record}), reply_to=message)

    def described(self, context: Context, scales: bool) -> Described:
        """Return what the client says of its table before its first round; `scales`: also of a linear model's columns.

        Of very many columns no scales are said.
        """
        purpose = "the names and scales of its columns" if scales else "the names of its columns and classes"
        objective = self.objective(context, "train", purpose)
        rows = objective.features if scales and isinstance(objective, Linear) else None
        known = rows is not None and rows.shape[1] <= _MOST_COLUMNS
        deviations, size = design.scales_of(rows) if known else (None, 0.0)
        examples = int(objective.num_examples) if scales and not self.disclosure.limits_rows else None
        return Described(names_of(objective.feature_names), names_of(objective.class_names), deviations, examples, size)

    def table(self, message: Message, context: Context) -> Message:
        """Answer the question what its table is."""
        scales = message.metadata.message_type == records.TABLE
        return Message(records.encode_described(self.described(context, scales)), reply_to=message)

    def question(self, message: Message, context: Context) -> Message:
        """Answer a question about the loss."""
        asked = records.decode_question(message.content, self.limits.max_plan)
        kind = find_answer(asked.kind)
        size = asked.layout.size
        self.limits.check("max_parameters", size, "a model of", "parameters")
        self.limits.check("max_parameters", kind.hessians * size * (size + 1) // 2, "second derivatives:", "numbers")
        role = "evaluate" if asked.kind == "validation" else "train"
        objective = self.objective(context, role, f"an answer to its question {asked.kind!r}")
        if not isinstance(objective, kind.of):
            prefix = f"the server asks for {asked.kind!r} of {of_type(objective)}"
            raise ConfigurationError(f"{prefix}, which has no such answer; {describe(kind.of)} has one")
        check_layout(objective.layout, asked.layout)
        if asked.kind == "smoothness" and self.is_recorded:
            work = FirstOrder(steps=1, batch_size=int(asked.numbers["batch-size"]) or None)
            batch = self.disclosure.allowed(work, objective.num_examples, context).batch_size or 0
            asked = asked._replace(numbers={"batch-size": 0.0 if self.disclosure.limits_rows else float(batch)})
        with single_threaded_blas(), server_buffers(objective, asked.pass_through):
            answer = kind.answer(asked, objective)
        objective.take_training_loss()
        if asked.kind == "smoothness" and self.disclosure.limits_rows:
            # Constants of batches are the longest row's. No sum over a batch curves more than that over all rows.
            larger = max(1.0, objective.num_examples / (batch or math.inf))
            bounds = {name: larger * answer.numbers[name] for name in ("l2", "l1")}
            answer = answer._replace(numbers={**answer.numbers, **bounds})
        if kind.division is not None and self.disclosure.limits_rows:
            how, parts = kind.division(asked, objective)
            try:
                self.disclosure.check_division(objective, parts, asked.kind, how, context)
            except ConfigurationError as error:
                logger.info("Run %s: withheld %s: %s", context.run_id, asked.kind, error)
                zeros = {name: np.zeros(own.shape) for name, own in answer.vectors.items()}
                answer = answer._replace(numbers={"reported": 0.0}, vectors=zeros)
        if role == "evaluate":
            answer = answer._replace(numbers={**answer.numbers, "held-out": float(self.load_evaluation is not None)})
        return Message(records.encode_answer(answer._replace(examples=float(objective.num_examples))), reply_to=message)


class TaskApp(ClientApp):
    """Flower's ClientApp for tasks of this package's strategies: it says which partition and which table a client has.

    Parameters
    ----------
    mods : sequence of callable
        Flower's mods; with any, messages travel.
    client : Client, optional
        Answers all other messages too; by default there is no table, and handlers are added.

    Attributes
    ----------
    direct : Client or None
        The client, to whom a grid of this package hands tasks without messages, if nothing else would see these.
    """

    direct: Client | None = None

    def __init__(self, mods: Sequence[Any], client: Client | None = None) -> None:
        super().__init__(mods=list(mods))
        self.query("partition")(records.partition_reply)
        nothing = records.encode_described(Described())
        for kind in ("table", "names"):
            self.query(kind)(client.table if client else lambda message, context: Message(nothing, reply_to=message))
        if client is not None:
            self.direct = None if mods else client
            self.train()(client.train)
            self.evaluate()(client.evaluate)
            self.query("question")(client.question)

    def lifespan(self) -> Any:
        """Return Flower's decorator: what it registers runs around each message."""
        self.direct = None
        return super().lifespan()


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
        recently used ones are evicted, for a simulation of more data than the memory holds.

    Returns
    -------
    flwr.clientapp.ClientApp
        Handles training, evaluation, questions and the handshake that reports the partition id.

    Raises
    ------
    ConfigurationError
        If an argument is of another kind, or a mod clips or masks replies.

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
    checked("load_objective", load_objective, LoadObjective)
    checked("load_evaluation_objective", load_evaluation_objective, LoadObjective | None)
    if Path(sys.argv[0]).name == "flwr-clientapp":
        # Flower starts a process for one message, of whose time a fifth is the collection at exit, slow after Numba.
        gc.freeze()
        atexit.register(gc.freeze)
    owner = limits or Limits(), checked("disclosure", disclosure, Disclosure | None) or Disclosure()
    most = checked("max_objectives", max_objectives, int | None, AT_LEAST_ONE)
    client = Client(load_objective, load_evaluation_objective, *owner, disclosure is not None, most)
    # Outside of the others: what they change leaves as they have changed it.
    gate = [] if disclosure is None else [partial(answered, disclosure)]
    return TaskApp([*gate, *checked_mods(mods)], client)


_CLIPS = "it clips (reply - what was received), and these replies are increments of a dual vector. Leave it out"
_MASKS = "it speaks with SecAggPlusWorkflow of Flower's legacy API, which runs no strategy of this one. Leave it out"
_REFUSED_MODS = dict.fromkeys(("fixedclipping_mod", "adaptiveclipping_mod", "LocalDpMod"), _CLIPS)
_REFUSED_MODS |= dict.fromkeys(("secagg_mod", "secaggplus_mod"), _MASKS)


def checked_mods(mods: Sequence[Mod] | None) -> list[Mod]:
    """Return a client's mods as a list.

    Raises
    ------
    ConfigurationError
        If it is not a sequence of functions, or a mod clips or masks replies.
    """
    functions: Any = () if mods is None else mods
    if not isinstance(functions, Sequence) or not all(takes(mod, 3) for mod in functions):
        raise ConfigurationError(f"mods={mods!r}; expected a list of functions (message, context, call_next)")
    for name in (getattr(mod, "__name__", type(mod).__name__) for mod in functions):
        if name in _REFUSED_MODS:
            raise ConfigurationError(f"the mod {name}: {_REFUSED_MODS[name]}")
    return list(functions)


# --- memory -----------------------------------------------------------------------------------------------------------

#: Begins the names of the records of memories, which their stamps end.
_MEMORY = "fco-memory "


def recall(context: Context, down: Downlink) -> ClientState | None:
    """Return the memory that a task's stamp names; None for a client that begins.

    Two are kept: that of the last reply, and the one before, as the last reply may have been lost on its way.

    Parameters
    ----------
    context : Context
        The client's.
    down : Downlink
        The task.

    Raises
    ------
    MemoryLostError
        If it is not here.
    """
    if not down.stamp or down.restored is not None:
        return down.restored
    record = context.state.get(_MEMORY + down.stamp)
    if record is None:
        raise MemoryLostError(f"this node does not have the memory {down.stamp}")
    return records.memory_in(record, down.plan.layout.size)


def remember(context: Context, stamp: str, before: ClientState | None, new: str, after: ClientState) -> None:
    """Keep the memory after a reply, and the one before it.

    Parameters
    ----------
    context : Context
        The client's.
    stamp : str
        That of the task.
    before, after : mapping of str to ndarray or SparseVector
        Before the round, None for a client that began; and after it.
    new : str
        That of the memory after it.
    """
    state: Any = context.state
    held = state.get(_MEMORY + stamp)
    for key in [key for key in [*state] if key.startswith(_MEMORY)]:
        # Another run at this node, in another thread, may have been quicker: it asks for its own memory again.
        with suppress(KeyError):
            del state[key]
    state[_MEMORY + stamp] = record_of(pack(before or {})) if held is None else held
    state[_MEMORY + new] = record_of(pack(after))


def as_it_leaves(
    context: Context, number: int, method: Algorithm, down: Downlink, before: ClientState | None, up: Uplink
) -> Uplink:
    """Return a reply in the precision of its message, once the memory that follows from it is kept.

    Parameters
    ----------
    context : Context
        The client's.
    number : int
        The round.
    method : Algorithm
        The method.
    down : Downlink
        The task.
    before : mapping of str to ndarray or SparseVector, or None
        The client's memory; None for a client that began, and for a method without memories.
    up : Uplink
        The reply.
    """
    dtype = down.dtype if down.plan.wire_dtype == "auto" else down.plan.wire_dtype
    up = up._replace(vectors={name: locked(_rounded(vector, dtype)) for name, vector in up.vectors.items()})
    if down.stamp is None:
        return up
    digest = digest_of(up.vectors, up.elapsed)
    after = method.remembered(down, before, up)
    remember(context, down.stamp, before, stamp_of(digest, number, after), after)
    return up._replace(digest=digest)


def _rounded(vector: Any, dtype: str) -> Any:
    """Return a vector in a precision, or as it is if that is less."""
    held = vector.values if isinstance(vector, SparseVector) else vector
    return vector if held.dtype.itemsize < np.dtype(dtype).itemsize else vector.astype(dtype, copy=False)


def locked(vector: Any) -> Any:
    """Return a vector that nobody changes: an engine's own, or a copy of it."""
    if isinstance(vector, SparseVector):
        return SparseVector(locked(vector.indices), locked(vector.values), vector.size)
    if vector.flags.writeable or not vector.flags.owndata:
        vector = np.array(vector)
        vector.flags.writeable = False
    return vector


def check_layout(client: Layout, server: Layout, owner: str = "this client's objective", instead: str = _ALIKE) -> None:
    """Compare names and shapes; the server decides which arrays psi acts on, and their dtypes.

    Parameters
    ----------
    client, server : Layout
        Of either.
    owner, instead : str
        Whose the client's model is, and what would be right on the server, for the error.

    Raises
    ------
    ConfigurationError
        If they differ.
    """
    if client.signature == server.signature:
        return
    # Of a network with hundreds of arrays, those that differ; where the order does, all.
    alike = client.shapes.items() & server.shapes.items() if client.shapes != server.shapes else ()
    theirs, own = ({n: s for n, s in one.shapes.items() if (n, s) not in alike} for one in (server, client))
    problem = f"the server's model has {theirs or 'nothing'}, {owner} {own or 'nothing'}; {len(alike)} others are alike"
    advice = f"give `start` {instead}"
    if passing := [entry.name for entry in server.passed_through if entry.name in client.shapes]:
        which = "arrays of whole numbers or booleans are no part of the model, nor what Arrays(pass_through=) names"
        advice = f"{which}: here {listed(passing)}. Give floating-point initial arrays, such as np.zeros(10)"
    elif frozen := [entry.name for entry in client.passed_through if entry.name in server.shapes]:
        problem = f"the server optimises {listed(frozen)}, which are no trainable parameters of this model"
        advice = "name the buffers and frozen parameters in the strategy's arrays=Arrays(pass_through=...)"
    elif set(client.shapes) == set(server.shapes) and client.shapes != server.shapes:
        advice += "; where the classes of the clients' labels differ, give all of them the same num_classes="
    elif client.shapes.keys() ^ server.shapes.keys() == {"intercept"}:
        advice += "; to fit an estimator, give the sites the client_app of one with the same options"
    raise ConfigurationError(f"{problem}: {advice}")
