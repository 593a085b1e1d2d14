"""Regularizers, each with the shape of an array that it acts on: at least one of each class."""

import numpy as np

from flwr_fco import regularizers as psi

WEIGHTS = np.array([0.0, 1.0, 2.0, 0.5, 1.0, 3.0])
#: Group 2 is empty.
GROUPS = np.array([0, 1, 0, 3, 1, 1])


class Huber:
    """A smooth function with pyproximal's interface."""

    def __init__(self, sigma):
        self.sigma = sigma

    def __call__(self, x):
        x = np.abs(x)
        with np.errstate(over="ignore"):
            return float(np.where(x > self.sigma, x - self.sigma / 2, x**2 / (2 * self.sigma)).sum())

    def prox(self, x, tau):
        return x - tau * x / np.maximum(np.abs(x), tau + self.sigma)


class Band:
    """An indicator with pyproximal's interface: its value is a boolean."""

    def __init__(self, radius):
        self.radius = radius

    def __call__(self, x):
        return bool((np.abs(x) <= self.radius).all())

    def prox(self, x, tau):
        return np.clip(x, -self.radius, self.radius)


psi.Adapter.register("test-huber", Huber)
psi.Adapter.register("test-band", Band)

#: (regularizer, shape): at least one of each class.
EXAMPLES = [
    (psi.Zero(), (6,)),
    (psi.L1(0.3), (6,)),
    (psi.L1(0.3), (2, 3)),
    (psi.L1(0.0), (6,)),
    (psi.L1(0.3, weights=WEIGHTS), (6,)),
    (psi.L1(0.3, weights=WEIGHTS[:3]), (2, 3)),
    (psi.L1(0.3, bound=0.2), (6,)),
    (psi.L1(0.3, weights=WEIGHTS, bound=0.2), (6,)),
    (psi.L2Squared(0.5), (6,)),
    (psi.L2Squared(0.5, weights=WEIGHTS), (6,)),
    (psi.ElasticNet(0.4), (6,)),
    (psi.ElasticNet(0.4, 0.0), (6,)),
    (psi.ElasticNet(0.4, 1.0), (6,)),
    (psi.ElasticNet(0.4, 0.3, weights=WEIGHTS), (6,)),
    (psi.ElasticNet(0.4, 0.3, scales=2.0 * WEIGHTS + 0.1), (6,)),
    (psi.ElasticNet(0.4, 0.3, weights=WEIGHTS[:3], scales=WEIGHTS[:3] + 0.5), (2, 3)),
    (psi.L1Ball(1.0), (6,)),
    (psi.L1Ball(1.0), (1,)),
    (psi.L1Ball(2.0, weights=WEIGHTS), (6,)),
    (psi.L2Ball(0.7), (6,)),
    (psi.Box(-1.0, 0.5), (6,)),
    (psi.Box(-WEIGHTS, WEIGHTS), (6,)),
    (psi.Box(0.25, np.inf), (2, 3)),
    (psi.NonNegative(), (6,)),
    (psi.LInfinityBall(0.3), (6,)),
    (psi.Simplex(), (6,)),
    (psi.Simplex(3.0), (2, 3)),
    (psi.Nuclear(0.3), (4, 3)),
    (psi.Nuclear(0.2, bound=0.5), (3, 5)),
    (psi.Nuclear(0.3, reshape="first"), (4, 3, 2)),
    (psi.Nuclear(0.3, reshape="last"), (2, 2, 3)),
    (psi.L2(0.6), (6,)),
    (psi.L2(0.6), (1,)),
    (psi.GroupLasso(0.3, groups=GROUPS), (6,)),
    (psi.GroupLasso(0.3, groups=GROUPS, weights=[0.0, 1.0, 0.5, 2.0, 1.0]), (6,)),
    (psi.GroupLasso(0.3, groups=np.arange(2)[:, None]), (2, 3)),
    (psi.SparseGroupLasso(0.4, groups=GROUPS, l1_ratio=0.3), (6,)),
    (psi.SparseGroupLasso(0.4, groups=GROUPS, l1_ratio=0.0), (6,)),
    (psi.SparseGroupLasso(0.4, groups=GROUPS, l1_ratio=1.0), (6,)),
    (psi.SparseGroupLasso(0.4, groups=GROUPS, l1_ratio=0.3, weights=[0.0, 1.0, 0.5, 2.0, 1.0]), (6,)),
    (psi.NuclearBall(0.7), (4, 3)),
    (psi.NuclearBall(0.7, reshape="first"), (3, 2, 2)),
    (psi.SpectralBall(0.4), (3, 5)),
    (psi.HardSparsity(2), (6,)),
    (psi.HardSparsity(density=0.5), (6,)),
    (psi.HardSparsity(9), (2, 3)),
    (psi.NofM(), (3, 8)),
    (psi.NofM(1, 3), (2, 6, 2)),
    (psi.NofM(2, 4), (5, 3, 2)),
    (psi.Adapter(name="test-huber", arguments={"sigma": 0.5}), (6,)),
    (psi.Adapter(name="test-band", arguments={"radius": 0.5}), (2, 3)),
]
