"""What a table of intervals takes of a federation: a question about the sites' own estimates, and a few exchanges."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from flwr_fco.algorithms.newton.information import Information, Sums, inverse
from flwr_fco.certificates import Request
from flwr_fco.core.validation import Choice
from flwr_fco.errors import ConfigurationError, NothingTrainedError
from flwr_fco.messages.protocol import ESTIMATES, TREND, Answer
from flwr_fco.regularizers import Zero
from flwr_fco.strategies import FedNewton, run_of
from flwr_fco.strategies import strategy as as_strategy
from flwr_fco.strategies.questions import ask
from flwr_fco.strategies.run import Run
from flwr_fco.tables.estimates import Estimates, Vector, between, of_likelihood, of_squares

#: Seconds to wait for a site's answer.
TIMEOUT = 600.0
#: Columns of a model whose Hessian is asked for as a whole: 16 MB a site.
MOST_COLUMNS = 2_000
#: Events, or rows of the rarer class, for each column, below which intervals of a generalised linear model are too
#: short: with 4, of 100 columns and 800 rows, they covered .91 of the coefficients that are not 0.
_EVENTS = 20
#: The smallest standard error of one site, relative to that of all sites together; and its largest estimate, relative
#: to the median of the sites.
_SMALLEST, _LARGEST = 1.0 / 3.0, 1_000.0
#: Sites from which on a spread between them can be estimated.
_SITES = 3
_LEVEL = {"range": (lambda level: 0.5 <= level < 1.0, "a number from 0.5 to 1, exclusive")}
_DISTINCT = {"range": (lambda columns: 0 < len(set(columns)) == len(columns), "other columns")}


@dataclass(frozen=True)
class Intervals(Choice):
    """Which intervals are in a table.

    Parameters
    ----------
    level : float, default 0.95
        Their level.
    columns : sequence of str or int, optional
        The features that they are asked for, by name or place; by default all. The false discovery rates are over
        these, so they are to be chosen before the data are seen. The estimates are of the model with all its columns.

    Raises
    ------
    ConfigurationError
        If the level is out of range, or no column is named.

    Examples
    --------
    >>> Intervals(columns=["age", "dose"]).places(["weight", "age", "dose"])
    [1, 2]
    """

    level: float = field(default=0.95, metadata=_LEVEL)
    columns: Sequence[str | int] | None = field(default=None, metadata=_DISTINCT)

    def places(self, names: Sequence[str]) -> list[int]:
        """Return the places of the columns among the features' names.

        Parameters
        ----------
        names : sequence of str
            The features.

        Raises
        ------
        ConfigurationError
            If a column is none of them, or there are more than 2,000 features.
        """
        if len(names) > MOST_COLUMNS:
            raise ConfigurationError(
                f"intervals of a model of {len(names)} columns; at most {MOST_COLUMNS} are possible, because the "
                "estimate of each takes the second derivatives of all. Fit on fewer columns, chosen without the targets"
            )
        if self.columns is None:
            return [*range(len(names))]
        known = {name: j for j, name in enumerate(names)} | {j: j for j in range(len(names))}
        unknown = [column for column in self.columns if column not in known]
        if unknown:
            what = f"Intervals(columns=...) has {unknown[:5]}, which are no features"
            raise ConfigurationError(f"{what}; they are {', '.join(names[:10])}{', ...' * (len(names) > 10)}")
        return [known[column] for column in self.columns]


@as_strategy
class _Exchange(FedNewton):
    """All sites' derivatives at one point."""

    algorithm = Information


class Kind(NamedTuple):
    """What is fitted, as a table of intervals distinguishes it.

    Parameters
    ----------
    counted : str
        What a column needs enough of, in words.
    least : int
        How many of them a site needs for each column, for estimates of its own.
    ratio : str, default ""
        What the exponential of a coefficient is called.
    """

    counted: str
    least: int
    ratio: str = ""


