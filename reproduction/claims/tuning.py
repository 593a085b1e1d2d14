"""Experiments that show methods at their best rates, over values of a factor or over grids of rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from reproduction.claims.rules import Outcome, Outcomes


class Variation(NamedTuple):
    """A panel: the varied factor and its values.

    Parameters
    ----------
    part : str
        The panel's title.
    key : str, default ""
        The setting whose values are on the axis; if empty, the grids are on the axis.
    values : tuple of value, default one empty text
    settings : mapping
        The settings shared by all runs of the panel.
    """

    part: str
    key: str = ""
    values: tuple[Any, ...] = ("",)
    settings: Mapping[str, Any] = {}

    def name(self, method: str, value: Any) -> str:
        """Return the label of a method at a value.

        Parameters
        ----------
        method : str
        value : object
            One of :attr:`values`.

        Examples
        --------
        >>> Variation("local steps", "local-steps", (1, 10)).name("FedMid", 10)
        'FedMid, local steps 10'
        >>> Variation("LASSO I").name("FedMid", "")
        'FedMid, LASSO I'
        """
        return f"{method}, {self.part}" if value == "" else f"{method}, {self.part} {value}"


class Tune(NamedTuple):
    """How a method's best rates are chosen: the metric and the candidate rates.

    Parameters
    ----------
    metric : str
    window : int, default 1
        Evaluations at the end of a run that are averaged.
    largest : bool, default False
        Whether larger is better.
    grids : mapping of str to sequence
        What each grid has, by its name: client rates, or pairs of a client and a server rate; nothing: all rates that
        were run.
    against : str, default ""
        The method whose values the figure takes off those of all methods, seed by seed; none: it shows them as they
        are. Where seeds differ more than methods do, their differences alone can be seen.
    """

    metric: str
    window: int = 1
    largest: bool = False
    grids: Mapping[str, Sequence[float | Sequence[float]]] = {"": ()}
    against: str = ""

    def name(self, group: str, grid: str) -> str:
        """Return the label of a method at its best on a grid.

        Parameters
        ----------
        group, grid : str

        Examples
        --------
        >>> Tune("gap").name("FedMid, LASSO I", "finer grid")
        'FedMid, LASSO I, finer grid'
        """
        return f"{group}, {grid}" if grid else group

    def has(self, grid: str, pair: tuple[float, float]) -> bool:
        """Return whether a grid has a pair of a client and a server rate.

        Parameters
        ----------
        grid : str
        pair : (float, float)

        Examples
        --------
        >>> tune = Tune("gap", grids={"coarse": [0.1], "one pair": [[0.1, 1.0]], "all": []})
        >>> [grid for grid in tune.grids if tune.has(grid, (0.1, 3.0))]
        ['coarse', 'all']
        >>> tune.has("one pair", (0.1, 1.0))
        True
        """
        own = self.grids[grid]
        return not own or pair[0] in own or list(pair) in own


class Best(NamedTuple):
    """The results of a method at its best rates.

    Parameters
    ----------
    outcomes : list of Outcome
        One per seed; a diverged one if all runs of the seed diverged.
    rates : list of (float, float) or None
        Client and server rate, one pair per seed; None if all runs of the seed diverged.
    values : list of float
        Values of the metric of :class:`Tune`, one per seed; NaN if all runs of the seed diverged.
    """

    outcomes: list[Outcome]
    rates: list[tuple[float, float] | None]
    values: list[float]


class Tuned(NamedTuple):
    """A method at its best rates: a point of the figure.

    Parameters
    ----------
    tune : Tune
    label, method : str
    variation : Variation
    value : object
        Value of the variation, or the name of the grid.
    runs : tuple of (str, (float, float))
        Labels and rates of the runs from which the best is chosen.
    """

    tune: Tune
    label: str
    method: str
    variation: Variation
    value: Any
    runs: tuple[tuple[str, tuple[float, float]], ...]

    def best(self, outcomes: Outcomes) -> Best:
        """Return the method's results at the best rates of each seed.

        Every seed has its own rates, so that one run that nearly diverges does not decide for all seeds.

        Parameters
        ----------
        outcomes : mapping of str to sequence of Outcome
            By label, then by seed.

        Returns
        -------
        Best

        Examples
        --------
        >>> good, bad = Outcome([{"round": 1.0, "gap": 0.1}]), Outcome([{"round": 1.0, "gap": 0.2}])
        >>> point = Tuned(Tune("gap"), "a", "a", Variation("x"), "", (("slow", (0.1, 1.0)), ("fast", (0.3, 1.0))))
        >>> point.best({"slow": [bad, good], "fast": [good, bad]}).rates
        [(0.3, 1.0), (0.1, 1.0)]
        """
        found = Best([], [], [])
        sign = -1.0 if self.tune.largest else 1.0
        for seed in range(len(outcomes[self.runs[0][0]])):
            values = [outcomes[label][seed].final(self.tune.metric, self.tune.window) for label, _ in self.runs]
            best = min(range(len(values)), key=lambda i: math.inf if math.isnan(values[i]) else sign * values[i])
            label, pair = self.runs[best]
            found.outcomes.append(outcomes[label][seed])
            found.rates.append(None if math.isnan(values[best]) else pair)
            found.values.append(values[best])
        return found
