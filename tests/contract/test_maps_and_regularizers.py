"""The contract of every mirror map and regularizer that is exported; what maps refuse, and products of them."""

import inspect
import pickle
from dataclasses import replace

import numpy as np
import pytest
from examples_of_psi import EXAMPLES
from numpy.testing import assert_allclose
from problems import refused

from flwr_fco import mirror_maps, regularizers
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, SpecError, UnsupportedPairError
from flwr_fco.messages.protocol import Plan
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap, PNorm, Product, SimplexEntropy
from flwr_fco.regularizers import L1, L2, Box, L1Ball, L2Ball, Nuclear, PerParameter, Regularizer, Simplex, Zero
from flwr_fco.testing import REGULARIZERS, check_mirror_map, check_pair, check_regularizer

DIMENSION = 8
LAYOUT = Layout.from_arrays({"x": np.zeros(3), "y": np.zeros((2, 2)), "intercept": np.zeros(1)}, apply_to=["x", "y"])
CENTER = np.linspace(-1.0, 2.0, DIMENSION)
CENTER[2] = 0.0

#: At least one of each class.
MAPS = [
    Euclidean(),
    PNorm(2.0),
    PNorm(2.5),
    PNorm(12.0),
    PNorm.for_dimension(1024),
    PNorm(4.0, radius=0.8),
    PNorm(4.0, center=CENTER),
    PNorm(12.0, center=CENTER, radius=1.5),
    DiagonalMetric(np.geomspace(0.1, 10.0, DIMENSION)),
    SimplexEntropy(),
    SimplexEntropy(3.0),
    Product({"x": SimplexEntropy(), "y": Euclidean(), "*": PNorm(4.0)}).bind(LAYOUT),
]
EACH_MAP = pytest.mark.parametrize("mirror_map", MAPS)


def regularizers_for(mirror_map):
    product = isinstance(mirror_map, mirror_maps.BoundProduct)
    return [psi.bind(LAYOUT) if product else psi for psi in REGULARIZERS]


def test_every_exported_class_has_an_example():
    # PerParameter cannot act on an array without its name; it has tests of its own.
    found = {*map(type, MAPS), Product, *(type(psi) for psi, _ in EXAMPLES), PerParameter}
    for package in (mirror_maps, regularizers):
        exported = {value for name in package.__all__ if inspect.isclass(value := getattr(package, name))}
        assert all(inspect.isabstract(cls) or not issubclass(cls, MirrorMap | Regularizer) for cls in exported - found)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
@EACH_MAP
def test_contract_of_a_map(mirror_map, seed):
    check_mirror_map(mirror_map, dimension=DIMENSION, seed=seed, regularizers=regularizers_for(mirror_map))


@EACH_MAP
def test_bound_regularizers_leave_the_other_arrays_to_the_map_alone(mirror_map):
    """On a model with an intercept: pairs stay minimisers, and psi says nothing about the intercept."""
    weights = np.array([0.0, 2.0, 0.5])
    named = {"x": L1(0.2, weights=weights), "y": Box(-0.5, 0.6)}, {"x": Simplex(0.5)}, {"y": Nuclear(0.5)}
    for psi in (L1(0.3), L1Ball(1.2), Zero(), *map(PerParameter, named)):
        check_pair(mirror_map, psi.bind(LAYOUT), DIMENSION)


@pytest.mark.parametrize("mirror_map", [own for own in MAPS if not isinstance(own, mirror_maps.BoundProduct)])
def test_single_element(mirror_map):
    if getattr(mirror_map, "center", None) is not None:
        mirror_map = PNorm(mirror_map.p, center=np.ones(1), radius=mirror_map.radius)
    if isinstance(mirror_map, DiagonalMetric):
        mirror_map = DiagonalMetric(np.full(1, 3.0))
    check_mirror_map(mirror_map, dimension=1)
    for scale in (1e-300, 1e-150, 1e150, 1e300):
        assert np.isfinite(mirror_map.conjugate_gradient(np.array([scale]))).all()


