"""The client half of APDA with an inexact proximal map."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from flwr_fco.algorithms.contract import ORIGIN, Client, ClientHalf, Memory, Moved, Start, zeros_like
from flwr_fco.core.layout import Vector
from flwr_fco.wire.protocol import Downlink


class APDAClient(ClientHalf):
    """Project the dual using the new mean, take a proximal step, and send the point whose projection is the next dual.

    With V the last point sent and mean(V) its mean over clients, received from the server::

        y <- V - mean(V)                                                  x_hat ~ prox_{eta_x f}(x - eta_x y)
        x+ <- x - eta_x (grad f(x_hat) + y)                               x_bar = x+ + theta (x+ - x)
        V <- y - eta_y beta_y (y + grad f(x_hat)) + eta_y x_bar

    A client that begins has no V yet: y = 0, x = x_hat = x_bar = primal, and only V is computed. The message has the
    vectors ``primal`` (to a client that begins) and ``dual-mean`` (to the others), and the numbers ``primal-step``
    (eta_x), ``dual-step`` (eta_y), ``damping`` (beta_y) and ``extrapolation`` (theta). The client sends the change of V
    and, which only tells the server the model, that of x. Sadiev, Kovalev, Richtarik: Communication acceleration of
    local gradient methods via an accelerated primal-dual algorithm with an inexact prox (NeurIPS 2022); reconstructed
    from the abstract and from Park and Xu's table 2.
    """

    name: ClassVar[str] = "apda_inexact"
    engine: ClassVar[str | None] = None
    memory: ClassVar[tuple[str, ...]] = ("sent", "local")

    @staticmethod
    def fresh(downlink: Downlink) -> Memory:
        """Return V = 0, and the model."""
        return {"sent": zeros_like(downlink), "local": downlink.vectors["primal"]}

    @staticmethod
    def local(client: Client, downlink: Downlink, memory: Memory | None) -> tuple[dict[str, Vector], Moved]:
        """Compute the change of V and of x."""
        numbers, gradient_of = downlink.numbers, client.objective.gradient
        eta_x, eta_y = numbers["primal-step"], numbers["dual-step"]
        damping = eta_y * numbers["damping"]
        if memory is None:
            point = downlink.vectors["primal"]
            sent = eta_y * point - damping * gradient_of(point)
            return {"increment": sent, "local-increment": np.zeros_like(point)}, Moved(sent, None, 1)
        before, local = memory["sent"], memory["local"]
        dual = before - downlink.vectors["dual-mean"]
        moved = client.run("minimise", Start(local, center=local - eta_x * dual, penalty=1.0 / eta_x, base=ORIGIN))
        gradient = gradient_of(moved.increment)
        change = client.as_sent(-eta_x * (gradient + dual))
        extrapolated = local + change + numbers["extrapolation"] * change
        sent = dual - damping * (dual + gradient) + eta_y * extrapolated
        return {"increment": sent - before, "local-increment": change}, moved

    @staticmethod
    def remember(downlink: Downlink, memory: Memory, sent: Memory, elapsed: float | None) -> dict[str, Vector]:
        """Return V and x."""
        return {name: memory[name] + sent[own] for name, own in (("sent", "increment"), ("local", "local-increment"))}
