"""APDA-Inexact: an accelerated primal-dual algorithm whose proximal step is taken inexactly.

Sadiev, Kovalev, Richtarik (NeurIPS 2022), reconstructed from the abstract and from the parameters in Park and Xu's
table 2: the constraint that all clients agree is dualised, and the server projects the duals.

    each client: y <- V - mean(V)                                           x_hat ~ prox_{eta_x f}(x - eta_x y)
                 x+ <- x - eta_x (grad f(x_hat) + y)                        x_bar = x+ + theta (x+ - x)
                 V <- y - eta_y beta_y (y + grad f(x_hat)) + eta_y x_bar; send the change of V
    server: mean(V), and mean(x), which is the model

The changes of x go up too, but only to tell the server the model: the method itself needs V alone.
"""

from __future__ import annotations

from typing import NamedTuple

from flwr_fco.parameters import Vector

__all__ = ["APDAInexactState", "advance", "extrapolation"]


class APDAInexactState(NamedTuple):
    """The server's state.

    Parameters
    ----------
    primal : ndarray of float64, shape (d,)
        Weighted mean of the clients' x.
    dual_mean : ndarray of float64, shape (d,), or None
        Weighted mean of the clients' V; None before round 1.
    """

    primal: Vector
    dual_mean: Vector | None = None


def advance(state: APDAInexactState, change: Vector, local_change: Vector) -> APDAInexactState:
    """Return the state after a round.

    Parameters
    ----------
    state : APDAInexactState
    change, local_change : ndarray of float64, shape (d,)
        Weighted means of the changes of V and of x.
    """
    mean = change if state.dual_mean is None else state.dual_mean + change
    return APDAInexactState(state.primal + local_change, mean)


def extrapolation(primal_step: float, dual_step: float, damping: float, convexity: float) -> float:
    """Return theta = max(2/(2 + mu eta_x), 1 - beta_y eta_y), as in Park and Xu's table 2.

    Parameters
    ----------
    primal_step, dual_step : float
        eta_x and eta_y.
    damping : float
        beta_y.
    convexity : float
        mu.
    """
    return max(2.0 / (2.0 + convexity * primal_step), 1.0 - damping * dual_step)
