"""The contract of an algorithm: one file holds both halves of a method, and knows neither Flower nor messages.

The server half is the paper's box as functions of (problem, state): :meth:`Algorithm.init`,
:meth:`Algorithm.downlink`, :meth:`Algorithm.aggregate`, :meth:`Algorithm.retrieve`. The client half
(:class:`~flwr_fco.algorithms.contract.client.ClientHalf`) is static: a client has no instance with options.

An algorithm is a dataclass of the options that it uses. A strategy fills them from its own options of the same names::

    class FedDAGT(
        TrackerOptions, MemoryOptions, RateOptions, WorkOptions, CompositeStrategy, algorithm=GradientTracking
    )

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

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from flwr_fco.algorithms.contract.client import ClientHalf
from flwr_fco.algorithms.contract.problem import Change, LossFacts, Problem, Setting, To
from flwr_fco.algorithms.contract.replies import Replies
from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Downlink, Option, Uplink


class Algorithm(ClientHalf, ABC):
    """Both halves of a method.

    A state is a NamedTuple of float64 arrays and numbers with a field ``round``, the number of successful rounds. It
    holds all that changes: the functions modify neither the state nor the algorithm.

    ============  ========================================================================================
    class         what it says, and who asks
    variable
    ============  ========================================================================================
    `name`        by it the server's plan asks clients for their half
    `engine`      what runs the client half; None: its own :meth:`local`
    `memory`      names of what a client remembers: stamps, the ledger
    `reads`       what :meth:`aggregate` reads of whose replies: robust means, momentum, privacy, silent clients
    `holds`       what the vectors to send hold that are no increments: bounds, what an owner may keep back
    `common`      the vector that is added to every client's gradients: sparse features
    `sparse`      whether a client may work on the coordinates of its sparse features alone
    `refuses`     options that must keep their default, each with the reason
    ============  ========================================================================================

    Examples
    --------
    >>> from flwr_fco.algorithms import Algorithm, GradientSteps
    >>> isinstance(GradientSteps(), Algorithm), GradientSteps.name, GradientSteps.engine
    (True, 'gradient_steps', 'gradient steps')
    """

    #: ``"mean"``: :meth:`Replies.mean`, in whose place another centre, momentum or noise makes sense; ``"sums"``:
    #: weighted sums; ``"everyone"``: weighted sums over all clients, who take part in every round, and of whom silent
    #: ones are asked again; ``"rows"``: each reply by itself.
    reads: ClassVar[Literal["mean", "sums", "everyone", "rows"]] = "mean"
    #: Options that must keep their default, and why: ``"regularizer"``, ``"mirror_map"``, or ``"server_lr"`` for its
    #: value ``"auto"``.
    refuses: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        who = f"{cls.__module__}.{cls.__name__}"
        if cls.reads not in ("mean", "sums", "everyone", "rows"):
            raise ConfigurationError(f"{who}: reads={cls.reads!r}; expected 'mean', 'sums', 'everyone' or 'rows'")
        allowed = {"regularizer", "mirror_map", "server_lr"}
        if not isinstance(cls.refuses, Mapping) or not cls.refuses.keys() <= allowed:
            raise ConfigurationError(
                f"{who}: refuses={cls.refuses!r}; expected reasons by option, of {', '.join(sorted(allowed))}"
            )

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

    # --- what else a method may say -------------------------------------------------------------------------------

    def shapes(self, problem: Problem, state: Any) -> dict[str, tuple[int, ...]]:
        """Return name and shape of each vector that a client sends in this round.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state as the round begins.
        """
        return {"increment": (problem.layout.size,)}

    def check(self, problem: Problem, state: Any, uplink: Uplink) -> None:
        """Check what a reply says by the meaning of its numbers; it has the names and shapes, and is finite.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The state of the message that it answers.
        uplink : Uplink
            The reply.

        Raises
        ------
        ProtocolError
            With the reason why it does not count.
        """

    def finished(self, problem: Problem, state: Any) -> str:
        """Return why no further round is needed; an empty string as long as the run goes on.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state after a round.
        """
        return ""

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

    def points(self, problem: Problem, before: Any, after: Any, replies: Replies) -> Iterable[Vector]:
        """Return the points of a round for an averaged output; by default only the last point.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        before, after : NamedTuple
            The states before and after the round.
        replies : Replies
            Those of the round.
        """
        return (self.retrieve(problem, after),)

    def restart(self, problem: Problem, state: Any, change: Change) -> Any:
        """Return the state after clients have joined or left, or all clients have restarted.

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

    def options(self, numbers: Mapping[str, float]) -> dict[str, Option]:
        """Return what the client half must know, and what a saved state depends on.

        Parameters
        ----------
        numbers : mapping of str to float
            Present values of the options that may be ``"auto"``.
        """
        return {}

    def theory(self, problem: Problem, facts: LossFacts) -> dict[str, tuple[float, str]]:
        """Return the theoretical values of the options that can be ``"auto"``, each with its formula.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        facts : LossFacts
            What the clients have told about their losses.
        """
        return {"client_lr": (1.0 / (4.0 * facts.curvature), "1/(4 L)")}

    def metrics(self, problem: Problem, state: Any) -> dict[str, float | int]:
        """Return the numbers that the method adds to the metrics of each training round.

        Parameters
        ----------
        problem : Problem
            The model's layout, psi, h, and the round's numbers.
        state : NamedTuple
            The server's state as the round begins.
        """
        return {}

    def describe(self, state: Any) -> list[tuple[str, str]]:
        """Return the method's lines in ``summary()``, as pairs of a title and a text.

        Parameters
        ----------
        state : NamedTuple or None
            None before there is one.
        """
        return []
