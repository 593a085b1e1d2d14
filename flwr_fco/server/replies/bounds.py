"""Bounds on clients' claims, relative to the server's knowledge: one reply is worth one reply.

A reply with possible numbers can still be absurd: a sum of step sizes that does not match the number of steps, more
steps than the plan requests, an increment a million times as long as the other clients'. Such a reply is left out, with
the reason. The bounds are wide, so that no honest client comes near them; a reply within all of them can still be a
lie, against which a robust ``aggregation`` helps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector, euclidean_norm
from flwr_fco.core.validation import saved_array
from flwr_fco.errors import ProtocolError
from flwr_fco.wire.protocol import Uplink

#: Minimum number of replies in a first round for a meaningful median.
ENOUGH = 5
#: Factors by which bounds are wider with fewer replies: bounds on lengths in a first round, bounds on weights in every
#: round of a federation that has never had more.
_FIRST, _FIRST_WEIGHTS = 1_000.0, 100.0
_REPLIES = "replies"
#: Number of initial models that set the model's start size, and the multiple of that size that counts as far away.
_BEGIN, _FAR = 2, 1e4
#: Maximum multiple of the median for a reply far away, while the median is larger than ever.
_AWAY = 3.0
#: Absolute maximum of a length, regardless of what is usual.
LONGEST = 1e15
#: Maximum work of a client with its own loop, as a multiple of the other clients'.
_LOOPS = 10.0
#: Part of the reason if the other clients' sizes set the bound.
TOO_LONG = "more than max_ratio="
#: This package's solvers report client_lr times steps, up to the order of the operations.
_ROUNDING = 1e-9
#: A client with its own schedule may use other step sizes than the server's.
LARGEST_FACTOR = 1_000
#: What the reason adds where a client did other work than the plan's: an honest loop of one's own may.
OWN_LOOPS = "; if the clients train with flwr_fco.torch.local_training, give the strategy bounds=Bounds(own_loops=True)"
_FIRST_EARLIER = "largest-"


class Rule(NamedTuple):
    """How a quantity is bounded: the ratio, by default the common one; and with few replies.

    Parameters
    ----------
    first : float
        Factor that widens the bound in a first round with few replies.
    lasting : bool
        Whether this factor applies in every round of a federation that has never had more replies.
    ratio : float, optional
        Largest multiple of the usual size.
    """

    first: float
    lasting: bool = False
    ratio: float | None = None


_LENGTHS, _WEIGHTS, _WORK = Rule(_FIRST), Rule(_FIRST_WEIGHTS, lasting=True), Rule(1.0, ratio=_LOOPS)


def check_examples(examples: float, most: float) -> None:
    """Reject an impossible number of examples.

    Raises
    ------
    ProtocolError
        If it is more than `most`.
    """
    if examples > most:
        raise ProtocolError(f"it reports {examples:g} examples, more than max_examples={most:g}")


def check_steps(steps: int, most: int, advice: str = "") -> None:
    """Reject more steps than the plan requests.

    Fewer steps are allowed: a client may stop early and report it. The error ends with `advice`.

    Raises
    ------
    ProtocolError
        If it is more than `most`.
    """
    if steps > most:
        raise ProtocolError(f"it reports {steps} local steps, the plan asks for {most}{advice}")


def check_elapsed(elapsed: float, steps: int, step_size: float, *, exact: bool) -> None:
    """Reject a sum of step sizes that does not match the number of steps.

    Parameters
    ----------
    elapsed : float
        The reported sum.
    steps : int
        The reported number of steps.
    step_size : float
        The step size requested by the server.
    exact : bool
        Whether the client runs one of this package's solvers, which use that size in every step. Other clients may have
        schedules, within a factor of 1,000.

    Raises
    ------
    ProtocolError
        If it does not match.

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
        advice = OWN_LOOPS if exact else ""
        raise ProtocolError(f"it reports elapsed={elapsed:g} after {steps} steps of size {step_size:g}{advice}")


