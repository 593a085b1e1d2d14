"""DualFL, written from Park, Xu (2023), algorithm 1; NumPy only.

`minimisers[j](v)` is argmin_theta f_j(theta) - <v, theta>, without an error.
"""

import numpy as np


def dual_fl(minimisers, size, *, nu, rho, rounds):
    count = len(minimisers)
    theta = np.zeros((count, size))  # theta_j^(0) = 0
    zeta = np.zeros((count, size))  # zeta_j^(0) = 0
    before = np.zeros((count, size))  # zeta_j^(-1) + theta^(0) - theta_j^(0) = 0
    t = 1.0  # t_0 = 1
    for _ in range(rounds):
        theta = np.array([solve(nu * z) for solve, z in zip(minimisers, zeta, strict=True)])  # (3.4a)
        mean = theta.mean(axis=0)  # (3.4b): theta^(n+1), the only vector that travels
        after = zeta + mean - theta
        root = 1 - rho * t**2
        t_next = (root + np.sqrt(root**2 + 4 * t**2)) / 2  # (3.5): t_{n+1}
        beta = (t - 1) / t_next * (1 - t_next * rho) / (1 - rho)  # (3.5): beta_n
        zeta = (1 + beta) * after - beta * before  # (3.4c)
        before, t = after, t_next
    return mean
