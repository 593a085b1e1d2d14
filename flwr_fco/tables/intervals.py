"""A table of intervals: what the sites are asked for it, before and after a fit, and what it says."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from flwr_fco.algorithms.newton.model import Indices, unpacked
from flwr_fco.certificates import Request, check_semidefinite
from flwr_fco.core.layout import Vector
from flwr_fco.core.validation import Choice, printable
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.messages.protocol import Answer
from flwr_fco.objectives.site_intercept import FEWEST_ROWS
from flwr_fco.tables.estimates import CLUSTERS, Estimates, Sums, between, estimated, invertible, minimum, rao, refuse
from flwr_fco.tables.sites import Sites, called

#: Columns of a model whose Hessian is asked for as a whole: 16 MB a site.
MOST_COLUMNS = 2_000
#: Events, or rows of the rarer class, for each column, below which intervals of a generalised linear model are refused,
#: and below which there is a warning (docs/benchmarks/intervals.md).
_EVENTS = 5
_FEW_EVENTS = 10
#: The smallest standard error of one site, relative to that of all sites together; and its largest estimate, relative
#: to the median of the sites.
_SMALLEST = 1.0 / 3.0
_LARGEST = 1_000.0
#: Rounding error of a site's derivatives, relative to others that bound them.
_ROUNDING = 1e-6
#: Clusters below which their intervals are too short.
_FEW_CLUSTERS = 20
#: Sites from which on a spread between them can be estimated.
_SITES = 3
#: Names of sites in a line, and a count of their rows below which it is not shown.
_SHOWN = 5
_SMALL = 5
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
    largest : float, default 1e5
        How many times the sites' median the second derivative of one of them may be: columns in other units make it as
        large, and standard errors would be those of one site. Infinite where one site's column does spread so much.

    Raises
    ------
    ConfigurationError
        If the level is out of range, or no column is named.

    Examples
    --------
    >>> Intervals(columns=["age", "dose"]).indices(["weight", "age", "dose"])
    [1, 2]
    """

    level: float = field(default=0.95, metadata={"range": (lambda level: 0.5 <= level < 1.0, "from 0.5 to below 1")})
    columns: Sequence[str | int] | None = field(default=None, metadata=_DISTINCT)
    largest: float = field(default=1e5, metadata={"range": (lambda ratio: ratio > 1.0, "a number > 1")})

    def indices(self, names: Sequence[str]) -> list[int]:
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
            prefix = f"intervals of a model of {len(names)} columns; at most {MOST_COLUMNS} are possible"
            raise ConfigurationError(f"{prefix}: fit on fewer columns, chosen without the targets")
        known: dict[str | int, int] = {name: j for j, name in enumerate(names)} | {j: j for j in range(len(names))}
        columns = range(len(names)) if self.columns is None else self.columns
        if unknown := [column for column in columns if column not in known]:
            prefix = f"Intervals(columns=...) has {unknown[:5]}, which are no features"
            raise ConfigurationError(f"{prefix}; they are {', '.join(names[:10])}{', ...' * (len(names) > 10)}")
        return [known[column] for column in columns]


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


#: Kinds of models. The sums of squares at any point determine their minimum.
SQUARES = Kind("rows", 10)
CLASSES = Kind("rows of the rarer class", 5, "odds ratio")
COUNTS = Kind("rows with events", 5, "rate ratio")
TIMES = Kind("events", 5, "hazard ratio")
KINDS = (SQUARES, CLASSES, COUNTS, TIMES)

#: How many times what its events and rows suggest a site may say that it knows, which the largest counts determine; and
#: that its clusters vary.
_MOST = {TIMES: 10.0, COUNTS: 100.0, SQUARES: 100.0}


