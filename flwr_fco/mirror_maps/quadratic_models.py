"""The primal points of Fast-FedDA and C-FedDA, on clients and server: minimisers of a quadratic lower model.

The papers state each formula for the Euclidean geometry. Here x sums the gradients of h at the points and `retrieve`
computes the minimiser, which is the same in the Euclidean geometry.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.regularizers import L1Ball
from flwr_fco.regularizers.base import BoundRegularizer


class LowerModel(NamedTuple):
    """The constants of a round's lower model, whose minimisers are the points.

    Parameters
    ----------
    h : MirrorMap
        The mirror map on the flat vector.
    strength : float
        Factor of psi in this stage.
    radius : float
        Radius of the l1 ball around the anchor; 0 for no ball.
    convexity : float
        mu.
    anchor_weight : float
        Bao's gamma.
    smoothness : float or None
        Liang's L; None for Fast-FedDA, which uses mu instead and has no anchor.
    anchor, anchor_dual : ndarray of float64, shape (d,), or None
        x_0 (Liang's r) and its grad h; None stands for zeros.
    """

    h: MirrorMap
    psi: BoundRegularizer
    strength: float
    radius: float
    convexity: float
    anchor_weight: float
    smoothness: float | None
    anchor: Vector | None
    anchor_dual: Vector | None

    def bao_point(self, gradients: Vector, points: Vector, steps: float, count: float) -> Vector:
        """Return prox_{psi/b}(-a/b), a = g/steps - mu/2 x/count - gamma x_0/steps, b = mu/2 + gamma/steps.

        Parameters
        ----------
        gradients : ndarray of float64, shape (d,)
            g, the sum of the gradients.
        points : ndarray of float64, shape (d,)
            x, the sum of grad h at the points.
        steps : float
            eta, the number of gradients in g.
        count : float
            The number of points in x: `steps` for Fast-FedDA, the rounds for C-FedDA.
        """
        scale = 0.5 * self.convexity + self.anchor_weight / steps
        dual = (0.5 * self.convexity / count) * points - gradients / steps
        if self.anchor_dual is not None:
            dual += (self.anchor_weight / steps) * self.anchor_dual
        return self._minimiser(dual / scale, 1.0 / scale)

    def liang_point(self, gradients: Vector, points: Vector, step: int) -> Vector:
        """Return A1/(mu/2 A + a mu) soft(N + mu/2 V, lambda).

        With a smoothness L (C-FedDA): A1/(mu/2 A + a L) soft(N + mu/2 V + L a/A1 r, lambda).

        Parameters
        ----------
        gradients : ndarray of float64, shape (d,)
            N, minus the weighted mean of the gradients.
        points : ndarray of float64, shape (d,)
            V, the weighted mean of grad h at the points.
        step : int
            Number of the step, from 1.
        """
        (a, before, after), convexity, smoothness = liang_weights(step), self.convexity, self.smoothness
        dual = gradients + 0.5 * convexity * points
        if smoothness is not None and self.anchor_dual is not None:
            dual += (smoothness * a / after) * self.anchor_dual
        scale = after / (0.5 * convexity * before + a * (convexity if smoothness is None else smoothness))
        return self._minimiser(scale * dual, scale)

    def _minimiser(self, dual: Vector, t: float) -> Vector:
        """Return retrieve(dual, t strength), then moved into the ball; not the exact minimiser of the sum."""
        point = self.h.retrieve(dual, t * self.strength, self.psi)
        if self.radius <= 0.0:
            return point
        center = 0.0 if self.anchor is None else self.anchor
        return np.asarray(center + L1Ball(self.radius).prox(point - center, 1.0))


def liang_weights(step: int) -> tuple[float, float, float]:
    """Return a, A and A1 = A + a of a step, numbered from 1; the steps have weights 1, 2, 3, ..."""
    return float(step), step * (step - 1) / 2.0, step * (step + 1) / 2.0


def accumulated(points: Vector, dual: Vector, step: int) -> Vector:
    """Return V after a step: A/A1 V + (a+1)/A1 grad h(W).

    Parameters
    ----------
    points, dual : ndarray of float64, shape (d,)
        V and grad h(W).
    step : int
        Number of the step, from 1.
    """
    a, before, after = liang_weights(step)
    return (before / after) * points + ((a + 1.0) / after) * dual
