"""Names of columns and classes, and scales of columns, on which sites must agree: what differs, in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any
from unicodedata import normalize

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import printable
from flwr_fco.errors import PublicError

Names = tuple[str, ...] | None


#: Names in an error, and characters of each: sites choose them.
_SHOWN = 5
_LETTERS = 60
#: Ratio of two sites' standard deviations of a column that units have, and of a column's to the median of all that
#: steps of one size do not bridge.
_UNITS = 5.0
_FAR = 100.0
#: The root of a rate times a squared deviation that is twice what a logistic loss bears at 0; squares bear an eighth.
#: Of columns that are far from 0 together, twice as much.
_LONG = 4.0


def names_of(given: Any) -> Names:
    """Return names of columns or classes as texts; None if there are none.

    Parameters
    ----------
    given : Any
        A list, a tuple, an array or a pandas index. Names are texts, numbers, dates or tuples; anything else might be
        data, and counts as no names.

    Examples
    --------
    >>> names_of(["age", 1, 400.5]), names_of(None), names_of([[0.5]])
    (('age', '1', '400.5'), None, None)
    """
    given = given.tolist() if hasattr(given, "tolist") else given
    # Wavelengths and days are names, too: columns in another order would be taken for each other's.
    kinds = (str, int, float, date, tuple)
    known = isinstance(given, list | tuple) and all(isinstance(own, kinds) and own == own for own in given)
    return tuple(map(str, given)) if known and given else None


def is_missing(entry: Any) -> bool:
    """Whether a cell is None, NaN or another missing value."""
    try:
        return entry is None or bool(entry != entry)
    except TypeError:
        # pandas' NA compares as NA, which is neither true nor false.
        return True


def plain_text(name: Any) -> str:
    """Return a name without what a reader does not see: its case, blanks around it, and how accents are written."""
    # Excel begins a file with a byte order mark, and a letter with an accent may be two.
    return normalize("NFKC", f"{name}").strip("\ufeff").strip().casefold()


def undated(given: Any) -> Any:
    """Return dates and spans, also Python's, in microseconds, whatever their resolution is; others as they are."""
    own = np.asarray(given)
    each = own.flat if own.dtype == object else ()
    # Dates with a time of day may have a zone.
    spans, dates = timedelta | np.timedelta64, (date, np.datetime64)
    kinds = {"m" if isinstance(entry, spans) else "M" if type(entry) in dates else "O" for entry in each}
    kind, *others = kinds or {own.dtype.kind}
    return own.astype(f"{kind}8[us]") if kind in "mM" and not others else own


def real(given: Any) -> Vector:
    """Return entries as numbers; complex ones, whose imaginary part NumPy leaves out, are an error of these words."""
    if (own := np.asarray(given)).dtype.kind == "c":
        raise PublicError("Complex data not supported; expected numbers without an imaginary part")
    return np.asarray(own, dtype=np.float64)


def difference(site: str, names: Names, others: str, theirs: Names, *, classes: bool) -> str:
    """Return in words how a site's names differ from those of others.

    Parameters
    ----------
    site, others : str
        Who they are.
    names, theirs : tuple of str or None
        Their names; None if they have not said.
    classes : bool
        Whether these are names of classes.

    Examples
    --------
    >>> difference("node 2", ("bmi", "age"), "node 1", ("age", "bmi"), classes=False)
    "node 2 has its columns in another order than node 1: the first that differs is 'bmi', there 'age'"
    """
    kind = "classes" if classes else "columns"
    if names is None or theirs is None:
        return f"{site} has other {kind} than {others}, and {site if names is None else others} has not said which"
    if classes:
        return f"{site} has the classes {listed(names)}, {others} {listed(theirs)}"
    here, there = set(names), set(theirs)
    lacks, more = [name for name in theirs if name not in here], [name for name in names if name not in there]
    if lacks or more:
        about = [f"lacks {listed(lacks)}"] * bool(lacks) + [f"has {listed(more)}"] * bool(more)
        return f"{site} {' and '.join(about)}, compared with {others}"
    if len(names) != len(theirs):
        return f"{site} has {len(names)} columns and {others} {len(theirs)}, some of the same name"
    own, other = next(pair for pair in zip(names, theirs, strict=True) if pair[0] != pair[1])
    text = f"the first that differs is {listed([own])}, there {listed([other])}"
    return f"{site} has its columns in another order than {others}: {text}"


