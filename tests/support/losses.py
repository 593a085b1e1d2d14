"""320 linear losses, and a number for each in which everything is that it says of itself."""

import itertools

import numpy as np
from scipy.sparse import csr_array

from flwr_fco.objectives import Huber, LeastSquares, Logistic, MultinomialLogistic, Poisson

KINDS = (LeastSquares, Logistic, MultinomialLogistic, Huber, Poisson)
CASES = list(itertools.product(KINDS, ("dense", "csr"), (np.float64, np.float32), *[(True, False)] * 4))
N, D, CLASSES = 97, 13, 4


def loss_of(number):
    """Return the loss of a case, and a generator of points."""
    kind, form, dtype, intercept, ridge, weighted, shifted = CASES[number]
    rng = np.random.default_rng(number)
    features = rng.normal(size=(N, D)) * (rng.random((N, D)) < (0.3 if form == "csr" else 1.1))
    features = features.astype(dtype)
    targets = {
        LeastSquares: lambda: rng.normal(size=N),
        Logistic: lambda: rng.permutation(np.arange(N) % 2),
        MultinomialLogistic: lambda: rng.permutation(np.arange(N) % CLASSES),
        Huber: lambda: 3.0 * rng.normal(size=N),
        Poisson: lambda: rng.poisson(2.0, N),
    }[kind]()
    options = {"intercept": intercept, "l2": 0.3 * ridge}
    if weighted:
        options["sample_weight"] = rng.uniform(0.2, 3.0, N)
    if shifted:
        options["offset"] = 0.3 * rng.normal(size=(N, CLASSES) if kind is MultinomialLogistic else N)
    return kind(csr_array(features) if form == "csr" else features, targets, **options), rng


def number_of(number):
    """Return the sum of what a case says, each relative to the size of its terms; of vectors a projection."""
    objective, rng = loss_of(number)
    size = objective.layout.size
    w, v, u = 0.5 * rng.normal(size=(3, size))
    rows = rng.permutation(N)[:40]
    batch = rng.permutation(N)[: rng.integers(1, 30)]
    on = np.sort(rng.permutation(size)[: size // 2 + 2])
    found = []

    def keep(value):
        value = np.atleast_1d(np.asarray(value, dtype=np.float64))
        by = np.resize(u, value.size) if value.size > 1 else np.ones(1)
        found.append(float(value @ by) / max(float(np.abs(value) @ np.abs(by)), 1e-300))

    keep(objective.value(w))
    value, gradient = objective.value_and_gradient(w)
    keep(np.append(gradient, value))
    keep(objective.gradient(w))
    objective.add_gradient(w, batch, -0.3, out := v.copy())
    keep(out)
    keep(objective.hessian_product(w, v))
    keep(objective.hessian_block(w, on))
    keep(objective.newton_block(w, on))
    line = objective.along(w, v)
    keep(np.concatenate([line(0.3), line.gradient(0.3), line.turn(0.2, u)(0.5)]))
    keep(list(objective.metrics(w).values()))
    if type(objective) is not Poisson:
        keep([objective.batch_lipschitz(b, norm) for norm in ("l2", "l1") for b in (None, 1, 10)])
    keep(objective.strong_convexity())
    part, share = objective.subset(rows)
    keep([part.value(w), share])
    keep(np.concatenate(objective.moments()))
    return sum(found)
