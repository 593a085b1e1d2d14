"""The papers' boxes in NumPy: each returns the model after the rounds.

The clients are `fs` with weights `p`; exact minimisations are linear systems, because the losses are quadratics.
"""

import numpy as np
from problems import quadratics

from flwr_fco import topology
from flwr_fco.regularizers import L1Ball

D = 6
ROUNDS = 6
STEPS = 3
RATE = 0.04
SERVER_RATE = 0.7
START = np.linspace(-1.0, 1.0, D)
#: The clients that take part in each round, where not all do.
COHORTS = [[0, 1], [1, 3], [2, 0], [3, 2], [0, 3], [2]]


def clients():
    """Return quadratics with 1 to 4 examples, and their weights."""
    fs = quadratics(count=4)
    for number, f in enumerate(fs, start=1):
        f.num_examples = number
    return fs, np.arange(1, 5) / 10


def soft(x, strength):
    return np.sign(x) * np.maximum(np.abs(x) - strength, 0.0)


def nearest(f, linear, penalty):
    """Return argmin f(x) - <linear, x> + penalty/2 ||x||^2."""
    return np.linalg.solve(f.matrix + penalty * np.eye(D), f.vector + linear)


def slopes(fs, points):
    """Return the gradient of each client's loss at its own point."""
    return np.array([f.gradient(point) for f, point in zip(fs, points, strict=True)])


def fed_prox(fs, p, penalty):
    x = START
    for _ in range(ROUNDS):
        x = p @ [nearest(f, penalty * x, penalty) for f in fs]
    return x


def fed_pd(fs, p, step):
    """With everyone and zeros at the start, FedDR and FedDyn too, iterate by iterate."""
    x = START
    duals = np.zeros((4, D))
    for _ in range(ROUNDS):
        local = np.array([nearest(f, x / step - dual, 1 / step) for f, dual in zip(fs, duals, strict=True)])
        duals = duals + (local - x) / step
        x = p @ (local + step * duals)
    return x


def fed_dyn(fs, p, penalty):
    """Of cohorts."""
    x = START
    h = np.zeros(D)
    own = np.zeros((4, D))
    for cohort in COHORTS:
        local = np.array([nearest(fs[m], own[m] + penalty * x, penalty) for m in cohort])
        own[cohort] -= penalty * (local - x)
        h = h - penalty * p[cohort] @ (local - x)
        x = p[cohort] @ local / p[cohort].sum() - h / penalty
    return x


def five_gcs(fs, p, step, convexity):
    """Of cohorts, with M/C the weight of all over theirs, and tau = 1/(2 gamma)."""
    tau = 0.5 / step
    hat = START / (1 + step * convexity)
    u = np.zeros((4, D))
    for cohort in COHORTS:
        ends = np.array([nearest(fs[m], u[m] + tau * hat, tau - convexity) for m in cohort])
        u[cohort] += tau * (hat - ends)
        x = hat - step * tau * p[cohort] @ (hat - ends) / p[cohort].sum()
        hat = (x - step * p @ u) / (1 + step * convexity)
    return hat


def apda_inexact(fs, p, primal_step, damping, convexity):
    """The first message only says where the duals start."""
    dual_step = 1 / (32 * primal_step)
    theta = max(2 / (2 + convexity * primal_step), 1 - damping * dual_step)
    x = ahead = np.tile(START, (4, 1))
    y = np.zeros((4, D))
    gradients = slopes(fs, x)
    for _ in range(ROUNDS - 1):
        v = y - dual_step * damping * (y + gradients) + dual_step * ahead
        y = v - p @ v
        hat = [nearest(f, a / primal_step - b, 1 / primal_step) for f, a, b in zip(fs, x, y, strict=True)]
        gradients = slopes(fs, hat)
        moved = x - primal_step * (gradients + y)
        x, ahead = moved, moved + theta * (moved - x)
    return p @ x


def scaffnew(fs, p, counts, probability):
    """With a rate that falls: the shifts follow the rate of the steps that led to x, not of those that follow."""
    mean = START
    shifts = np.zeros((4, D))
    for number, count in enumerate(counts, start=1):
        gamma = RATE / number
        ends = np.tile(mean, (4, 1))
        for _ in range(int(count)):
            ends -= gamma * (slopes(fs, ends) - shifts)
        mean = p @ ends
        shifts += probability / gamma * (mean - ends)
    return mean


def rand_prox(fs, p, probability):
    """RandProx: Condat, Richtarik (2023), algorithm 1, from memory, with g = 0, K = Id and h 'all clients agree'.

    R^t(d) = d / p where the coin falls, after every 1/p-th step, and 0 elsewhere: omega = 1/p - 1. The dual step is the
    largest that gamma tau (1 + omega) <= 1 allows.
    """
    tau = probability / RATE
    x = np.tile(START, (4, 1))
    u = np.zeros((4, D))
    for _ in range(ROUNDS):
        for k in range(1, round(1 / probability) + 1):
            ahead = x - RATE * (slopes(fs, x) + u)
            v = u + tau * ahead
            # prox_{tau h*}(v) - u, by Moreau: prox_{h / tau} is the mean.
            moved = v - p @ v - u if k == round(1 / probability) else np.zeros((4, D))
            x = ahead - RATE / probability * moved
            u = u + moved
    return p @ x


