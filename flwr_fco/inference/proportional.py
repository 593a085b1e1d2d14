"""Whether hazard ratios change over time: Schoenfeld's residuals against the rank of their time, summed over sites.

With u the sum over the events of (g_i - mean) times residual, g_i the rank of event i at its site over their number, V
the inverse of the information, D events, and S the sum of squares of g_i - mean:

    coefficient j      (V u)_j^2 D / (V_jj S), chi-squared with 1 degree of freedom
    all of them        u' V u D / S, with as many as there are coefficients

Grambsch, Therneau: Proportional hazards tests and diagnostics based on weighted residuals (Biometrika 1994); the means
and squares are of each site, a stratum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import stats

from flwr_fco.algorithms.newton.information import InformationState, inverse
from flwr_fco.inference.between import Vector
from flwr_fco.strategies import FedNewton, run_of
from flwr_fco.wire.questions import TREND, Answer


@dataclass(frozen=True)
class Trends:
    """A question to all sites about trends over time; ``start`` takes the arguments of a strategy's ``start``.

    Parameters
    ----------
    strategy : FedNewton
        The strategy of the fit, whose sites these are.
    sums : InformationState
        The sums at the unpenalised estimates.
    """

    strategy: FedNewton
    sums: InformationState

    def start(
        self, grid: Any, initial_arrays: Any, num_rounds: int, timeout: float = 3600, **options: Any
    ) -> tuple[Vector, float]:
        """Return p of each coefficient, and that of all of them; NaN if not every site answers with possible sums."""
        run = run_of(replace(self.strategy))
        run.prepare(initial_arrays)
        size = self.sums.point.size
        question = run.inquiry.question(TREND, self.sums.point)
        answers = run.inquiry.ask(grid, question, wanted=("squares", "events"), shapes={"trend": (size,)})
        if len(answers) < self.sums.sites or not all(map(_is_possible, answers)):
            return np.full(size, math.nan), math.nan
        return proportional(self.sums, answers)


def _is_possible(answer: Answer) -> bool:
    """Whether squares of so many ranks, from 0 to 1 less their mean, can be so large."""
    events, squares = answer.numbers["events"], answer.numbers["squares"]
    return 0.0 <= events <= answer.examples and 0.0 <= squares <= events / 12.0 * (1.0 + 1e-9)


def proportional(sums: InformationState, answers: Sequence[Answer]) -> tuple[Vector, float]:
    """Return p of each coefficient, shape (d,), and that of all of them; NaN without two times of events.

    Parameters
    ----------
    sums : InformationState
        The sums at the unpenalised estimates.
    answers : sequence of Answer
        Each site's trend, squares and events.
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