#: Kinds of models. The sums of squares at any point tell their minimum.
SQUARES = Kind("rows", 10)
CLASSES = Kind("rows of the rarer class", 5, "odds ratio")
TIMES = Kind("events", 5, "hazard ratio")


class Told(NamedTuple):
    """What the sites say of themselves.

    Parameters
    ----------
    answers : list of Answer
        Of the sites that have answered.
    left_out : list of str
        The others, with the reasons.
    intercepts : float
        How many sites have an intercept of their own.
    """

    answers: list[Answer]
    left_out: list[str]
    intercepts: float


def alike(strategy: FedNewton, kind: type[FedNewton] = FedNewton, **options: Any) -> FedNewton:
    """Return another strategy of the same sites, with their weights and tables.

    Parameters
    ----------
    strategy : FedNewton
        Whose options it has.
    kind : type of FedNewton
        Its class.
    **options
        Options that it has instead.
    """
    own = {option.name: getattr(strategy, option.name) for option in fields(strategy) if option.init}
    other = kind(**(own | options))
    other.site_weights, other.tables = strategy.site_weights, strategy.tables
    return other


def prepared(strategy: FedNewton, grid: Any, initial_arrays: Any, timeout: float) -> Run:
    """Return a run of the strategy's sites that asks them questions only."""
    run = alike(strategy).prepare(initial_arrays)
    run.grid, run.timeout = grid, timeout
    return run


def reasons_of(run: Run) -> list[str]:
    """Return who has not answered, and why."""
    return [f"partition {row.partition_id}: {row.reason}" for row in run.left_out]


class Questions(NamedTuple):
    """Questions to all sites of a strategy; ``start`` is called as a strategy's.

    Parameters
    ----------
    strategy : FedNewton
        The strategy of the fit, whose sites these are.
    ask : callable
        ``(run) -> answer``: a function that asks the sites of a run.
    """

    strategy: FedNewton
    ask: Callable[[Run], Any]

    def start(self, grid: Any, initial_arrays: Any, num_rounds: int, timeout: float = TIMEOUT, **options: Any) -> Any:
        """Ask the sites."""
        return self.ask(prepared(self.strategy, grid, initial_arrays, timeout))


def own_estimates(run: Run, kind: Kind) -> Told:
    """Ask all sites about their own estimates; one whose rows have unequal weights is an error.

    Parameters
    ----------
    run : Run
        A run of the sites.
    kind : Kind
        What is fitted.
    """
    size = run.problem.layout.size
    wanted = ("told", "events", "others", "weighted", "intercepts")
    answers = ask(run, Request(ESTIMATES, {}, wanted, {"estimate": (size,), "error": (size,)}), np.zeros(size))
    weighted = [f"partition {answer.partition}" for answer in answers if answer.numbers["weighted"]]
    if weighted:
        raise ConfigurationError(
            f"intervals: rows of {', '.join(weighted[:_SITES])}{', ...' * (len(weighted) > _SITES)} have unequal "
            "weights, and rows that weigh twice have other standard errors than rows that are there twice. Give "
            "copies as rows, or fit without intervals"
        )
    # Beside an intercept of all sites none has one of its own, nor has a stratum of times, whatever it says.
    possible = "intercept" not in run.problem.layout.names and kind is not TIMES
    intercepts = sum(answer.numbers["intercepts"] > 0.0 for answer in answers) if possible else 0
    return Told(answers, reasons_of(run), float(intercepts))


def sums_of(
    strategy: FedNewton, kind: Kind, tolerance: float, run: Any, arrays: Any, num_rounds: int
) -> tuple[Sums, int]:
    """Return the sums for the estimates of all sites together, and in how many rounds they came.

    Parameters
    ----------
    strategy : FedNewton
        The strategy of the fit, whose sites these are.
    kind : Kind
        What is fitted: the derivatives of squares at any point are enough.
    tolerance : float
        Residual at which the unpenalised fit of another loss ends.
    run : callable
        ``(strategy, arrays, num_rounds)``: it runs a strategy at the sites.
    arrays : ArrayRecord
        The point where it begins.
    num_rounds : int
        The rounds of the unpenalised fit at most.
    """
    plain, rounds = alike(strategy, regularizer=Zero(), hessian="block", tolerance=tolerance), 0
    if kind is not SQUARES:
        result = run(plain, arrays, num_rounds)
        arrays, rounds = result.arrays, len(result.train_metrics_clientapp)
    last = alike(plain, _Exchange)
    try:
        run(last, arrays, 1)
    except NothingTrainedError as error:
        reasons = "; ".join(reasons_of(run_of(last)))
        raise ConfigurationError(f"the sites' second derivatives are not known: {reasons}") from error
    return last.state, rounds + 1


