"""The contract of an algorithm: one class in one file, both halves of a method, without Flower and without messages.

The server's half is the paper's box as functions of (problem, state): :meth:`Algorithm.init`,
:meth:`Algorithm.downlink`, :meth:`Algorithm.aggregate`, :meth:`Algorithm.retrieve`. A client's half is
:meth:`Algorithm.local`, and :meth:`Algorithm.remember` where clients remember something. Both are the same object: a
client makes it from the plan's `options`, which are the fields that are numbers or texts.

An algorithm is a dataclass of the options that it uses. A strategy fills them from its own options of the same names::

    class FedDR(MinimiseStrategy):
        algorithm = DouglasRachford
        relaxation: float = 1.0

A dozen lines of NumPy run an algorithm on paper::

    problem = Problem.of(plan, client_lr=0.1, server_lr=1.0, round=1)
    state = algorithm.init(problem, start)
    for _ in range(rounds):
        downlink = algorithm.downlink(problem, state, None)
        uplinks = [...]                                     # the clients' answers, with weights that sum to 1
        state = algorithm.aggregate(problem, state, Replies(uplinks))
    model = algorithm.retrieve(problem, state)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from flwr_fco.algorithms.contract.replies import Rejected, Replies
from flwr_fco.core.layout import Layout, SparseVector, Vector, dense
from flwr_fco.core.validation import checked, enter, kinds_of, short
from flwr_fco.engines.client import Client, Moved, Sent, Step
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.messages.protocol import Downlink, Node, Option, Plan, Received, ReceivedVectors, Uplink
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer
from flwr_fco.work import Work

__all__ = ["NO_POINTS", "Algorithm", "AtMost", "Change", "Client", "Downlink", "Memory", "Moved", "Problem", "Rejected"]
__all__ += ["Replies", "Sent", "Setting", "Step", "To", "method_of", "methods", "options_of", "register"]


# --- what an algorithm sees: of a run apart from its state, and of a client in a round --------------------------------

#: Of a state whose output averages no other points than those that it retrieves.
NO_POINTS = np.zeros((0, 0))
#: A client's vectors by name, between rounds.
Memory = Mapping[str, Vector]


class AtMost(tuple[int, ...]):
    """The shape of a vector that may be shorter.

    Examples
    --------
    >>> AtMost((3,)) == (3,)
    True
    """

    __slots__ = ()


class To(NamedTuple):
    """The client that a message goes to: all that a shorter message may depend on.

    Parameters
    ----------
    key : (int, int)
        :attr:`Node.key` of the client.
    begins : bool, default False
        Whether it has no memory yet: none of its replies has counted since memories last restarted.

    Examples
    --------
    >>> To((7, 0)).begins
    False
    """

    key: tuple[int, int]
    begins: bool = False


class Setting(NamedTuple):
    """Geometry, regularizer, work and rates: the user's, or those of a state's stage.

    Parameters
    ----------
    layout : Layout
        The model's arrays.
    start : ndarray of float64, shape (d,)
        Start point of the run.
    num_rounds : int or None
        Total number of rounds, if known.
    mirror_map : MirrorMap
        Gradient of h, between primal and dual points.
    regularizer : Regularizer
        Psi, before it is bound to the arrays.
    work : Work or None
        A client's work in a round; None if no group of options says it, and the algorithm must.
    client_lr, server_lr : float, optional
        Rates of a stage; None: the user's of the round.
    stage : int, default 0
        Number of the stage. With a new one, memories and averages restart.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco import L1, Euclidean
    >>> layout = Layout.from_arrays({"coef": np.zeros(2)})
    >>> Setting(layout, np.zeros(2), 10, Euclidean(), L1(0.1), None).stage
    0
    """

    layout: Layout
    start: Vector
    num_rounds: int | None
    mirror_map: MirrorMap
    regularizer: Regularizer
    work: Work | None
    client_lr: float | None = None
    server_lr: float | None = None
    stage: int = 0


class Problem(NamedTuple):
    """The context of a run for an algorithm's functions, apart from the state.

    Parameters
    ----------
    plan : Plan
        Settings that all messages of the run share.
    layout : Layout
        The model's arrays.
    h : MirrorMap
        Mirror map on the flat vector.
    psi : BoundRegularizer
        Regularizer on the flat vector.
    client_lr, server_lr : float
        Learning rates of this round; NaN for a method without them.
    round : int
        Current round, from 1; 0 before round 1, and in a round 0 that asks for first gradients.
    asked : sequence of Node
        Clients that are asked in this round, sorted by partition id.
    memories : Ledger or None
        The server's record of clients with memories: ``memory(key)``, and ``present``, the keys of those who are there.
    graph : Graph or None
        The communication graph, of methods that have one.
    numbers : mapping of str to float
        Values in this round of the options that may be ``"auto"`` or a function of the round.
    given : Setting or None
        The user's geometry, regularizer and work, for methods that change them from state to state.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco import L1, Euclidean
    >>> plan = Plan("dual_averaging", Layout.from_arrays({"coef": np.zeros(2)}), L1(1.0), Euclidean())
    >>> Problem.of(plan, client_lr=0.1).retrieve(np.array([3.0, -0.5]), 1.0)
    array([2., 0.])
    """

    plan: Plan
    layout: Layout
    h: MirrorMap
    psi: BoundRegularizer
    client_lr: float = math.nan
    server_lr: float = math.nan
    round: int = 0
    asked: Sequence[Node] = ()
    memories: Any = None
    graph: Any = None
    numbers: Mapping[str, float] = MappingProxyType({})
    given: Setting | None = None

    @classmethod
    def of(cls, plan: Plan, **others: Any) -> Problem:
        """Return the problem of a plan.

        Parameters
        ----------
        plan : Plan
            What the clients were sent before round 1.
        **others
            The fields after `psi`.
        """
        return cls(plan, plan.layout, plan.h, plan.psi, **others)

    def with_plan(self, plan: Plan) -> Problem:
        """Return the problem with another plan."""
        return self._replace(plan=plan, layout=plan.layout, h=plan.h, psi=plan.psi)

    def points(self) -> Vector:
        """Return room in a first state for the points of a round's local steps, if clients send them."""
        return np.zeros((self.plan.steps, self.layout.size)) if self.plan.sends_every_step else NO_POINTS

    def retrieve(self, dual: Vector, elapsed: float) -> Vector:
        """Return argmin_w -<dual, w> + elapsed psi(w) + h(w).

        Parameters
        ----------
        dual : ndarray of float64, shape (d,)
            The dual point.
        elapsed : float
            The weight of psi.
        """
        return self.plan.point(dual, elapsed)


