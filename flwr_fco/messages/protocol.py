"""What crosses between server and clients, as plain data without Flower.

A :class:`Plan` holds the settings that all messages of a run share. A :class:`Downlink` is a client's task in a round,
an :class:`Uplink` its reply. A :class:`Question` asks for numbers about a client's loss, an :class:`Answer` has them.
:mod:`flwr_fco.messages.records` writes all of them as Flower's records, and reads them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.files import parse_json
from flwr_fco.core.layout import Layout, NonZeros, SparseVector, Vector, all_finite
from flwr_fco.core.spec import Spec, Specified
from flwr_fco.core.validation import FORGETTING, SEED, checked
from flwr_fco.errors import ConfigurationError, ProtocolError, SpecError, in_words
from flwr_fco.kernels.dual_averaging import NO_TERMS, Retrieval
from flwr_fco.kernels.prox import separable
from flwr_fco.mirror_maps import Euclidean, MirrorMap
from flwr_fco.regularizers import Zero
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer, Scope
from flwr_fco.work import FirstOrder, Work

Option = bool | int | float | str
#: A client's memory between rounds: vectors by name, sparse ones for a client with sparse features.
ClientState = Mapping[str, Any]
NOTHING_MORE: Mapping[str, Any] = MappingProxyType({})

#: Numbers of a message: how many points its vectors hold, one after the other; and folds of a cross-validation.
POINTS = "points"
FOLDS = "folds"
#: Outputs that average all local steps, which clients then send.
OF_ALL_STEPS = ("shadow", "ergodic")

_FINITE = {"range": (lambda value: not isinstance(value, float) or math.isfinite(value), "a finite number")}


class Received(dict[str, Any]):
    """Values from the other side by name; a missing name is an error that says what there is.

    Examples
    --------
    >>> Received(dual=0)["primal"]
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: the message lacks 'primal'; it has dual
    """

    def __missing__(self, name: str) -> Any:
        raise ProtocolError(f"the message lacks {name!r}; it has {', '.join(sorted(self)) or 'nothing'}")


class ReceivedVectors(Received):
    """The server's vectors; those that came by their non-zeros become dense when they are read as a whole."""

    def __getitem__(self, name: str) -> Any:
        vector = super().__getitem__(name)
        if type(vector) is NonZeros:
            vector = vector.to_dense()
            vector.flags.writeable = False
            self[name] = vector
        elif type(vector) is SparseVector:
            here = f"{vector.indices.size} of {vector.size} indices"
            raise ProtocolError(f"the server's vector {name!r} came at {here} only")
        return vector

    def get(self, name: str, default: Any = None) -> Any:
        """Return a vector, or the default if it is not there."""
        return self[name] if name in self else default  # noqa: SIM401 (it is what `get` is)

    def as_sent(self, name: str) -> Any:
        """Return a vector in the form in which it was sent."""
        return super().__getitem__(name)

    def at(self, name: str, indices: NDArray[Any]) -> Vector:
        """Return a vector's entries at some indices.

        Parameters
        ----------
        name : str
            Of the vector.
        indices : ndarray of int, shape (k,)
            Sorted; of a vector that came at some indices only, these must be the ones.

        Raises
        ------
        ProtocolError
            If the vector came at other indices.
        """
        vector = super().__getitem__(name)
        if type(vector) is SparseVector:
            if not np.array_equal(vector.indices, indices):
                raise ProtocolError(f"the server's vector {name!r} came at other indices than this client's features")
            return vector.values
        return vector.at(indices) if isinstance(vector, SparseVector) else vector[indices]


