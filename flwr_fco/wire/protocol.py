"""What the server half and the client half of an algorithm say to each other, without Flower.

A :class:`Plan` is what all messages of a run have in common and travels once. A :class:`Downlink` is what a client is
told in a round, an :class:`Uplink` what it answers. ``downlink.py`` and ``uplink.py`` turn them into Flower records and
back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Layout, Vector, euclidean_norm
from flwr_fco.core.sparse import NonZeros, SparseVector
from flwr_fco.core.spec import Spec
from flwr_fco.core.validation import checked
from flwr_fco.errors import ConfigurationError, ProtocolError, SpecError
from flwr_fco.kernels.dual_averaging import NOTHING, Retrieval
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.regularizers import Zero
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer, Scope
from flwr_fco.work import FirstOrder, Minimise, Work, work_from_header

Option = bool | int | float | str
#: The metric by which a client says that its training loop is its own: with a schedule, or other epochs and batches.
OWN_LOOP = "own-loop"
#: The metric by which a client says that its loss is not smooth: its gradient may be the same at many points.
NONSMOOTH = "nonsmooth"
#: What a client remembers between rounds: vectors by name, of a client with sparse features perhaps SparseVectors; None
#: before its first round.
ClientState = Mapping[str, Any]


class Received(dict[str, Any]):
    """Values that a server sent, by name; asking for a missing one raises an error that names it.

    Attributes
    ----------
    what : str
        What the values are called in the error message.

    Examples
    --------
    >>> ReceivedVectors({"dual": 0})["primal"]
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: the server's message lacks the vector 'primal'; it has dual
    """

    what: ClassVar[str]

    def __missing__(self, name: str) -> Any:
        raise ProtocolError(
            f"the server's message lacks the {self.what} {name!r}; it has {', '.join(sorted(self)) or 'none'}"
        )


class ReceivedVectors(Received):
    """The vectors of a message, looked at for numbers that are not finite when one is asked for.

    Who needs a few of its places takes :meth:`at`, which looks at these alone.

    Attributes
    ----------
    unseen : set of str
        Names of vectors that nobody has asked for; the copies of one broadcast share it.
    """

    what: ClassVar[str] = "vector"
    unseen: set[str] = set()  # noqa: RUF012 - nothing is added to this one, which stands for none

    @classmethod
    def to_look_at(cls, vectors: Mapping[str, Any], unseen: set[str]) -> ReceivedVectors:
        """Return vectors of which some are still to be looked at.

        Parameters
        ----------
        vectors : mapping of str to ndarray or SparseVector
        unseen : set of str
        """
        found = cls(vectors)
        found.unseen = unseen
        return found

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

    def get(self, name: str, default: Any = None) -> Any:
        """Return a vector, or the default if it is not there."""
        if name not in self:
            return default
        return self[name]

    def items(self) -> Any:
        """Return names and vectors; of those that came at some places only, these."""
        whole = [name for name, vector in super().items() if type(vector) is not SparseVector]
        return {**self, **{name: self[name] for name in whole}}.items()

    def at(self, name: str, places: NDArray[Any]) -> Vector:
        """Return a vector at some places.

        Parameters
        ----------
        name : str
        places : ndarray of int, shape (k,)

        Raises
        ------
        ProtocolError
            If there is no such vector, or it is not finite there.
        """
        given = super().__getitem__(name)
        if isinstance(given, NonZeros):
            found: Vector = given.at(places)
        elif isinstance(given, SparseVector):
            if not np.array_equal(given.indices, places):
                raise ProtocolError(
                    f"the server's vector {name!r} came at other places than this client's features have"
                )
            found = given.values
        else:
            found = given[places]
        if name in self.unseen:
            self._require_finite(name, found)
        return found

    def _require_finite(self, name: str, vector: Vector) -> None:
        # A sum of squares is finite only where each of them is; where it is not, they may just be large.
        if not math.isfinite(euclidean_norm(vector)) and not np.isfinite(vector).all():
            bad = int(vector.size - np.isfinite(vector).sum())
            raise ProtocolError(f"the server's vector {name!r} holds {bad} NaN or infinite values")


class ReceivedNumbers(Received):
    """The numbers of a message."""

    what: ClassVar[str] = "number"


class ReceivedOptions(Received):
    """The options of a plan."""

    what: ClassVar[str] = "option"


class ReceivedState(Received):
    """The client's state, where a server sends it."""

    what: ClassVar[str] = "client's state"


class Node(NamedTuple):
    """A client as the server knows it.

    Parameters
    ----------
    node_id : int
        Flower's identifier, new for each run.
    partition_id : int or None
        The number of its shard, the same in every run; None where it is not known.
    """

    node_id: int
    partition_id: int | None

    @property
    def order(self) -> tuple[int, int, int]:
        """Sort key: by partition id, nodes without one last."""
        if self.partition_id is None:
            return (1, 0, self.node_id)
        return (0, self.partition_id, self.node_id)

    @property
    def key(self) -> tuple[int, int]:
        """How a client is recognised under another node id: by its partition, or else by the node id itself."""
        return (1, self.node_id) if self.partition_id is None else (0, self.partition_id)

    def __str__(self) -> str:
        return f"node {self.node_id}" + ("" if self.partition_id is None else f" (partition {self.partition_id})")


