"""Steps on the model itself: a method's own, proximal ones, and gradient steps."""

from __future__ import annotations

from flwr_fco.algorithms.contract import Moved, Start
from flwr_fco.engines.client import LocalClient


def primal_steps(client: LocalClient, start: Start) -> Moved:
    """Take the method's own steps."""
    return client.take_steps(start.point, client.half.local_step(client, client.downlink, start))


def proximal_steps(client: LocalClient, start: Start) -> Moved:
    """Take the method's own steps, which are proximal ones; with sparse features only where these are."""
    shard = client.features
    if shard is not None:
        point = start.point.copy()
        steps = shard.proximal_steps(client.downlink, point, client.rng)
        if steps is not None:
            return Moved(point - start.point, client.rate * steps, steps)
    return primal_steps(client, start)


def gradient_steps(client: LocalClient, start: Start) -> Moved:
    """Take the method's own steps, x <- x - client_lr scale g(x) - shift; with sparse features only where these are.

    Parameters
    ----------
    start : Start
        Gradients are multiplied by `scale`, and `shift` is subtracted in each step.
    """
    shard = client.features
    if shard is None or shard.coordinates.without_psi().restricted is not None:
        return primal_steps(client, start)
    point, rate = start.point.copy(), client.rate
    here = client.downlink._replace(client_lr=rate * start.scale)
    steps = shard.dual_steps(here, point, client.rng, start.shift, psi=False)
    return Moved(point - start.point, rate * steps, steps)
