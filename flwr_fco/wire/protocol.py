"""The protocol between the server half and the client half of an algorithm, without Flower.

A :class:`Plan` holds the settings that all messages of a run share, and is sent once. A :class:`Downlink` holds a
client's data for a round, an :class:`Uplink` its answer. ``downlink.py`` and ``uplink.py`` convert them to Flower
records and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector, euclidean_norm
from flwr_fco.core.schema import Grades
from flwr_fco.core.sparse import NonZeros, SparseVector
from flwr_fco.core.spec import Spec
from flwr_fco.core.validation import check_fields, checked
from flwr_fco.errors import ConfigurationError, ProtocolError, SpecError
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval, soft_threshold
from flwr_fco.mirror_maps import Euclidean, MirrorMap
from flwr_fco.regularizers import L1, Zero
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer, Scope
from flwr_fco.work import FirstOrder, Work, work_from_header

Option = bool | int | float | str
_SEED = {"range": (lambda seed: 0 <= seed < 2**32, "an integer from 0 to 2**32 - 1")}
_FINITE = {"range": (lambda value: not isinstance(value, float) or math.isfinite(value), "a finite number")}
#: A client's memory between rounds: vectors by name, which may be SparseVectors with sparse features; None before its
#: first round.
ClientState = Mapping[str, Any]


class Received(dict[str, Any]):
    """Values that a server sent, by name; asking for a missing one raises an error that names it.

    Attributes
    ----------
    what : str
        Name of the values in the error message.

    Examples
    --------
    >>> ReceivedVectors({"dual": 0})["primal"]
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: the server's message lacks the vector 'primal'; it has dual
    """

    what: ClassVar[str]

    def __missing__(self, name: str) -> Any:
        what = f"the server's message lacks the {self.what} {name!r}"
        raise ProtocolError(f"{what}; it has {', '.join(sorted(self)) or 'none'}")


class ReceivedVectors(Received):
    """The vectors of a message, checked for finite numbers on first access.

    A caller that needs only a few coordinates uses :meth:`at`, which checks only these.

    Attributes
    ----------
    unseen : set of str
        Names of vectors that were never accessed; the copies of one broadcast share it.
    """

    what: ClassVar[str] = "vector"
    unseen: set[str] = set()  # noqa: RUF012 - nothing is added to this one, which stands for none

    @classmethod
    def to_look_at(cls, vectors: Mapping[str, Any], unseen: set[str]) -> ReceivedVectors:
        """Return vectors, some of which are still unchecked."""
        received = cls(vectors)
        received.unseen = unseen
        return received

    def __getitem__(self, name: str) -> Any:
        vector = super().__getitem__(name)
        if type(vector) is NonZeros:
            vector = vector.to_dense()
            vector.flags.writeable = False
            self[name] = vector
        if type(vector) is SparseVector:
            raise ProtocolError(
                f"the server's vector {name!r} came at {vector.indices.size} of {vector.size} places only"
            )
        if name in self.unseen:
            self._require_finite(name, vector)
            self.unseen.discard(name)
        return vector

    def as_sent(self, name: str) -> Any:
        """Return a vector in the form in which it was sent: a SparseVector if it came with its places.

        Raises
        ------
        ProtocolError
            If there is no such vector, or it is not finite.
        """
        vector = super().__getitem__(name)
        if name in self.unseen:
            self._require_finite(name, vector.values if isinstance(vector, SparseVector) else vector)
        return vector

    def get(self, name: str, default: Any = None) -> Any:
        """Return a vector, or the default if it is not there."""
        if name not in self:
            return default
        return self[name]

    def items(self) -> Any:
        """Return names and vectors; vectors that were sent at some coordinates are restricted to these."""
        whole = [name for name, vector in super().items() if type(vector) is not SparseVector]
        return {**self, **{name: self[name] for name in whole}}.items()

    def values(self) -> Any:
        """Return the vectors of :meth:`items`."""
        return dict(self.items()).values()

    def at(self, name: str, indices: NDArray[Any]) -> Vector:
        """Return a vector at some coordinates.

        Raises
        ------
        ProtocolError
            If there is no such vector, or it is not finite at these coordinates.
        """
        vector = super().__getitem__(name)
        if isinstance(vector, NonZeros):
            values: Vector = vector.at(indices)
        elif isinstance(vector, SparseVector):
            if not np.array_equal(vector.indices, indices):
                raise ProtocolError(
                    f"the server's vector {name!r} came at other places than this client's features have"
                )
            values = vector.values
        else:
            values = vector[indices]
        if name in self.unseen:
            self._require_finite(name, values)
        return values

    def _require_finite(self, name: str, vector: Vector) -> None:
        # The sum of squares is finite only if all entries are; if it is not, the entries may just be large.
        if not math.isfinite(euclidean_norm(vector)) and not np.isfinite(vector).all():
            bad = int(vector.size - np.isfinite(vector).sum())
            raise ProtocolError(f"the server's vector {name!r} holds {bad} NaN or infinite values")


class DenseVectors(Received):
    """The vectors of a message in this process, which are dense and have been checked."""

    what: ClassVar[str] = "vector"


class ReceivedNumbers(Received):
    """The numbers of a message."""

    what: ClassVar[str] = "number"


class ReceivedOptions(Received):
    """The options of a plan."""

    what: ClassVar[str] = "option"


class ReceivedState(Received):
    """The client's state, if the server sends it."""

    what: ClassVar[str] = "client's state"