class IncrementBounds:
    """Bounds on the clients' vectors and claims, relative to the usual values; an object that a strategy holds.

    The bounds apply to the Euclidean norms of vectors per unit of `elapsed` (the norm of a mean gradient), the weights,
    their products (a client's influence on the mean), the weights times `elapsed` (its influence on the mean of these),
    and the change of pass-through arrays. The reference is the larger of the round's median and the largest median of
    an earlier round: near the optimum the median is small, and one unlucky client is not a liar. A round's median
    counts as at most `ratio` times the earlier reference, so that a round of absurd replies does not make them usual.

    In a first round with fewer than five replies the bounds are 1,000 times as wide; bounds on weights are 100 times as
    wide in every round of a federation that never has five replies, whose shards may be unequal. Lengths never exceed
    1e15, even if there is no reference or the median is 0.

    Parameters
    ----------
    ratio : float or None
        Largest multiple of the reference; None for no bound.
    norm : float or None
        Largest norm of an increment as received, whatever the other clients send; None for no bound.

    Attributes
    ----------
    largest : dict of str to float
        Largest median so far, by the name of the quantity.
    """

    def __init__(self, ratio: float | None, norm: float | None) -> None:
        self.ratio, self.norm = ratio, norm
        self.largest: dict[str, float] = {}
        #: Whether the model is far from its start, and the initial norms that define far.
        self._far, self._begin = False, list[float]()
        #: Pass-through arrays that started without negative entries, such as variances and counters.
        self._positive: frozenset[str] | None = None

    def observe(self, primal: Vector) -> None:
        """Check whether the model is far from its start, where medians larger than ever no longer count as usual.

        Honest gradients grow with the distance. A liar who may be a thousand times as long would pull the model away,
        thereby widen its own bound, and finally end the run. So, far from the start and while the median is larger than
        ever, a reply may be at most three times as long as the median: the other clients pull the model back, or
        diverge without the liar.

        Parameters
        ----------
        primal : ndarray of float64, shape (d,)
            The model that the next replies answer.
        """
        norm = math.sqrt(np.vdot(primal, primal))
        if len(self._begin) < _BEGIN:
            self._begin.append(max(math.sqrt(primal.size), norm))
        self._far = norm > _FAR * max(self._begin)

    def objections(
        self,
        uplinks: Sequence[Uplink],
        *,
        remember: bool = True,
        weights: Sequence[float] | None = None,
        passed: Mapping[str, NDArray[Any]] = MappingProxyType({}),
        step_size: float | None = None,
    ) -> dict[int, str]:
        """Return the uplinks of a round that are too long, with reasons.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        remember : bool, default True
            Whether the median of this round counts in later rounds.
        weights : sequence of float, optional
            Weights in the average; by default the numbers of examples.
        passed : mapping of str to ndarray
            The pass-through arrays as sent to the clients.
        step_size : float, optional
            Step size of clients with their own loops, whose `elapsed` is compared too.

        Returns
        -------
        dict of int to str
            The reason, by position in `uplinks`.
        """
        reasons: dict[int, str] = {}
        if not uplinks or (self.ratio is None and self.norm is None):
            return reasons
        examples = [uplink.examples for uplink in uplinks]
        shares = examples if weights is None else weights
        times = [uplink.elapsed or 1.0 for uplink in uplinks]
        if self.ratio is not None:
            reasons = self.compare_examples("number of examples", examples, remember)
            if times.count(times[0]) < len(times):
                work = [share * time for share, time in zip(shares, times, strict=True)]
                # A shard of 1,000 rows among those of 10 takes a hundred times the steps with a hundred times the
                # weight.
                factor = max(10.0, 1_000.0 / self.ratio)
                reasons = self.compare("weight times elapsed", work, remember, _WEIGHTS, factor) | reasons
            if step_size is not None:
                reasons |= self._compare_loops([time / step_size for time in times], examples, remember)
        for name in uplinks[0].vectors:
            norms = [u.norms[name] if name in u.norms else euclidean_norm(u.vectors[name]) for u in uplinks]
            for i, norm in enumerate(norms):
                if self.norm is not None and norm > self.norm:
                    reasons[i] = f"the norm of its {name} is {norm:.3g}, more than max_increment_norm={self.norm:g}"
            if self.ratio is not None:
                lengths = [norm / time for norm, time in zip(norms, times, strict=True)]
                what = f"{name} per unit of elapsed"
                reasons = self.compare(what, lengths, remember) | reasons
                if shares.count(shares[0]) < len(shares):
                    pulls = [length * share for length, share in zip(lengths, shares, strict=True)]
                    reasons = self.compare(f"weight times {what}", pulls, remember, _WEIGHTS) | reasons
        if self.ratio is not None and passed:
            reasons |= self._compare_passed(uplinks, passed, remember)
        return reasons

    def compare_examples(self, name: str, examples: Sequence[float], remember: bool = True) -> dict[int, str]:
        """Return replies of far more examples than usual, by one rule in training and in evaluations.

        Parameters
        ----------
        name, examples, remember
            As for :meth:`compare`.
        """
        if len(examples) >= ENOUGH and remember:
            self.largest[_REPLIES] = float(ENOUGH)
        return self.compare(name, examples, remember, _WEIGHTS)

    def _compare_loops(self, times: Sequence[float], examples: Sequence[float], remember: bool) -> dict[int, str]:
        """Return clients that claim far more work than the others, both in total and relative to their data.

        Shards of unequal size differ in the steps of an epoch, but not in a fixed number of steps.
        """
        each = [time / max(1.0, number) for time, number in zip(times, examples, strict=True)]
        for_all = self.compare("elapsed", times, remember, _WORK)
        for_its_data = self.compare("elapsed per example", each, remember, _WORK)
        return {i: reason for i, reason in for_all.items() if i in for_its_data}

    def _compare_passed(
        self, uplinks: Sequence[Uplink], passed: Mapping[str, NDArray[Any]], remember: bool
    ) -> dict[int, str]:
        """Return clients whose running statistics or counters changed far more than the others', or are invalid."""
        if self._positive is None:
            began = {name: old > 0 if old.dtype.kind == "f" else old >= 0 for name, old in passed.items()}
            self._positive = frozenset(name for name, entries in began.items() if entries.all())
        reasons: dict[int, str] = {}
        for name, old in passed.items():
            sent = [(i, uplink.pass_through[name]) for i, uplink in enumerate(uplinks) if name in uplink.pass_through]
            before = old.astype(np.float64)
            changes = [euclidean_norm(array.astype(np.float64) - before) for _, array in sent]
            far = self.compare(f"change of {name}", changes, remember)
            reasons |= {sent[k][0]: reason for k, reason in far.items()}
            negative = [i for i, array in sent if (array < 0).any()] if name in self._positive else []
            if 2 * len(negative) <= len(sent):
                reasons |= dict.fromkeys(negative, f"its {name} has negative entries, which it has not had yet")
        return reasons

    def compare(
        self, name: str, sizes: Sequence[float], remember: bool = True, rule: Rule = _LENGTHS, factor: float = 1.0
    ) -> dict[int, str]:
        """Return why replies are far above the usual size, by position.

        Parameters
        ----------
        name : str
            Name of the quantity.
        sizes : sequence of float
            Size in each reply.
        remember : bool, default True
            Whether the median counts in later rounds.
        rule : Rule
            How it is bounded.
        factor : float, default 1.0
            Factor that widens the bound.
        """
        reasons: dict[int, str] = {}
        if not sizes:
            return reasons
        assert self.ratio is not None
        allowed = self.ratio if rule.ratio is None else rule.ratio
        largest, median = self.largest.get(name, 0.0), sorted(sizes)[(len(sizes) - 1) // 2]
        usual = median if largest == 0.0 else min(max(median, largest), allowed * largest)
        away = self._far and 0.0 < largest < median
        few = len(sizes) < ENOUGH and (largest == 0.0 or (rule.lasting and _REPLIES not in self.largest))
        limit = allowed * factor * (rule.first if few else 1.0) * usual
        if away:
            limit, usual = min(_AWAY * factor * median, allowed * limit), median
        if not 0.0 < limit < LONGEST:
            limit = max(LONGEST, allowed * factor * largest)
        bound = f"{TOO_LONG}{self.ratio:g}" if rule.ratio is None else f"more than {rule.ratio:g}"
        for i, size in enumerate(sizes) if max(sizes) > limit else ():
            if not size > limit:
                continue
            if usual in (median, largest) and size > allowed * usual:
                reference = f"{usual:.3g}, the clients' median{'' if usual == median else ' in an earlier round'}"
            else:
                # Far away, or after a leap of the median, the bound is no multiple of one number.
                reference = f"what was usual allows: {limit:.3g}; the clients' median is {median:.3g}, and was at most "
                reference += f"{largest:.3g} in earlier rounds"
            reasons[i] = f"its {name} is {size:.3g}, {bound} times {reference}"
        # A left-out median is not evidence of usual sizes.
        if remember and 0.0 < median <= limit and not away:
            self.largest[name] = usual
        return reasons

    def to_arrays(self) -> dict[str, NDArray[np.float64]]:
        """Return the largest medians."""
        begin = {"begin": np.array(self._begin), "far": np.array(self._far)}
        return begin | {_FIRST_EARLIER + name: np.array(value) for name, value in self.largest.items()}

    def from_arrays(self, arrays: Mapping[str, NDArray[np.float64]]) -> None:
        """Restore what :meth:`to_arrays` returned; other arrays are not looked at."""
        earlier = [name for name in arrays if name.startswith(_FIRST_EARLIER)]
        values = {name: float(saved_array(arrays, name, np.float64, (), smallest=0.0)) for name in earlier}
        self.largest = {name.removeprefix(_FIRST_EARLIER): value for name, value in values.items()}
        self._begin = saved_array(arrays, "begin", np.float64, (None,), smallest=0.0).tolist()[:_BEGIN]
        self._far = bool(saved_array(arrays, "far", np.bool_, ()))