class Table(NamedTuple):
    """The table, and what is said of it.

    Parameters
    ----------
    rows : dict of int to dict
        For each column asked for, by its place, numbers by name; NaN where there is none.
    sites : tuple of str
        The names of the sites' own estimates among them.
    lines : list of (str, str)
        Lines of a summary.
    """

    rows: dict[int, dict[str, float]]
    sites: tuple[str, ...]
    lines: list[tuple[str, str]]


#: What of a table stands in one part of a text.
ESTIMATED = ("estimate", "odds ratio", "hazard ratio", "standard error", "lower", "upper", "p", "q", "p of trend")
COMPARED = ("Q", "p of Q", "I2", "fixed", "DerSimonian-Laird", "Hartung-Knapp lower", "Hartung-Knapp upper", "sites")


def check_events(told: Told, names: Sequence[str], kind: Kind) -> None:
    """Refuse intervals of a generalised linear model with too few events for its columns.

    An intercept of a site's own counts as a column: it biases coefficients as they do.

    Parameters
    ----------
    told : Told
        What the sites say of themselves.
    names : sequence of str
        The features.
    kind : Kind
        What is fitted; squares have no events.

    Raises
    ------
    ConfigurationError
        If there are fewer than 20 rows of the rarer class, or events, a column.
    """
    # No site has more of them than rows.
    counts = [[min(answer.numbers[name], answer.examples) for answer in told.answers] for name in ("events", "others")]
    events = min(sum(max(0.0, number) for number in numbers) for numbers in counts)
    if kind is not SQUARES and events < _EVENTS * (len(names) + told.intercepts):
        left_out = "; ".join(told.left_out)
        what = "events" if kind is TIMES else f"events ({kind.counted})"
        raise ConfigurationError(
            f"intervals of {len(names)} columns{f' and {told.intercepts:.0f} intercepts' * bool(told.intercepts)} from "
            f"{events:.0f} {what}; expected at least {_EVENTS} a column, with "
            "fewer the intervals are too short. Take fewer columns, chosen without these rows, or fit without "
            f"intervals{f'. Without {left_out}' * bool(left_out)}"
        )


