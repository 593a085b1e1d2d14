"""Proximal maps against rational arithmetic and of singular values, bad arguments, sparsity, and the checker."""

import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import pytest
from examples_of_psi import EXAMPLES
from hypothesis import given
from hypothesis import strategies as st
from numpy.linalg import matrix_rank as numerical_rank
from numpy.testing import assert_allclose, assert_array_equal
from problems import refused
from threadpoolctl import threadpool_limits

from flwr_fco import regularizers
from flwr_fco.core.layout import Layout
from flwr_fco.objectives import BilinearSaddle
from flwr_fco.regularizers import L1, L2, Box, ElasticNet, L1Ball, L2Ball, L2Squared, Nuclear, PerParameter, Zero
from flwr_fco.regularizers.base import Terms
from flwr_fco.regularizers.kinds import NuclearBall, Simplex, SpectralBall, noise_of
from flwr_fco.testing import check_regularizer

EPS = np.finfo(np.float64).eps


@pytest.fixture(autouse=True, scope="module")
def one_blas_thread():
    """As local solvers have it: small factorisations only lose by more."""
    with threadpool_limits(1):
        yield


def rational_projection(v, radius, absolute):
    """Project onto the l1 ball or the simplex in rational arithmetic: no rounding at all."""
    exact = [Fraction(float(x)) for x in v]
    size = [abs(x) if absolute else x for x in exact]
    radius = Fraction(radius)
    if absolute and sum(size) <= radius:
        return exact
    theta = None
    total = Fraction(0)
    for k, x in enumerate(sorted(size, reverse=True), start=1):
        total += x
        if x > (total - radius) / k:
            theta = (total - radius) / k
    return [max(s - theta, 0) * (1 if x > 0 or not absolute else -1) for s, x in zip(size, exact, strict=True)]


@pytest.mark.parametrize("radius", [1e-10, 0.5, 1.0, 37.0, 1e10])
@pytest.mark.parametrize("magnitude", [1e-300, 1e-5, 1.0, 1e8, 1e17, 1e200])
def test_projections_against_rational_arithmetic(radius, magnitude):
    """Relative accuracy of eps in the radius, also where v is 1e200 times as large as the radius."""
    rng = np.random.default_rng(3)
    for n in (1, 2, 5, 40):
        noise = rng.normal(size=n)
        for v in (noise, np.ones(n), rng.integers(-2, 3, size=n).astype(float), 1 + 1e-9 * noise):
            for psi, absolute in ((L1Ball(radius), True), (Simplex(radius), False)):
                exact = rational_projection(magnitude * v, radius, absolute)
                got = [Fraction(float(x)) for x in psi.prox(magnitude * v, 1.0)]
                assert max(abs(x - y) for x, y in zip(got, exact, strict=True)) <= 4 * EPS * radius
                assert abs(sum(map(abs, got)) - sum(map(abs, exact))) <= 8 * EPS * radius


@pytest.mark.parametrize("n", [65_536, 300_001])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_long_projections(n, dtype):
    """From 65,536 on a sample guesses the threshold: also where the sample misleads."""
    rng = np.random.default_rng(4)
    spike = np.zeros(n)
    spike[1] = 5.0
    for v in (rng.normal(size=n), np.sort(rng.normal(size=n)), rng.standard_cauchy(size=n), spike, np.ones(n)):
        v = v.astype(dtype)
        for radius in (1e-3, 1.0, 100.0, 0.4 * float(np.abs(v).sum(dtype=np.float64))):
            p = L1Ball(radius).prox(v, 1.0).astype(np.float64)
            if np.abs(v).sum(dtype=np.float64) <= radius:
                assert np.array_equal(p, v)
                continue
            eps = np.finfo(dtype).eps
            assert abs(np.abs(p).sum() - radius) <= 8 * eps * radius * np.sqrt(n)
            theta = (np.abs(v) - np.abs(p))[p != 0]
            assert np.ptp(theta) <= 8 * eps * np.abs(v).max()
            assert (np.abs(v)[p == 0] <= theta.min() + 8 * eps * np.abs(v).max()).all()