@dataclass(frozen=True)
class Plan:
    """What every round of a run has in common.

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
        What a client does in a round.
    seed : int
        A client's generator of a round comes from (seed, round, partition id).
    wire_dtype : {"float64", "float32", "auto"}
        The precision in which increments travel; ``"auto"``: that of the vectors in the message being answered.
    options : mapping of str to bool, int, float or str
        Further settings of the local solver.

    Raises
    ------
    SpecError
        If a value is not what is said here.
    """

    solver: str
    layout: Layout
    regularizer: Regularizer
    mirror_map: MirrorMap
    scope: Scope = "each"
    work: Work = field(default_factory=FirstOrder)
    seed: int = 0
    wire_dtype: str = "float64"
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = {
            "solver": (self.solver, str),
            "layout": (self.layout, Layout),
            "regularizer": (self.regularizer, Regularizer),
            "mirror_map": (self.mirror_map, MirrorMap),
            "scope": (self.scope, Literal["each", "joint"]),
            "work": (self.work, FirstOrder | Minimise),
            "seed": (self.seed, int),
            "wire_dtype": (self.wire_dtype, Literal["float64", "float32", "auto"]),
            "options": (self.options, Mapping[str, Option]),
            **{f"options[{name!r}]": (value, bool | int | float | str) for name, value in self._options().items()},
        }
        try:
            for name, (value, kind) in kinds.items():
                checked(name, value, kind)
            if not self.solver:
                raise ConfigurationError("solver=''; expected the name of a local solver")
            if any(size < 0 for entry in self.layout.entries for size in entry.shape):
                raise ConfigurationError(f"layout={self.layout!r}; expected sizes >= 0")
            if not 0 <= self.seed < 2**32:
                raise ConfigurationError(f"seed={self.seed!r}; expected an integer from 0 to 2**32 - 1")
            for name, value in self._options().items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise ConfigurationError(f"options[{name!r}]={value!r}; expected a finite number")
        except ConfigurationError as error:
            raise SpecError(f"not a plan: {error}") from error

    def _options(self) -> Mapping[str, Option]:
        return self.options if isinstance(self.options, Mapping) else {}

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
        """What compiled loops of local steps need for h, and for psi if it acts in them; None if they cannot do it."""
        found = self.h.compiled(self.psi)
        if found is None or self.options.get("client-prox", True):
            return found
        return found._replace(thresholds=NOTHING)

    def point(self, z: Vector, t: float, out: Vector | None = None) -> Vector:
        """Return h.retrieve(z, t, psi), which without psi costs no more than h.conjugate_gradient(z).

        Parameters
        ----------
        z : ndarray of float64, shape (layout.size,)
            The dual.
        t : float
            The weight of psi.
        out : ndarray, optional
            Where to write the result.
        """
        if self.smooth:
            return self.h.conjugate_gradient(z, out)
        return self.h.retrieve(z, t, self.psi, out)

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
            If the header is not one that :meth:`to_spec` writes.
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
            raise SpecError(
                f"the server's plan lacks {error}; server and client probably run different versions of flwr-fco"
            ) from error
        except SpecError:
            raise
        except (TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise SpecError(f"the server's plan cannot be read: {error}") from error


def _below(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


class ClientStamp(NamedTuple):
    """What the server tells a client with a memory about that memory.

    Parameters
    ----------
    epoch : int
        Memories of other epochs are void.
    accepted : int
        The client's last round whose reply was accepted: the client continues from the state that it stored in that
        round. -1 if there was none in this epoch.
    restored : mapping of str to ndarray, optional
        That state, for a client that has lost it.
    digest : str, default ""
        Digest of the accepted uplink as the server received it; a client that sent other bytes does not remember what
        the server assumes. Empty: not compared.
    """

    epoch: int
    accepted: int
    restored: ClientState | None = None
    digest: str = ""


class Downlink(NamedTuple):
    """What a client is told in a round.

    Parameters
    ----------
    plan : Plan
        What all rounds have in common.
    vectors : mapping of str to ndarray of float64, shape (d,), or SparseVector
        The server's vectors, such as ``"dual"`` or ``"primal"``; read-only on the client. Sparse: at the places that
        this client's features have, for a client that has told them.
    client_lr : float
        Step size of the local solver in this round; NaN for a method that has none.
    elapsed : float
        Sum of the step sizes behind the dual: the weight of psi at the start of the round.
    numbers : mapping of str to float
        Further numbers for the local solver in this round.
    stamp : ClientStamp or None
        Which of its states the client continues from; None for a method without client state.
    work : Work or None
        What the client does in this round; None: what the plan says.
    pass_through : mapping of str to ndarray
        Arrays of the model that are not optimised (counters, running statistics), as the server has them.
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
        """The client's work in this round: that of this message if it has one, otherwise the plan's."""
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
    """What a client answers: increments, whose weighted mean is all that the server needs.

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
        Anything else that the client reports: inner iterations, a certified gap, ...
    pass_through : mapping of str to ndarray
        The client's arrays of the model that are not optimised.
    digest : str
        Digest of the bytes received, for methods with client memory; set by the server.
    norms : mapping of str to float
        Euclidean norms of the vectors as they came, infinite where the sum of squares overflows; set by the server.
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

    @property
    def step_sizes(self) -> float:
        """`elapsed` of a client that took gradient steps.

        Raises
        ------
        ProtocolError
            If it reports none.
        """
        if self.elapsed is None:
            raise ProtocolError("the client reports no sum of step sizes")
        return self.elapsed