class _Numbers(NamedTuple):
    node_id: int
    partition_id: int | None


class Node(_Numbers):
    """A client as the server knows it.

    Parameters
    ----------
    node_id : int
        Flower's identifier, new in each run.
    partition_id : int or None
        Number of its shard, the same in every run; None if unknown.
    """

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: by partition id, nodes without one last."""
        if self.partition_id is None:
            return (1, 0, self.node_id)
        return (0, self.partition_id, self.node_id)

    @cached_property
    def key(self) -> tuple[int, int]:
        """Identity of a client across node ids: its partition, or the node id itself without one."""
        return (1, self.node_id) if self.partition_id is None else (0, self.partition_id)

    def __str__(self) -> str:
        return f"node {self.node_id}" + ("" if self.partition_id is None else f" (partition {self.partition_id})")


@dataclass(frozen=True)
class Plan:
    """The settings that all rounds of a run share.

    Parameters
    ----------
    solver : str
        Name of the local solver: the client half of the algorithm.
    layout : Layout
        The model's arrays.
    regularizer : Regularizer
        psi.
    mirror_map : MirrorMap
        h.
    scope : {"each", "joint"}
        Whether psi acts on each array or on all together.
    work : Work
        A client's work in a round.
    seed : int
        A client's generator in a round is seeded with (seed, round, partition id).
    wire_dtype : {"float64", "float32", "auto"}
        Precision of increments in messages; ``"auto"``: that of the vectors in the message being answered.
    options : mapping of str to bool, int, float or str
        Further settings of the local solver.

    Raises
    ------
    SpecError
        If a value does not fit this description.
    """

    solver: str
    layout: Layout
    regularizer: Regularizer
    mirror_map: MirrorMap
    scope: Scope = "each"
    work: Work = field(default_factory=FirstOrder)
    seed: int = field(default=0, metadata=_SEED)
    wire_dtype: Literal["float64", "float32", "auto"] = "float64"
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        try:
            check_fields(self)
            if not self.solver:
                raise ConfigurationError("solver=''; expected the name of a local solver")
            if any(size < 0 for entry in self.layout.entries for size in entry.shape):
                raise ConfigurationError(f"layout={self.layout!r}; expected sizes >= 0")
            for name, value in self.options.items():
                checked(f"options[{name!r}]", value, Option, _FINITE)
        except ConfigurationError as error:
            raise SpecError(f"not a plan: {error}") from error

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
    def local_retrieval(self) -> Retrieval | None:
        """Data of h, and of psi if it acts in local steps, for compiled loops; None if these do not support them."""
        kernel = self.h.compiled(self.psi)
        if kernel is None or self.options.get("client-prox", True):
            return kernel
        return kernel._replace(thresholds=NOTHING)

    @property
    def steps(self) -> int:
        """The number of a client's minibatches in a round, K; 0 if it is not known."""
        return (self.work.steps or 0) if isinstance(self.work, FirstOrder) else 0

    @cached_property
    def point(self) -> Callable[..., Vector]:
        """``point(z, t, out=None)``: h.retrieve(z, t, psi) at a dual z and psi's weight t, in `out` if that is given.

        It is bound once: for the Euclidean map psi's proximal map, without psi h.conjugate_gradient(z).
        """
        return self.psi.prox if type(self.h) is Euclidean and not self.smooth else self._point

    def _point(self, z: Vector, t: float, out: Vector | None = None) -> Vector:
        return self.h.conjugate_gradient(z, out) if self.smooth else self.h.retrieve(z, t, self.psi, out)

    @cached_property
    def point_in_loops(self) -> Callable[[Vector, float, Vector], Any]:
        """``(z, t, out)``: writes ``point(z, t)`` to `out`; for an l1 norm and the Euclidean map compiled code does."""
        psi, h = self.regularizer, self.h
        if type(psi) is L1 and psi.weights is None and type(h) is Euclidean and (kernel := h.compiled(self.psi)):
            return partial(soft_threshold, kernel.thresholds) if kernel.thresholds.size else self.point
        return self.point

    def to_spec(self) -> Spec:
        """Return the plan as JSON and arrays."""
        psi, h = self.regularizer.to_spec(), self.mirror_map.to_spec()
        header = {
            "solver": self.solver,
            "layout": self.layout.to_header(),
            "regularizer": psi.header,
            "mirror-map": h.header,
            "scope": self.scope,
            "work": self.work.to_header(),
            "seed": self.seed,
            "wire-dtype": self.wire_dtype,
            "options": dict(self.options),
        }
        arrays = {f"regularizer/{name}": array for name, array in psi.arrays.items()}
        arrays.update({f"mirror-map/{name}": array for name, array in h.arrays.items()})
        return Spec(header, arrays)

    @classmethod
    def from_spec(cls, spec: Spec) -> Plan:
        """Rebuild a plan.

        Raises
        ------
        SpecError
            If the header was not written by :meth:`to_spec`.
        """
        header = spec.header
        if not isinstance(header, dict):
            raise SpecError(f"not a plan: {str(header)[:80]}; expected an object")
        try:
            return cls(
                solver=header["solver"],
                layout=Layout.from_header(header["layout"]),
                regularizer=Regularizer.from_spec(Spec(header["regularizer"], _below(spec.arrays, "regularizer/"))),
                mirror_map=MirrorMap.from_spec(Spec(header["mirror-map"], _below(spec.arrays, "mirror-map/"))),
                scope=header["scope"],
                work=work_from_header(header["work"]),
                seed=header["seed"],
                wire_dtype=header["wire-dtype"],
                options=ReceivedOptions(header["options"]),
            )
        except KeyError as error:
            what = f"the server's plan lacks {error}"
            raise SpecError(f"{what}; server and client probably run different versions of flwr-fco") from error
        except SpecError:
            raise
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SpecError(f"the server's plan cannot be read: {error}") from error