class Node(NamedTuple):
    """A client: Flower's node id and, where the runtime says it, its partition.

    Examples
    --------
    >>> str(Node(7, 2)), Node(7, None).key
    ('node 7 (partition 2)', (1, 7))
    """

    node_id: int
    partition_id: int | None

    @property
    def key(self) -> tuple[int, int]:
        """What identifies the client from round to round, and sorts: its partition, or its node id without one."""
        return (1, self.node_id) if self.partition_id is None else (0, self.partition_id)

    @property
    def site(self) -> int:
        """Its partition, or its node id without one, as it knows itself."""
        return self.key[1]

    def __str__(self) -> str:
        return f"node {self.node_id}" + ("" if self.partition_id is None else f" (partition {self.partition_id})")


@dataclass(frozen=True)
class Plan(Specified):
    """The settings that all rounds of a run share.

    Parameters
    ----------
    solver : str
        Name of the method, whose client half the clients run.
    layout : Layout
        The model's arrays.
    regularizer : Regularizer
        psi.
    mirror_map : MirrorMap
        h.
    scope : {"each", "joint"}, default "each"
        Whether psi acts on each array or on all together.
    work : Work
        A client's work in a round.
    seed : int, default 0
        A client's generator in a round is seeded with (seed, round, partition id).
    wire_dtype : {"float64", "float32", "auto"}, default "float64"
        Precision of increments in messages; ``"auto"``: that of the vectors in the message being replied to.
    options : mapping of str to bool, int, float or str
        Further settings of the method's client half.

    Raises
    ------
    SpecError
        If a value does not fit this description.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> plan = Plan("dual_averaging", Layout.from_arrays({"coef": np.zeros(2)}), L1(1.0), Euclidean())
    >>> Plan.from_spec(plan.spec).point(np.array([3.0, -0.5]), 1.0)
    array([2., 0.])
    """

    family: ClassVar[str] = "plan"
    kind: ClassVar[str] = "plan"

    solver: str
    layout: Layout
    regularizer: Regularizer
    mirror_map: MirrorMap
    scope: Scope = "each"
    work: Work = field(default_factory=FirstOrder)
    seed: int = field(default=0, metadata=SEED)
    wire_dtype: Literal["float64", "float32", "auto"] = "float64"
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with in_words("not a plan", SpecError, passing=()):
            super().__post_init__()
            for name, value in self.options.items():
                checked("name of an option", name, str)
                checked(f"options[{name!r}]", value, Option, _FINITE)

    def __reduce__(self) -> Any:
        # Cached values hold compiled functions, which other processes make for themselves, once for each plan.
        return (Plan.from_spec, (self.spec,)) if self.spec.arrays else (parsed_plan, (self.text,))

    @cached_property
    def psi(self) -> BoundRegularizer:
        """The regularizer on the flat vector."""
        return self.regularizer.bind(self.layout, scope=self.scope)

    @cached_property
    def h(self) -> MirrorMap:
        """The mirror map on the flat vector."""
        return self.mirror_map.bind(self.layout)

    @cached_property
    def smooth(self) -> bool:
        """Whether there is no psi."""
        return isinstance(self.regularizer, Zero)

    @cached_property
    def local_retrievals(self) -> tuple[Retrieval | None, Retrieval | None]:
        """Data for compiled loops: of h without psi, and with it; None if the loops do not support them."""
        kernel = self.h.compiled(self.psi)
        return None if kernel is None else (NO_TERMS, *kernel[1:]), kernel

    @cached_property
    def sends_every_step(self) -> bool:
        """Whether clients send all points of their local steps, which the output averages."""
        return self.options.get("output") in OF_ALL_STEPS

    @property
    def steps(self) -> int:
        """The number of a client's minibatches in a round, K; 0 if it depends on the client."""
        return (self.work.steps or 0) if isinstance(self.work, FirstOrder) else 0

    @cached_property
    def point(self) -> Callable[..., Vector]:
        """``point(z, t, out=None)``: argmin_w -<z, w> + t psi(w) + h(w), in `out` if that is given."""
        return self.psi.prox if type(self.h) is Euclidean and not self.smooth else self._point

    def _point(self, z: Vector, t: float, out: Vector | None = None) -> Vector:
        found = self.h.conjugate_gradient(z, out) if self.smooth else self.h.retrieve(z, t, self.psi, out)
        if out is not None and found is not out:
            name = f"{type(self.h).__name__}.{'conjugate_gradient' if self.smooth else 'retrieve'}"
            raise ConfigurationError(f"{name}(..., out) returned something else; expected `out`, with the result in it")
        return found

    @cached_property
    def point_in_loops(self) -> Callable[[Vector, float, Vector], Any]:
        """``(z, t, out)``: the same for loops of many steps, one kernel for a sum over coordinates."""
        terms = self.psi.terms() if type(self.h) is Euclidean and not self.smooth else None
        if terms is None:
            return self.point
        rows = terms.rows((self.layout.size,))
        return lambda z, t, out: separable(z, float(t), rows, 1.0, out)

    @cached_property
    def spec(self) -> Spec:
        """The plan as JSON and named arrays."""
        return self.to_spec()

    @cached_property
    def text(self) -> str:
        """The spec's JSON."""
        return self.spec.to_json()


