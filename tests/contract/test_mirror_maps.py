"""The contract of a mirror map, for every class that `flwr_fco.mirror_maps.__all__` exports."""

import inspect
import pickle

import numpy as np
import pytest

import flwr_fco.mirror_maps as package
from flwr_fco.core.layout import Layout
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap, PNorm, Product, SimplexEntropy
from flwr_fco.regularizers import L1, Box, L1Ball, PerParameter, Simplex, Zero
from flwr_fco.testing import REGULARIZERS, check_mirror_map, check_pair

DIMENSION = 8
LAYOUT = Layout.from_arrays({"x": np.zeros(3), "y": np.zeros((2, 2)), "intercept": np.zeros(1)}, apply_to=["x", "y"])
CENTER = np.linspace(-1.0, 2.0, DIMENSION)
CENTER[2] = 0.0
#: Of duals.
EVERY_SIZE = (1e-300, 1e-150, 1e150, 1e300)

#: At least one of each class.
EXAMPLES = [
    Euclidean(),
    PNorm(2.0),
    PNorm(2.5),
    PNorm(3.0),
    PNorm(12.0),
    PNorm.for_dimension(1024),
    PNorm(4.0, radius=0.8),
    PNorm(4.0, center=CENTER),
    PNorm(12.0, center=CENTER, radius=1.5),
    DiagonalMetric(np.geomspace(0.1, 10.0, DIMENSION)),
    SimplexEntropy(),
    SimplexEntropy(3.0),
    Product({"x": SimplexEntropy(), "y": PNorm(4.0), "*": Euclidean()}).bind(LAYOUT),
]
CLASSES = [
    value
    for name in package.__all__
    if inspect.isclass(value := getattr(package, name))
    and issubclass(value, MirrorMap)
    and not inspect.isabstract(value)
]


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_exported_class_has_an_example_and_a_name(cls):
    known = {type(example) for example in EXAMPLES} | {Product}
    assert cls in known, f"add {cls.__name__} to EXAMPLES"
    assert cls.kind
    assert cls.kind == cls.kind.lower()
    assert "_" not in cls.kind


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("mirror_map", EXAMPLES)
def test_contract(mirror_map, seed):
    product = isinstance(mirror_map, package.BoundProduct)
    regularizers = [psi.bind(LAYOUT) if product else psi for psi in REGULARIZERS]
    check_mirror_map(mirror_map, dimension=DIMENSION, seed=seed, regularizers=regularizers)


@pytest.mark.parametrize("mirror_map", EXAMPLES)
def test_duals_of_every_size_have_finite_points_in_their_direction(mirror_map):
    for scale in EVERY_SIZE:
        for z in np.random.default_rng(0).normal(size=(3, DIMENSION)):
            w = mirror_map.conjugate_gradient(scale * z)
            assert np.isfinite(w).all(), scale
            assert z @ (w - mirror_map.start(DIMENSION)) >= -1e-12 * np.abs(w).max(), scale


@pytest.mark.parametrize("mirror_map", EXAMPLES)
def test_bound_regularizers_leave_the_other_arrays_to_the_map_alone(mirror_map):
    """On a model with an intercept: pairs stay minimisers, and psi says nothing about the intercept."""
    weights = np.array([0.0, 2.0, 0.5])
    per_parameter = PerParameter({"x": L1(0.2, weights=weights), "y": Box(-0.5, 0.6)})
    for psi in (L1(0.3), L1Ball(1.2), per_parameter, PerParameter({"x": Simplex(0.5)}), Zero()):
        check_pair(mirror_map, psi.bind(LAYOUT), DIMENSION)


@pytest.mark.parametrize("mirror_map", EXAMPLES)
def test_single_element(mirror_map):
    if getattr(mirror_map, "center", None) is not None:
        mirror_map = PNorm(mirror_map.p, center=np.ones(1), radius=mirror_map.radius)
    if isinstance(mirror_map, DiagonalMetric):
        mirror_map = DiagonalMetric(np.full(1, 3.0))
    if isinstance(mirror_map, package.BoundProduct):
        pytest.skip("has as many elements as its arrays")
    check_mirror_map(mirror_map, dimension=1)
    for scale in EVERY_SIZE:
        assert np.isfinite(mirror_map.conjugate_gradient(np.array([scale]))).all()


@pytest.mark.parametrize("mirror_map", EXAMPLES)
@pytest.mark.filterwarnings("error")
def test_adversarial_duals_stay_finite_and_feasible(mirror_map):
    ramp = np.arange(1.0, DIMENSION + 1.0)
    largest = EVERY_SIZE[-1]
    duals = {
        "zeros": np.zeros(DIMENSION),
        "minus zeros": -np.zeros(DIMENSION),
        "ties": np.resize([1.0, -1.0, 1.0, 0.5], DIMENSION),
        "huge ties": np.full(DIMENSION, -largest),
        "huge": largest / 100 * ramp,
        "tiny": 1e-300 * ramp,
        "denormal": 5e-324 * ramp,
        "mixed": np.resize([largest, 1e-150, 0.0, -largest, 5e-324, 1.0], DIMENSION),
    }
    product = isinstance(mirror_map, package.BoundProduct)
    for psi in REGULARIZERS:
        regularizer = psi.bind(LAYOUT) if product else psi
        if not mirror_map.supports(regularizer):
            continue
        for name, z in duals.items():
            for t in (0.0, 1e-3, 1e6):
                w = mirror_map.retrieve(z, t, regularizer)
                assert np.isfinite(w).all(), (psi, name, t, w)
                assert not np.isnan(regularizer.value(w)), (psi, name, t, w)
                if psi.constraint:
                    assert regularizer.value(w) == 0.0, (psi, name, t, w)


@pytest.mark.parametrize("mirror_map", EXAMPLES)
def test_pickle_and_strided_and_read_only_duals(mirror_map):
    z = np.random.default_rng(0).normal(size=DIMENSION)
    expected = mirror_map.conjugate_gradient(z)
    twin = pickle.loads(pickle.dumps(mirror_map)) if mirror_map.kind else mirror_map
    assert twin == mirror_map
    assert hash(twin) == hash(mirror_map)
    assert twin != PNorm(5.0)
    assert np.array_equal(twin.conjugate_gradient(np.repeat(z, 2)[::2]), expected)
    z.setflags(write=False)
    assert np.array_equal(twin.conjugate_gradient(z), expected)
    if not isinstance(mirror_map, package.BoundProduct):
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