@EACH_MAP
@pytest.mark.filterwarnings("error")
def test_duals_of_every_size_have_finite_and_feasible_points(mirror_map):
    ramp = np.arange(1.0, DIMENSION + 1.0)
    any_direction = np.random.default_rng(0).normal(size=DIMENSION)
    for z in (
        *adversarial(DIMENSION),
        np.full(DIMENSION, -1e300),
        *(scale * z for z in (ramp, any_direction) for scale in (1e-300, 1e-150, 1e150, 1e298)),
        np.resize([1e300, 1e-150, 0.0, -1e300, 5e-324, 1.0], DIMENSION),
    ):
        w = mirror_map.conjugate_gradient(z)
        assert z / max(np.abs(z).max(), 5e-324) @ (w - mirror_map.start(DIMENSION)) >= -1e-12 * np.abs(w).max(), z
        for psi, bound in zip(REGULARIZERS, regularizers_for(mirror_map), strict=True):
            for t in (0.0, 1e-3, 1e6) if mirror_map.supports(bound) else ():
                w = mirror_map.retrieve(z, t, bound)
                assert np.isfinite(w).all(), (psi, z, t, w)
                assert not np.isnan(bound.value(w)), (psi, z, t, w)
                assert not psi.constraint or bound.value(w) == 0.0, (psi, z, t, w)


@EACH_MAP
def test_pickle_and_strided_and_read_only_duals(mirror_map):
    z = np.random.default_rng(0).normal(size=DIMENSION)
    expected = mirror_map.conjugate_gradient(z)
    twin = pickle.loads(pickle.dumps(mirror_map)) if mirror_map.kind else mirror_map
    assert (twin, hash(twin), twin == PNorm(5.0)) == (mirror_map, hash(mirror_map), False)
    assert np.array_equal(twin.conjugate_gradient(np.repeat(z, 2)[::2]), expected)
    z.setflags(write=False)
    assert np.array_equal(twin.conjugate_gradient(z), expected)
    if not isinstance(mirror_map, mirror_maps.BoundProduct):
        assert np.array_equal(twin.retrieve(np.repeat(z, 2)[::2], 1.0, L1(0.1)), twin.retrieve(z, 1.0, L1(0.1)))


WRONG = {
    "gradient": (lambda self, w: 1.001 * w, "not inverse of gradient"),
    "value": (lambda self, w: 0.499 * float(w @ w), "subgradient|is not <z, w>"),
    "conjugate_gradient": (lambda self, z, out=None: z, "a view of"),
    "retrieve": (lambda self, z, t, psi, out=None: psi.prox(z, 1.001 * t, out), "not the minimiser"),
    "modulus": (lambda self: 1.01, r"or modulus\(\) is too large"),
    "supports": (lambda self, psi: not psi.constraint, "supported=False, but retrieve returns"),
}


@pytest.mark.parametrize("name", WRONG)
def test_the_checker_finds_a_wrong_map(name):
    wrong, message = WRONG[name]
    with pytest.raises(AssertionError, match=message):
        check_mirror_map(type("Wrong", (Euclidean,), {"kind": f"wrong-{name}", name: wrong})(), dimension=DIMENSION)


# --- numbers, arguments and products ----------------------------------------------------------------------------------

MODEL = Layout.from_arrays({"x": np.zeros(3), "y": np.zeros(2), "y2": np.zeros(2)})
FORGETFUL = type("Own", (Euclidean,), {"kind": "own", "retrieve": lambda self, z, t, psi, out=None: psi.prox(z, t)})()


