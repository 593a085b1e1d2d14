"""(D)FedDA and its relatives, written from Liang, Peng, Zhang, algorithms 1 to 3; NumPy only.

Rows are clients, U is the gossip matrix (11'/M without a graph). h(w) = ||w||_q^2 / (2 (q - 1)), 1/p + 1/q = 1.
"""

import numpy as np


def dual_map(w, p):
    """Return grad h(w), h(w) = ||w||_q^2 / (2 (q - 1))."""
    q = p / (p - 1)
    norm = np.linalg.norm(w, q)
    return np.zeros_like(w) if norm == 0 else norm ** (2 - q) * np.abs(w) ** (q - 1) * np.sign(w) / (q - 1)


def primal_map(z, p):
    """Return grad h*(z), h*(z) = ||z||_p^2 / (2 (p - 1))."""
    norm = np.linalg.norm(z, p)
    return np.zeros_like(z) if norm == 0 else norm ** (2 - p) * np.abs(z) ** (p - 1) * np.sign(z) / (p - 1)


def tracked(
    gradients, start, mixing, *, p, client_lr, server_lr, steps, rounds, tracking=True, radius_squared=None, seen=None
):
    """Return the duals after the rounds: DFedDA(-GT), or with `radius_squared` ReFedDA-GT around the start.

    `seen` gets the mean over the nodes of their points after each round.
    """
    count = len(gradients)
    restricted = radius_squared is not None
    origin = np.zeros_like(start) if restricted else dual_map(start, p)

    def point(z):
        w = primal_map(z, p)
        if not restricted:
            return w  # algorithm 1, line 7: w <- grad h*(z)
        excess = np.linalg.norm(z, p) / ((p - 1) * np.sqrt(radius_squared)) - 1
        return start + w / (1 + max(excess, 0.0))  # algorithm 2: the q-ball of radius sqrt(Q) around the start

    duals = np.tile(origin, (count, 1))  # Z_0 <- grad h(w_0)
    trackers = np.zeros((count, start.size))  # C_0 <- 0
    for _ in range(rounds):
        ends = duals.copy()
        for m, gradient in enumerate(gradients):
            for _ in range(steps):  # z_{r,k+1} <- z_{r,k} - eta_c (g(w_{r,k}) + c_r)
                ends[m] = ends[m] - client_lr * (gradient(point(ends[m])) + trackers[m])
        if tracking:  # C_{r+1} <- C_r + (I - U) (Z_{r,K} - Z_r) / (K eta_c)
            move = (ends - duals) / (steps * client_lr)
            trackers = trackers + move - mixing @ move
        duals = mixing @ (duals + server_lr * (ends - duals))  # Z_{r+1} <- U (Z_r + eta_s (Z_{r,K} - Z_r))
        if seen is not None:
            seen.append(np.mean([point(z) for z in duals], axis=0))
    return duals


def staged(gradients, start, mixing, *, radius_squared, stages, sparsity, window, newest, **constants):
    """Return the reference after the stages: algorithm 3, with the mean of the last points of a stage, at most all.

    The authors' public code runs it on a graph as well: the mean is over the nodes too. It takes the points in which
    rounds end; printed are those in which they begin.
    """
    reference = start
    for n, rounds in enumerate(stages):
        seen = []
        tracked(
            gradients, reference, mixing, radius_squared=radius_squared / 2**n, rounds=rounds, seen=seen, **constants
        )
        points = seen if newest else [reference, *seen[:-1]]
        mean = np.mean(points[-(window or rounds) :], axis=0)
        kept = np.argsort(-np.abs(mean))[:sparsity]  # Sparse(., s): the s largest entries
        reference = np.zeros_like(mean)
        reference[kept] = mean[kept]
    return reference
