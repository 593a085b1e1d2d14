"""Theorem C.2 of Liang, Peng, Zhang, 'Gradient tracking for high dimensional federated optimization': its schedule."""

from __future__ import annotations

import math

from flwr_fco.strategies import Stage


def theorem_stages(
    dimension: int, noise: float, *, sparsity: int, radius_squared: float, accuracy: float, num_clients: int
) -> list[Stage]:
    """Return the schedule of theorem C.2 for the linear problem, whose final squared l1 error is at most `accuracy`.

    For n = 1 .. N (the paper's [N]; stage n is the n-th one), with kappa = L / mu = 1: the entries of examples are
    uncorrelated with mean square 1, so the Hessian is I, and ||v||_2 <= ||v||_1::

        N   = ceil(log2(Q_0 / accuracy))
        R_n = ceil(64 s kappa log d)
        K_n = ceil(2^(n+14) s^2 sigma^2 / (mu^2 Q_0 R_n) ((log d)^4 + 2 log(2 n d / delta) / (R_n M)))
        client_lr = min(1/(48 L K), sqrt(2 Q / (R K sigma^2 log d)), sqrt(2 Q M log d / (K sigma^2 log(2 d / delta))))

    with server_lr = 1 and Q = Q_0 / 2^(n-1); the last line is from theorem C.1. The constants come from a proof, so the
    schedule is long. The bound holds with probability 1 - delta = 0.95.

    Parameters
    ----------
    dimension : int
        d.
    noise : float
        sigma, the sub-Gaussian scale of a gradient's entries.
    sparsity : int
        s, number of non-zero entries of the optimum.
    radius_squared : float
        Q_0, at least the squared l1 distance from the start to the optimum.
    accuracy : float
        epsilon.
    num_clients : int
        M.

    Examples
    --------
    >>> stages = theorem_stages(1024, 0.01, sparsity=2, radius_squared=100.0, accuracy=1.0, num_clients=16)
    >>> len(stages), stages[0].rounds, [stage.local_steps for stage in stages[:3]]
    (7, 888, [1, 1, 2])
    """
    log_d = math.log(dimension)
    variance = noise**2
    failure = 0.05
    rounds = math.ceil(64 * sparsity * log_d)
    stages = []
    for n in range(1, max(1, math.ceil(math.log2(radius_squared / accuracy))) + 1):
        scale = 2.0 ** (n + 14) * sparsity**2 * variance / (radius_squared * rounds)
        tail = 2.0 * math.log(2 * n * dimension / failure) / (rounds * num_clients)
        steps = math.ceil(scale * (log_d**4 + tail))
        radius = radius_squared / 2 ** (n - 1)
        of_noise = math.sqrt(2.0 * radius / (rounds * steps * variance * log_d))
        of_failure = math.sqrt(
            2.0 * radius * num_clients * log_d / (steps * variance * math.log(2 * dimension / failure))
        )
        rate = min(1.0 / (48.0 * steps), of_noise, of_failure)
        stages.append(Stage(rounds, steps, rate, 1.0, radius))
    return stages