def layout_of(**shapes):
    return Layout.from_arrays({name: np.zeros(shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
@pytest.mark.parametrize("p", [2.0, 12.0, 13.86])
def test_p_norm_is_homogeneous_at_every_size(p, size):
    z = np.random.default_rng(1).uniform(-1, 1, size=50)
    psi = L1(0.1)
    for of, near in (
        (lambda size: PNorm(p).conjugate_gradient(size * z), 1e-12),
        (lambda size: PNorm(p).gradient(size * z), 1e-12),
        (lambda size: PNorm(p).retrieve(size * z, size, psi), 1e-12),
        (lambda size: PNorm(p, center=size * z[::-1], radius=size).retrieve(size * z, size, psi), 1e-11),
    ):
        assert_allclose(of(size) / size, of(1.0), rtol=near, atol=1e-15)


def test_points_off_the_domain_and_duals_that_are_nan():
    for point, value in (([0.5, 0.6], np.inf), ([1.6, -0.6], np.inf), ([0.0, 1.0], -1.0)):
        assert SimplexEntropy().value(np.array(point)) == value
    assert PNorm(3.0, radius=1.0).value(np.array([2.0, 0.0])) == np.inf
    z = np.array([1.0, np.nan, 0.5])
    for mirror_map in (PNorm(3.0), PNorm(3.0, center=np.ones(3)), SimplexEntropy(), DiagonalMetric(np.ones(3))):
        assert np.isnan(mirror_map.retrieve(z, 1.0, L1(0.1))).any(), mirror_map


@pytest.mark.parametrize("mirror_map", [PNorm(3.0), SimplexEntropy(), DiagonalMetric(np.ones(6))])
@pytest.mark.parametrize("psi", [Nuclear(0.1), L2(0.1), L1Ball(1.0), L2Ball(1.0), Simplex(2.0)])
def test_unsupported_pairs_name_both_and_what_would_work(mirror_map, psi):
    assert not mirror_map.supports(psi)
    message = rf"{type(mirror_map).__name__} .*{type(psi).__name__}.*L1.*Euclidean"
    refused(message, mirror_map.require, psi, kind=UnsupportedPairError)
    refused(message, mirror_map.retrieve, np.zeros(6), 1.0, psi, kind=UnsupportedPairError)


def test_a_simplex_is_that_of_the_map_or_refused():
    layout = Layout.from_arrays({"w": np.zeros(3), "intercept": np.zeros(1)}, apply_to="w")
    entropy = SimplexEntropy(2.0)
    assert all(map(entropy.supports, (Simplex(2.0), Simplex(2.0).bind(layout_of(w=3)))))
    for psi in (Simplex(1.0), Simplex(2.0).bind(layout)):
        refused("own radius", entropy.require, psi, kind=UnsupportedPairError)


BROKEN = [
    (lambda: PNorm(1.5), r"PNorm\.p=1.5; expected .*>= 2"),
    (lambda: PNorm(3.0, center=np.array([1.0, np.nan])), "center"),
    (lambda: PNorm(3.0, radius=0.0), "radius=0.0"),
    (lambda: SimplexEntropy(-1.0), "radius=-1.0"),
    (lambda: DiagonalMetric(np.array([1.0, 0.0])), "> 0"),
    (lambda: Product({}), "non-empty"),
    (lambda: Product({"x": 3.0}), "mirror map"),
    (lambda: Plan("any", MODEL, L1(1.0), FORGETFUL).point(np.ones(7), 0.0, np.ones(7)), "expected `out`, with"),
    (lambda: DiagonalMetric(np.ones(2)).retrieve(np.zeros(3), 1.0, Zero()), "2 elements.*3"),
    (lambda: PNorm(3.0, center=np.ones(2)).retrieve(np.zeros(3), 1.0, Zero()), "2 elements.*3"),
    (lambda: PNorm(3.0).retrieve(np.zeros(3), -1.0, Zero()), "t=-1.0"),
    (lambda: SimplexEntropy().retrieve(np.zeros(3), np.nan, Zero()), "t=nan"),
    (lambda: SimplexEntropy().gradient(np.array([0.5, 0.0, 0.5])), r"coordinate is 0.*interior.*start"),
    (lambda: SimplexEntropy().gradient(np.ones(2)), r"sums to 2\.0"),
    (lambda: Product({"x": Euclidean()}).bind(MODEL), r"no map for the array 'y'"),
    (lambda: Product({"z": Euclidean(), "*": Euclidean()}).bind(MODEL), r"\['z'\] match no array"),
    (lambda: Product({"*": DiagonalMetric(np.ones(2))}).bind(MODEL), "2 elements"),
    *(
        (lambda ask=ask: getattr(Product({"*": PNorm(3.0)}), ask)(np.zeros(7)), "bind")
        for ask in ("value", "gradient", "conjugate_gradient", "supports")
    ),
]


@pytest.mark.parametrize(("build", "message"), BROKEN)
def test_bad_arguments_say_what_and_why(build, message):
    refused(message, build)


# --- products ---------------------------------------------------------------------------------------------------------


def test_what_a_bound_product_refuses():
    bound = Product({"*": PNorm(3.0)}).bind(MODEL)
    refused(r"L1.*bind\(layout\)", bound.retrieve, np.zeros(7), 1.0, L1(1.0), kind=UnsupportedPairError)
    for psi, message in (
        (L1(1.0).bind(MODEL, scope="joint"), "joint"),
        (L1(1.0).bind(layout_of(w=7)), "same layout"),
        (L2(1.0).bind(MODEL), r"Product.*L2.*array 'x'.*PNorm"),
    ):
        refused(message, bound.require, psi, kind=UnsupportedPairError)
    refused("", bound.to_spec, kind=SpecError)


# --- regularizers -----------------------------------------------------------------------------------------------------

EACH = pytest.mark.parametrize(("regularizer", "shape"), EXAMPLES)
CONVEX = [own for own in EXAMPLES if own[0].convex and not isinstance(own[0], regularizers.Adapter)]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
@EACH
def test_contract_of_a_regularizer(regularizer, shape, seed):
    check_regularizer(regularizer, shape=shape, seed=seed)


def adversarial(n):
    """Points at which implementations break: zeros, ties, huge, tiny, denormal, mixed magnitudes."""
    ramp = np.arange(1, n + 1, dtype=float)
    yield from (np.zeros(n), -np.zeros(n), np.full(n, 0.25), np.full(n, -1e200))
    yield from (scale * ramp for scale in (1e150, 1e-200, 5e-324))
    yield np.resize([1.0, -1.0, 1.0, 0.5], n)
    yield np.resize([1e150, 1e-150, 0.0, -1e150, 5e-324, 1.0], n)


@EACH
@pytest.mark.parametrize("step", [1e-6, 1.0, 1e6])
@pytest.mark.filterwarnings("error")
def test_adversarial_inputs_stay_finite_and_feasible(regularizer, shape, step):
    for v in adversarial(int(np.prod(shape))):
        v = v.reshape(shape)
        p = regularizer.prox(v, step)
        assert np.isfinite(p).all(), v
        assert not np.signbit(p[p == 0]).any(), v
        assert not np.isnan(regularizer.value(p)), v
        assert not regularizer.constraint or regularizer.value(p) == 0.0, v
        assert np.array_equal(regularizer.prox(v.copy(), step, out := v.copy()), out)
        in_place = v.copy()
        assert np.array_equal(regularizer.prox(in_place, step, in_place), p), v


@EACH
def test_strided_and_read_only_arrays(regularizer, shape):
    v = np.random.default_rng(4).normal(size=shape)
    expected = regularizer.prox(v, 0.5)
    strided = np.asfortranarray(v) if v.ndim > 1 else np.repeat(v, 2)[::2]
    assert np.array_equal(regularizer.prox(strided, 0.5), expected)
    out = np.empty((*shape, 2))[..., 0]
    assert regularizer.prox(v, 0.5, out) is out
    assert np.array_equal(out, expected)
    v.setflags(write=False)
    assert np.array_equal(regularizer.prox(v, 0.5), expected)


@pytest.mark.parametrize(("regularizer", "shape"), CONVEX)
def test_subgradient_inequality(regularizer, shape):
    """psi(x) >= psi(w) + <s, x - w> for the subgradient s at w."""
    rng = np.random.default_rng(5)
    for _ in range(5):
        w = regularizer.prox(rng.normal(size=shape), 0.3)
        s = regularizer.subgradient(w)
        assert (s.shape, regularizer.subgradient(w.astype(np.float32)).dtype) == (w.shape, np.float32)
        for x in rng.normal(size=(5, *shape)):
            assert regularizer.value(x) >= regularizer.value(w) + np.sum(s * (x - w)) - 1e-12


@pytest.mark.parametrize(("regularizer", "shape"), CONVEX)
def test_a_conjugate_is_fenchels(regularizer, shape):
    """With p = prox(u) the vector (u - p)/s is a subgradient at p: psi(p) + psi*(v) = <p, v>; elsewhere at least."""
    rng = np.random.default_rng(0)
    for step in (0.3, 2.0):
        u = rng.normal(size=shape)
        p = regularizer.prox(u, step)
        # Of an unbounded norm v lies on the boundary of where psi* is finite: rounding may push it outside.
        v = (1.0 - 1e-12) * (u - p) / step
        conjugate = regularizer.conjugate(v)
        assert regularizer.value(p) + conjugate == pytest.approx(float(np.vdot(p, v)), abs=1e-10)
        for _ in range(10):
            other = regularizer.prox(rng.normal(size=shape), 0.5)
            assert regularizer.value(other) + conjugate >= float(np.vdot(other, v)) - 1e-12
        scaling = regularizer.largest_scaling(u)
        if 0.0 < scaling < np.inf:
            assert regularizer.conjugate((1.0 - 1e-6) * scaling * u) < np.inf
            assert regularizer.conjugate((1.0 + 1e-6) * scaling * u) == np.inf


@EACH
def test_strength_max_is_the_threshold_of_zero(regularizer, shape):
    """At strength_max prox(-gradient) is 0, just below it is not."""
    gradient = np.random.default_rng(7).normal(size=shape)
    weights = getattr(regularizer, "weights", None)
    if weights is not None:
        weights = weights[regularizer.groups] if hasattr(regularizer, "groups") else weights
        gradient = np.where(np.broadcast_to(weights, shape) == 0, 0.0, gradient)
    try:
        strength = regularizer.strength_max(gradient)
    except ConfigurationError as error:
        assert type(regularizer).__name__ in str(error)  # noqa: PT017
        return
    assert not replace(regularizer, strength=strength * (1 + 1e-12)).prox(-gradient, 1.0).any()
    assert replace(regularizer, strength=strength * (1 - 1e-6)).prox(-gradient, 1.0).any()


@EACH
def test_arguments_are_looked_at_and_a_copy_is_equal(regularizer, shape):
    refused("step", regularizer.prox, np.zeros(shape), True)
    refused("out", regularizer.prox, np.zeros(shape), 1.0, np.zeros(shape, dtype=np.float32))
    twin = pickle.loads(pickle.dumps(regularizer))
    assert (twin, hash(twin)) == (regularizer, hash(regularizer))
    assert twin != Zero() or isinstance(regularizer, Zero)


@EACH
def test_bound_to_a_model(regularizer, shape):
    """On the flat vector of a model psi acts on its array and leaves the others alone."""
    layout = Layout.from_arrays({"before": np.zeros(2), "w": np.zeros(shape), "after": np.zeros(3)}, apply_to="w")
    bound = regularizer.bind(layout)
    v = np.random.default_rng(8).normal(size=layout.size)
    p = bound.prox(v, 0.5)
    own = regularizer.prox(v[2:-3].reshape(shape), 0.5)
    assert np.array_equal(p, np.r_[v[:2], own.ravel(), v[-3:]])
    assert bound.value(p) == regularizer.value(own)
    assert np.array_equal(bound.prox(v, 0.5, v), p)