def listed(names: Sequence[Any]) -> str:
    """Return the first names, in quotes and cut, or numbers, for an error."""
    shown = [repr(name[:_LETTERS]) if isinstance(name, str) else f"{name}" for name in names[:_SHOWN]]
    return ", ".join(shown) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN else "")


class Scales:
    """The smallest and the largest standard deviation of each column that sites have said.

    Parameters
    ----------
    d : int
        Number of columns.

    Examples
    --------
    >>> scales = Scales(2)
    >>> scales.add("north", np.array([10.0, 1.0]))
    >>> scales.add("south", np.array([9.0, 1000.0]))
    >>> print(scales.differing(["age", "crp"]))
    standard deviations differ more than 5 times between sites, as those of other units do: crp (1 at north, 1e+03 at south). If the units differ, convert them at the sites
    """  # noqa: E501

    def __init__(self, d: int) -> None:
        self.d = d
        #: The largest of each column, and the smallest as a negative number; and whose they are.
        self._ends = np.outer((0.0, -np.inf), np.ones(d))
        self._at = np.full((2, d), "", object)
        self._reported = np.zeros(d, bool)
        self._far = 0.0, ""

    def add(self, site: str, deviations: Vector, size: float = 0.0) -> None:
        """Take what a site says; of another number of columns it is nothing.

        Parameters
        ----------
        site : str
            Its name.
        deviations : ndarray of float64, shape (d,)
            One of 0 is not compared.
        size : float, default 0.0
            How far from 0 the columns are together.
        """
        self._far = max(self._far, (0.5 * size, f"the columns are together more than {size:g} from 0 at {site}"))
        if deviations.shape == (self.d,):
            ends = np.array([deviations, np.where(deviations > 0.0, -deviations, -np.inf)])
            beyond = ends > self._ends
            self._ends[beyond], self._at[beyond] = ends[beyond], site

    @property
    def largest(self) -> float:
        """The largest of all columns."""
        return float(self._ends[0].max())

    def apart(self, names: Sequence[str], rate: float) -> str:
        """Return in words that the largest column has 100 times the median deviation, or what steps are too long for.

        Beside the median, as the smallest may be that of a column that is nearly always 0, in the same units. Losses of
        bounded gradients, as the logistic one, do not diverge where steps are far too long. A column far from 0 has
        the curvature of its size.

        Parameters
        ----------
        names : sequence of str, length d
            Names of the columns.
        rate : float
            The clients' step size, 0 if it is not known.
        """
        high = self._ends[0]
        largest, known = int(high.argmax()), high[high > 0.0]
        middle = float(np.median(known)) if known.size else 0.0
        prefix = f"{printable(names[largest][:_LETTERS])} has a standard deviation of {self.largest:.3g} at"
        size, prefix = max((self.largest, f"{prefix} {self._at[0, largest]}"), self._far)
        # The square of what a client makes up may be no number.
        long = math.sqrt(rate) * size > _LONG
        if not long and not size > _FAR * middle > 0.0:
            return ""
        effect = f"client_lr={rate:g} are far too long" if long else "one size fit others slowly"
        far = size > self.largest
        prefix += f", the columns' median deviation is {middle:.3g}" * (middle > 0.0) + f": steps of {effect}. "
        prefix += f"{'Subtract from columns' if far else 'Divide columns by'} numbers that are the same at all sites"
        return f"{prefix}, or take " + 'client_lr="auto" or ' * (long and not far) + "FedNewton"

    def differing(self, names: Sequence[str]) -> str:
        """Return in words which columns differ more than 5 times between sites, each once; empty if none do.

        Parameters
        ----------
        names : sequence of str, length d
            Names of the columns.
        """
        high, low = self._ends[0], -self._ends[1]
        wrong = np.flatnonzero((high > _UNITS * low) & ~self._reported)
        if not wrong.size:
            return ""
        self._reported[wrong] = True
        about = [
            f"{printable(names[j][:_LETTERS])} ({low[j]:.3g} at {self._at[1, j]}, {high[j]:.3g} at {self._at[0, j]})"
            for j in wrong[:_SHOWN]
        ]
        more = f", and {wrong.size - _SHOWN} more" if wrong.size > _SHOWN else ""
        prefix = f"standard deviations differ more than {_UNITS:g} times between sites, as those of other units do"
        return f"{prefix}: {', '.join(about)}{more}. If the units differ, convert them at the sites"