def _below(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


class ClientStamp(NamedTuple):
    """The server's message to a client about its memory.

    Parameters
    ----------
    epoch : int
        Current epoch; memories of other epochs are void.
    accepted : int
        The client's last round whose reply was accepted: the client continues from the state that it stored in that
        round. -1 if there was none in this epoch.
    restored : mapping of str to ndarray, optional
        The state of that round, for a client that has lost it.
    digest : str, default ""
        Digest of the accepted uplink as received by the server; a client that sent other bytes has another memory than
        the server assumes. Empty: not compared.
    """

    epoch: int
    accepted: int
    restored: ClientState | None = None
    digest: str = ""


class Downlink(NamedTuple):
    """The data for a client in a round.

    Parameters
    ----------
    plan : Plan
        Settings that all rounds share.
    vectors : mapping of str to ndarray of float64, shape (d,), or SparseVector
        The server's vectors, such as ``"dual"`` or ``"primal"``; read-only on the client. Sparse: at the coordinates of
        this client's features, if the client has reported them.
    client_lr : float
        Step size of the local solver in this round; NaN for a method without one.
    elapsed : float
        Sum of the step sizes behind the dual: the weight of psi at the start of the round.
    numbers : mapping of str to float
        Further numbers for the local solver in this round.
    stamp : ClientStamp or None
        The state that the client continues from; None for a method without client state.
    work : Work or None
        The client's work in this round; None means the plan's.
    pass_through : mapping of str to ndarray
        Arrays of the model that are not optimised (counters, running statistics), with the server's values.

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco import L1, Euclidean
    >>> plan = Plan("dual_averaging", Layout.from_arrays({"coef": np.zeros(2)}), L1(0.1), Euclidean())
    >>> Downlink(plan, {"dual": np.array([1.0, 2.0])}, client_lr=0.1).vectors["dual"]
    array([1., 2.])
    """

    plan: Plan
    vectors: Mapping[str, Vector]
    client_lr: float = math.nan
    elapsed: float = 0.0
    numbers: Mapping[str, float] = MappingProxyType({})
    stamp: ClientStamp | None = None
    work: Work | None = None
    pass_through: Mapping[str, NDArray[Any]] = MappingProxyType({})

    @property
    def local_work(self) -> Work:
        """The client's work in this round: from this message if it has one, otherwise from the plan."""
        return self.plan.work if self.work is None else self.work

    @property
    def first_order(self) -> FirstOrder:
        """The work of a local solver that takes gradient steps.

        Raises
        ------
        ConfigurationError
            If the server asks for a minimisation.
        """
        work = self.plan.work if self.work is None else self.work
        if not isinstance(work, FirstOrder):
            raise ConfigurationError(f"the local solver {self.plan.solver!r} takes gradient steps, it cannot {work}")
        return work


class Uplink(NamedTuple):
    """A client's answer: increments, whose weighted mean is all that the server needs.

    Parameters
    ----------
    vectors : mapping of str to ndarray of float64 or SparseVector
        ``"increment"`` of shape (d,): end minus start of the local solver.
    elapsed : float or None
        Sum of the client's step sizes in this round; None after a minimisation.
    steps : int
        Number of local steps; after a minimisation its iterations.
    weight : float
        Weight p_m of the client in the round's means; set by the server, the weights of a round sum to 1.
    node : Node or None
        The client that answers; set by the server.
    examples : float
        The client's weight before the weights of a round are made to sum to 1; set by the server.
    metrics : mapping of str to float
        Other numbers that the client reports: inner iterations, a certified gap, ...
    pass_through : mapping of str to ndarray
        The client's values of the model's arrays that are not optimised.
    digest : str
        Digest of the received bytes, for methods with client memory; set by the server.
    norms : mapping of str to float
        Euclidean norms of the vectors as received, infinite if the sum of squares overflows; set by the server.
    units : sequence of int
        With a client's first answer, the grades of its columns' standard deviations
        (:func:`flwr_fco.core.schema.grades_of`); empty if it says none.
    """

    vectors: Mapping[str, Any]
    elapsed: float | None
    steps: int
    weight: float = float("nan")
    node: Node | None = None
    examples: float = float("nan")
    metrics: Mapping[str, float] = MappingProxyType({})
    pass_through: Mapping[str, NDArray[Any]] = MappingProxyType({})
    digest: str = ""
    norms: Mapping[str, float] = MappingProxyType({})
    units: Grades = ()

    @property
    def step_sizes(self) -> float:
        """`elapsed` of a client that took gradient steps.

        Raises
        ------
        ProtocolError
            If the client reports none.
        """
        if self.elapsed is None:
            raise ProtocolError("the client reports no sum of step sizes")
        return self.elapsed