def _check_saturated(answer: Answer) -> None:
    """Refuse a mean of counts' log likelihoods at themselves that no counts of this mean have; it is convex in them."""
    mean, saturated = answer.numbers["mean"], answer.numbers["saturated"]
    rounding = min(1.0, _ROUNDING * (1.0 + abs(mean)))
    if mean < 0.0 or not -0.5 * math.log(2.0 * math.pi * (mean + 1.0)) - 1.0 <= saturated <= rounding:
        raise ProtocolError(f"its mean count is {mean:.3g}, and its log likelihood of them {saturated:.3g}")


def _check_possible(answer: Answer) -> None:
    """Refuse second derivatives that no convex loss has, and what no clusters of the rows have."""
    check_semidefinite(unpacked(answer.vectors["block"]))
    check_semidefinite(unpacked(answer.vectors.get("meat", np.zeros(1))), "sum over its clusters")
    clusters, rows = answer.numbers["clusters"], answer.examples
    if not 0.0 <= clusters <= rows:
        raise ProtocolError(f"it says {clusters:g} clusters of {rows:g} rows")


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
    found : Estimates
        The estimates of all columns.
    rows_of : tuple of float
        Of how many rows and sites they are, and how many intercepts have stayed there.
    intercepts : list of dict
        Of a common intercept, observed and expected events of each site.
    clustered : bool
        Whether the errors are of clusters, or of rows with weights, so that the fit has no likelihood.
    """

    rows: dict[int, dict[str, float]]
    sites: tuple[str, ...]
    lines: list[tuple[str, str]]
    found: Estimates
    rows_of: tuple[float, ...]
    intercepts: list[dict[str, Any]]
    clustered: bool


#: What of a table stands in one part of a text.
_RATIOS = [f"{ratio} ratio{end}" for ratio in ("odds", "rate", "hazard") for end in ("", " lower", " upper")]
ESTIMATED = ["estimate", "standard error", "lower", "upper", *_RATIOS, "p", "q", "p of trend"]
COMPARED = ["Rao", "p of Rao", "Q", "p of Q", "I2", "fixed", "DerSimonian-Laird"]
COMPARED += ["Hartung-Knapp lower", "Hartung-Knapp upper", "sites"]


class Inference:
    """A table in the making; when it begins, before a fit, the sites are asked about their own estimates.

    Parameters
    ----------
    model : estimator
        What is fitted.
    sites : Sites
        The sites of the fit.

    Raises
    ------
    ConfigurationError
        If a column says nothing; or of a generalised linear model with fewer than 5 rows of the rarer class, or events,
        a column.
    """

    def __init__(self, model: Any, sites: Sites) -> None:
        self.asked, self.kind, self.cluster, self.sites = model._intervals, model._kind, model.cluster, sites
        self.names: Sequence[str] = (names := model._names(model.n_features_in_))
        #: Whether sites have intercepts of their own in the table.
        self.own = own = bool(model.fit_intercept and model.site_intercepts != "common")
        self.squares = sites.squares()
        self.centre = sites.mean - sites.origin
        # Before the fit: what cannot be is refused at once.
        self.indices = np.array(self.asked.indices(names))
        levels = "stratum, whose own hazard" if self.kind is TIMES else "site, whose own level" * own
        if (idle := np.flatnonzero(sites.within if levels else sites.idle)).size:
            why = f"constant {f'at each {levels} takes it up' if levels else 'at all sites together'}"
            common = ", or give site_intercepts='common' if it differs between sites" * own
            shown = first_of([names[j] for j in idle])
            raise ConfigurationError(f"there are no intervals: {shown}: {why}. Leave it out{common}")
        wanted = ("reported", "events", "others", "mean", "saturated")
        shapes = dict.fromkeys(("estimate", "error", "degrees"), (self.sites.size,))
        request = Request("estimates", {}, wanted, shapes, check=_check_saturated)
        self.reported = sites.ask(request, np.zeros(self.sites.size))
        self.left_out = sites.silent
        self._count_intercepts()
        #: An intercept of the model that no site uses is no parameter.
        self.used = len(names) if own and not self.pooled else self.sites.size
        if self.kind is not SQUARES:
            self._check_events()

    def _named(self, answer: Answer) -> str:
        return called(answer.partition, self.sites.called)

    def _column(self, j: int) -> str:
        return self.names[j] if j < len(self.names) else "the intercept"

    def _count_intercepts(self) -> None:
        """Say which sites have an intercept of their own: those that are too small share one, and others need none."""
        reported = self.reported if self.own else []
        counts = np.array([[own.numbers["events"], own.numbers["others"]] for own in reported]).reshape(-1, 2)
        # A model whose intercepts stay at the sites has refused those that are too small.
        shares = self.kind is CLASSES and "intercept" in self.sites.start
        small = np.array([shares and own.examples < FEWEST_ROWS for own in reported], dtype=bool)
        together = counts[small].sum(axis=0)
        pooled = small & bool(together.sum() >= FEWEST_ROWS and together.min() >= 1.0)
        idle = ~pooled & (small | (counts.min(axis=1) < 1.0))
        self.pooled, self.idle = ([self._named(reported[m]) for m in np.flatnonzero(on)] for on in (pooled, idle))
        #: Those of sites that share one counted once.
        self.intercepts = len(reported) - len(self.idle) - len(self.pooled) + bool(self.pooled)

    def _check_events(self) -> None:
        """Refuse too few events for the columns, and warn of few; an intercept of a site's own biases as they do."""
        # No site has more of them than rows, and where all are of one class they say nothing beside its intercept.
        of = [answer for answer in self.reported if self._named(answer) not in self.idle]
        counts = [[min(max(0.0, own.numbers[name]), own.examples) for own in of] for name in ("events", "others")]
        events = min(map(sum, counts))
        columns = len(self.names) + self.intercepts
        kind = f"events ({self.kind.counted})" if self.kind is CLASSES else self.kind.counted
        own = f" and {self.intercepts} intercepts" * bool(self.intercepts)
        prefix = f"intervals of {len(self.names)} columns{own} from {events:.0f} {kind}"
        if events < _EVENTS * columns and self.left_out:
            raise ConfigurationError(f"the sites' numbers of events are not known: {'; '.join(self.left_out)}")
        if events < _EVENTS * columns:
            advice = "take fewer columns, chosen without these rows, or fit without intervals"
            raise ConfigurationError(f"{prefix}; expected at least {_EVENTS} a column: {advice}")
        if events < _FEW_EVENTS * columns:
            more = f"from {_FEW_EVENTS} a column on the estimates are less far from 0"
            warnings.warn(f"{prefix}: {events / columns:.1f} a column; {more}", UserWarning, stacklevel=6)

    # --- the sums of all sites ------------------------------------------------------------------------------------

    def table(self, start: Vector) -> Table:
        """Return the table of the unpenalised fit.

        Parameters
        ----------
        start : ndarray of float64, shape (d,)
            Where the fit begins: of all the model's arrays. The derivatives of squares at any point are enough.

        Raises
        ------
        ConfigurationError
            If a site does not answer, the columns are linearly dependent, an estimate grows without end, or the sums
            have no estimates.
        """
        if self.kind is SQUARES:
            sums = self._sums(start)
        else:
            found = minimum(self._sums, start, lambda hessian: invertible(hessian, self.names))
            if found is None:
                raise ConfigurationError("the unpenalised fit has no end: no step lowers it; look at columns and sites")
            sums = found[0]
            if self.kind in (COUNTS, TIMES):
                self._check_information(sums.each)
        if self.cluster is not None or self.sites.weighted:
            if self.kind is SQUARES:
                sums = self._sums(sums.point - invertible(sums.hessian, self.names) @ sums.gradient)
            sums = self._clustered(sums)
        return self._made(sums, self._trends(sums) if self.kind is TIMES else None)

    def _answers(self, point: Vector, *, clustered: bool) -> list[Answer]:
        """Return what all sites say of their derivatives at a point."""
        triangle = (self.sites.size * (self.sites.size + 1) // 2,)
        numbers = {"own": float(self.own), "pooled": float(bool(self.pooled)), "clustered": float(clustered)}
        shapes = {"gradient": (self.sites.size,), "block": triangle} | ({"meat": triangle} if clustered else {})
        request = Request("derivatives", numbers, ("loss", "clusters"), shapes, (), _check_possible)
        answers = self.sites.ask(request, point)
        if self.sites.silent:
            raise ConfigurationError(f"the sites' second derivatives are not known: {'; '.join(self.sites.silent)}")
        return answers

    def _sums(self, point: Vector) -> Sums:
        """Return the sums at a point."""
        answers = self._answers(point, clustered=False)
        self._check_sites(answers)
        used = self.used
        gradient, block = (np.sum([a.weight * a.vectors[name] for a in answers], 0) for name in ("gradient", "block"))
        hessian = unpacked(block)[:used, :used]
        loss = sum(a.weight * a.numbers["loss"] for a in answers)
        rows = sum(a.examples for a in answers)
        mass = self.sites.total if self.sites.weighted else None
        return Sums(point[:used], gradient[:used], hessian, loss, rows, mass, len(answers) * self.own, tuple(answers))

    def _clustered(self, sums: Sums) -> Sums:
        """Return the sums at a minimiser with those of clusters; of sites also those of rows with weights."""
        used = self.used
        if self.cluster != "site" or self.sites.weighted:
            answers = self._answers(sums.point, clustered=True)
            # A mean over rows whose weights have a mean of 1.
            meats = [a.weight**2 / a.examples * a.vectors["meat"] for a in answers]
            each = tuple(a._replace(vectors={**a.vectors, "meat": own}) for a, own in zip(answers, meats, strict=True))
            clusters = sum(a.numbers["clusters"] for a in answers)
            # Errors of a cluster's rows add up, or their squares.
            scale = (2.0 * sums.loss if self.kind is SQUARES else 1.0) / sums.rows
            rows = [scale * a.weight * a.examples / max(a.numbers["clusters"], 1.0) for a in answers]
            usual = [x * np.diag(unpacked(a.vectors["block"])) for x, a in zip(rows, answers, strict=True)]
            squares = np.array([np.diag(unpacked(own)) for own in meats])
            self._check_shares(answers, squares, np.array(usual), "spread of clusters by", _MOST[SQUARES])
            sums = sums._replace(meat=unpacked(np.sum(meats, axis=0))[:used, :used], clusters=clusters, each=each)
        if self.cluster == "site":
            own = np.array([a.weight * a.vectors["gradient"][:used] for a in sums.each])
            sums = sums._replace(meat=own.T @ own, clusters=float(len(own)))
            varies = np.sum([np.diag(unpacked(a.vectors["block"])) > 0.0 for a in sums.each], axis=0)
            # The sum of such a site is 0 at the estimates, and an error would be next to 0.
            refuse(varies[: len(self.names)] < min(2, len(own)), self.names, "varies in one cluster only")
        if sums.clusters < 2.0:
            prefix = f"intervals by cluster={self.cluster!r}, of which there is one"
            raise ConfigurationError(f"{prefix}; expected two clusters or more, from {_FEW_CLUSTERS} on enough of them")
        return sums

    def _check_sites(self, answers: Sequence[Answer]) -> None:
        """Refuse sums that one site's second derivatives make up, or what its own loss and columns do not allow."""
        own = np.array([np.diag(unpacked(answer.vectors["block"])) for answer in answers])
        said = np.stack([own, np.abs([answer.vectors["gradient"] for answer in answers])], axis=1)
        with np.errstate(invalid="ignore", over="ignore"):  # of a mean that a site makes up
            room = np.array([self._most(answer, curved) for answer, curved in zip(answers, own, strict=True)])
            room += _ROUNDING * np.maximum(room, room.max(axis=0) * [[0.0], [1.0]])
        for m, k, j in np.argwhere(said > room)[:1].tolist():
            prefix = f"{self._named(answers[m])} says a {('second derivative', 'slope')[k]} of {self._column(j)} of"
            most = f"with its loss, rows, mean and variance at most {room[m, k, j]:.3g} is possible"
            raise ConfigurationError(f"{prefix} {said[m, k, j]:.3g}; {most}")
        usual = np.broadcast_to(np.sort(own, axis=0)[(len(own) - 1) // 2], own.shape)
        self._check_shares(answers, own, usual, "second derivative of", self.asked.largest, 0.0)

    def _check_information(self, answers: Sequence[Answer]) -> None:
        """Refuse second derivatives at the estimates that are far more than events and variances suggest."""
        rates = {own.node_id: own.numbers["mean"] or own.numbers["events"] / own.examples for own in self.reported}
        usual = [own.weight * rates.get(own.node_id, 0.0) * self.squares[own.partition] for own in answers]
        curved = [own.weight * np.diag(unpacked(own.vectors["block"]))[: len(self.names)] for own in answers]
        self._check_shares(answers, np.array(curved), np.array(usual), "information about", _MOST[self.kind])

    def _check_shares(
        self, answers: Sequence[Answer], own: Any, usual: Any, about: str, most: float, part: float = 0.5
    ) -> None:
        """Refuse a site that says more than a part of what all say, and so many times what is usual for its rows."""
        ratio = np.divide(own, usual, out=np.zeros_like(own), where=usual > 0.0)
        middle = np.maximum(np.sort(ratio, axis=0)[(len(own) - 1) // 2], 1.0)
        wrong = (ratio > most * middle) & ~(own <= part * own.sum(axis=0)) & math.isfinite(self.asked.largest)
        for m, j in np.argwhere(wrong)[:1]:
            prefix = f"{about} {self._column(j)} is {ratio[m, j]:.3g} times what is usual for its rows"
            than = f"{middle[j]:.3g} times at the median of the sites: standard errors would be those of one site"
            advice = "Check its units; if it does spread so much there, give intervals=Intervals(largest=math.inf)"
            raise ConfigurationError(f"the {prefix} at {self._named(answers[m])}, and {than}. {advice}")

    def _most(self, answer: Answer, curved: Vector) -> Any:
        """Return the largest second derivatives and slopes of columns of these means and variances, shape (2, size)."""
        rows, loss = answer.examples, max(answer.numbers["loss"], 0.0)
        squares = np.append(self.squares[answer.partition], 1.0)[: self.sites.size]
        if self.kind is SQUARES:
            # The square of a mean of products is at most the product of the mean squares.
            return squares, np.sqrt(2.0 * loss * curved)
        if self.kind is CLASSES:
            # No row's loss is above the sum of all; p (1 - p) of a class is below the loss of its row, and (1 - p)^2
            # below 0.41 times it.
            largest = 0.25 if self.sites.weighted else min(0.25, rows * loss)
            return largest * squares, np.sqrt(min(1.0, 0.41 * loss) * squares)
        numbers = next((own.numbers for own in self.reported if own.node_id == answer.node_id), None)
        if numbers is None or self.sites.weighted:
            return np.full((2, self.sites.size), math.inf)
        if self.kind is TIMES:
            # In a risk set the square of the range is at most twice the sum of all squares, and a variance a fourth.
            events = min(max(numbers["events"], 0.0), rows)
            return 0.5 * events * squares, events * np.sqrt(2.0 * squares / rows)
        # Half a deviance is convex in count and rate together, and at least (root of rate - root of count)^2.
        largest = rows * (math.sqrt(max(0.0, numbers["mean"])) + math.sqrt(loss)) ** 2
        return largest * squares, 2.0 * np.sqrt(loss * curved) + loss * np.sqrt(rows * squares)

    def _trends(self, sums: Sums) -> tuple[Vector, float]:
        """Return p of a trend over time of each coefficient, and of all; NaN if not all sites say possible ones.

        Schoenfeld's residuals are compared with the rank of their time. With u the sum over the events of (g_i - mean)
        times residual, g_i the rank of event i at its site over their number, V the inverse of the information, D
        events, and S the sum of squares of g_i - mean:

            coefficient j      (V u)_j^2 D / (V_jj S), chi-squared with 1 degree of freedom
            all of them        u' V u D / S, with as many as there are coefficients

        Notes
        -----
        Grambsch, Therneau: Proportional hazards tests and diagnostics based on weighted residuals (Biometrika 1994);
        the means and squares are of each site, a stratum.
        """
        size = sums.point.size
        answers = self.sites.ask(Request("trend", {}, ("squares", "events"), {"trend": (size,)}), sums.point)
        # Of so many ranks, from 0 to 1 less their mean.
        most = (1.0 + 1e-9) / 12.0
        possible = [0.0 <= a.numbers["squares"] <= most * min(a.numbers["events"], a.examples) for a in answers]
        trend = np.sum([answer.vectors["trend"] for answer in answers], axis=0)
        squares, events = (sum(answer.numbers[name] for answer in answers) for name in ("squares", "events"))
        if len(answers) < len(sums.each) or not all(possible) or not squares > 0.0:
            return np.full(size, math.nan), math.nan
        covariance = invertible(sums.hessian, self.names) / sums.rows
        moved = covariance @ trend
        each = moved**2 * events / (np.diag(covariance) * squares)
        return stats.chi2.sf(each, 1), float(stats.chi2.sf(trend @ moved * events / squares, size))

    # --- what the table says --------------------------------------------------------------------------------------

    def _made(self, sums: Sums, trend: tuple[Vector, float] | None) -> Table:
        """Return the table of sums at the estimates, and of p of a change of hazard ratios over time."""
        names, kind, level, indices = self.names, self.kind, self.asked.level, self.indices
        found = estimated(sums, names, squares=kind is SQUARES, of_times=kind is TIMES)
        # A loss of counts is what is missing to their likelihood by a parameter each.
        saturated = sum(own.weight * own.numbers["saturated"] for own in self.reported) * self.sites.total
        missing = math.nan if self.left_out and kind is COUNTS else 0.0
        found = found._replace(log_likelihood=found.log_likelihood + saturated + missing)
        columns = found.inferred(found.estimate[indices], found.error[indices], level)
        # Beside a ratio, limits of its logarithm would be read as its own.
        for end in ("estimate", "lower", "upper") if kind.ratio else ():
            columns[f"{kind.ratio} {end}".removesuffix(" estimate")] = np.exp(np.minimum(columns[end], 700.0))
        columns["q"] = stats.false_discovery_control(columns["p"])
        columns |= {} if trend is None else {"p of trend": trend[0][indices]}
        columns = {name: columns[name] for name in ("estimate", kind.ratio, *ESTIMATED) if name in columns}
        own, doubted = self._plausible(found, sums)
        tests = rao(sums, found, indices, self.centre * (sums.point.size > len(names)))
        columns |= dict(zip(("Rao", "degrees of Rao", "p of Rao"), tests, strict=True))
        columns |= _compared(own, indices, len(sums.each), columns["upper"] - columns["estimate"], level)
        for site, (values, errors, _) in own.items():
            columns |= {site: values[indices], f"{site} error": errors[indices]}
        rows = {int(j): {name: float(column[i]) for name, column in columns.items()} for i, j in enumerate(indices)}
        intercepts, more = self._intercepts(sums, found)
        if kind is not SQUARES:
            more.append(("Rows with events" if kind is COUNTS else "Events", self._events()))
        lines = [("Intervals", f"{100 * level:g} %, {self._how(found, sums)}; q over {len(indices)} columns"), *more]
        few = "no Hartung-Knapp interval with fewer than three sites: nothing here covers a spread between sites"
        covers = few if len(own) < _SITES else "Hartung-Knapp's interval covers a spread"
        doubt = f"an insignificant Rao or Q does not show that they agree; {covers}"
        text = f"of {len(own)} of {len(sums.each)} sites{self._reasons(doubted)}"
        lines += [("Own estimates", text), ("Between sites", doubt)] * (len(sums.each) > 1)
        if trend is not None:
            text = "not tested: a site has not answered" if math.isnan(trend[1]) else f"p = {trend[1]:.3g} over all"
            text += " of rows, as if they were independent" * (sums.meat is not None)
            lines.append(("Proportional hazards", f"{text}; a small 'p of trend': a hazard ratio changes over time"))
        # A model is kept without the sites' Hessians.
        of = sums.rows, float(len(sums.each)), sums.intercepts
        return Table(rows, tuple(own), lines, found._replace(inverse=None), of, intercepts, sums.meat is not None)

    def _events(self) -> str:
        """Return the sites' events in words, but for counts as small as sites withhold in other answers."""
        texts = []
        # Of one class at all its rows, a site with an intercept of its own may say none.
        for own in (answer for answer in self.reported if self._named(answer) not in self.idle):
            events, rows = own.numbers["events"], own.examples
            shown = f"{events:.0f}" if _SMALL <= events <= rows - _SMALL else "-"
            texts.append(f"{shown} of {rows:.0f} rows at {self._named(own)}")
        return first_of(texts) + f"; - is below {_SMALL}, or all but so few" * ("- of" in " ".join(texts[:_SHOWN]))

    def _how(self, found: Estimates, sums: Sums) -> str:
        """Return in words how the estimates and their errors are made."""
        text = found.how + ("" if math.isinf(found.degrees) else f", {found.degrees:.0f} degrees of freedom")
        if sums.meat is None:
            return text
        by = {None: "rows, which have weights", "site": "sites"}.get(self.cluster, f"{self.cluster}")
        few = f", which are few: below {_FEW_CLUSTERS} such intervals are too short" * (sums.clusters < _FEW_CLUSTERS)
        return f"{text}, clustered by {sums.clusters:.0f} {by}{few}"

    def _intercepts(self, sums: Sums, found: Estimates) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
        """Return observed and expected events of the sites beside a common intercept, and what is said of them."""
        if self.own:
            lines = [("Intercepts of the table", "one of each site, which has stayed there")]
            shared = "Sites that share an intercept", self.pooled, "too few rows for their own"
            nothing = "Sites that add nothing", self.idle, "one class only, or no events"
            lines += [(title, f"{first_of(which)}: {why}") for title, which, why in (shared, nothing) if which]
            return [], lines
        if sums.point.size == len(self.names) or found.inverse is None or len(sums.each) < 2:
            return [], []
        _, degrees, p = rao(sums, found, np.array([sums.point.size - 1]), np.zeros(sums.point.size))
        # Where all chances are a half; events that weigh what their rows do, as those expected.
        slopes = {own.node_id: float(own.vectors["gradient"][-1]) for own in self.sites.answers}
        rows = []
        for answer in sums.each:
            site = self._named(answer)
            mass = sums.total * answer.weight
            excess = -mass * float(answer.vectors["gradient"][-1])
            if self.kind in (SQUARES, COUNTS):
                rows.append({"site": site, "rows": answer.examples, "mean residual": excess / mass})
            else:
                observed = round(mass * (0.5 - slopes[answer.node_id]), 9)
                ratio = observed / (observed - excess) if observed > excess else math.nan
                rows.append({"site": site, "observed": observed, "expected": observed - excess, "ratio": ratio})
        text = f"one of all sites; p = {p[0]:.3g} of Rao's test that it is, {degrees[0]:.0f} degrees of freedom"
        return rows, [("Intercept of the table", f"{text}; where they differ, site_intercepts=None is right")]

    def _plausible(self, found: Estimates, sums: Sums) -> tuple[dict[str, tuple[Vector, ...]], list[str]]:
        """Return each site's own estimates, errors and degrees of freedom, and who is left out for impossible ones."""
        count = len(self.names)
        together = found.error
        if self.cluster == "site" and found.inverse is not None:
            # A site's own error knows of no spread between sites, and of no unit of the weights.
            together = np.sqrt(found.noise * np.diag(found.inverse)[:count] / sums.rows)
        said, names = [own for own in self.reported if own.numbers["reported"]], ("estimate", "error", "degrees")
        given = {self._named(own): tuple(own.vectors[name][:count] for name in names) for own in said}
        sizes = [np.abs(estimate) + np.abs(error) for estimate, error, _ in given.values()]
        usual = np.sort([np.zeros(count), *sizes], axis=0)[(len(sizes) + 1) // 2]
        doubted = []
        for (site, (estimate, error, _)), size in zip([*given.items()], sizes, strict=True):
            # What all rows together say of a coefficient is no less than what one site's say.
            small, large = error < _SMALLEST * together, size > _LARGEST * usual
            for j in np.flatnonzero(small if small.any() else large)[:1].tolist():
                name = self.names[j]
                why = f"estimate of {name} is {estimate[j]:.3g} +- {error[j]:.3g}, of most sites below {usual[j]:.3g}"
                if small[j]:
                    why = f"standard error of {name} is {error[j]:.3g}, and of all sites together {together[j]:.3g}"
                del given[site]
                doubted.append(f"{site} is left out: its {why}")
        return given, doubted

    def _reasons(self, doubted: list[str]) -> str:
        """Return why sites have no estimates of their own; an empty string if all of them have."""
        silent = [self._named(answer) for answer in self.reported if not answer.numbers["reported"]]
        texts = [*doubted, *self.left_out]
        if silent:
            few = f" or {CLUSTERS} clusters" * (self.cluster is not None or self.sites.weighted)
            least = f"fewer than {self.kind.least} {self.kind.counted} a column{few}, no unique fit, or withheld"
            texts.append(f"none of {first_of(silent)}: {least}")
        return "".join(f"; {text}" for text in texts)


def first_of(sites: Sequence[str]) -> str:
    """Return the names of the first sites, and how many more there are.

    Examples
    --------
    >>> first_of(["north", "south"])
    'north, south'
    """
    return ", ".join(map(printable, sites[:_SHOWN])) + f" and {len(sites) - _SHOWN} more" * (len(sites) > _SHOWN)


def _compared(own: dict[str, Any], indices: Indices, count: int, half: Vector, level: float) -> dict[str, Vector]:
    """Return the meta-analysis; NaN where too few sites have estimates of their own."""
    nothing = np.full(indices.size, math.nan)
    columns = dict.fromkeys(COMPARED[2:], nothing) | {"sites": np.full(indices.size, float(len(own)))}
    if len(own) < 2:
        return columns
    values, errors, degrees = (np.array([each[i][indices] for each in own.values()]) for i in range(3))
    found = between(values, errors, np.where(degrees > 0.0, degrees, math.inf))
    mean = found["DerSimonian-Laird"]
    refined = found.pop("Hartung-Knapp error")
    if len(own) < count:
        found |= dict.fromkeys(("Q", "p of Q", "I2"), nothing)
    if len(own) >= _SITES:
        wide = np.maximum(half, stats.t.isf(0.5 * (1.0 - level), len(own) - 1) * refined)
        found |= {"Hartung-Knapp lower": mean - wide, "Hartung-Knapp upper": mean + wide}
    return columns | found
