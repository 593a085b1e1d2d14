"""The primal points of Fast-FedDA and C-FedDA: minimisers of a quadratic lower model, on clients and server alike.

Each formula is written for the Euclidean geometry in its source; here x sums gradients of h at the points, and the
minimiser is taken by `retrieve`, which in the Euclidean geometry is the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flwr_fco.core.layout import Vector
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.regularizers import L1Ball
from flwr_fco.regularizers.base import BoundRegularizer

__all__ = ["Geometry", "accumulated", "bao_point", "liang_point", "liang_weights"]


class Geometry(NamedTuple):
    """The geometry, psi and ball with which a point is computed.

    Parameters
    ----------
    h : MirrorMap
        On the flat vector.
    psi : BoundRegularizer
    strength : float
        Factor of psi in this stage.
    radius : float
        Of the l1 ball around the anchor; 0: no ball.
    """

    h: MirrorMap
    psi: BoundRegularizer
    strength: float
    radius: float

    def minimiser(self, dual: Vector, t: float, anchor: Vector | None) -> Vector:
        """Return retrieve(dual, t strength), moved to the ball where it is outside: not the exact map of the sum."""
        point = self.h.retrieve(dual, t * self.strength, self.psi)
        if self.radius <= 0.0:
            return point
        center = 0.0 if anchor is None else anchor
        return np.asarray(center + L1Ball(self.radius).prox(point - center, 1.0))


def bao_point(
    geometry: Geometry,
    gradients: Vector,
    points: Vector,
    anchor_dual: Vector | None,
    anchor: Vector | None,
    *,
    steps: float,
    count: float,
    convexity: float,
    anchor_weight: float,
) -> Vector:
    """Return prox_{psi/b}(-a/b), a = g/steps - mu/2 x/count - gamma x_0/steps, b = mu/2 + gamma/steps.

    Parameters
    ----------
    geometry : Geometry
    gradients : ndarray of float64, shape (d,)
        g, the sum of the gradients.
    points : ndarray of float64, shape (d,)
        x, the sum of grad h at the points.
    anchor_dual, anchor : ndarray of float64, shape (d,), or None
        grad h(x_0) and x_0; None stands for zeros.
    steps : float
        eta, the gradients in g.
    count : float
        The points in x: `steps` for Fast-FedDA, the rounds for C-FedDA.
    convexity, anchor_weight : float
        mu and gamma.
    """
    scale = 0.5 * convexity + anchor_weight / steps
    dual = (0.5 * convexity / count) * points - gradients / steps
    if anchor_dual is not None:
        dual += (anchor_weight / steps) * anchor_dual
    return geometry.minimiser(dual / scale, 1.0 / scale, anchor)


def liang_weights(step: int) -> tuple[float, float, float]:
    """Return a, A and A1 = A + a of a step, from 1: the steps weigh 1, 2, 3, ..."""
    return float(step), step * (step - 1) / 2.0, step * (step + 1) / 2.0


def liang_point(
    geometry: Geometry,
    gradients: Vector,
    points: Vector,
    anchor_dual: Vector | None,
    anchor: Vector | None,
    *,
    step: int,
    convexity: float,
    smoothness: float | None,
) -> Vector:
    """Return A1/(mu/2 A + a mu) soft(N + mu/2 V, lambda).

    With a smoothness L (C-FedDA): A1/(mu/2 A + a L) soft(N + mu/2 V + L a/A1 r, lambda).

    Parameters
    ----------
    geometry : Geometry
    gradients : ndarray of float64, shape (d,)
        N, minus the weighted mean of the gradients.
    points : ndarray of float64, shape (d,)
        V, the weighted mean of grad h at the points.
    anchor_dual, anchor : ndarray of float64, shape (d,), or None
        grad h(r) and r; None stands for zeros.
    step : int
        From 1.
    convexity : float
        mu.
    smoothness : float or None
        L; None is Fast-FedDA, which has mu in its place and no anchor.
    """
    a, before, after = liang_weights(step)
    dual = gradients + 0.5 * convexity * points
    if smoothness is not None and anchor_dual is not None:
        dual += (smoothness * a / after) * anchor_dual
    scale = after / (0.5 * convexity * before + a * (convexity if smoothness is None else smoothness))
    return geometry.minimiser(scale * dual, scale, anchor)


def accumulated(points: Vector, dual: Vector, step: int) -> Vector:
    """Return V after a step: A/A1 V + (a+1)/A1 grad h(W).

    Parameters
    ----------
    points, dual : ndarray of float64, shape (d,)
        V and grad h(W).
    step : int
        From 1.
    """
    a, before, after = liang_weights(step)
    return (before / after) * points + ((a + 1.0) / after) * dual
