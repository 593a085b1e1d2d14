"""Experiments whose curves are methods at their best rates: over values of a factor, or over grids of rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from flwr_fco.experiments.rules import Outcome, Outcomes

__all__ = ["Tune", "Tuned", "Variation", "best_of_each_seed"]


class Variation(NamedTuple):
    """A panel: what is varied there, over which values.

    Parameters
    ----------
    part : str
        The panel's title.
    key : str, default ""
        The setting whose values are on the axis; none: the grids are.
    values : tuple of value, default one empty text
    settings : mapping
        What all runs of the panel have.
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
            Of :attr:`values`.

        Examples
        --------
        >>> Variation("local steps", "local-steps", (1, 10)).name("FedMid", 10)
        'FedMid, local steps 10'
        >>> Variation("LASSO I").name("FedMid", "")
        'FedMid, LASSO I'
        """
        return f"{method}, {self.part}" if value == "" else f"{method}, {self.part} {value}"


class Tune(NamedTuple):
    """What the best rates of a method are best for, and among which rates they are chosen.

    Parameters
    ----------
    metric : str
    window : int, default 1
        Evaluations at the end of a run that are averaged.
    largest : bool, default False
        Whether larger is better.
    grids : mapping of str to mapping
        Name of a grid to the client rates that are in it; no rates: all that were run.
    """

    metric: str
    window: int = 1
    largest: bool = False
    grids: Mapping[str, Sequence[float]] = {"": ()}

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


class Tuned(NamedTuple):
    """A method at its best rates: a point of the figure.

    Parameters
    ----------
    label, method : str
    variation : Variation
    value : object
        Of the variation, or the name of the grid.
    runs : tuple of (str, (float, float))
        Labels of the runs among which the best is chosen, and their rates.
    """

    label: str
    method: str
    variation: Variation
    value: Any
    runs: tuple[tuple[str, tuple[float, float]], ...]


def best_of_each_seed(
    tune: Tune, point: Tuned, outcomes: Outcomes
) -> tuple[list[Outcome], list[tuple[float, float] | None]]:
    """Return the outcome at the best rates of each seed, and these rates.

    Every seed has rates of its own, so that one run that nearly diverges does not choose for all of them.

    Parameters
    ----------
    tune : Tune
    point : Tuned
    outcomes : mapping of str to sequence of Outcome
        By label, then by seed.

    Returns
    -------
    outcomes : list of Outcome
        One that diverged where all of a seed's did.
    rates : list of (float, float) or None
        None where all of them diverged.

    Examples
    --------
    >>> good, bad = Outcome([{"round": 1.0, "gap": 0.1}]), Outcome([{"round": 1.0, "gap": 0.2}])
    >>> point = Tuned("a", "a", Variation("x"), "", (("slow", (0.1, 1.0)), ("fast", (0.3, 1.0))))
    >>> best_of_each_seed(Tune("gap"), point, {"slow": [bad, good], "fast": [good, bad]})[1]
    [(0.3, 1.0), (0.1, 1.0)]
    """
    found, rates = [], []
    sign = -1.0 if tune.largest else 1.0
    for seed in range(len(outcomes[point.runs[0][0]])):
        scores = [sign * outcomes[label][seed].final(tune.metric, tune.window) for label, _ in point.runs]
        best = min(range(len(scores)), key=lambda i: math.inf if math.isnan(scores[i]) else scores[i])
        label, pair = point.runs[best]
        found.append(outcomes[label][seed])
        rates.append(None if math.isnan(scores[best]) else pair)
    return found, rates