def table(
    asked: Intervals, names: Sequence[str], told: Told, sums: Any, kind: Kind, sites: Any = (), trend: Any = None
) -> Table:
    """Return the table of a model.

    Parameters
    ----------
    asked : Intervals
        What is asked for.
    names : sequence of str
        The features.
    told : Told
        What the sites say of themselves.
    sums : Sums
        The sums of all sites.
    kind : Kind
        What is fitted.
    sites : sequence, optional
        Names of the sites by partition.
    trend : pair of (ndarray of float64, shape (d,), float), optional
        Of hazard ratios, p of a change over time, of each and of all.

    Raises
    ------
    ConfigurationError
        If the sums have no estimates.
    """
    # A site that has sent sums and has not said how many intercepts it has, has one where the others have theirs.
    silent = max(0.0, sums.sites - len(told.answers)) * bool(told.intercepts)
    at = sums._replace(intercepts=told.intercepts + silent)
    found = (of_squares if kind is SQUARES else of_likelihood)(at, names)
    places = np.array(asked.places(names))
    estimate, error = found.estimate[places], found.error[places]
    z, quantile = stats.t(found.degrees), stats.t.isf(0.5 * (1.0 - asked.level), found.degrees)
    p = 2.0 * z.sf(np.abs(estimate) / error)
    half = quantile * error
    columns = {"estimate": estimate} | ({kind.ratio: np.exp(np.minimum(estimate, 700.0))} if kind.ratio else {})
    columns |= {"standard error": error, "lower": estimate - half, "upper": estimate + half}
    if kind.ratio:
        # Beside a ratio, limits of its logarithm would be read as its own.
        ends = {f"{kind.ratio} {end}": columns[end] for end in ("lower", "upper")}
        columns |= {name: np.exp(np.minimum(own, 700.0)) for name, own in ends.items()}
    columns |= {"p": p, "q": stats.false_discovery_control(p)}
    columns |= {} if trend is None else {"p of trend": trend[0][places]}
    own, doubted = _plausible(told, found, names, sites)
    columns |= _compared(own, places, int(sums.sites), half, asked.level)
    for site, (values, errors) in own.items():
        columns |= {site: values[places], f"{site} error": errors[places]}
    rows = {int(j): {name: float(column[i]) for name, column in columns.items()} for i, j in enumerate(places)}
    degrees = "" if math.isinf(found.degrees) else f", {found.degrees:.0f} degrees of freedom"
    lines = [("Intervals", f"{100 * asked.level:g} %, {found.how}{degrees}; q over {len(places)} columns")]
    text = f"of {len(own)} of {sums.sites:.0f} sites{_reasons(told, doubted, kind, sites)}"
    lines.append(("Own estimates", text))
    text = "an insignificant Q does not show that they agree; Hartung-Knapp's interval covers a spread"
    if len(own) < _SITES:
        text = "no Hartung-Knapp interval with fewer than three sites: nothing here covers a spread between sites"
    lines.append(("Between sites", text))
    if trend is not None:
        text = "not tested: a site has not answered" if math.isnan(trend[1]) else f"p = {trend[1]:.3g} over all"
        lines.append(("Proportional hazards", f"{text}; a small 'p of trend': a hazard ratio changes over time"))
    return Table(rows, tuple(own), lines)


def _compared(own: dict[str, Any], places: NDArray[Any], count: int, half: Vector, level: float) -> dict[str, Vector]:
    """Return the meta-analysis; NaN where too few sites have estimates of their own."""
    nothing = np.full(places.size, math.nan)
    columns = dict.fromkeys(COMPARED, nothing) | {"sites": np.full(places.size, float(len(own)))}
    if len(own) < 2:
        return columns
    values, errors = (np.array([pair[i][places] for pair in own.values()]) for i in range(2))
    found = between(values, errors)
    mean, refined = found["DerSimonian-Laird"], found.pop("Hartung-Knapp error")
    if len(own) < count:
        found |= dict.fromkeys(("Q", "p of Q", "I2"), nothing)
    if len(own) >= _SITES:
        wide = np.maximum(half, stats.t.isf(0.5 * (1.0 - level), len(own) - 1) * refined)
        found |= {"Hartung-Knapp lower": mean - wide, "Hartung-Knapp upper": mean + wide}
    return columns | found


