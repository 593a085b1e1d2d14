"""What the server half and the client half of an algorithm say to each other, without Flower.

A :class:`Plan` is what all messages of a run have in common and travels once. A :class:`Downlink` is what a client is
told in a round, an :class:`Uplink` what it answers. ``records.py`` turns the three into Flower records and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import NDArray

from flwr_fco.errors import SpecError
from flwr_fco.kernels.dual_averaging import Retrieval
from flwr_fco.kernels.seeding import fill_state
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.parameters import Layout, Vector
from flwr_fco.regularizers import Zero
from flwr_fco.regularizers.base import BoundRegularizer, Regularizer, Scope
from flwr_fco.spec import Spec

__all__ = ["ClientStamp", "ClientState", "Downlink", "Node", "Plan", "Uplink", "random_generator"]

Option = bool | int | float | str
#: What a client remembers between rounds: named vectors; None before its first round.
ClientState = Mapping[str, Vector]


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
        """What the client is known by when it comes back under another node id: its partition, where that is known."""
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
    local_epochs, local_steps : int or None
        Passes over the data, or minibatches, per round; exactly one is set.
    batch_size : int or None
        None: full batches.
    seed : int
        A client's generator of a round comes from (seed, round, partition id).
    wire_dtype : {"float64", "float32"}
        In what precision increments travel.
    options : mapping of str to bool, int, float or str
        What else the local solver wants to know.
    """

    solver: str
    layout: Layout
    regularizer: Regularizer
    mirror_map: MirrorMap
    scope: Scope = "each"
    local_epochs: int | None = 1
    local_steps: int | None = None
    batch_size: int | None = 32
    seed: int = 0
    wire_dtype: str = "float64"
    options: Mapping[str, Option] = field(default_factory=dict)

    @cached_property
    def psi(self) -> BoundRegularizer:
        """The regularizer on the flat vector."""
        return self.regularizer.bind(self.layout, scope=self.scope)

    @cached_property
    def h(self) -> MirrorMap:
        """The mirror map on the flat vector."""
        return self.mirror_map.bind(self.layout)

    @cached_property
    def retrieval(self) -> Retrieval | None:
        """What compiled loops need for h and psi; None where they cannot do it."""
        return self.h.compiled(self.psi)

    def point(self, z: Vector, t: float, out: Vector | None = None) -> Vector:
        """Return h.retrieve(z, t, psi), at the price of h.conjugate_gradient(z) where there is no psi.

        Parameters
        ----------
        z : ndarray of float64, shape (layout.size,)
            The dual.
        t : float
            The weight of psi.
        out : ndarray, optional
            Where to write the result.
        """
        if isinstance(self.regularizer, Zero):
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
            "local-epochs": self.local_epochs,
            "local-steps": self.local_steps,
            "batch-size": self.batch_size,
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
        try:
            return cls(
                solver=header["solver"],
                layout=Layout.from_header(header["layout"]),
                regularizer=Regularizer.from_spec(Spec(header["regularizer"], _below(spec.arrays, "regularizer/"))),
                mirror_map=MirrorMap.from_spec(Spec(header["mirror-map"], _below(spec.arrays, "mirror-map/"))),
                scope=header["scope"],
                local_epochs=header["local-epochs"],
                local_steps=header["local-steps"],
                batch_size=header["batch-size"],
                seed=header["seed"],
                wire_dtype=header["wire-dtype"],
                options=header["options"],
            )
        except KeyError as error:
            raise SpecError(
                f"the server's plan lacks {error}; server and client probably run different versions of flwr-fco"
            ) from error


def _below(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


class ClientStamp(NamedTuple):
    """What a client with a memory is told about it.

    Parameters
    ----------
    epoch : int
        Memories of another epoch are void.
    accepted : int
        The last round of this client whose reply counted: the state that it stored in that round is the one to go on
        from; -1 if there was none in this epoch.
    restored : mapping of str to ndarray, optional
        That state, for a client that has lost it.
    """

    epoch: int
    accepted: int
    restored: ClientState | None = None


class Downlink(NamedTuple):
    """What a client is told in a round.

    Parameters
    ----------
    plan : Plan
        What all rounds have in common.
    vectors : mapping of str to ndarray of float64, shape (d,)
        The server's vectors, such as ``"dual"`` or ``"primal"``; read-only on the client.
    client_lr : float
        Step size of the local solver in this round.
    elapsed : float
        Sum of the step sizes behind the dual: the weight of psi at the start of the round.
    numbers : mapping of str to float
        What else the local solver wants to know in this round.
    stamp : ClientStamp or None
        Which of its states the client goes on from; None for a method without client state.
    """

    plan: Plan
    vectors: Mapping[str, Vector]
    client_lr: float
    elapsed: float = 0.0
    numbers: Mapping[str, float] = MappingProxyType({})
    stamp: ClientStamp | None = None


class Uplink(NamedTuple):
    """What a client answers: increments, whose weighted mean is all the server needs.

    Parameters
    ----------
    vectors : mapping of str to ndarray of float64
        ``"increment"`` of shape (d,): end minus start of the local solver.
    elapsed : float
        Sum of the client's step sizes in this round.
    steps : int
        Number of local steps.
    weight : float
        Weight p_m of the client in the round's means; set by the server, the weights of a round sum to 1.
    node : Node or None
        Who answers; set by the server.
    examples : float
        The client's weight before the weights of a round are made to sum to 1; set by the server.
    """

    vectors: Mapping[str, Vector]
    elapsed: float
    steps: int
    weight: float = float("nan")
    node: Node | None = None
    examples: float = float("nan")


class _Words(ISpawnableSeedSequence):
    """``SeedSequence(words)``, quick to answer the one question that a PCG64 asks when it is made."""

    def __init__(self, words: NDArray[np.uint32]) -> None:
        self._words = words

    @cached_property
    def sequence(self) -> np.random.SeedSequence:
        """NumPy's own, for whatever else is asked."""
        return np.random.SeedSequence(self._words)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return the words from which a bit generator starts."""
        if dtype is not np.uint64:
            return self.sequence.generate_state(n_words, dtype)
        state = np.empty(n_words, dtype=np.uint64)
        fill_state(self._words, state)
        return state

    def spawn(self, n_children: int) -> list[Any]:
        """Return children of NumPy's own."""
        return self.sequence.spawn(n_children)


def random_generator(seed: int, server_round: int, partition_id: int, purpose: int = 1) -> np.random.Generator:
    """Return the generator of one (seed, round, partition): that of ``default_rng(words)``, bit for bit.

    Parameters
    ----------
    seed : int
        The run's seed, 0 <= seed < 2**32.
    server_round : int
        Flower's round, from 1.
    partition_id : int
        The client's partition, 0 <= partition_id < 2**64; 0 for the server.
    purpose : int, default 1
        Keeps streams apart that share the other numbers: 1 local solvers, 2 training sample, 3 evaluation sample.
        Never 0: trailing zeros of a seed sequence do not change it.

    Notes
    -----
    The words are (seed, server_round, low and high 32 bits of partition_id, purpose).

    Examples
    --------
    >>> theirs = np.random.default_rng([5, 3, 2, 0, 1])
    >>> random_generator(seed=5, server_round=3, partition_id=2).integers(100) == theirs.integers(100)
    np.True_
    """
    words = (seed, server_round, partition_id & 0xFFFFFFFF, partition_id >> 32, purpose)
    # NumPy takes any ISeedSequence; its type stubs know only one.
    return np.random.Generator(np.random.PCG64(_Words(np.array(words, dtype=np.uint32))))  # type: ignore[arg-type]
