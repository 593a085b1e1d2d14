"""Conjugates of regularizers in closed form, by Fenchel-Young."""

import numpy as np
import pytest
from together import together

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import BilinearSaddle
from flwr_fco.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    GroupLasso,
    HardSparsity,
    L1Ball,
    L2Ball,
    L2Squared,
    LInfinityBall,
    NonNegative,
    Nuclear,
    NuclearBall,
    PerParameter,
    Simplex,
    SparseGroupLasso,
    SpectralBall,
    Zero,
)

WEIGHTS = np.array([0.5, 1.0, 2.0, 0.7, 1.0, 3.0])
CONJUGATES = [
    (Zero(), (6,)),
    (L1(0.3), (6,)),
    (L1(0.3, weights=WEIGHTS, bound=0.4), (6,)),
    (L2Squared(0.5, weights=WEIGHTS), (6,)),
    (ElasticNet(0.4, 0.3), (2, 3)),
    (Box(-WEIGHTS, 0.5), (6,)),
    (NonNegative(), (6,)),
    (LInfinityBall(0.3), (6,)),
    (L1Ball(1.5), (6,)),
    (L1Ball(1.5, weights=WEIGHTS), (6,)),
    (L2Ball(0.7), (6,)),
    (Simplex(2.0), (6,)),
    (Nuclear(0.3), (3, 4)),
    (Nuclear(0.3, bound=0.5), (3, 4)),
    (NuclearBall(1.1), (3, 4)),
    (SpectralBall(0.4), (4, 3)),
    (Nuclear(0.2, bound=0.4, reshape="first"), (3, 2, 2)),
    (L2(0.3), (6,)),
    (GroupLasso(0.3, groups=[0, 0, 1, 1, 2, 1]), (6,)),
    (SparseGroupLasso(0.3, groups=[0, 0, 1, 1, 2, 1], l1_ratio=0.4), (6,)),
]


@together(("psi", "shape"), CONJUGATES)
def test_a_conjugate_is_fenchels(psi, shape):
    """With p = prox(u) the vector (u - p)/s is a subgradient at p: psi(p) + psi*(v) = <p, v>; elsewhere at least."""
    rng = np.random.default_rng(0)
    for step in (0.3, 2.0):
        u = rng.normal(size=shape)
        p = psi.prox(u, step)
        v = (u - p) / step
        # Of an unbounded norm v lies on the boundary of where psi* is finite: rounding may push it outside.
        inner = v * (1.0 - 1e-12)
        assert psi.value(p) + psi.conjugate(inner) == pytest.approx(float(np.vdot(p, v)), abs=1e-10)
        for _ in range(10):
            other = psi.prox(rng.normal(size=shape), 0.5)
            assert psi.value(other) + psi.conjugate(inner) >= float(np.vdot(other, inner)) - 1e-12


def test_conjugates_that_are_infinite_or_unknown():
    assert L1(1.0).conjugate(np.array([0.5, 1.5])) == np.inf
    assert Nuclear(1.0).conjugate(np.diag([0.5, 1.5])) == np.inf
    assert NonNegative().conjugate(np.array([-1.0, 1e-3])) == np.inf
    assert L1Ball(1.0, weights=np.array([1.0, 0.0])).conjugate(np.array([1.0, 0.5])) == np.inf
    layout = BilinearSaddle([[1.0]]).layout
    assert PerParameter({"x": Box(-1.0, 1.0)}).bind(layout).conjugate(np.array([2.0, 0.0])) == 2.0
    assert PerParameter({"x": Box(-1.0, 1.0)}).bind(layout).conjugate(np.array([2.0, 0.1])) == np.inf
    with pytest.raises(ConfigurationError, match="conjugate of HardSparsity"):
        HardSparsity(2).conjugate(np.ones(2))
