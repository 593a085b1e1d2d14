"""What in a Table 1 of several sites cannot be, or is far from the other sites: units, codings, files sent twice.

A site's number is compared with the mean of the others' in units of their spread. As a few sites say little of that,
it is taken together with a usual one, which counts as much as twenty more sites (Smyth's moderated t). With all numbers
of all sites counted, honest sites give a warning in at most one of twenty federations, and an error in one of ten
thousand, if they differ by no more than the usual spreads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit

from flwr_fco.core.validation import printable
from flwr_fco.messages.protocol import Answer

#: Chance of a warning, and of an error, in a federation of honest sites.
WARNS = 0.05
REFUSES = 1e-4
#: Usual standard deviations between honest sites: of means, in deviations of rows; of log odds; of logarithms of the
#: distances of quartiles, and of mean times; and of correlations with the outcome, of one column and along a direction.
#: Each has an equal part of the probability.
USUAL = {"mean": 0.3, "odds": 0.8, "spread": 0.4, "time": 0.5, "outcome": 0.1, "direction": 0.1}
#: As many sites as the usual spread counts.
_PRIOR = 20.0
#: Rows without which nothing is said of a constant column.
_ROWS = 10
#: Part of a site's rows that repeat others, beyond what is expected; and repeated rows that may be where none are seen.
_REPEATED = 0.25
_FEW = 3.0
#: What a site says of each column.
SAID = ("present", "mean", "deviation", "q25", "median", "q75", "wild")
#: What stands for a number that a site withholds: none of a table, of which no mean would be finite.
WITHHELD = float(np.finfo(np.float64).min)


class Finding(NamedTuple):
    """What is wrong at a site, or seems to be.

    Parameters
    ----------
    site : str
        Its name.
    column : str
        Which column; empty for the whole table.
    prefix : str
        In words.
    refused : bool
        Whether a fit would be wrong without a doubt.

    Examples
    --------
    >>> print(Finding("Oslo", "age", "is constant", True))
    Oslo: age is constant
    """

    site: str
    column: str
    prefix: str
    refused: bool

    def __str__(self) -> str:
        return f"{self.site}: {f'{printable(self.column)} '.lstrip()}{self.prefix}"


class TableColumn(NamedTuple):
    """A column of the sites' tables: its name, the names of its levels, its unit, and whether it is the time of events.

    Examples
    --------
    >>> TableColumn("age", unit="years").title
    'age (years)'
    """

    name: str
    levels: tuple[str, ...] = ()
    unit: str = ""
    is_time: bool = False

    @property
    def title(self) -> str:
        """Its name in a table."""
        return printable(self.name) + f" ({printable(self.unit)})" * bool(self.unit)


class Cells:
    """The numbers of a Table 1, of M sites, C columns of their tables, L levels of these, d columns of the model.

    Parameters
    ----------
    columns : sequence of TableColumn
        The tables' columns.
    features : sequence of str
        The names of the model's columns.
    answers : mapping of str to Answer
        What each site says of its rows, by its name.

    Attributes
    ----------
    rows : ndarray, shape (M, C)
        The rows that a column is about.
    said : ndarray, shape (M, C, 7)
        `SAID` of each column; NaN where a site withholds it.
    counts : ndarray, shape (M, L)
        The rows of each level.
    outcome : ndarray, shape (M, d)
        Correlations of the model's columns with what the outcome's mean leaves.
    widest, repeated : ndarray, shape (M,)
        The largest eigenvalue of the correlations of the model's columns, and the part of rows that are there before.
    """

    def __init__(self, columns: Sequence[TableColumn], features: Sequence[str], answers: Mapping[str, Answer]) -> None:
        self.sites = list(answers)
        self.features = features
        self.columns = columns
        self.names = [own.name for own in columns]
        self.levels = [(place, level) for place, own in enumerate(columns) for level in own.levels]
        self.times = np.array([own.is_time for own in columns])
        each = [*answers.values()]
        names = ("rows", "widest", "repeated")
        rows, self.widest, self.repeated = np.array([[own.numbers[name] for name in names] for own in each]).T
        names = ("said", "counts", "outcome")
        said, counts, self.outcome = (np.array([own.vectors[name] for own in each]) for name in names)
        # The outcome is that of the rows that lack nothing.
        outcomes = 2 if self.times.any() else 1
        used = np.array([own.examples for own in each])
        self.rows = np.column_stack([rows] * (len(columns) - outcomes) + [used] * outcomes)
        self.said = np.where(said == WITHHELD, np.nan, said).reshape(len(each), len(columns), len(SAID))
        self.counts = np.where(counts == WITHHELD, np.nan, counts)[:, 1:]
        self.mean = self.said[..., 1]
        self.deviation = self.said[..., 2]
        self.quartiles = self.said[..., 3:6]
        self.missing = self.rows - self.said[..., 0]
        #: All rows where a site withholds how many have an entry.
        self.present = np.where(np.isnan(self.missing), self.rows, self.said[..., 0])

    @cached_property
    def shares(self) -> NDArray[np.float64]:
        """The shares of 1 in columns of 0 and 1, of 2 in those of 1 and 2, and so on; NaN in all others."""
        variance = np.square(self.deviation) * (1.0 - 1.0 / np.maximum(self.present, 1.0))
        varies = np.fmax.reduce(self.deviation) > 0.0
        share = self.mean - np.where(varies, np.floor(np.fmin.reduce(self.mean)), 0.0)
        two = np.isclose(variance, share * (1.0 - share), rtol=1e-9, atol=1e-12) | np.isnan(share)
        return np.where(two.all(axis=0), share, np.nan)

    @property
    def binary(self) -> NDArray[np.bool_]:
        """Which columns are two neighbouring whole numbers at all sites, shape (C,)."""
        return np.asarray(np.isfinite(self.shares).any(axis=0))


def findings(cells: Cells) -> list[Finding]:
    """Return what cannot be, and what is far from the other sites, the worst first."""
    sums = np.hstack([cells.rows, cells.mean, cells.deviation, cells.counts, cells.outcome])
    odd = (np.where(cells.binary, 0.0, cells.deviation) > 0.0).any(axis=1)
    found = [Finding(cells.sites[m], "", text, True) for m, text in same_rows(cells.sites, [*sums], odd)]
    found += _by_themselves(cells)
    if len(cells.sites) > 1:
        with np.errstate(all="ignore"):
            found += _far_numbers(cells) + _far_shares(cells) + _far_outcomes(cells)
    return sorted(found, key=lambda own: not own.refused)


# --- what a site's numbers say by themselves --------------------------------------------------------------------------


def same_rows(sites: Sequence[str], sums: Sequence[Any], odd: Any) -> Iterator[tuple[int, str]]:
    """Yield the places of sites whose sums, the first of them rows, are identical to others', and what that means.

    Few rows are the same at two sites by chance, as are columns that are not `odd`: those of two values.
    """
    known = dict[tuple[str, ...], str]()
    for place, (site, own) in enumerate(zip(sites, sums, strict=True)):
        key = tuple(f"{number + 0.0:.10g}" for number in own)
        if own[0] >= _ROWS and odd[place] and (other := known.setdefault(key, site)) != site:
            yield place, f"has the same rows as {other}: all sums are identical. Was one file used at both?"


def _by_themselves(cells: Cells) -> list[Finding]:
    """Find constant columns, single wild numbers, and repeated rows."""
    found = []
    constant = (cells.deviation == 0.0) & (cells.present >= _ROWS) & ~cells.binary
    # A column of which most rows have one value, such as a count of rare events, can be constant at an honest site.
    varies = cells.quartiles[..., 2] > cells.quartiles[..., 0]
    rows = cells.rows[:, 0]
    for m, site in enumerate(cells.sites):
        others = np.arange(len(cells.sites)) != m
        for c in np.flatnonzero(constant[m]):
            prefix = f"is {cells.mean[m, c]:.6g} in all rows"
            if (cells.deviation[others, c] > 0.0).any():
                prefix += ", and varies at other sites: it was not measured, or filled in"
            found.append(Finding(site, cells.names[c], prefix, 2 * varies[others, c].sum() > others.sum()))
        prefix = "has a single number far beyond all others: look at it, and give the codebook a range"
        found += [Finding(site, cells.names[c], prefix, False) for c in np.flatnonzero(cells.said[m, :, -1] > 0.0)]
        # Of a table of few values two rows are the same by chance: how often, the pairs of rows at other sites say.
        pairs = max(1.0, float((0.5 * rows * (rows - 1.0))[others].sum()))
        probability = (_FEW + float((cells.repeated * rows)[others].sum())) / pairs
        usual = max(0.5 * probability * (rows[m] - 1.0), cells.repeated[others].max(initial=0.0))
        if cells.repeated[m] > _REPEATED + usual:
            prefix = f"has {cells.repeated[m]:.0%} of its rows twice, unlike other sites: were they written twice?"
            found.append(Finding(site, "", prefix, False))
    return found


# --- what is far from the other sites ---------------------------------------------------------------------------------


def probabilities(values: NDArray[Any], errors: NDArray[Any], usual: float) -> NDArray[np.float64]:
    """Return how likely honest sites are to have a number so far from the others', times the numbers compared.

    Parameters
    ----------
    values, errors : ndarray, shape (M, J)
        A number of each site, NaN for those without it, and its standard error.
    usual : float
        Usual standard deviation between sites.

    References
    ----------
    Smyth: Linear models and empirical Bayes methods (Stat. Appl. Genet. Mol. Biol. 2004), the moderated t.
    """
    found = np.ones(values.shape)
    known = np.isfinite(values) & np.isfinite(errors)
    squares = np.where(known, errors, 0.0) ** 2
    for m, own in enumerate(known):
        rest = np.delete(known, m, axis=0)
        count = rest.sum(axis=0)
        square, mean = (np.delete(each, m, axis=0).sum(axis=0, where=rest) / count for each in (squares, values))
        apart = np.sum((np.delete(values, m, axis=0) - mean) ** 2, axis=0, where=rest)
        spread = (_PRIOR * (usual**2 + square) + apart) / (_PRIOR + count - 1.0)
        t = (values[m] - mean) / np.sqrt(spread + np.maximum(0.0, squares[m] - square) + spread / count)
        compared = own & (count > 0)
        found[m, compared] = known.sum() * len(USUAL) * 2.0 * stats.t.sf(abs(t), _PRIOR + count - 1.0)[compared]
    return found


def _judged(
    cells: Cells, probability: NDArray[Any], names: Sequence[str], shown: NDArray[Any], prefix: str, form: str = ".3g"
) -> list[Finding]:
    """Return a finding for each number whose chance is too small, with the range of the others' numbers."""
    found = []
    for m, j in zip(*np.nonzero(probability < WARNS), strict=True):
        others = np.delete(shown[:, j], m)
        ranged = f"{shown[m, j]:{form}}, at other sites {np.nanmin(others):{form}} to {np.nanmax(others):{form}}"
        found.append(Finding(cells.sites[m], names[j], prefix.format(ranged), bool(probability[m, j] < REFUSES)))
    return found