def test_values_are_not_lost_to_overflow():
    assert_allclose(L2Ball(1.0).prox(np.full(4, 1e300), 1.0), 0.5)
    assert L2Ball(1.0).prox(np.array([-1e300, 0.0]), 1.0).tolist() == [-1.0, 0.0]
    assert L1Ball(1.0, np.array([0.0, 3.0])).prox(np.array([2.0, -2.037253404862695e37]), 1.0)[0] == 2.0
    assert_allclose(L2Ball(1e-310).prox(np.full(4, 1e-200), 1.0), 0.5e-310, rtol=1e-6)
    assert_allclose(L2(1.0).prox(np.full(4, 1e-200), 1e-200), 0.5e-200)
    psi = regularizers.GroupLasso(1.0, groups=[0, 0, 1, 1], weights=[1.0, 1.0])
    for size in (1e-200, 1e200):
        assert L2(1.0).value(np.full(4, size)) == pytest.approx(2 * size, abs=0.0)
        p = psi.prox(size * np.array([30.0, 40.0, 3.0, 4.0]), 2.5 * size)
        assert_allclose(p, size * np.array([28.5, 38.0, 1.5, 2.0]))
    psi = regularizers.SparseGroupLasso(1.5e-323, [2, 1, 0, 2], 0.505804771783364, [0.0, 1.0, 1.0])
    assert not np.signbit(psi.prox(np.array([-1.5e-323, 1.5e-323, 1.5e-323, 0.0]), 1.0)).any()


LIGHT_AND_HEAVY = [
    # The heavy coordinate becomes 0 exactly where the sum of the light ones is the radius.
    ([1e8, 1.0, 0.5, 0.5, 0.5], [-1.0, 0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 0.0, 2.0 - 5e-9, 2.0 - 5e-9]),
    ([1e8, 0.5], [1.0, -4.0], [0.0, 5e-9 - 4.0]),
    # The largest, less itself, is a rounding below 0.
    ([0.3, 0.7], [7e18, -1e18], [2.0 / 0.3, 0.0]),
]


@pytest.mark.parametrize(("weights", "v", "expected"), LIGHT_AND_HEAVY)
@pytest.mark.parametrize("scale", [1e-300, 1.0, 1e160])
def test_the_weighted_l1_ball_keeps_light_and_heavy_coordinates_apart(weights, v, expected, scale):
    point = L1Ball(2.0 * scale, weights=np.array(weights)).prox(scale * np.array(v), 1.0)
    assert_allclose(point, scale * np.array(expected), rtol=1e-14, atol=1e-14 * scale)


@pytest.mark.parametrize("weights", [None, np.array([4.0, 4.0])])
def test_values_are_right_where_squares_leave_the_range_of_floats(weights):
    times = 1.0 if weights is None else 4.0
    for size, strength, half in ((1e200, 1e-250, 1e150), (1e-200, 1e250, 1e-150), (1e-165, 1e300, 1e-30)):
        w = np.array([size, -size])
        assert L2Squared(strength, weights=weights).value(w) == pytest.approx(times * half, rel=1e-13)
        assert ElasticNet(strength, 0.0, weights=weights).value(w) == pytest.approx(times * half, rel=1e-13)
    for psi in (L1(0.0, weights=weights), L2Squared(0.0, weights=weights), ElasticNet(0.0, 0.3, weights=weights)):
        assert psi.value(np.array([1.7e308, 1.7e308])) == 0.0
    assert np.isnan(L2Squared(1.0, weights=weights).value(np.array([np.nan, 1.0])))


# --- singular values --------------------------------------------------------------------------------------------------


def with_singular_values(m, n, values, seed=0):
    rng = np.random.default_rng(seed)
    left = np.linalg.qr(rng.normal(size=(m, len(values))))[0]
    right = np.linalg.qr(rng.normal(size=(n, len(values))))[0]
    return left, np.asarray(values, dtype=float), right.T