@lru_cache(maxsize=8)
def parsed_plan(text: str) -> Plan:
    """Return the plan without arrays that a text is; in a process the same text is one plan.

    Few are held: what a plan caches may be several times as large as the model.

    Examples
    --------
    >>> import weakref
    >>> from flwr_fco.regularizers import L1
    >>> layout = Layout.from_arrays({"coef": np.zeros(2)})
    >>> texts = [Plan("dual_averaging", layout, L1(float(i)), Euclidean()).text for i in range(20)]
    >>> plans = [weakref.ref(parsed_plan(text)) for text in texts]
    >>> sum(plan() is not None for plan in plans)
    8
    """
    return Plan.from_spec(Spec(parse_json(text), {}))


FORGETTING.append(parsed_plan.cache_clear)


class Downlink(NamedTuple):
    """A client's task in a round.

    Parameters
    ----------
    plan : Plan
        Settings that all rounds share.
    vectors : mapping of str to ndarray of float64, shape (d,), or SparseVector
        The server's vectors, such as ``"dual"`` or ``"primal"``; read-only on the client. Sparse: at the indices of
        this client's features, if the client has reported them.
    client_lr : float
        Step size in this round; NaN for a method without one.
    elapsed : float, default 0.0
        Sum of the step sizes behind the dual: the weight of psi at the start of the round.
    numbers : mapping of str to float
        Further numbers for this round.
    stamp : str or None
        Names the memory that the client goes on from, by its last reply that counted; ``""`` for a client that begins;
        None for a method without memories.
    work : Work or None
        The client's work in this round; None means the plan's.
    pass_through : mapping of str to ndarray
        Arrays of the model that are not optimised (counters, running statistics), with the server's values.
    restored : mapping of str to ndarray, or None
        The memory itself, for a client that has lost it.
    dtype : {"float64", "float32"}
        Precision of the vectors in a message.

    Examples
    --------
    >>> from flwr_fco.regularizers import L1
    >>> plan = Plan("dual_averaging", Layout.from_arrays({"coef": np.zeros(2)}), L1(0.1), Euclidean())
    >>> Downlink(plan, {"dual": np.array([1.0, 2.0])}, client_lr=0.1).vectors["dual"]
    array([1., 2.])
    """

    plan: Plan
    vectors: Mapping[str, Vector]
    client_lr: float = math.nan
    elapsed: float = 0.0
    numbers: Mapping[str, float] = NOTHING_MORE
    stamp: str | None = None
    work: Work | None = None
    pass_through: Mapping[str, NDArray[Any]] = NOTHING_MORE
    restored: ClientState | None = None
    dtype: str = "float64"

    @property
    def local_work(self) -> Work:
        """What the client does in this round."""
        return self.plan.work if self.work is None else self.work

    @property
    def first_order(self) -> FirstOrder:
        """The same, of a method that takes gradient steps.

        Raises
        ------
        ConfigurationError
            If the server asks for a minimisation.
        """
        if not isinstance(self.local_work, FirstOrder):
            prefix = f"the method {self.plan.solver!r} takes gradient steps, it cannot {self.local_work}"
            raise ConfigurationError(f"{prefix}. Its strategy takes work=Epochs(...) or Steps(...)")
        return self.local_work

    def without(self, name: bool | str) -> Downlink:
        """Return it without a vector, as it counts for a client with sparse features, who leaves its effect out."""
        return self._replace(vectors={own: vector for own, vector in self.vectors.items() if own != name})

    def as_received(self, *, as_sent: bool = False) -> Downlink:
        """Return it as a client reads it: read-only, rounded to the message's precision, and float64 or `as_sent`.

        Raises
        ------
        ProtocolError
            If a vector is not finite, or of a wrong rate, `elapsed` or stamp; a method without a rate has NaN.
        """
        rate = math.isnan(self.client_lr) or 0.0 < self.client_lr < math.inf
        if not rate or not 0.0 <= self.elapsed < math.inf or not isinstance(self.stamp, str | None):
            prefix = f"the server says elapsed={self.elapsed!r}, client-lr={self.client_lr!r}, stamp={self.stamp!r:.50}"
            raise ProtocolError(f"{prefix}; expected finite numbers, the rate above 0, and a text")
        dtype = self.dtype if as_sent else "float64"
        vectors = {name: self._as_received(name, vector, dtype) for name, vector in self.vectors.items()}
        return self._replace(vectors=ReceivedVectors(vectors), numbers=Received(self.numbers))

    def _as_received(self, name: str, vector: Any, dtype: str) -> Any:
        if isinstance(vector, SparseVector):
            return type(vector)(vector.indices, self._as_received(name, vector.values, dtype), vector.size)
        if not all_finite(vector):
            raise ProtocolError(f"the server's vector {name!r} is not finite")
        view = vector.astype(self.dtype, copy=False).astype(dtype, copy=False).view()
        view.flags.writeable = False
        return view