def _far_numbers(cells: Cells) -> list[Finding]:
    """Compare means, distances of quartiles, and mean times."""
    number = ~cells.binary & ~cells.times
    root = np.sqrt(cells.present)
    deviation = np.where(cells.deviation > 0.0, cells.deviation, np.nan)
    usual = np.nanmedian(np.where(np.isfinite(deviation).any(axis=0), deviation, 1.0), axis=0)
    apart = cells.quartiles[..., 2] - cells.quartiles[..., 0]
    # A deviation is that of the largest numbers where a column is skewed.
    compared: tuple[tuple[str, Any, Any, Any, Any, str], ...] = (
        ("mean", number, cells.mean / usual, deviation / usual, cells.mean, "has a mean of {}"),
        ("spread", number & (apart > 0.0), np.log(apart), 2.0, apart, "has an interquartile range of {}"),
        ("time", cells.times, np.log(cells.mean), deviation / cells.mean, cells.mean, "has a mean of {}"),
    )
    found = dict[tuple[str, str], Finding]()
    for name, where, values, error, shown, prefix in compared:
        probability = probabilities(np.where(where, values, np.nan), error / root, USUAL[name])
        for own in _judged(cells, probability, cells.names, shown, f"{prefix}: check its unit and coding"):
            found.setdefault((own.site, own.column), own)
    return [*found.values()]