def averaged(fs, p, step):
    """FedAvg with local steps ``step(fs, points, direction)``; the direction is the mean of the last round's steps."""
    x = START
    direction = np.zeros(D)
    for _ in range(ROUNDS):
        ends = np.tile(x, (4, 1))
        for _ in range(STEPS):
            ends = step(fs, ends, direction)
        move = p @ ends - x
        x = x + SERVER_RATE * move
        direction = -move / (RATE * STEPS)
    return x


def cm_step(fs, points, direction, mix):
    return points - RATE * (mix * slopes(fs, points) + (1 - mix) * direction)


def sam_step(fs, points, direction, radius):
    gradients = slopes(fs, points)
    return points - RATE * slopes(fs, points + radius * gradients / np.linalg.norm(gradients, axis=1, keepdims=True))


def decoupled_prox(fs, p, strength):
    """Zhang, Hu, Johansson (2023), algorithm 1, from memory; the start is its own proximal map."""
    weight = SERVER_RATE * RATE * STEPS
    point = np.zeros(D)
    corrections = np.zeros((4, D))
    for _ in range(ROUNDS):
        first = soft(point, strength * weight)
        ends = np.tile(first, (4, 1))
        own = np.zeros((4, D))
        for k in range(STEPS):
            gradients = slopes(fs, soft(ends, strength * RATE * k))
            ends -= RATE * (gradients + corrections)
            own += gradients / STEPS
        point = first + SERVER_RATE * (p @ ends - first)
        corrections = (first - point) / weight - own
    return soft(point, strength * weight)


def d_fed_mid(fs, p, strength):
    """On a chain, psi on the nodes and after mixing; the mean of the nodes' points."""
    w = np.tile(START, (4, 1))
    for _ in range(ROUNDS):
        end = w
        for _ in range(STEPS):
            end = soft(end - RATE * slopes(fs, end), RATE * strength)
        w = soft(topology.chain(4).mixing @ (w + SERVER_RATE * (end - w)), SERVER_RATE * RATE * STEPS * strength)
    return w.mean(axis=0)


def scaffold(fs, p):
    """On the complete graph every node has the mean."""
    x = START
    own = np.zeros((4, D))
    for _ in range(ROUNDS):
        ends = np.tile(x, (4, 1))
        trackers = own.mean(axis=0) - own
        for _ in range(STEPS):
            ends -= RATE * (slopes(fs, ends) + trackers)
        own = (x - ends) / (RATE * STEPS) - trackers
        x = x + SERVER_RATE * (ends.mean(axis=0) - x)
    return x


def toward(x, center, radius):
    """Project onto the l1 ball around a center, if there is a radius."""
    return center + L1Ball(radius).prox(x - center, 1.0) if radius else x


def bao(fs, p, stages, counts, constrained, convexity, anchor_weight, strength):
    """Fast-FedDA, C-FedDA (constrained) and MC-FedDA (in stages of rounds, radius and strength), K_m steps a client."""
    w = START
    mean = p @ counts
    for length, radius, factor in stages:
        anchor = w
        points = w
        gradients = np.zeros(D)

        def minimiser(g, x, eta, count, anchor=anchor, radius=radius, strength=factor * strength):
            a = g / eta - convexity / 2 * x / count - anchor_weight * anchor / eta
            b = convexity / 2 + anchor_weight / eta
            return toward(soft(-a / b, strength / b), anchor, radius)

        for r in range(length):
            moved, added = np.zeros((4, D)), np.zeros((4, D))
            for m, f in enumerate(fs):
                own = w
                for k in range(1, counts[m] + 1):
                    moved[m] += f.gradient(own)
                    eta = r * mean + (counts[m] if constrained else k)
                    own = minimiser(gradients + moved[m], points + added[m], eta, r + 1 if constrained else eta)
                    added[m] += 0.0 if constrained else own
            gradients, points = (a + (p * mean / counts) @ b for a, b in ((gradients, moved), (points, added)))
            eta = (r + 1) * mean
            w = minimiser(gradients, points, eta, r + 1 if constrained else eta)
            points = points + w
    return w


def liang(fs, mixing, convexity, strength, smoothness=None, radius=None):
    """Fast-FedDA, or with a smoothness C-FedDA, as rows of W."""
    n = np.zeros((4, D))
    w = np.tile(START, (4, 1))
    v = np.zeros((4, D)) if smoothness is None else w
    for a in range(1, ROUNDS * STEPS + 1):
        before = a * (a - 1) / 2
        after = a * (a + 1) / 2
        n = before / after * n - a / after * slopes(fs, w)
        if a % STEPS == 0:
            n, v = mixing @ n, mixing @ v
        dual = n + convexity / 2 * v + (smoothness or 0.0) * a / after * START
        scale = after / (convexity / 2 * before + a * (smoothness or convexity))
        w = np.array([toward(row, START, radius) for row in scale * soft(dual, strength)])
        v = before / after * v + (a + 1) / after * w
    return w