def _plausible(
    told: Told, found: Estimates, names: Sequence[str], sites: Sequence[Any]
) -> tuple[dict[str, tuple[Vector, Vector]], list[str]]:
    """Return the sites' own estimates and errors by name of site, and who is left out for impossible ones."""
    count, said = len(names), {site_of(own, sites): own.vectors for own in told.answers if own.numbers["told"]}
    given = {site: (own["estimate"][:count], own["error"][:count]) for site, own in said.items()}
    sizes = np.array([np.abs(estimate) + np.abs(error) for estimate, error in given.values()])
    usual = np.sort(sizes, axis=0)[(len(sizes) - 1) // 2] if len(sizes) else sizes
    doubted = []
    for (site, (estimate, error)), size in zip(list(given.items()), sizes, strict=True):
        # What all rows together tell of a coefficient is no less than what one site's tell.
        small, large = error < _SMALLEST * found.error, size > _LARGEST * usual
        if small.any():
            j = int(np.argmax(small))
            why = f"standard error of {names[j]} is {error[j]:.3g}, and that of all sites together {found.error[j]:.3g}"
        elif large.any():
            j = int(np.argmax(large))
            why = f"estimate of {names[j]} is {estimate[j]:.3g} +- {error[j]:.3g}, of most sites below {usual[j]:.3g}"
        else:
            continue
        del given[site]
        doubted.append(f"{site} is left out: its {why}")
    return given, doubted


def _reasons(told: Told, doubted: list[str], kind: Kind, sites: Sequence[Any]) -> str:
    """Return why sites have no estimates of their own; an empty string if all of them have."""
    silent = [site_of(answer, sites) for answer in told.answers if not answer.numbers["told"]]
    texts = [*doubted, *told.left_out]
    if silent:
        shown = ", ".join(silent[:5]) + f" and {len(silent) - 5} more" * (len(silent) > 5)
        texts.append(f"none of {shown}: fewer than {kind.least} {kind.counted} a column, no unique fit, or kept back")
    return "".join(f"; {text}" for text in texts)


def site_of(answer: Answer, sites: Sequence[Any]) -> str:
    """Return the name of the site that has answered.

    Parameters
    ----------
    answer : Answer
        What it says.
    sites : sequence
        Names of the sites by partition, of which there may be none.
    """
    if answer.partition is None:
        return f"node {answer.node_id}"
    return f"site {sites[answer.partition] if answer.partition < len(sites) else answer.partition}"


def trends(run: Run, sums: Sums) -> tuple[Vector, float]:
    """Ask all sites about trends over time: p of each coefficient, and that of all of them.

    They are NaN if not every site answers with possible sums.

    Parameters
    ----------
    run : Run
        A run of the sites.
    sums : Sums
        The sums at the unpenalised estimates.
    """
    size = sums.point.size
    answers = ask(run, Request(TREND, {}, ("squares", "events"), {"trend": (size,)}), sums.point)
    if len(answers) < sums.sites or not all(map(_is_possible, answers)):
        return np.full(size, math.nan), math.nan
    return proportional(sums, answers)


def _is_possible(answer: Answer) -> bool:
    """Whether squares of so many ranks, from 0 to 1 less their mean, can be so large."""
    events, squares = answer.numbers["events"], answer.numbers["squares"]
    return 0.0 <= events <= answer.examples and 0.0 <= squares <= events / 12.0 * (1.0 + 1e-9)


def proportional(sums: Sums, answers: Sequence[Answer]) -> tuple[Vector, float]:
    """Return p of each coefficient, shape (d,), and that of all of them; NaN without two times of events.

    Schoenfeld's residuals are compared with the rank of their time. With u the sum over the events of (g_i - mean)
    times residual, g_i the rank of event i at its site over their number, V the inverse of the information, D events,
    and S the sum of squares of g_i - mean:

        coefficient j      (V u)_j^2 D / (V_jj S), chi-squared with 1 degree of freedom
        all of them        u' V u D / S, with as many as there are coefficients

    Parameters
    ----------
    sums : Sums
        The sums at the unpenalised estimates.
    answers : sequence of Answer
        Each site's trend, squares and events.

    Notes
    -----
    Grambsch, Therneau: Proportional hazards tests and diagnostics based on weighted residuals (Biometrika 1994); the
    means and squares are of each site, a stratum.
    """
    trend = np.sum([answer.vectors["trend"] for answer in answers], axis=0)
    squares, events = (sum(answer.numbers[name] for answer in answers) for name in ("squares", "events"))
    found = inverse(sums.hessian)
    if found is None or not squares > 0.0:
        return np.full(trend.size, math.nan), math.nan
    covariance = found / sums.rows
    moved = covariance @ trend
    each = moved**2 * events / (np.diag(covariance) * squares)
    return stats.chi2.sf(each, 1), float(stats.chi2.sf(trend @ moved * events / squares, trend.size))