def _far_shares(cells: Cells) -> list[Finding]:
    """Compare the odds of each level, of two levels those of the second, and of two neighbouring whole numbers."""
    binary = np.flatnonzero(cells.binary)
    of = [column for column, _ in cells.levels]
    kept = [j for j, column in enumerate(of) if of.count(column) > 2 or of[:j].count(column)]
    counts = np.hstack([cells.counts[:, kept], (cells.shares * cells.present)[:, binary]])
    totals = cells.present[:, [*(of[j] for j in kept), *binary]]
    names = [f"{cells.names[of[j]]}={cells.levels[j][1]}" for j in kept] + [cells.names[c] for c in binary]
    odds = np.log((counts + 0.5) / (totals - counts + 0.5))
    # The error is that at the others' odds, as those of a count of 0 are not known.
    known = np.isfinite(odds)
    rest = (np.nansum(odds, axis=0) - np.where(known, odds, 0.0)) / np.maximum(known.sum(axis=0) - known, 1)
    errors = 1.0 / np.sqrt((totals + 1.0) * expit(rest) * expit(-rest))
    prefix = "has a share of {}: check its coding"
    return _judged(cells, probabilities(odds, errors, USUAL["odds"]), names, counts / totals, prefix, ".0%")


def _far_outcomes(cells: Cells) -> list[Finding]:
    """Compare how the columns go with the outcome: each by itself, and all along the direction of the other sites."""
    values = cells.outcome
    errors = np.sqrt(1.0 / cells.rows[:, -1:])
    # One that a site withholds, or of a constant, is 0.
    known = np.where(values == 0.0, np.nan, values)
    probability = probabilities(known, np.broadcast_to(errors, values.shape), USUAL["outcome"])
    prefix = "has a correlation with the outcome of {}: is it coded in reverse, or made of the outcome?"
    found = _judged(cells, probability, cells.features, values, prefix, ".2f")
    # Correlated columns have errors in common, along a direction up to so many times those of one column.
    widest = float(cells.widest.max())
    usual = USUAL["direction"]
    for m, site in enumerate(cells.sites):
        mean = np.delete(values, m, axis=0).mean(axis=0)
        size = float(np.sqrt(mean @ mean))
        noise = (usual**2 + float(np.delete(errors, m).max()) ** 2) / (len(values) - 1)
        # The length of a mean is too large by that of its noise.
        expected = (size**2 - mean.size * noise) / size if size > 0.0 else 0.0
        if expected > 0.0 and values[m].any():
            along = float(values[m] @ mean) / size
            t = (along - expected) / np.sqrt(widest * (usual**2 + errors[m, 0] ** 2 + noise))
            probability = stats.t.cdf(t, _PRIOR) * len(cells.sites) * len(USUAL)
            if probability < WARNS:
                prefix = f"correlates with the outcome unlike other sites ({along:.2f} along them, not {expected:.2f})"
                advice = "is the outcome coded in reverse, or does it belong to other rows?"
                found.append(Finding(site, "", f"{prefix}: {advice}", bool(probability < REFUSES)))
    return found
