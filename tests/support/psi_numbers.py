"""What regularizers and mirror maps give at some points: `tests/stored_runs/psi.npz` has it of commit 0b4ecee5."""

from itertools import product

import numpy as np

from flwr_fco import mirror_maps, regularizers
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError

D = 12
SHAPE = (4, 3)
_RNG = np.random.default_rng(1)
WEIGHTS = _RNG.uniform(0.2, 2.0, D)
GROUPS = np.arange(D)[::-1] % 5
OTHERS = WEIGHTS[::-1].copy()
PULLS = 0.4 * np.arange(5.0)
#: Class and arguments of each psi.
PSIS = [
    ("Zero", {}),
    *(("L1", {"strength": 0.4, **more}) for more in ({}, {"weights": WEIGHTS}, {"bound": 0.5})),
    *(("L2Squared", {"strength": 0.7, **more}) for more in ({}, {"weights": WEIGHTS})),
    *(("ElasticNet", {"strength": 0.7, "l1_ratio": 0.3, **more}) for more in ({}, {"weights": WEIGHTS})),
    ("ElasticNet", {"strength": 0.7, "l1_ratio": 0.3, "weights": WEIGHTS, "scales": OTHERS}),
    ("Box", {"lower": -0.3, "upper": 0.8}),
    ("Box", {"lower": -WEIGHTS, "upper": WEIGHTS / 2.0}),
    ("NonNegative", {}),
    ("LInfinityBall", {"radius": 0.5}),
    ("L1Ball", {"radius": 2.0}),
    ("L1Ball", {"radius": 2.0, "weights": WEIGHTS}),
    ("L2Ball", {"radius": 1.5}),
    ("Simplex", {"radius": 1.3}),
    ("L2", {"strength": 0.8}),
    ("GroupLasso", {"strength": 0.4, "groups": GROUPS}),
    ("GroupLasso", {"strength": 0.4, "groups": GROUPS, "weights": PULLS}),
    ("SparseGroupLasso", {"strength": 0.4, "groups": GROUPS, "l1_ratio": 0.4}),
    ("SparseGroupLasso", {"strength": 0.4, "groups": GROUPS, "l1_ratio": 0.4, "weights": PULLS}),
    ("HardSparsity", {"count": 5}),
    ("HardSparsity", {"density": 0.3}),
    ("Nuclear", {"strength": 0.6}),
    ("Nuclear", {"strength": 0.3, "bound": 1.1}),
    ("SpectralBall", {"radius": 0.9}),
    ("NuclearBall", {"radius": 2.0}),
]
#: Class and arguments of each mirror map.
MAPS = [
    *(("PNorm", {"p": p, **more}) for p in (2.0, 6.9, 12.0) for more in ({}, {"radius": 0.7}, {"center": WEIGHTS})),
    ("PNorm", {"p": 3.0, "center": OTHERS, "radius": 0.6}),
    ("DiagonalMetric", {"weights": WEIGHTS}),
    ("SimplexEntropy", {"radius": 2.0}),
]


def points():
    """Return points of three sizes, with ties in the second."""
    rng = np.random.default_rng(2)
    return [size * rng.normal(size=D).round(digits) for size, digits in ((1e-3, 16), (1.0, 0), (1.0, 16), (30.0, 16))]


def numbers_of(name, options, known=lambda psi, method, v: getattr(psi, method)(v)):
    """Return all that a regularizer gives, in a row.

    Parameters
    ----------
    known : callable
        ``(psi, method, v)``: its "conjugate" or "strength_max" at a point.
    """
    psi = getattr(regularizers, name)(**options)
    found = []
    for v, step in product(points(), (0.0, 0.3, 2.0)):
        v = v.reshape(SHAPE) if name in ("Nuclear", "SpectralBall", "NuclearBall") else v
        w = psi.prox(v, step)
        found += [*w.ravel(), np.count_nonzero(w) if w.ndim == 1 else np.linalg.matrix_rank(w), psi.value(w)]
        if step == 0.3:
            found.append(psi.value(v) if psi.constraint or "bound" not in options else 0.0)
            # Zero singular values have any vectors.
            found += [*psi.subgradient(w).ravel()] if psi.convex and (v.ndim == 1 or w.any()) else []
            for method in ("conjugate", "strength_max"):
                try:
                    found.append(known(psi, method, v))
                except ConfigurationError:
                    found.append(np.nan)
    return np.array(found, dtype=np.float64)


def numbers_of_map(name, options):
    """Return all that a mirror map gives, in a row."""
    h = getattr(mirror_maps, name)(**options)
    found = []
    for z in points():
        w = h.conjugate_gradient(z)
        found += [*w, h.value(w), *h.gradient(w), z @ w - h.value(w), *h.start(D)]
        for psi in (regularizers.L1(0.3), regularizers.L1(0.2, weights=OTHERS)):
            found += [*h.retrieve(z, 1.3, psi)]
    return np.array(found, dtype=np.float64)


def numbers_on_models():
    """Return proximal points of models of several arrays, together and each by itself."""
    arrays = {"a.weight": np.zeros((3, 4)), "a.bias": np.zeros(3), "b.weight": np.zeros((4, 2)), "c": np.zeros(5)}
    layout = Layout.from_arrays(arrays, apply_to=["*.weight", "c"])
    psi = regularizers
    each = psi.PerParameter({"a.*": psi.ElasticNet(0.3), "b.*": psi.Nuclear(0.4), "c": psi.Simplex()})
    found = []
    for own, scope in ((psi.L1(0.3), "each"), (psi.L2(0.3), "joint"), (psi.L1Ball(1.0), "joint"), (each, "each")):
        bound = own.bind(layout, scope=scope)
        w = bound.prox(np.random.default_rng(3).normal(size=layout.size), 0.5)
        found += [*w, bound.value(w), *bound.subgradient(w), bound.free_coordinates().sum()]
    v = np.random.default_rng(4).normal(size=300_000)
    groups = np.arange(v.size) // 10
    for own in (psi.L1Ball(5.0), psi.Simplex(), psi.HardSparsity(density=0.01), psi.GroupLasso(1.0, groups)):
        w = own.prox(v, 0.1)
        found += [w.sum(), np.abs(w).sum(), np.count_nonzero(w), w.max(), np.cos(w) @ v]
    return np.array(found, dtype=np.float64)