class Uplink(NamedTuple):
    """A client's reply in a round.

    Parameters
    ----------
    vectors : mapping of str to ndarray or SparseVector
        The increments that the method sends.
    elapsed : float or None
        Sum of the client's step sizes; None after a minimisation.
    steps : int or None
        Number of local steps, or of a minimisation's iterations; None where nothing depends on it.
    weight : float
        p_m among the clients of the round, set by the server; the weights sum to 1.
    node : Node or None
        Who sent it, set by the server.
    examples : float
        The client's number of examples, or its weight under another key.
    metrics : mapping of str to float
        What the client reports.
    pass_through : mapping of str to ndarray
        Arrays of the model that are not optimised.
    digest : str, default ""
        Digest of the vectors and of `elapsed`, from which the client's memory follows.
    norms : mapping of str to float
        Euclidean norms of the vectors, computed when they are checked.

    Examples
    --------
    >>> Uplink({"increment": np.ones(2)}, elapsed=0.5, steps=5).step_sizes
    0.5
    """

    vectors: Mapping[str, Any]
    elapsed: float | None
    steps: int | None
    weight: float = math.nan
    node: Node | None = None
    examples: float = math.nan
    metrics: Mapping[str, Any] = NOTHING_MORE
    pass_through: Mapping[str, NDArray[Any]] = NOTHING_MORE
    digest: str = ""
    norms: Mapping[str, float] = NOTHING_MORE

    @property
    def step_sizes(self) -> float:
        """The sum of the client's step sizes, of a method that has them.

        Raises
        ------
        ProtocolError
            If the reply has none.
        """
        if self.elapsed is None:
            raise ProtocolError("the client reports no sum of step sizes; of minimisations take replies.sum()")
        return self.elapsed