@pytest.mark.parametrize(("m", "n"), [(20, 20), (60, 12), (12, 60), (200, 180)])
@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4, 1e6, 1e8])
def test_the_smallest_kept_singular_value_is_accurate(m, n, condition):
    left, values, right = with_singular_values(m, n, np.geomspace(1.0, 1.0 / condition, 8))
    threshold = 0.25 / condition
    exact = (left * (values - threshold)) @ right
    got = Nuclear(1.0).prox((left * values) @ right, threshold)
    assert numerical_rank(got) == 8
    # A matrix product in float64 knows the matrix to eps sigma_1, so its singular values to eps * condition.
    limit = max(1e-9, 1e-14 * condition)
    assert abs(np.linalg.svd(got, compute_uv=False)[7] / (values[-1] - threshold) - 1) <= limit
    assert np.linalg.norm(got - exact) <= 1e-12 * np.linalg.norm(exact) + 1e-15


@pytest.mark.parametrize(("m", "n"), [(1, 1), (1, 7), (32, 32), (60, 20), (20, 60), (200, 160)])
@pytest.mark.parametrize("quantile", [0.0, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("size", [1e-200, 1.0, 1e200])
def test_the_rank_is_the_numerical_rank_after_the_wire_too(m, n, quantile, size):
    rng = np.random.default_rng(1)
    low_rank = rng.normal(size=(m, 4)) @ rng.normal(size=(4, n)) / np.sqrt(m)
    v = size * (low_rank + 0.05 * rng.normal(size=(m, n)))
    threshold = np.quantile(np.linalg.svd(v, compute_uv=False), quantile) * (1 + 1e-9)
    layout = Layout.from_arrays({"w": v})
    for psi in (Nuclear(1.0), Nuclear(1.0, bound=1.5 * threshold), NuclearBall(3 * threshold), SpectralBall(threshold)):
        wire = np.frombuffer(layout.flatten({"w": psi.prox(v, threshold)}).tobytes())
        kept = psi.of_values().prox(np.linalg.svd(v, compute_uv=False), threshold)
        assert numerical_rank(layout.views(wire)["w"]) == (kept > noise_of(kept.max(), v.shape)).sum()


def test_rounding_above_a_threshold_is_no_rank_and_float32_is_widened():
    left, values, right = with_singular_values(40, 40, [3.0, 1.0 + 1e-15, 1.0, 1.0 - 1e-15, 0.5])
    assert numerical_rank(Nuclear(1.0).prox((left * values) @ right, 1.0)) == 1
    assert not Nuclear(1.0).prox(np.eye(5), 1.0).any()
    left, values, right = with_singular_values(50, 30, np.geomspace(1.0, 1e-4, 6))
    v = ((left * values) @ right).astype(np.float32)
    exact, got = (Nuclear(1.0).prox(own, 5e-5) for own in (v.astype(np.float64), v))
    assert got.dtype == np.float32
    assert_array_equal(got, exact.astype(np.float32))


def test_nan_and_infinity_are_not_hidden():
    for bad in (np.nan, np.inf):
        v = np.where(np.eye(3, k=2), bad, np.eye(3))
        for psi in (Nuclear(1.0), NuclearBall(1.0), SpectralBall(0.5)):
            assert np.isnan(psi.prox(v, 1.0)).all()
            assert not psi.value(v) < np.inf
    # Nor is that a formula overflows where a run diverges: it is no formula that writes nothing.
    assert np.isnan(Returning(returns=False).prox(np.full(2, 1e200), 1.0)).all()


@pytest.mark.parametrize(("m", "n"), [(3, 8), (20, 20), (40, 12), (160, 170)])
@pytest.mark.parametrize("condition", [2.0, 300.0])
def test_a_proximal_point_is_within_its_bound(m, n, condition):
    """By the cheap method too, whose singular vectors are orthogonal to eps * condition^2 only."""
    left, values, right = with_singular_values(m, n, np.geomspace(condition, 1.0, min(m, n)))
    psi = Nuclear(1.0, bound=0.1)
    p = psi.prox((left * values) @ right, 0.7)
    assert psi.value(p) == pytest.approx(0.1 * min(m, n), rel=1e-12)
    assert_allclose(p, 0.1 * left @ right, rtol=0, atol=1e-9)


# --- arguments --------------------------------------------------------------------------------------------------------

NAN, INF = np.nan, np.inf
VECTOR = Layout.from_arrays({"w": np.zeros(3)})
TENSOR = Layout.from_arrays({"w": np.zeros((2, 3, 4))})
EVERYWHERE = PerParameter({"*": L1(1.0)})
SPEC = L1(1.0).to_spec()


@dataclass(frozen=True)
class Rewarding(regularizers.Separable):
    kind = "test-rewarding"
    own: tuple

    def terms(self):
        return self.own


@dataclass(frozen=True)
class Returning(regularizers.Regularizer):
    kind = "test-returning"
    returns: bool = True

    def value(self, w):
        return 0.0

    def solve(self, v, step, out):
        return v if self.returns else None


WRONG = [
    *(
        (rf"{cls.__name__}\.(strength|radius)=", cls, number)
        for cls in (L1, L2Squared, ElasticNet, Nuclear, L1Ball, L2Ball, Simplex)
        for number in (-1.0, NAN, INF, True, "1", None, np.array([1.0, 2.0]))
    ),
    (r"L1Ball\.radius=0", L1Ball, 0.0),
    *(
        (r"L1\(weights=", lambda own: L1(1.0, weights=own), weights)
        for weights in ([-1.0], [NAN], [INF], ["a"], [True, False], [[1.0], [1.0, 2.0]])
    ),
    (r"weights of shape \(2,\).*'w' of shape \(3,\)", L1(1.0, weights=np.ones(2)).bind, VECTOR),
    *(("empty", Box, *ends) for ends in ((1.0, 0.0), ([0.0, 2.0], 1.0), (INF, INF), (-INF, -INF))),
    (r"'w' has shape \(3,\)", Nuclear(1.0).bind, VECTOR),
    ("reshape='first'", Nuclear(1.0).bind, TENSOR),
    ("reshape='rows'", lambda: Nuclear(1.0, reshape="rows")),
    ("l1_ratio", ElasticNet(1.0, 0.0).strength_max, np.ones(3)),
    ("l1_ratio", ElasticNet, 1.0, 1.5),
    ("named arrays", EVERYWHERE.prox, np.zeros(3), 1.0),
    ("scope='each'", lambda: EVERYWHERE.bind(VECTOR, scope="joint")),
    *(("PerParameter", PerParameter, own) for own in ({}, {"a": 1.0}, {1: Zero()}, [Zero()], {"a": EVERYWHERE})),
    # Misspelt, or hidden by an earlier one, a pattern would silently solve another problem.
    (r"PerParameter: the patterns \['v\*'\] match no array", PerParameter({"w": L1(1.0), "v*": L1(2.0)}).bind, VECTOR),
    (r"PerParameter: the patterns \['w'\] match no array", PerParameter({"*": L1(1.0), "w": L1(2.0)}).bind, VECTOR),
    ("strength", regularizers.Regularizer.from_spec, SPEC._replace(header={**SPEC.header, "strength": -1.0})),
    *(
        ("expected an array, the number of each", lambda own, cls=cls: cls(1.0, own), groups)
        for cls in (regularizers.GroupLasso, regularizers.SparseGroupLasso)
        for groups in ([[0, 1, 2], [3]], ([0, 2, 4], [1, 3, 5]), [np.array([0, 3]), np.array([1, 2])])
    ),
    ("conjugate of HardSparsity", regularizers.HardSparsity(2).conjugate, np.ones(2)),
    # A psi of one's own that is not convex or writes nothing.
    (r"Rewarding.terms\(\) has threshold -0.2; expected numbers >= 0", Rewarding(Terms([0.1, 0.3, -0.2])).bind, VECTOR),
    ("has shrinkage nan; expected numbers >= 0", Rewarding(Terms(shrinkage=NAN)).bind, VECTOR),
    ("has lower > upper, or NaN; expected lower <= upper", Rewarding(Terms(lower=1.0, upper=0.0)).bind, VECTOR),
    (r"Rewarding.terms\(\) returned \(0.1, 0.0\); expected Terms", Rewarding((0.1, 0.0)).bind, VECTOR),
    ("Returning.solve left NaN in `out`; expected None, and", Returning(returns=False).prox, np.ones(2), 1.0),
    (r"Returning.solve returned an ndarray; expected None, and", Returning().prox, np.ones(2), 1.0),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case[0])
def test_what_is_no_regularizer_is_refused(case):
    refused(*case)


def test_per_parameter():
    layout = Layout.from_arrays({"a.weight": np.zeros((2, 2)), "b.weight": np.zeros((2, 2)), "c": np.zeros((1, 2))})
    psi = PerParameter({"a.*": L1(1.0), "*.weight": L1Ball(1.0)})
    assert [psi.for_array(name) for name in layout.shapes] == [L1(1.0), L1Ball(1.0), None]
    v = np.random.default_rng(0).normal(size=layout.size)
    expected = np.r_[L1(1.0).prox(v[:4], 0.5), L1Ball(1.0).prox(v[4:8], 0.5), v[8:]]
    assert_array_equal(psi.bind(layout).prox(v, 0.5), expected)
    copy = regularizers.Regularizer.from_spec(psi.to_spec())
    assert (copy, hash(copy)) == (psi, hash(psi))
    assert PerParameter({"*.weight": L1Ball(1.0), "a.*": L1(1.0)}) != psi
    assert PerParameter({"a": L1(1.0, weights=[1.0, 2.0])}) == PerParameter({"a": L1(1.0, weights=[1.0, 2.0])})


def test_a_point_out_of_a_constraint_has_an_infinite_value():
    for psi, inside, out in (
        (L1Ball(1.0), [0.5, -0.5], [0.5, -0.51]),
        (L2Ball(1.0), [0.6, -0.8], [0.6, -0.81]),
        (Simplex(), Simplex().prox(np.zeros(30_000), 0.0), [1.5, -0.5]),
        (Simplex(), [1.0, 0.0], [0.5, 0.4]),
        # A bound holds in the user's precision.
        (Box(-0.1, 0.1).bind(Layout.from_arrays({"w": np.float32([0, 0])})), [float(np.float32(0.1)), 0], [0.11, 0]),
    ):
        assert psi.value(np.array(inside)) == 0.0
        assert psi.value(np.array(out)) == psi.value(np.array([NAN, 0.0])) == INF


def test_conjugates_at_the_ends_of_their_domains():
    of_x = PerParameter({"x": Box(-1.0, 1.0)}).bind(BilinearSaddle([[1.0]]).layout)
    for psi, v, value in (
        (L1(1.0), [0.5, 1.5], INF),
        # Rounding does not leave the domain.
        (L1(1.0), [1.0 + 5e-13, -1.0], 0.0),
        (Nuclear(1.0), np.diag([0.5, 1.5]), INF),
        (regularizers.NonNegative(), [-1.0, 1e-3], INF),
        (L1Ball(1.0, weights=np.array([1.0, 0.0])), [1.0, 0.5], INF),
        (of_x, [2.0, 0.0], 2.0),
        (of_x, [2.0, 0.1], INF),
    ):
        assert psi.conjugate(np.array(v)) == value


# --- operators of other libraries ------------------------------------------------------------------------------------


def test_a_name_is_of_one_operator_which_both_apps_know():
    (psi,) = (own for own, _ in EXAMPLES if getattr(own, "name", "") == "test-huber")
    assert regularizers.Regularizer.from_spec(psi.to_spec()) == psi
    refused("taken", regularizers.Adapter.register, "test-huber", L1)
    refused(r"known here: .*test-huber.*both ServerApp and ClientApp", regularizers.Adapter, name="test-hubert")
    regularizers.Adapter.register("test-no-operator", type("Factory", (), {"__call__": lambda self: 3})())
    refused("Adapter", regularizers.Adapter, "test-no-operator", {})


def test_operators_of_pyproximal():
    regularizers.Adapter.register("test-ball", pytest.importorskip("pyproximal").L1Ball)
    v = np.random.default_rng(1).normal(size=20)
    ball = regularizers.Adapter("test-ball", {"n": 20, "radius": 1.0})
    assert_allclose(ball.prox(v, 0.7), L1Ball(1.0).prox(v, 0.7), atol=1e-5)
    assert (ball.value(v), ball.value(np.zeros(20))) == (np.inf, 0.0)


# --- sparsity ---------------------------------------------------------------------------------------------------------

ROWS = st.lists(st.integers(-3, 3), min_size=4, max_size=4)


@given(st.lists(ROWS, min_size=1, max_size=3), st.integers(1, 4))
def test_no_choice_of_n_is_nearer_and_of_equal_ones_the_first_stay(rows, n):
    v = np.array(rows, dtype=np.float64)
    for row, kept in zip(v, regularizers.NofM(n, 4).prox(v, 1.0), strict=True):
        # The first of the best choices keeps the first entries.
        best = max(itertools.combinations(range(4), n), key=lambda choice: np.square(row[list(choice)]).sum())
        distance = np.square(row).sum() - np.square(row[list(best)]).sum()
        assert np.square(row - kept).sum() == pytest.approx(distance)
        smallest = np.abs(row[kept != 0]).min(initial=np.inf)
        dropped = np.flatnonzero((kept == 0) & (np.abs(row) == smallest))
        chosen = np.flatnonzero((kept != 0) & (np.abs(row) == smallest))
        assert not dropped.size or not chosen.size or chosen.max() < dropped.min()
        hard = regularizers.HardSparsity(n).prox(row, 1.0)
        assert np.count_nonzero(hard) <= n
        assert np.square(row - hard).sum() == pytest.approx(distance)
        assert_array_equal(regularizers.HardSparsity(n + 4).prox(row, 1.0), row)
    # A formula of one's own takes the place of the class's.
    assert type("Own", (regularizers.HardSparsity,), {"solve": lambda *given: given[3].fill(7.0)})(n).prox(v, 1.0).all()


def test_a_kernel_is_read_along_its_input_channels_if_it_has_enough():
    kernel = np.random.default_rng(0).normal(size=(5, 8, 3, 2))
    result = regularizers.NofM(1, 4).prox(kernel, 1.0)
    for out, x, y in itertools.product(range(5), range(3), range(2)):
        expected = regularizers.NofM(1, 4).prox(kernel[out, :, x, y][None].copy(), 1.0)[0]
        assert_array_equal(result[out, :, x, y], expected)
    assert regularizers.NofM(1, 4).value(result) == 0.0
    assert regularizers.NofM(1, 4).value(kernel) == np.inf
    few = np.ones((5, 3, 2, 2))
    assert_array_equal(regularizers.NofM(2, 4).prox(few, 1.0), few)
    assert regularizers.NofM(2, 4).value(few) == 0.0
    for shape, words in (((8,), "second axis of matrices"), ((3, 30), r"30 inputs, no multiple of 4; leave it whole")):
        refused(words, regularizers.NofM(2, 4).prox, np.zeros(shape), 1.0)
    with_nan = np.array([[np.nan, 1.0, 3.0, 2.0]])
    assert_array_equal(regularizers.NofM(1, 4).prox(with_nan, 1.0), [[np.nan, 0.0, 3.0, 0.0]])


# --- the checker ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken(regularizers.Regularizer):
    """An l1 norm with one fault at a time."""

    kind: ClassVar[str] = "test-broken"
    fault: str

    def value(self, w):
        return None if self.fault == "no value" else np.abs(w).sum() * (2.0 if self.fault == "value" else 1.0)

    def prox(self, v, step, out=None):
        soft = L1(1.0).prox(v, step * (1.001 if self.fault == "step" else 1.0))
        if self.fault == "-0.0":
            soft = np.where(soft == 0, -0.0, soft).astype(v.dtype)
        if self.fault == "nan":
            soft = np.nan_to_num(soft)
        if self.fault == "expansive":
            soft *= v.dtype.type(1.01)
        if out is None or self.fault == "out":
            return soft
        if self.fault == "in place":
            out[:] = 0.0
            soft = out + L1(1.0).prox(v, step)
        out[...] = soft
        return out


@pytest.mark.parametrize("fault", ["no value", "value", "step", "-0.0", "nan", "expansive", "out", "in place"])
def test_the_checker_finds_every_fault(fault):
    check_regularizer(Broken("none"))
    refused("Broken", check_regularizer, Broken(fault), kind=AssertionError)