class Change(NamedTuple):
    """A change of the federation that the state must follow.

    Parameters
    ----------
    means : mapping of str to ndarray, or None
        Weighted means of the memories of the current clients; None if unchanged up to the weights.
    population : float
        Sum of the weights of the current clients.
    left : sequence of int, default ()
        On a graph: rows of the nodes that have left since the last round.

    Examples
    --------
    >>> Change(None, population=3.0, left=[1]).left
    [1]
    """

    means: Mapping[str, Vector] | None
    population: float
    left: Sequence[int] = ()


# --- a method ---------------------------------------------------------------------------------------------------------

#: What clients run of a class, which they find by its name.
_AT_CLIENTS = ("local", "remember", "memory", "sparse")
_METHODS: dict[str, type[Algorithm]] = {}


class Algorithm(ABC):
    """Both halves of a method: ten functions, of which the first five are its own, and six class variables.

    A state is a NamedTuple of float64 arrays, masks and numbers with a field ``round``, of the successful rounds.
    It holds all that changes: the functions modify neither the state nor the algorithm. A state that has other points
    than :meth:`retrieve` for an averaged output carries those of the last round in a field ``points``, one a row.

    ============  ========================================================================================
    class         what it says, and who asks
    variable
    ============  ========================================================================================
    `name`        by it clients find the class
    `memory`      names of what a client remembers: stamps, the ledger
    `reads`       what :meth:`aggregate` reads of whose replies: robust means, momentum, privacy, silent clients
    `refuses`     options that must keep their default, each with the reason
    `sparse`      whether a client may work on the coordinates of its sparse features alone
    `discloses`   what the vectors to send hold that are no increments: bounds, what an owner may keep back
    ============  ========================================================================================

    Examples
    --------
    >>> from flwr_fco.algorithms import Algorithm, GradientSteps
    >>> isinstance(GradientSteps(), Algorithm), GradientSteps.name, GradientSteps.reads
    (True, 'gradient_steps', 'mean')
    """

    #: A class without one is its base class to the clients.
    name: ClassVar[str] = ""
    #: Names of the vectors that :meth:`remember` returns.
    memory: ClassVar[tuple[str, ...]] = ()
    #: ``"mean"``: :meth:`Replies.mean`, in whose place another centre, momentum or noise makes sense; ``"sums"``:
    #: weighted sums; ``"everyone"``: weighted sums over all clients, who take part in every round, and of whom silent
    #: ones are asked again; ``"rows"``: each reply by itself.
    reads: ClassVar[Literal["mean", "sums", "everyone", "rows"]] = "mean"
    #: Options that must keep their default, and why: ``"regularizer"``, ``"mirror_map"``, or ``"server_lr"`` for its
    #: value ``"auto"``.
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})
    #: True if no step moves a coordinate that a client's rows do not touch, nor a group of them, so that these need not
    #: be sent; or the name of the vector that is added to every client's gradients: a client with sparse features
    #: leaves its effect out, because the server can add it (``replies.mean(state.control)``).
    sparse: ClassVar[bool | str] = False
    #: ``"derivatives"``, or ``"losses"`` that decide something, and are bounded as metrics are. The lengths of
    #: derivatives depend on the units of a client's features, so with any of these no lengths are compared
    #: (``max_ratio``). Nor is the model's norm then compared with that of the first rounds, because each step lowers
    #: the objective.
    discloses: ClassVar[Mapping[str, Literal["derivatives", "losses"]]] = MappingProxyType({})

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        who = f"{cls.__module__}.{cls.__name__}"
        first = _METHODS.get(cls.name)
        if cls.reads not in ("mean", "sums", "everyone", "rows"):
            raise ConfigurationError(f"{who}: reads={cls.reads!r}; expected 'mean', 'sums', 'everyone' or 'rows'")
        if bool(cls.memory) != (cls.remember is not Algorithm.remember):
            prefix = f"{who}: memory={cls.memory!r} and {'no' if cls.memory else 'a'} function `remember`"
            raise ConfigurationError(f"{prefix}: a method whose clients remember vectors names them, and has it")
        if vars(cls).get("name"):
            register(cls)
            return
        changed = [part for part in _AT_CLIENTS if first and getattr(cls, part) is not getattr(first, part)]
        if changed and first is not None:
            prefix = f"{who} changes {', '.join(changed)} of the method {cls.name!r}: clients find a method by its name"
            raise ConfigurationError(f"{prefix}, and would run {first.__name__}'s; give yours a `name`")

    # --- the server -----------------------------------------------------------------------------------------------

    @abstractmethod
    def init(self, problem: Problem, primal: Vector) -> Any:
        """Return the state before round 1.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        primal : ndarray of float64, shape (d,)
            The user's initial model.
        """

    @abstractmethod
    def downlink(self, problem: Problem, state: Any, to: To | None) -> Downlink:
        """Return the message to a client in this round.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state as the round begins.
        to : To or None
            The client, for methods whose clients remember something, and on a graph. None: the whole message, which
            the ledger uses, and which all clients of other methods get.
        """

    @abstractmethod
    def aggregate(self, problem: Problem, state: Any, replies: Replies) -> Any:
        """Return the next state: the server update of the paper's box.

        In a round 0 (``problem.round == 0``), in which every client sends one gradient, return the state after it.
        A reply that cannot be is :class:`Rejected`: it is left out, and the function called again with the others.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state as the round begins.
        replies : Replies
            Sorted by partition id, with weights that sum to 1.
        """

    @abstractmethod
    def retrieve(self, problem: Problem, state: Any) -> Vector:
        """Return the primal point of a state.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state.
        """

    # --- a client -------------------------------------------------------------------------------------------------

    @abstractmethod
    def local(self, client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Do a client's round; return the vectors to send, whose weighted means or sums are all that the server needs.

        Of a method that is `sparse`, all vectors may be restricted to the coordinates of a client's sparse features.

        Parameters
        ----------
        client : Client
            Its loss and its generator, and the loops: ``client.dual_steps``, ``.proximal_steps``, ``.extragradient``,
            ``.minimise``, and ``.steps`` for steps of the method's own.
        downlink : Downlink
            The message; its vectors are read-only.
        memory : mapping of str to ndarray, or None
            What the client remembers; None if it begins, and of a method without memories.
        """

    def remember(self, downlink: Downlink, memory: Memory | None, sent: Memory, elapsed: float | None) -> Memory:
        """Return a client's memory after a round that counted: on the client, and in the server's ledger.

        Parameters
        ----------
        downlink : Downlink
            The whole message.
        memory : mapping of str to ndarray, or None
            Before the round; None for a client that begins.
        sent : mapping of str to ndarray
            As it crossed the wire.
        elapsed : float or None
            Sum of the client's step sizes; None after a minimisation.
        """
        return {}

    def remembered(self, downlink: Downlink, memory: Mapping[str, Any] | None, up: Uplink) -> dict[str, Any]:
        """Return a client's memory after its reply, by :meth:`remember`: at the client and in the ledger the same bits.

        Parameters
        ----------
        downlink : Downlink
            The whole message.
        memory : mapping of str to ndarray or SparseVector, or None
            Before the round; None if the client began with it.
        up : Uplink
            The reply.

        Raises
        ------
        ConfigurationError
            If :meth:`remember` returns other vectors than those of `memory`.
        """
        some: Any = up.vectors.get("increment")
        held = {} if memory is None else memory
        where: Any = slice(None)
        if is_sparse := isinstance(some, SparseVector):
            # A client with sparse features knows its memory at their indices; elsewhere it does not change.
            where, vectors = some.indices, ReceivedVectors(downlink.vectors)
            downlink = downlink._replace(vectors={name: vectors.at(name, where) for name in vectors})
            downlink = downlink.without(self.sparse)
        same = is_sparse and all(np.array_equal(getattr(own, "indices", np.nan), where) for own in held.values())
        whole: dict[str, Any] = {n: v if same or isinstance(v, np.ndarray) else dense(v) for n, v in held.items()}
        known = {name: own.values if same else own[where] for name, own in whole.items()}
        sent = {name: getattr(own, "values", own).astype(np.float64, copy=False) for name, own in up.vectors.items()}
        after: Any = self.remember(downlink, None if memory is None else Received(known), sent, up.elapsed)
        if not isinstance(after, Mapping) or after.keys() != {*self.memory}:
            prefix = f"{type(self).__name__}.remember returned {short(after)}"
            raise ConfigurationError(f"{prefix}; expected arrays by name: {', '.join(self.memory)}")
        if not is_sparse:
            return dict(after)
        if same:
            return {name: replace(some, values=own) for name, own in after.items()}
        for name, own in after.items():
            whole[name] = whole[name].copy()
            whole[name][where] = own
        return whole

    # --- what else a method may say -------------------------------------------------------------------------------

    def shapes(self, problem: Problem, state: Any) -> dict[str, tuple[int, ...]]:
        """Return name and shape of each vector that a client sends in this round, and of all local steps if asked for.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state as the round begins.
        """
        plan, size = problem.plan, problem.layout.size
        return {"increment": (size,), **({"trajectory": (plan.steps, size)} if plan.sends_every_step else {})}

    def setting(self, given: Setting, state: Any) -> Setting:
        """Return geometry, regularizer, work and rates of a state: the given ones, unless the method changes them.

        Parameters
        ----------
        given : Setting
            The user's.
        state : NamedTuple or None
            None before there is one.
        """
        return given

    def restart(self, problem: Problem, state: Any, change: Change) -> Any:
        """Return the state after clients have joined or left.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state as the round begins.
        change : Change
            What has changed.
        """
        return state

    def metrics(self, problem: Problem, state: Any) -> dict[str, Any]:
        """Return the numbers that the method adds to the metrics of each training round.

        A text ``"finished"`` among them ends the run, and says why.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state after the round.
        """
        return {}


def register(kind: type[Algorithm]) -> None:
    """Make a method known by its name.

    Parameters
    ----------
    kind : type of Algorithm
        The class.

    Raises
    ------
    ConfigurationError
        If another class has this name.
    """
    enter(_METHODS, kind.name, kind, "a method called")


def options_of(method: Algorithm) -> dict[str, Option]:
    """Return what clients are sent of a method: its fields that are numbers or texts.

    Parameters
    ----------
    method : Algorithm
        The server's.
    """
    made: Any = method
    values = {option.name: getattr(made, option.name) for option in fields(made)} if is_dataclass(made) else {}
    return {name: value for name, value in values.items() if isinstance(value, bool | int | float | str)}


def method_of(name: str, options: Mapping[str, Option]) -> Algorithm:
    """Return a method on a client, from its name and the options in the plan.

    Parameters
    ----------
    name : str
        Of a class that has been imported here.
    options : mapping of str to bool, int, float or str
        Those that are no fields of the class belong to a subclass on the server.

    Raises
    ------
    ConfigurationError
        If this process does not know it, an option is of another type, or one without a default is missing.
    """
    kind: Any = _METHODS.get(name)
    if kind is None:
        prefix = f"the server asks for the method {name!r}; this client knows {', '.join(sorted(_METHODS))}"
        advice = "Import its module in the ClientApp, or install the server's version of flwr-fco"
        raise ConfigurationError(f"{prefix}. {advice}")
    names = [option.name for option in fields(kind) if option.init] if is_dataclass(kind) else []
    kinds = kinds_of(kind) if names else {}
    reported = {own: checked(f"the option {own}", options[own], kinds[own]) for own in names if own in options}
    problem = f"the plan's options {sorted(options)} do not make a {kind.__name__}"
    with in_words(problem, ConfigurationError, ". Only numbers and texts are sent: give the others defaults"):
        made: Algorithm = kind(**reported)
    return made


def methods() -> Mapping[str, type[Algorithm]]:
    """Return the methods by the names under which a plan asks for them."""
    return MappingProxyType(_METHODS)
