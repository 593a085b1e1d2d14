"""Losses, psi, mirror maps and minimisers give what they gave at commit 0b4ecee5, before each was made anew."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from examples_of_psi import EXAMPLES
from scipy.sparse import csr_array

from flwr_fco import mirror_maps, regularizers
from flwr_fco.core.layout import Layout
from flwr_fco.engines import minimise
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Huber, LeastSquares, Logistic, MultinomialLogistic, Poisson
from flwr_fco.work import Minimise

FOLDER = Path(__file__).parent / "stored_runs"
LOSSES, MINIMA, PSI = (np.load(FOLDER / f"{name}.npz") for name in ("losses", "local_minima", "psi"))


def check(found, expected, *, zeros=True):
    """To 1e-12 of a number, or of a thousandth of the largest one; with the same counts, ranks and zeros."""
    known = ~np.isnan(expected)  # Some conjugates were not known.
    found, expected = np.asarray(found)[known], expected[known]
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    size = np.abs(expected[finite])
    assert (np.abs(found[finite] - expected[finite]) <= 1e-12 * np.maximum(size, 1e-3 * size.max())).all()
    assert not zeros or ((found == 0.0) == (expected == 0.0)).all()


# --- losses -----------------------------------------------------------------------------------------------------------

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
    value, gradient = objective.value_and_gradient(w)
    objective.add_gradient(w, batch, -0.3, moved := v.copy())
    line = objective.along(w, v)
    part, share = objective.subset(rows)
    said = [
        objective.value(w),
        np.append(gradient, value),
        objective.gradient(w),
        moved,
        objective.hessian_product(w, v),
        objective.hessian_block(w, on),
        objective.newton_block(w, on),
        np.concatenate([line(0.3), line.gradient(0.3), line.turn(0.2, u)(0.5)]),
        list(objective.metrics(w).values()),
        objective.strong_convexity(),
        [part.value(w), share],
        np.concatenate(objective.moments()),
    ]
    if type(objective) is not Poisson:
        said.append([objective.batch_lipschitz(b, norm) for norm in ("l2", "l1") for b in (None, 1, 10)])
    found = 0.0
    for each in said:
        each = np.atleast_1d(np.asarray(each, dtype=np.float64))
        by = np.resize(u, each.size) if each.size > 1 else np.ones(1)
        found += float(each @ by) / max(float(np.abs(each) @ np.abs(by)), 1e-300)
    return found


@pytest.mark.parametrize("half", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_320_losses_say_what_is_stored(half):
    """By day the half where an even number of options is on, so that any four of them, of any kind, occur together."""
    numbers = [i for i, (_, _, dtype, *on) in enumerate(CASES) if (sum(on) + (dtype is np.float32)) % 2 == half]
    np.testing.assert_allclose([*map(number_of, numbers)], LOSSES["losses"][numbers], rtol=0.0, atol=1e-12)


@pytest.mark.slow
def test_lanczos_finds_what_is_stored():
    features = np.random.default_rng(0).normal(size=(2200, 2300))
    np.testing.assert_allclose(Logistic(features, features[:, 0] > 0.0).lipschitz(), LOSSES["lanczos"], rtol=1e-9)


# --- minimisers -------------------------------------------------------------------------------------------------------


def local_problem(number):
    """Return a loss, of least squares with fewer rows than columns too, and the terms of its local problem."""
    loss, rng = loss_of(number)
    if isinstance(loss, LeastSquares) and number % 2:
        loss, _ = loss.subset(np.arange(8))
    center, shift = rng.normal(size=(2, loss.layout.size))
    return loss, {"center": 0.1 * center, "shift": 0.05 * shift, "penalty": 0.2}


@pytest.mark.parametrize("number", [i for i, case in enumerate(CASES) if case[1] == "dense" and case[2] is np.float64])
def test_the_minimiser_is_the_stored_one(number):
    loss, terms = local_problem(number)
    found = minimise(loss, Minimise(tolerance=1e-11), **terms)
    assert found.reached
    np.testing.assert_allclose(found.point, MINIMA[str(number)], rtol=0, atol=1e-10)


# --- regularizers and mirror maps -------------------------------------------------------------------------------------

PSIS = {" ".join(f"{psi!r} {shape}".split()): (psi, shape) for psi, shape in EXAMPLES}
RNG = np.random.default_rng(1)
WEIGHTS = RNG.uniform(0.2, 2.0, 12)
MAPS = [
    *(mirror_maps.PNorm(p, **more) for p in (2.0, 6.9, 12.0) for more in ({}, {"radius": 0.7}, {"center": WEIGHTS})),
    mirror_maps.PNorm(3.0, center=WEIGHTS[::-1], radius=0.6),
    mirror_maps.DiagonalMetric(WEIGHTS),
    mirror_maps.SimplexEntropy(2.0),
]


def points(shape):
    """Return points of three sizes, with ties in the second."""
    rng = np.random.default_rng(2)
    return [
        size * rng.normal(size=shape).round(digits) for size, digits in ((1e-3, 16), (1.0, 0), (1.0, 16), (30.0, 16))
    ]


def numbers_of(psi, shape):
    """Return all that a regularizer gives, in a row."""
    found = []
    for v, step in itertools.product(points(shape), (0.0, 0.3, 2.0)):
        w = psi.prox(v, step)
        found += [*w.ravel(), np.count_nonzero(w) if w.ndim == 1 else np.linalg.matrix_rank(w).sum(), psi.value(w)]
        if step == 0.3:
            found.append(psi.value(v) if psi.constraint or getattr(psi, "bound", None) is None else 0.0)
            # Zero singular values have any vectors.
            smooth = psi.convex and not isinstance(psi, regularizers.Adapter) and (v.ndim == 1 or w.any())
            found += [*psi.subgradient(w).ravel()] if smooth else []
            for method in ("conjugate", "strength_max"):
                try:
                    found.append(getattr(psi, method)(v))
                except ConfigurationError:
                    found.append(np.nan)
    return found


def numbers_of_map(h):
    """Return all that a mirror map gives, in a row."""
    found = []
    for z in points(12):
        w = h.conjugate_gradient(z)
        found += [*w, h.value(w), *h.gradient(w), z @ w - h.value(w), *h.start(12)]
        for psi in (regularizers.L1(0.3), regularizers.L1(0.2, weights=WEIGHTS[::-1].copy())):
            found += [*h.retrieve(z, 1.3, psi)]
    return found


def numbers_on_models():
    """Return proximal points of models of several arrays, together and each by itself, and of long vectors."""
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
    return found


@pytest.mark.parametrize("name", PSI)
def test_what_is_stored_is_given_again(name):
    kind, _, key = name.partition(": ")
    if kind == "psi":
        psi, shape = PSIS[key]
        # An entry of a matrix of low rank is 0 by chance.
        low_rank = (regularizers.Nuclear, regularizers.NuclearBall, regularizers.SpectralBall)
        check(numbers_of(psi, shape), PSI[name], zeros=not isinstance(psi, low_rank))
    else:
        check(numbers_of_map(MAPS[int(key)]) if kind == "map" else numbers_on_models(), PSI[name])
