"""Names of columns and classes, on which sites must agree: a digest that they send, and what differs in words."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import printable
from flwr_fco.kernels.passes import grades

Names = tuple[str, ...] | None
#: What a site says of its columns' standard deviations: see :func:`grades_of`.
Grades = Sequence[int] | NDArray[np.int64]

#: The number that asks with a gradient for the standard deviations of the columns, and the vector that answers.
DEVIATIONS = "deviations"
#: That which asks for what standardises them, and the vectors that answer.
MOMENTS, MEANS, VARIANCES = "moments", "means", "variances"
#: That which asks for the sum of the weights of a client's rows, and the number that answers.
MASS = "mass"
#: All vectors about columns: their sizes are those of the features' units, and are not compared between sites.
ABOUT_COLUMNS = frozenset({DEVIATIONS, MEANS, VARIANCES})

#: Digests are below this, so that two of them fit into one number that a float holds.
_BASE = 2**26
#: Names in an error, and letters of each: sites choose them.
_SHOWN, _LETTERS = 5, 60
#: Ratio of two sites' standard deviations of a column that units have.
_UNITS = 5.0
#: Grades of a factor of 2 between deviations: a grade is within 2.2 % of its deviation. The largest grade there is.
_GRADES, _LARGEST = 16, 17_200
#: Columns above which no grades are said.
_MOST_COLUMNS = 50_000


def names_of(given: Any) -> Names:
    """Return names of columns or classes as texts; None if there are none.

    Parameters
    ----------
    given : Any
        A list, a tuple, an array or a pandas index. Names are texts, whole numbers or tuples; anything else might be
        data, and counts as no names.

    Examples
    --------
    >>> names_of(["age", 1]), names_of(None), names_of([[0.5]])
    (('age', '1'), None, None)
    """
    given = given.tolist() if hasattr(given, "tolist") else given
    known = isinstance(given, list | tuple) and all(isinstance(name, str | int | tuple) for name in given)
    return tuple(map(str, given)) if known and given else None


def is_missing(entry: Any) -> bool:
    """Whether a cell is None, NaN or another missing value."""
    try:
        return entry is None or bool(entry != entry)
    except TypeError:
        # pandas' NA compares as NA, which is neither true nor false.
        return True


def schema_number(columns: Names, classes: Names) -> float:
    """Return what a site says of its names: a number of two digests, each 0 without names.

    Parameters
    ----------
    columns, classes : tuple of str or None
        The names, in their order.

    Examples
    --------
    >>> schema_number(None, None), schema_number(("a", "b"), None) == schema_number(("b", "a"), None)
    (0.0, False)
    """
    return float(_digest(columns) * _BASE + _digest(classes))


def digests_of(number: float) -> tuple[int, int]:
    """Return the digests of columns and classes in a number that a site has sent."""
    return divmod(int(number), _BASE)


@lru_cache(maxsize=256)
def _digest(names: Names) -> int:
    if not names:
        return 0
    value = int.from_bytes(blake2b(json.dumps(names).encode(), digest_size=8).digest())
    return 1 + value % (_BASE - 1)


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
    what = "classes" if classes else "columns"
    if names is None or theirs is None:
        silent = site if names is None else others
        return f"{site} has other {what} than {others}, and {silent} has not said which"
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


def listed(names: Sequence[str]) -> str:
    """Return the first names, in quotes and cut, for an error."""
    shown = [repr(name[:_LETTERS]) for name in names[:_SHOWN]]
    return ", ".join(shown) + (f", ... ({len(names)} in all)" if len(names) > _SHOWN else "")


def grades_of(deviations: Vector) -> Grades:
    """Return a whole number for each standard deviation: 16 times its logarithm to base 2, and 0 if it is 0.

    Grades from 0 on are one larger, so that 0 is free. Above 50,000 columns there are none.

    Parameters
    ----------
    deviations : ndarray of float64, shape (d,)
        Of a site's columns.

    Examples
    --------
    >>> list(map(int, grades_of(np.array([0.0, 1.0, 2.0, 0.5, np.inf]))))
    [0, 1, 17, -16, 16369]
    """
    if deviations.size > _MOST_COLUMNS or not deviations.any():
        return []
    found: NDArray[np.int64] = grades(deviations, _GRADES)
    return found


def grades_in(said: Any) -> Grades:
    """Return a site's grades, of what it has sent; none if they are none.

    Parameters
    ----------
    said : Any
        A list of whole numbers; an array is of a client in this process.
    """
    if isinstance(said, np.ndarray):
        return said
    known = isinstance(said, list) and {*map(type, said)} == {int} and -_LARGEST <= min(said) <= max(said) <= _LARGEST
    return said if known else ()


class Units:
    """The smallest and the largest standard deviation of each column, of what sites say with their first answers.

    Parameters
    ----------
    d : int
        Number of columns.

    Examples
    --------
    >>> units = Units(2)
    >>> deviations = {"north": [10.0, 1.0], "south": [9.0, 1000.0]}
    >>> units.add({site: grades_of(np.array(own)) for site, own in deviations.items()})
    >>> units.differing()
    array([1])
    >>> units.text(units.differing(), ["age", "crp"]).partition(": ")[2].partition(".")[0]
    'crp (1 at north, 9'
    """

    def __init__(self, d: int) -> None:
        self._sites: list[str] = []
        self._low, self._high = np.full(d, _LARGEST + 1), np.full(d, -_LARGEST - 1)
        self._low_at, self._high_at = np.zeros(d, np.intp), np.zeros(d, np.intp)

    def add(self, said: Mapping[str, Grades]) -> None:
        """Take what sites say; grades of another number of columns are none.

        Parameters
        ----------
        said : mapping of str to sequence of int, length d
            Of :func:`grades_of`, by the site's name.
        """
        whole = {site: grades for site, grades in said.items() if len(grades) == self._low.size}
        if not whole:
            return
        table = np.array([*whole.values()])
        for extreme, at, sign in ((self._low, self._low_at, 1), (self._high, self._high_at, -1)):
            exponents = np.where(table == 0, _LARGEST + 1, sign * (table - (table > 0)))
            rows, smallest = exponents.argmin(axis=0), exponents.min(axis=0)
            beyond = smallest < sign * extreme
            extreme[beyond], at[beyond] = sign * smallest[beyond], len(self._sites) + rows[beyond]
        self._sites += whole

    def differing(self) -> NDArray[np.intp]:
        """Return the columns that differ more than 5 times between sites, whatever the grades have lost."""
        return np.flatnonzero(self._high - self._low > _GRADES * np.log2(_UNITS) + 1.0)

    def text(self, columns: NDArray[np.intp], names: Sequence[str]) -> str:
        """Return in words where columns differ.

        Parameters
        ----------
        columns : ndarray of int, shape (k,)
            Their numbers.
        names : sequence of str, length d
            Names of all columns.
        """
        low, high = (np.exp2(extreme[columns] / _GRADES) for extreme in (self._low, self._high))
        at = zip(*([self._sites[i] for i in each[columns]] for each in (self._low_at, self._high_at)), strict=True)
        return _units_text([names[int(j)] for j in columns], low, high, at, digits=2)


def _units_text(names: Sequence[str], low: Vector, high: Vector, at: Iterable[tuple[str, str]], digits: int = 3) -> str:
    """Return in words that columns differ, with the smallest and the largest deviation of each and their sites."""
    about = [
        f"{printable(name[:_LETTERS])} ({a:.{digits}g} at {here}, {b:.{digits}g} at {there})"
        for name, a, b, (here, there) in zip(names, low, high, at, strict=True)
    ]
    more = f", and {len(about) - _SHOWN} more" if len(about) > _SHOWN else ""
    what = f"standard deviations differ more than {_UNITS:g} times between sites, as those of other units do"
    return f"{what}: {', '.join(about[:_SHOWN])}{more}. If the units differ, convert them at the sites"


def differing_units(deviations: Mapping[str, Vector], names: Sequence[str]) -> str:
    """Return in words which columns' standard deviations differ more than 5 times between sites; empty if none do.

    Parameters
    ----------
    deviations : mapping of str to ndarray of float64, shape (d,)
        Of each site's columns, by its name; one of 0 is not compared.
    names : sequence of str, length d
        Names of the columns.

    Examples
    --------
    >>> print(differing_units({"north": np.array([10.0, 1.0]), "south": np.array([9.0, 1000.0])}, ["age", "crp"]))
    standard deviations differ more than 5 times between sites, as those of other units do: crp (1 at north, 1e+03 at south). If the units differ, convert them at the sites
    """  # noqa: E501
    table, sites = np.array([*deviations.values()]), [*deviations]
    low = np.where(table > 0.0, table, np.inf)
    wrong = np.flatnonzero(table.max(axis=0) > _UNITS * low.min(axis=0))
    if not wrong.size:
        return ""
    at = [(sites[low[:, j].argmin()], sites[table[:, j].argmax()]) for j in wrong]
    return _units_text([names[int(j)] for j in wrong], low[:, wrong].min(axis=0), table[:, wrong].max(axis=0), at)
