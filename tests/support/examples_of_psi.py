"""Regularizers, each with the shape of an array that it acts on: at least one of each class."""

import numpy as np

from flwr_fco.regularizers import (
    L1,
    L2,
    Adapter,
    Box,
    ElasticNet,
    GroupLasso,
    HardSparsity,
    L1Ball,
    L2Ball,
    L2Squared,
    LInfinityBall,
    NofM,
    NonNegative,
    Nuclear,
    NuclearBall,
    Simplex,
    SparseGroupLasso,
    SpectralBall,
    Zero,
)

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


Adapter.register("test-huber", Huber)
Adapter.register("test-band", Band)

#: (regularizer, shape): at least one of each class.
EXAMPLES = [
    (Zero(), (6,)),
    (L1(0.3), (6,)),
    (L1(0.3), (2, 3)),
    (L1(0.0), (6,)),
    (L1(0.3, weights=WEIGHTS), (6,)),
    (L1(0.3, weights=WEIGHTS[:3]), (2, 3)),
    (L1(0.3, bound=0.2), (6,)),
    (L1(0.3, weights=WEIGHTS, bound=0.2), (6,)),
    (L2Squared(0.5), (6,)),
    (L2Squared(0.5, weights=WEIGHTS), (6,)),
    (ElasticNet(0.4), (6,)),
    (ElasticNet(0.4, 0.0), (6,)),
    (ElasticNet(0.4, 1.0), (6,)),
    (ElasticNet(0.4, 0.3, weights=WEIGHTS), (6,)),
    (ElasticNet(0.4, 0.3, scales=2.0 * WEIGHTS + 0.1), (6,)),
    (ElasticNet(0.4, 0.3, weights=WEIGHTS[:3], scales=WEIGHTS[:3] + 0.5), (2, 3)),
    (L1Ball(1.0), (6,)),
    (L1Ball(1.0), (1,)),
    (L1Ball(2.0, weights=WEIGHTS), (6,)),
    (L2Ball(0.7), (6,)),
    (Box(-1.0, 0.5), (6,)),
    (Box(-WEIGHTS, WEIGHTS), (6,)),
    (Box(0.25, np.inf), (2, 3)),
    (NonNegative(), (6,)),
    (LInfinityBall(0.3), (6,)),
    (Simplex(), (6,)),
    (Simplex(3.0), (2, 3)),
    (Nuclear(0.3), (4, 3)),
    (Nuclear(0.2, bound=0.5), (3, 5)),
    (Nuclear(0.3, reshape="first"), (4, 3, 2)),
    (Nuclear(0.3, reshape="last"), (2, 2, 3)),
    (L2(0.6), (6,)),
    (L2(0.6), (1,)),
    (GroupLasso(0.3, groups=GROUPS), (6,)),
    (GroupLasso(0.3, groups=GROUPS, weights=[0.0, 1.0, 0.5, 2.0, 1.0]), (6,)),
    (GroupLasso(0.3, groups=np.arange(2)[:, None]), (2, 3)),
    (SparseGroupLasso(0.4, groups=GROUPS, l1_ratio=0.3), (6,)),
    (SparseGroupLasso(0.4, groups=GROUPS, l1_ratio=0.0), (6,)),
    (SparseGroupLasso(0.4, groups=GROUPS, l1_ratio=1.0), (6,)),
    (NuclearBall(0.7), (4, 3)),
    (NuclearBall(0.7, reshape="first"), (3, 2, 2)),
    (SpectralBall(0.4), (3, 5)),
    (HardSparsity(2), (6,)),
    (HardSparsity(9), (2, 3)),
    (NofM(), (3, 8)),
    (NofM(1, 3), (2, 6, 2)),
    (NofM(2, 4), (5, 3, 2)),
    (Adapter(name="test-huber", arguments={"sigma": 0.5}), (6,)),
    (Adapter(name="test-band", arguments={"radius": 0.5}), (2, 3)),
]
