"""Losses with weights, offsets, ridges and intercepts, in unequal parts; and points on the way to their optimum."""

import numpy as np

from flwr_fco.objectives import Huber, LeastSquares, Logistic, MultinomialLogistic, Poisson
from reproduction.pooled import client_weights

KINDS = {"squares": LeastSquares, "logistic": Logistic, "softmax": MultinomialLogistic}
KINDS |= {"huber": Huber, "poisson": Poisson}


def losses(kind, rng, sizes=(60, 90, 150), d=40, more=(), **options):
    """Return the losses of unequal parts of one problem; `more` says whether rows have weights and offsets."""
    found, truth = [], np.zeros(d)
    truth[:4] = 0.5, -0.5, 0.25, 0.35
    for size in sizes:
        features, own = rng.normal(size=(size, d)) + 0.2, dict(options)
        scores = features @ truth
        if kind == "softmax":
            scores = np.stack([scores, -scores, 0.0 * scores], 1)
        if "weights" in more:
            own["sample_weight"] = rng.uniform(0.2, 2.0, size)
        if "offsets" in more:
            own["offset"] = 0.5 * rng.normal(size=scores.shape)
            scores = scores + own["offset"]
        targets = {
            "squares": lambda s: s + rng.normal(size=s.shape),
            "huber": lambda s: s + rng.standard_t(2, size=s.shape),
            "logistic": lambda s: (s + rng.logistic(size=s.shape) > 0.5).astype(int),
            "softmax": lambda s: np.argmax(s + rng.gumbel(size=s.shape), 1),
            "poisson": lambda s: rng.poisson(np.exp(s + 0.3)),
        }[kind](scores)
        if kind == "softmax":
            own["num_classes"] = 3
        found.append(KINDS[kind](features, targets, **own))
    return found


def descended(clients, psi, marks, start=None):
    """Return points of accelerated proximal gradient steps with restarts, after so many steps."""
    shares, bound = client_weights(clients), psi.bind(clients[0].layout)
    w = np.zeros(clients[0].layout.size) if start is None else start
    v, t, curvature, points = w.copy(), 1.0, 1.0, []

    def loss(at):
        return sum(p * c.value(at) for p, c in zip(shares, clients, strict=True))

    for step in range(1, max(marks) + 1):
        gradient, value = sum(p * c.gradient(v) for p, c in zip(shares, clients, strict=True)), loss(v)
        while True:
            x = bound.prox(v - gradient / curvature, 1.0 / curvature)
            move = x - v
            if loss(x) <= value + gradient @ move + 0.5 * curvature * move @ move + 1e-13 * (1.0 + abs(value)):
                break
            curvature *= 2.0
        t = 1.0 if (v - x) @ (x - w) > 0.0 else t
        following = (1.0 + np.sqrt(1.0 + 4.0 * t * t)) / 2.0
        v, w, t = x + (t - 1.0) / following * (x - w), x, following
        if step in marks:
            points.append(w.copy())
    return points
