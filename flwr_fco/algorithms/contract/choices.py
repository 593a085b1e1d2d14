"""Option objects: what several options chose together, as one value with its own checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from flwr_fco.core.layout import PASS_THROUGH
from flwr_fco.core.validation import AT_LEAST_ONE, CHANCE, PART, POSITIVE, Choice
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Node
from flwr_fco.regularizers.base import Scope

__all__ = ["Arrays", "Average", "Bounds", "Density", "Everyone", "Last", "Ledger", "Participation", "Reference"]
__all__ += ["Strengths", "Trimmed", "Wire"]

#: Chooses the connected nodes that take part in a round.
ChooseNodes = Callable[[int, Sequence[Node]], Sequence[Node]]


_BYTES = {"range": (lambda size: 0 <= size < 2**63, "a whole number from 0 to 2**63 - 1")}
#: Of a density; 1 is the model without one.
_KEPT = "a number between 0 and 1, the share of weights that are not 0 in the end; to keep all of them leave it out"
SHARE = {"range": (lambda share: not isinstance(share, float) or 0.0 < share < 1.0, _KEPT)}


def _are_rows(rows: Mapping[Any, Any]) -> bool:
    numbers = all(isinstance(key, Integral) and isinstance(own, Real) for key, own in rows.items())
    return bool(rows) and numbers and all(0.0 < own < math.inf for own in rows.values())


_ROWS = {"range": (_are_rows, "numbers > 0 by partition id, which is a whole number")}
_RATIO = {"range": (lambda ratio: 1.0 <= ratio < math.inf, "a finite number >= 1")}
_SECONDS = {"range": (lambda value: 0.0 <= value < math.inf, "a finite number >= 0, of seconds")}


@dataclass(frozen=True)
class Trimmed(Choice):
    """The mean of each coordinate without the largest and the smallest values.

    Parameters
    ----------
    share : float, default 0.2
        Fraction of the weight that is left out at each end; from 0 to 1/2, exclusive.

    Raises
    ------
    ConfigurationError
        If the share is out of range.

    References
    ----------
    Yin, Chen, Ramchandran, Bartlett: Byzantine-robust distributed learning (ICML 2018).

    Examples
    --------
    >>> Trimmed(0.1).share
    0.1
    """

    share: float = field(default=0.2, metadata={"range": (lambda x: 0 <= x < 0.5, "a number from 0 to 0.5, exclusive")})


@dataclass(frozen=True)
class Last(Choice):
    """The last model, as the output that evaluation and the user see.

    Parameters
    ----------
    nonzeros : int, optional
        Number of entries to keep, the largest in absolute value; the others are set to zero. The state does not change.
        By default all entries are kept.

    Raises
    ------
    ConfigurationError
        If the number is no whole number >= 1.

    Examples
    --------
    >>> Last(nonzeros=16)
    Last(nonzeros=16)
    """

    nonzeros: int | None = field(default=None, metadata=AT_LEAST_ONE)


@dataclass(frozen=True)
class Average(Choice):
    """The mean of the model over all rounds, as the output that evaluation and the user see.

    An average is neither sparse nor of low rank.

    Examples
    --------
    >>> Average()
    Average()
    """


#: What the server shows of its points, whatever the method.
Output = Literal["last"] | Last | Average


@dataclass(frozen=True)
class Reference(Choice):
    """The point at which the next stage begins: the largest entries of a mean of the previous stage's points.

    Parameters
    ----------
    sparsity : int, optional
        Number of entries that are kept, s; by default all of them.
    window : int, optional
        Number of last rounds of a stage that count; by default all. The experiments of Liang, Peng and Zhang use 100.
    newest : bool, default False
        Whether the points in which rounds end count, as in those authors' code, which includes the newest one; by
        default the points in which rounds begin, as printed.

    Raises
    ------
    ConfigurationError
        If a number is no whole number >= 1.

    Examples
    --------
    >>> Reference(sparsity=16)
    Reference(sparsity=16, window=None, newest=False)
    """

    sparsity: int | None = field(default=None, metadata=AT_LEAST_ONE)
    window: int | None = field(default=None, metadata=AT_LEAST_ONE)
    newest: bool = False


@dataclass(frozen=True)
class Density(Choice):
    """The fraction of the regularized entries that are not 0 in the end.

    The density of a round is share ** (round / rounds), and `share` itself from round `rounds` on. Most networks need
    four rounds for each halving of the density, those of more than three layers eight (``benchmarks/density.py``).

    Parameters
    ----------
    share : float
        Between 0 and 1.
    scope : {"layers", "global"}, default "layers"
        ``"layers"``: every array is guaranteed half of its Erdos-Renyi share, by which small layers are denser than
        large ones, and the rest goes to the largest entries of all arrays. ``"global"``: all of it goes to the largest
        entries, which can empty a layer.
    rounds : int, optional
        Number of rounds in which the density falls from 1 to `share`; by default three quarters of the rounds given to
        ``start``.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> Density(0.1, scope="global")
    Density(share=0.1, scope='global', rounds=None)
    """

    share: float = field(metadata=SHARE)
    scope: Literal["layers", "global"] = "layers"
    rounds: int | None = field(default=None, metadata=AT_LEAST_ONE)


@dataclass(frozen=True)
class Bounds(Choice):
    """What the server accepts of a reply; one that is beyond is left out, logged and counted.

    Parameters
    ----------
    max_ratio : float or None, default 100.0
        A reply is left out if its share of the round's weight times the length of a vector, per unit of elapsed, is
        more than this many times the median length of the round, or of the first round if that is less, and is more
        than that of the first round. Lengths of 0 are of no median. Never too long is sqrt(2 / client_lr) or, of
        minimisations, a move that changes predictions by 4. None: no such bound.
    max_share : float, optional
        Largest share of the weight of a round of two replies or more that a client may have by the number of examples
        that it reports.
    rows : mapping of int to number, optional
        What each partition id trains on, where you know it: a reply that says another number is left out, and so is
        that of any other partition. Evaluations may be about other rows.
    max_increment_norm : float, optional
        Largest Euclidean norm of a vector, whatever the other clients send.
    own_loops : bool, default False
        Whether the clients run their own training loops (:class:`flwr_fco.torch.LocalTraining`), with their own
        schedules, epochs and batches: then they may take up to a thousand times the requested steps, but none more than
        ten times as many as the median client, for its number of examples. Otherwise a client takes at most the
        requested steps, of the requested size.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> Bounds(rows={0: 1200, 1: 800}).max_ratio
    100.0
    """

    max_ratio: float | None = field(default=100.0, metadata=_RATIO)
    max_share: float | None = field(default=None, metadata=CHANCE)
    rows: Mapping[int, float] | None = field(default=None, metadata=_ROWS)
    max_increment_norm: float | None = field(default=None, metadata=POSITIVE)
    own_loops: bool = False


@dataclass(frozen=True)
class Arrays(Choice):
    """Which of a model's arrays are optimised, and which of them psi acts on.

    Parameters
    ----------
    apply_to : str or sequence of str, optional
        Shell patterns of the arrays that psi acts on; see :meth:`Layout.from_arrays`.
    pass_through : str or sequence of str, default statistics of batch normalisation
        Shell patterns of floating-point arrays that are averaged but not optimised, besides running statistics. An
        empty sequence: not even these.
    scope : {"each", "joint"}, default "each"
        Whether psi acts on each array separately or on all of them as one vector.

    Raises
    ------
    ConfigurationError
        If a value is of another type.

    Examples
    --------
    >>> Arrays(apply_to="*.weight").scope
    'each'
    """

    apply_to: str | Sequence[str] | None = None
    pass_through: str | Sequence[str] = PASS_THROUGH
    scope: Scope = "each"


@dataclass(frozen=True)
class Participation(Choice):
    """Whom the server waits for, and which nodes take part in a round.

    Parameters
    ----------
    min_replies : int, default 1
        Minimum number of good replies; a round with fewer is skipped, and the state does not change.
    node_timeout : float, default 600.0
        Seconds to wait for enough nodes to connect.
    choose_nodes : callable, optional
        ``(round, nodes) -> nodes``: chooses the nodes of a training round, instead of random sampling. It gets all
        connected nodes, sorted by partition id, and returns some of them.
    evict_after : int, default 3
        Number of rounds in a row after which a client that is asked and gives no good answer counts as one that has
        left, in methods whose clients remember something and on graphs: what it remembers is dropped. It is asked on,
        and restarts with its next good answer. Rounds that are skipped do not count.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> Participation(min_replies=3).node_timeout
    600.0
    """

    min_replies: int = field(default=1, metadata=AT_LEAST_ONE)
    node_timeout: float = field(default=600.0, metadata=_SECONDS)
    choose_nodes: ChooseNodes | None = None
    evict_after: int = field(default=3, metadata=AT_LEAST_ONE)


@dataclass(frozen=True)
class Everyone(Choice):
    """How long a method that needs every client in every round waits for a missing one.

    Parameters
    ----------
    evict_after : int, default 3
        Number of rounds in a row after which a client that is silent, disconnected or bad (an error, NaN, garbage) ends
        the run, with a ConfigurationError that names it. In each of these rounds it is asked three times; the rounds
        are skipped.
    node_timeout : float, default 600.0
        Seconds to wait for nodes to connect.
    min_replies : int, default 1
        Minimum number of clients with which the run goes on.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> Everyone(min_replies=5).evict_after
    3
    """

    evict_after: int = field(default=3, metadata=AT_LEAST_ONE)
    node_timeout: float = field(default=600.0, metadata=_SECONDS)
    min_replies: int = field(default=1, metadata=AT_LEAST_ONE)

    #: A method that needs every client chooses none.
    choose_nodes = None


def _are_strengths(values: Sequence[float]) -> bool:
    return len(values) > 0 and all(0.0 <= float(value) < math.inf for value in values)


#: Relative excess of a path's largest strength over the one at which an entry is on the edge: rounding would let it in.
_ABOVE = 1e-6
#: glmnet's ratio of the smallest to the largest strength, of more columns than rows and of fewer.
_WIDE = 1e-2
_NARROW = 1e-4


@dataclass(frozen=True)
class Strengths(Choice):
    """A path of strengths of psi, from the smallest one at which all that psi acts on is 0.

    Parameters
    ----------
    num : int, default 30
        Number of strengths, in equal steps of the logarithm.
    ratio : float, optional
        Ratio of the smallest to the largest strength; by default 0.01 where psi acts on as many coefficients as there
        are rows, or more, and 0.0001 where it acts on fewer, as in glmnet.
    values : sequence of float, optional
        Strengths to use instead of `num` and `ratio`. Of a ridge, which no strength makes 0, estimators by default take
        1000 and less over the sum of the rows' weights: scikit-learn's C from 0.001. Give them where weights are of
        another unit than rows.
    folds : int, optional
        Number of folds of a cross-validation, into which each client deals its own rows; by default there is none.
    rule : {"best", "one-standard-error"}, default "best"
        Which model the run returns: that of the smallest loss on left-out folds; or the sparsest one whose loss is
        above it by at most one standard error of the difference.
    max_bytes : int, default 262144
        Size of a client's answer, up to which further strengths are put into one message; the others follow.
    total_bytes : int, default 1073741824
        Size of all answers of a client. A path that is estimated to take more is refused, before it begins.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> Strengths(values=[0.1, 1.0]).count
    2
    """

    num: int = field(default=30, metadata={"range": (lambda num: num >= 2, "a whole number >= 2")})
    ratio: float | None = field(default=None, metadata=PART)
    values: Sequence[float] | None = field(default=None, metadata={"range": (_are_strengths, "finite numbers >= 0")})
    folds: int | None = field(default=None, metadata={"range": (lambda folds: 2 <= folds <= 1000, "2 to 1000 folds")})
    rule: Literal["best", "one-standard-error"] = "best"
    max_bytes: int = field(default=2**18, metadata=AT_LEAST_ONE)
    total_bytes: int = field(default=2**30, metadata=AT_LEAST_ONE)

    @property
    def count(self) -> int:
        """Number of strengths."""
        return self.num if self.values is None else len(self.values)

    def from_largest(self, largest: float, wide: bool = True) -> list[float]:
        """Return the strengths, from the largest to the smallest.

        Parameters
        ----------
        largest : float
            The smallest strength at which all that psi acts on is 0; of no account with `values`.
        wide : bool, default True
            Whether psi acts on as many coefficients as there are rows, or more.

        Raises
        ------
        ConfigurationError
            If no path leads down from there.

        Examples
        --------
        >>> [round(strength, 4) for strength in Strengths(3, 0.01).from_largest(2.0)]
        [2.0, 0.2, 0.02]
        """
        if self.values is not None:
            return sorted(self.values, reverse=True)
        if not 0.0 < largest < math.inf:
            prefix = f"the solution is 0 from a strength of {largest:g} on, so there is no path down from it"
            raise ConfigurationError(f"{prefix}; give strengths=[...] by hand, to FedNewton Strengths(values=[...])")
        ratio = self.ratio or (_WIDE if wide else _NARROW)
        return [largest * (1.0 + _ABOVE) * ratio ** (i / (self.num - 1)) for i in range(self.num)]


@dataclass(frozen=True)
class Wire(Choice):
    """The form of the vectors in messages.

    Parameters
    ----------
    dtype : {"float64", "float32", "auto"}, optional
        Precision. ``"float32"``: for the uplink only, which halves it but loses digits, because the dual grows with the
        rounds while the model is its small difference from a threshold (an error of 1e-4 at t * strength = 5e4).
        ``"auto"``: float32 in both directions for a float32 model as long as the rounding does not matter, and float64
        otherwise; see :func:`flwr_fco.strategies.training.short_wire`. By default ``"auto"`` for PyTorch models
        in float32 (arrays called ``weight``, as in ``state_dict()``), else ``"float64"``.
    sparse : bool, default True
        Whether a client with sparse features sends only the coordinates that occur in its rows when that takes fewer
        bytes and the method allows it, which shows the server which features the client has. False: whole vectors,
        whose form does not reveal this (their zeros still do; see docs/how-to/sparse.md).

    Raises
    ------
    ConfigurationError
        If a value is of another kind.

    Examples
    --------
    >>> Wire("float32")
    Wire(dtype='float32', sparse=True)
    """

    dtype: Literal["float64", "float32", "auto"] | None = None
    sparse: bool = True


@dataclass(frozen=True)
class Ledger(Choice):
    """A copy of every client's memory at the server, which a client that has lost its own is sent.

    Parameters
    ----------
    max_bytes : int, default 256 MiB
        Size above which it lies in a temporary file that is mapped into memory: 8 bytes for each client, vector and
        coordinate. Memories of clients with sparse features, 12 bytes for each of their columns, stay in memory.

    Raises
    ------
    ConfigurationError
        If the size is no whole number >= 0.

    Examples
    --------
    >>> Ledger(max_bytes=2**30).max_bytes
    1073741824
    """

    max_bytes: int = field(default=256 * 2**20, metadata=_BYTES)
