"""The contract of a method's client half: what a client does in a round, and what it remembers.

A client has no instance with options: all that it knows is the server's message and its own memory. So these functions
are static, and run options travel in the message. The client calls :meth:`ClientHalf.remember`, and so does the
server's ledger; the two agree to the bit because it is one function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np

from flwr_fco.algorithms.contract.disclosure import Disclosure
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.objectives.base import Batch, Objective

#: As the base of an increment: the increment is the point itself.
ORIGIN = np.zeros(())

#: A client's vectors by name, between rounds.
Memory = Mapping[str, Vector]
#: ``(point, batch) -> None``: a local step, which changes the point in place.
Step = Callable[[Vector, Batch], None]


class Start(NamedTuple):
    """Where an engine begins, and what it adds to the client's loss.

    Parameters
    ----------
    point : ndarray of float64, shape (d,)
        The start point: a dual or a primal one, as the engine takes.
    shift : ndarray of float64, shape (d,), optional
        Steps: added to every gradient; gradient steps: subtracted in each step. Minimisation: the linear term
        -<shift, x>.
    base : ndarray of float64, shape (d,), optional
        The increment is relative to it; by default to `point`.
    center : ndarray of float64, shape (d,), optional
        Minimisation: the centre of the proximal term; by default 0.
    penalty : float, default 0.0
        Minimisation: the weight of 1/2 ||x - center||^2.
    scale : float, default 1.0
        Gradient steps: the factor of every gradient.

    Examples
    --------
    >>> Start(np.zeros(2), penalty=0.5).penalty
    0.5
    """

    point: Vector
    shift: Vector | None = None
    base: Vector | None = None
    center: Vector | None = None
    penalty: float = 0.0
    scale: float = 1.0


class Moved(NamedTuple):
    """What an engine has done.

    Parameters
    ----------
    increment : ndarray of float64, shape (d,)
        The last point minus the base.
    elapsed : float or None
        Sum of the step sizes; None after a minimisation.
    steps : int
        Number of steps, or of a minimisation's iterations.
    metrics : mapping of str to float
        Numbers to report.
    trajectory : ndarray of float64, shape (K, d), optional
        All local points minus the start, if the plan's option ``trajectory`` asks for them.
    kept : mapping of str to ndarray
        What the client remembers that is no function of what it sends; the ledger does not have it.

    Examples
    --------
    >>> moved = Moved(np.array([1.0, -1.0]), elapsed=0.5, steps=5)
    >>> moved.elapsed / moved.steps
    0.1
    """

    increment: Vector
    elapsed: float | None
    steps: int
    metrics: Mapping[str, float] = MappingProxyType({})
    trajectory: Vector | None = None
    kept: Memory = MappingProxyType({})


class Client(Protocol):
    """A client in a round, as its half of a method sees it.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> def shrunk(client: Client, dual):
    ...     return client.point(dual, client.rate)
    >>> shrunk(SimpleNamespace(rate=0.5, point=lambda dual, elapsed: dual - elapsed), 2.0)
    1.5
    """

    @property
    def objective(self) -> Objective:
        """The client's loss."""

    @property
    def rng(self) -> np.random.Generator:
        """The generator of this (seed, round, partition)."""

    @property
    def plan(self) -> Plan:
        """The settings that all rounds share."""

    @property
    def disclosure(self) -> Disclosure:
        """What may leave, as the client's owner says; of all of its rows it has been checked already."""

    @property
    def rate(self) -> float:
        """The step size; an error in words if the server's message has none."""

    def run(self, engine: str, start: Start) -> Moved:
        """Run an engine."""

    def take_steps(self, point: Vector, step: Step, *, in_pairs: bool = False) -> Moved:
        """Take primal steps of your own, each with one batch or with a pair of them."""

    def as_sent(self, vector: Vector) -> Vector:
        """Round a vector to the wire's precision, so that both sides remember the same numbers."""

    def point(self, dual: Vector, elapsed: float) -> Vector:
        """Return retrieve(dual, elapsed) at the coordinates that the client works on."""


