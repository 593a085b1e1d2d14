"""Heterogeneous quadratics whose constants are known, for methods that minimise."""

import numpy as np

from flwr_fco.core.layout import Layout
from flwr_fco.objectives import Objective


class Quadratic(Objective):
    """1/2 x'Ax - b'x."""

    quadratic = True

    def __init__(self, matrix, vector):
        self.matrix = matrix
        self.vector = vector
        self.num_examples = 1
        self.layout = Layout.from_arrays({"x": vector})

    def value(self, w):
        return float(0.5 * w @ self.matrix @ w - self.vector @ w)

    def gradient(self, w, batch=None, out=None):
        return np.subtract(self.matrix @ w, self.vector, out=out)

    def hessian_product(self, w, v):
        return self.matrix @ v

    def hessian_block(self, w, indices):
        return self.matrix[np.ix_(indices, indices)][np.triu_indices(indices.size)]

    def strong_convexity(self):
        return float(np.linalg.eigvalsh(self.matrix)[0])

    def lipschitz(self, norm="l2"):
        return float(np.linalg.eigvalsh(self.matrix)[-1])


def quadratics(count=5, d=6, mu=0.5, top=8.0, seed=0, exact=True):
    """Clients whose Hessians have eigenvalues from mu to top exactly, and minimisers far apart.

    Where not `exact`, local minimisations take Newton's method, which ends at the tolerance.
    """
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
        spectrum = np.concatenate([[mu, top], rng.uniform(mu, top, d - 2)])
        matrix = basis @ np.diag(spectrum) @ basis.T
        result.append(Quadratic((matrix + matrix.T) / 2, 3.0 * rng.standard_normal(d)))
        result[-1].quadratic = exact
    return result


def optimum(objectives, weights=None):
    """Return the minimiser of the weighted mean."""
    weights = np.full(len(objectives), 1 / len(objectives)) if weights is None else weights
    matrix = sum(p * f.matrix for p, f in zip(weights, objectives, strict=True))
    return np.linalg.solve(matrix, sum(p * f.vector for p, f in zip(weights, objectives, strict=True)))
