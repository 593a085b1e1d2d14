"""A site's own unpenalised estimates, if it has rows enough for them."""

from __future__ import annotations

import numpy as np

from flwr_fco.algorithms.newton.information import inverse
from flwr_fco.algorithms.newton.method import unpacked
from flwr_fco.core.clock import timed
from flwr_fco.core.layout import Vector
from flwr_fco.objectives import LeastSquares
from flwr_fco.objectives.base import Objective

#: Rows of squares, and events of other losses, that a site needs for each of its columns.
ROWS, EVENTS = 10, 5
#: Newton steps and halvings at most, and the square of a step that is the last one, in standard errors.
_STEPS, _HALVINGS, _SOLVED = 50, 30, 1e-10
#: How many times the variance at 0 that at the minimum is where classes are told apart: estimates grow without end.
_SEPARABLE = 1e6


def own_estimates(objective: Objective) -> tuple[Vector, Vector] | None:
    """Return a site's unpenalised minimiser and its standard errors, shape (d,) each, of its rows alone.

    Parameters
    ----------
    objective : Objective
        The loss on the site's rows.

    Returns
    -------
    tuple of ndarray of float64, or None
        None with fewer than 10 rows a coefficient (of losses other than squares, 5 events, or rows without one), if
        columns are linearly dependent, or if classes can be told apart without error.
    """
    columns = int(np.prod(objective.layout["coefficients"].shape))
    enough = min(events_of(objective)) >= columns * (ROWS if isinstance(objective, LeastSquares) else EVENTS)
    return _minimum(objective) if enough else None


def events_of(objective: Objective) -> tuple[int, int]:
    """Return the rows of both classes; of a loss without classes its `num_events`, for squares its rows, and its rows.

    Parameters
    ----------
    objective : Objective
        The loss. Deaths are events: a loss of times says how many in an attribute ``num_events``.
    """
    rows, labels = objective.num_examples, getattr(objective, "labels", None)
    if isinstance(objective, LeastSquares):
        return rows, rows
    if labels is None or hasattr(objective, "num_events"):
        return int(getattr(objective, "num_events", 0)), rows
    ones = int(np.count_nonzero(np.asarray(labels) == 1))
    return ones, rows - ones


def _minimum(objective: Objective) -> tuple[Vector, Vector] | None:
    """Return the unpenalised minimiser and its standard errors; None if rounding or the data have none."""
    w, rows = np.zeros(objective.layout.size), objective.num_examples
    value, gradient = objective.value_and_gradient(w)
    most = np.full(w.size, np.inf)
    for number in timed(range(_STEPS)):
        covariance = inverse(unpacked(objective.hessian_block(w, np.arange(w.size))))
        if covariance is None or (np.diag(covariance) > most).any():
            return None
        most = _SEPARABLE * np.diag(covariance) if number == 0 else most
        step = covariance @ gradient
        # Of squares, whose Hessian has no noise in it, the loss estimates it, whatever its scale.
        noise = 2.0 * value * rows / (rows - w.size) if isinstance(objective, LeastSquares) else 1.0
        if rows * float(gradient @ step) <= _SOLVED * noise:
            error = np.sqrt(noise * np.diag(covariance) / rows)
            return (w - step, error) if error.all() else None
        for _ in range(_HALVINGS):
            after, slope = objective.value_and_gradient(w - step)
            if after <= value:
                break
            step *= 0.5
        w, value, gradient = w - step, after, slope
    return None