class ClientHalf:
    """A method's client half; a subclass with a `name` is found by it.

    A round is ``begin``, the engine, ``send``; where clients remember something, ``hear`` (put back what the message
    left out) comes before and ``remember`` after it. All vectors may be restricted to the coordinates of a client's
    sparse features, so ``begin``, ``send``, ``remember`` and ``change`` act on each coordinate by itself.

    Examples
    --------
    >>> class Mine(ClientHalf):
    ...     @staticmethod
    ...     def begin(downlink, memory):
    ...         return Start(downlink.vectors["dual"])
    >>> Mine.engine, Mine.memory
    ('dual steps', ())
    """

    #: By this name the server's plan asks for it; a class without one is abstract.
    name: ClassVar[str] = ""
    #: A key of ``flwr_fco.engines.ENGINES``; None: the method's own :meth:`local`.
    engine: ClassVar[str | None] = "dual steps"
    #: Names of the vectors that a client remembers, and that :meth:`remember` returns.
    memory: ClassVar[tuple[str, ...]] = ()
    #: Name of the vector that is added to every client's gradients. A client with sparse features leaves its effect
    #: out, because the server can add it.
    common: ClassVar[str | None] = None
    #: Whether a client may do its round on the coordinates of its sparse features alone; the plan's option
    #: ``sparse-wire`` forbids it.
    sparse: ClassVar[bool] = False
    #: What the vectors to send hold that are no increments: ``"derivatives"``, or ``"losses"`` that decide something,
    #: and are bounded as metrics are. The lengths of
    #: derivatives depend on the units of a client's features, so with any of these no lengths are compared
    #: (``max_ratio``), and :meth:`check` knows what is possible. Nor is the model's norm then compared with that of the
    #: first rounds, because each step lowers the objective.
    holds: ClassVar[Mapping[str, Literal["derivatives", "losses"]]] = MappingProxyType({})

    @staticmethod
    def hear(downlink: Downlink, memory: Memory | None) -> Downlink:
        """Return the whole message, with the vectors that a client knows already.

        Parameters
        ----------
        downlink : Downlink
            The message as it came.
        memory : mapping of str to ndarray, or None
            None for a client that begins.
        """
        return downlink

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return the memory of a client that begins.

        Parameters
        ----------
        downlink : Downlink
            The whole message.
        """
        return {}

    @staticmethod
    def begin(downlink: Downlink, memory: Memory) -> Start:
        """Return where the engine begins.

        Parameters
        ----------
        downlink : Downlink
            The whole message.
        memory : mapping of str to ndarray
            What the client remembers; what :meth:`fresh` returns if it begins.
        """
        raise NotImplementedError

    @staticmethod
    def local_step(client: Client, downlink: Downlink, start: Start) -> Step:
        """Return a step of the engine ``"primal steps"`` and of those that fall back to it.

        Parameters
        ----------
        client : Client
            The client in its round, with its engines.
        downlink : Downlink
            The whole message.
        start : Start
            Where the engine began.
        """
        raise NotImplementedError

    @staticmethod
    def send(client: Client, downlink: Downlink, memory: Memory, moved: Moved) -> dict[str, Vector]:
        """Return the vectors to send, whose weighted means or sums are all that the server needs.

        Parameters
        ----------
        client : Client
            The client in its round, with its engines.
        downlink : Downlink
            The whole message.
        memory : mapping of str to ndarray
            Before the round.
        moved : Moved
            What the engine did.
        """
        return {"increment": moved.increment}

    @staticmethod
    def local(client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Return the vectors to send and what was done, for a method that no engine serves.

        Parameters
        ----------
        client : Client
            The client in its round, with its engines.
        downlink : Downlink
            The message as it came.
        memory : mapping of str to ndarray, or None
            None for a client that begins.
        """
        raise NotImplementedError

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return a client's memory after a round that counted: on the client, and in the server's ledger.

        Parameters
        ----------
        downlink : Downlink
            The whole message.
        memory : mapping of str to ndarray
            Before the round.
        sent : mapping of str to ndarray
            As it crossed the wire.
        elapsed : float or None
            Sum of the client's step sizes; None after a minimisation.
        """
        return {}

    @staticmethod
    def change(downlink: Downlink, sent: Memory, elapsed: float | None) -> Vector:
        """Return what a reply adds to a sum that the server keeps over all clients' memories.

        Parameters
        ----------
        downlink : Downlink
            The whole message.
        sent : mapping of str to ndarray
            As it crossed the wire.
        elapsed : float or None
            Sum of the client's step sizes; None after a minimisation.
        """
        raise NotImplementedError("Replies.changes() needs a function `change` of the method")

    @staticmethod
    def keep(downlink: Downlink) -> Memory:
        """Return what only the client keeps, to be sent less: the server can send it again from its state.

        Parameters
        ----------
        downlink : Downlink
            The whole message.
        """
        return {}

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        if cls.__dict__.get("name", ""):
            register(cls)
            return
        first = _HALVES.get(cls.name, cls)
        changed = sorted(part for part in _OF_A_CLIENT if getattr(cls, part) is not getattr(first, part))
        if changed:
            raise ConfigurationError(
                f"{cls.__module__}.{cls.__name__} changes {', '.join(changed)} of the method {cls.name!r}: clients "
                f"find their half by its name, and would run {_HALVES[cls.name].__name__}'s; give yours a `name`"
            )


#: What clients read of a method's class.
_OF_A_CLIENT = frozenset(name for name in vars(ClientHalf) if name[0] != "_" and name != "name")
#: Engines for which a method says what a step is, besides where steps begin.
_OWN_STEPS = ("primal steps", "proximal steps", "gradient steps")
_PARTS = {name: getattr(ClientHalf, name) for name in ("local", "begin", "local_step", "fresh", "remember")}
_HALVES: dict[str, type[ClientHalf]] = {}


def register(half: type[ClientHalf]) -> None:
    """Make a client half known by its name.

    Parameters
    ----------
    half : type of ClientHalf
        The class of the method.

    Raises
    ------
    ConfigurationError
        If another class has this name, or the class lacks what its engine or its memory needs.
    """
    who = f"{half.__module__}.{half.__name__}"
    own = {name for name, part in _PARTS.items() if getattr(half, name) is not part}
    needed = ["local"] if half.engine is None else ["begin", "local_step"][: 1 + (half.engine in _OWN_STEPS)]
    missing = [name for name in needed if name not in own]
    if missing:
        raise ConfigurationError(
            f"{who}: the engine {half.engine!r} needs {' and '.join(missing)} of its method; "
            "flwr_fco.algorithms.ClientHalf says what they return"
        )
    changed = [name for name in ("fresh", "remember") if name in own]
    if len(changed) != (2 if half.memory else 0):
        raise ConfigurationError(
            f"{who}: memory={half.memory!r} and {', '.join(changed) or 'no method'}: a method whose clients remember "
            "vectors names them in `memory` and has both `fresh` and `remember`"
        )
    held = half.holds.values() if isinstance(half.holds, Mapping) else [None]
    if any(kind not in ("derivatives", "losses") for kind in held):
        raise ConfigurationError(
            f"{who}: holds={half.holds!r}; expected 'derivatives' or 'losses' of each name, and no name of an increment"
        )
    first = _HALVES.get(half.name)
    # A cell or a file that is run again defines the same class again.
    if first is not None and (first.__module__, first.__qualname__) != (half.__module__, half.__qualname__):
        raise ConfigurationError(
            f"{who}: a method called {half.name!r} exists already, {first.__module__}.{first.__name__}; give yours "
            "another name"
        )
    _HALVES[half.name] = half


def halves() -> Mapping[str, type[ClientHalf]]:
    """Return the client halves by the names under which a plan asks for them."""
    return MappingProxyType(_HALVES)


def named(half: type[ClientHalf], kind: str) -> list[str]:
    """Return the names of the vectors to send that hold something of a kind."""
    return [name for name, own in half.holds.items() if own == kind]


def zeros_like(downlink: Downlink) -> Vector:
    """Return zeros of the shape of the message's vectors."""
    return np.zeros_like(next(iter(downlink.vectors.values())))


def without_common(half: type[ClientHalf], downlink: Downlink) -> Downlink:
    """Return the message as it counts for what a client with sparse features sends and remembers.

    Parameters
    ----------
    half : type of ClientHalf
        The class of the method.
    downlink : Downlink
        The whole message.
    """
    if half.common is None:
        return downlink
    vectors = downlink.vectors
    return downlink._replace(vectors={**vectors, half.common: np.zeros_like(vectors[half.common])})