class Question(NamedTuple):
    """A question about a client's loss: nothing is trained, and but for ``"centred"`` nothing at the client changes.

    ==================  ===================================  ==========================================================
    kind                what is sent                         what is answered
    ==================  ===================================  ==========================================================
    ``"smoothness"``    a point, where unknown constants     Lipschitz constants of the gradient in the l2 and the l1
                        are probed; the batch size           norm, strong convexity
    ``"gradient"``      a point                              loss and full gradient
    ``"duality"``       a point; then a mixture's shares     gradients with their conjugates; then the conjugate at the
                                                             mixture (:mod:`flwr_fco.certificates`)
    ``"validation"``    a point                              the loss on held-out data, and what none is below
    ``"first"``         a point                              loss and gradient, what the rows weigh, the columns' means
                                                             and variances
    ``"centred"``       what to subtract from the columns    nothing
    ``"description"``   nothing                              numbers of a Table 1, as far as its owner allows
    ``"estimates"``     nothing                              the site's own unpenalised estimates and their standard
                                                             errors, if it has rows enough; its events
    ``"derivatives"``   a point                              loss, gradient and Hessian; of clusters the sum of outer
                                                             products of their gradients
    ``"quality"``       a point                              pairs in the order of the events, events, mean and square
                                                             of the scores, Brier's score
    ``"calibration"``   a point; a slope and an intercept    the loss of the scores changed by them, and its derivatives
                                                             by these two numbers
    ``"bins"``          a point; edges of the scores         rows, expected and observed events between them, if its
                                                             owner allows so few rows
    ``"trend"``         a point                              the trend of a Cox model's residuals over time
    ``"curves"``        times; a column of two groups        rows at risk and events between them, if its owner allows
                                                             so few rows
    ==================  ===================================  ==========================================================

    Parameters
    ----------
    kind : str
        By which a client finds its answer: see :mod:`flwr_fco.client_apps.client`.
    layout : Layout
        The model's arrays, which must be the client's.
    vectors : mapping of str to ndarray of float64, shape (d,)
        Such as ``"primal"``, the point that the question is about.
    numbers : mapping of str to float
        Further numbers.
    pass_through : mapping of str to ndarray
        Arrays of the model that are not optimised; the client uses them for this answer only.
    """

    kind: str
    layout: Layout
    vectors: Mapping[str, Vector] = NOTHING_MORE
    numbers: Mapping[str, float] = NOTHING_MORE
    pass_through: Mapping[str, NDArray[Any]] = NOTHING_MORE


class Answer(NamedTuple):
    """Numbers and vectors about a client's loss.

    Parameters
    ----------
    numbers : mapping of str to float
        By name.
    vectors : mapping of str to ndarray of float64
        By name.
    examples : float
        Number of examples behind the answer.
    weight : float
        p_m among the clients that answered, set by the server; the weights sum to 1.
    partition, node_id : int or None
        Who answered, set by the server: the partition is the node id of a node without one.

    Examples
    --------
    >>> Answer({"loss": 0.5}).numbers["loss"]
    0.5
    """

    numbers: Mapping[str, float]
    vectors: Mapping[str, NDArray[Any]] = NOTHING_MORE
    examples: float = math.nan
    weight: float = math.nan
    partition: int | None = None
    node_id: int | None = None


class MemoryLostError(ProtocolError):
    """The client does not have the memory that the server's stamp names."""


class Described(NamedTuple):
    """What a client says of its table before its first round: names of columns and of classes, and the columns' scales.

    Parameters
    ----------
    columns, classes : tuple of str or None
        In their order; None of data without names.
    deviations : ndarray of float64, shape (p,), or None
        Standard deviations of a linear model's columns, 0 where they say little of a unit; None in a private run.
    examples : int, optional
        Number of rows, which all later replies must report; None where the run is private or the owner limits rows.
    size : float, default 0.0
        A power of two that the columns are farther from 0 than, together; 0 where no deviations are said.
    """

    columns: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    deviations: NDArray[Any] | None = None
    examples: int | None = None
    size: float = 0.0
