"""What a client says of itself, held against what the server knows: one reply is worth one reply.

A reply whose numbers are in themselves possible can still be absurd: a sum of step sizes that does not fit the number
of steps, more steps than the plan asks for, an increment a million times as long as everybody's. Such a reply is left
out, with the reason. The bounds are wide, so that no honest client comes near them; what passes all of them can still
be a lie, against which a robust ``aggregation`` helps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import euclidean_norm
from flwr_fco.errors import ProtocolError
from flwr_fco.wire.protocol import Uplink

__all__ = ["LARGEST_FACTOR", "IncrementBounds", "check_elapsed", "check_examples", "check_steps"]

#: Replies that a round needs for its median to say something.
_ENOUGH = 5
#: What our own solvers report is client_lr times steps, up to the order of the operations.
_ROUNDING = 1e-9
#: A client with a schedule of its own may take other step sizes than the server's.
LARGEST_FACTOR = 1_000
_FIRST_EARLIER = "largest-"


def check_examples(examples: float, most: float) -> None:
    """Refuse a number of examples that nobody has.

    Raises
    ------
    ProtocolError
        If it is more than `most`.
    """
    if examples > most:
        raise ProtocolError(f"it reports {examples:g} examples, more than max_examples={most:g}")


def check_steps(steps: int, most: int) -> None:
    """Refuse a number of steps that the plan does not ask for.

    Fewer are no lie: a client may stop early, and says so.

    Raises
    ------
    ProtocolError
        If it is more than `most`.
    """
    if steps > most:
        raise ProtocolError(f"it reports {steps} local steps, the plan asks for {most}")


def check_elapsed(elapsed: float, steps: int, step_size: float, *, exact: bool) -> None:
    """Refuse a sum of step sizes that does not fit the number of steps.

    Parameters
    ----------
    elapsed : float
        The sum that a client reports.
    steps : int
        The number of steps that it reports.
    step_size : float
        What the server has told it to take.
    exact : bool
        Whether the client runs one of our solvers, which take that size in every step. Others may have schedules, and
        are within a factor of 1,000.

    Raises
    ------
    ProtocolError
        If it does not.

    Examples
    --------
    >>> check_elapsed(0.3, 3, 0.1, exact=True)
    >>> check_elapsed(1e12, 3, 0.1, exact=False)
    Traceback (most recent call last):
    ...
    flwr_fco.errors.ProtocolError: it reports elapsed=1e+12 after 3 steps of size 0.1
    """
    expected = steps * step_size
    if exact:
        fits = abs(elapsed - expected) <= _ROUNDING * expected
    else:
        fits = expected / LARGEST_FACTOR <= elapsed <= expected * LARGEST_FACTOR
    if not fits:
        raise ProtocolError(f"it reports elapsed={elapsed:g} after {steps} steps of size {step_size:g}")


class IncrementBounds:
    """Bounds on the length of what clients send; an object that a strategy holds.

    The length is the Euclidean norm per unit of `elapsed`, that is of a mean gradient. It is compared with the larger
    of the round's median and the largest median of an earlier round: near the optimum the median is small, and one
    unlucky client is no liar. Where that is 0, and in rounds with fewer than five replies, nothing is compared. Numbers
    of examples are compared in the same way: a client has all the weight that it claims. So are the norms of floating
    arrays that pass through, such as running statistics.

    Parameters
    ----------
    ratio : float or None
        The largest multiple of the reference; None: any.
    norm : float or None
        The largest norm of an increment as it comes, whatever the others send; None: any.

    Attributes
    ----------
    largest : dict of str to float
        The largest median so far, by what it is the median of.
    """

    def __init__(self, ratio: float | None, norm: float | None) -> None:
        self.ratio, self.norm = ratio, norm
        self.largest: dict[str, float] = {}

    def objections(self, uplinks: Sequence[Uplink], *, remember: bool = True) -> dict[int, str]:
        """Return which uplinks of a round are too long, and why.

        Parameters
        ----------
        uplinks : sequence of Uplink
        remember : bool, default True
            Whether the median of this round counts in later ones.

        Returns
        -------
        dict of int to str
            The reason, by the place in `uplinks`.
        """
        found: dict[int, str] = {}
        compared = self.ratio is not None and len(uplinks) >= _ENOUGH
        if not uplinks or not (compared or self.norm is not None):
            return found
        if compared:
            self._compare("number of examples", [uplink.examples for uplink in uplinks], found, remember)
        for name in uplinks[0].vectors:
            norms = [
                uplink.norms[name] if name in uplink.norms else euclidean_norm(uplink.vectors[name])
                for uplink in uplinks
            ]
            for i, norm in enumerate(norms):
                if self.norm is not None and norm > self.norm:
                    found[i] = f"the norm of its {name} is {norm:.3g}, more than max_increment_norm={self.norm:g}"
            if compared:
                lengths = [norm / (uplink.elapsed or 1.0) for norm, uplink in zip(norms, uplinks, strict=True)]
                self._compare(f"{name} per unit of elapsed", lengths, found, remember)
        if compared and uplinks[0].pass_through:
            self._compare_buffers(uplinks, found, remember)
        return found

    def _compare_buffers(self, uplinks: Sequence[Uplink], found: dict[int, str], remember: bool) -> None:
        """Note whose running statistics are far longer than the median's: their mean is everybody's."""
        for name, array in uplinks[0].pass_through.items():
            if array.dtype.kind == "f":
                arrays = [uplink.pass_through.get(name) for uplink in uplinks]
                norms = [0.0 if own is None else euclidean_norm(own.astype(np.float64)) for own in arrays]
                self._compare(name, norms, found, remember)

    def _compare(self, name: str, sizes: Sequence[float], found: dict[int, str], remember: bool) -> None:
        """Note who is far above the median."""
        median = sorted(sizes)[(len(sizes) - 1) // 2]
        reference = max(median, self.largest.get(name, 0.0))
        assert self.ratio is not None
        limit = self.ratio * reference
        if reference > 0.0 and max(sizes) > limit:
            for i, size in enumerate(sizes):
                if size > limit:
                    found[i] = (
                        f"its {name} is {size:.3g}, more than max_ratio={self.ratio:g} times {reference:.3g}, "
                        "the clients' median"
                    )
        if remember and math.isfinite(reference):
            self.largest[name] = reference

    def to_arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the largest medians."""
        return {_FIRST_EARLIER + name: np.array(value) for name, value in self.largest.items()}

    def from_arrays(self, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        """Take back what :meth:`to_arrays` gave; other arrays are not looked at."""
        self.largest = {
            name.removeprefix(_FIRST_EARLIER): float(value)
            for name, value in arrays.items()
            if name.startswith(_FIRST_EARLIER)
        }
