"""Mirror maps against hand-worked numbers, and in degenerate cases."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, SpecError, UnsupportedPairError
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, MirrorMap, PNorm, Product, SimplexEntropy
from flwr_fco.regularizers import L1, L2, L1Ball, L2Ball, Nuclear, Simplex, Zero

# ---- Hand-worked numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-300, 1e-160, 1e160, 1e300])
@pytest.mark.parametrize("p", [2.0, 12.0, 13.86])
def test_p_norm_is_homogeneous_at_every_size(p, size):
    z = np.random.default_rng(1).uniform(-1, 1, size=50)
    assert_allclose(
        PNorm(p).conjugate_gradient(size * z) / size, PNorm(p).conjugate_gradient(z), rtol=1e-12, atol=1e-15
    )
    assert_allclose(PNorm(p).gradient(size * z) / size, PNorm(p).gradient(z), rtol=1e-12)
    assert_allclose(
        PNorm(p).retrieve(size * z, size, L1(0.1)) / size, PNorm(p).retrieve(z, 1.0, L1(0.1)), rtol=1e-12, atol=1e-15
    )
    around = (PNorm(p, center=scale * z[::-1], radius=scale).retrieve(scale * z, scale, L1(0.1)) for scale in (1, size))
    plain, scaled = around
    assert_allclose(scaled / size, plain, rtol=1e-11, atol=1e-15)


# ---- Entropy --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
def test_simplex_with_duals_in_the_tens_of_thousands():
    """Softmax of +-3e4 overflows without the shift."""
    z = np.array([3e4, 2e4, 1e4, -1e4, -3e4])
    w = SimplexEntropy().conjugate_gradient(z)
    assert_allclose(w, [1, 0, 0, 0, 0], atol=1e-300)
    assert (w > 0).all()
    assert np.isfinite(SimplexEntropy().gradient(w)).all()
    near = SimplexEntropy().conjugate_gradient(3e4 + np.log([1.0, 3.0]))
    assert_allclose(near, [0.25, 0.75], rtol=1e-11)


def test_points_off_the_domain():
    assert SimplexEntropy().value(np.array([0.5, 0.6])) == np.inf
    assert SimplexEntropy().value(np.array([1.6, -0.6])) == np.inf
    assert SimplexEntropy().value(np.array([0.0, 1.0])) == -1.0
    assert PNorm(3.0, radius=1.0).value(np.array([2.0, 0.0])) == np.inf
    with pytest.raises(ConfigurationError, match=r"sums to 2\.0"):
        SimplexEntropy().gradient(np.ones(2))


# ---- Pairs, arguments, products -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirror_map", [PNorm(3.0), SimplexEntropy(), DiagonalMetric(np.ones(6))])
@pytest.mark.parametrize("psi", [Nuclear(0.1), L2(0.1), L1Ball(1.0), L2Ball(1.0), Simplex(2.0)])
def test_unsupported_pairs_name_both_and_what_would_work(mirror_map, psi):
    assert not mirror_map.supports(psi)
    assert mirror_map.never_supports(psi)
    for call in (mirror_map.require, lambda psi: mirror_map.retrieve(np.zeros(6), 1.0, psi)):
        with pytest.raises(
            UnsupportedPairError, match=rf"{type(mirror_map).__name__} .*{type(psi).__name__}.*L1.*Euclidean"
        ):
            call(psi)


def test_a_simplex_is_that_of_the_map_or_refused():
    layout = Layout.from_arrays({"w": np.zeros(3), "intercept": np.zeros(1)}, apply_to="w")
    assert SimplexEntropy(2.0).supports(Simplex(2.0))
    assert SimplexEntropy(2.0).supports(Simplex(2.0).bind(Layout.from_arrays({"w": np.zeros(3)})))
    for psi in (Simplex(1.0), Simplex(2.0).bind(layout)):
        with pytest.raises(UnsupportedPairError, match="own radius"):
            SimplexEntropy(2.0).require(psi)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PNorm(1.5), r"PNorm\.p=1.5; expected .*>= 2"),
        (lambda: PNorm(3.0, center=np.array([1.0, np.nan])), "center"),
        (lambda: PNorm(3.0, radius=0.0), "radius=0.0"),
        (lambda: PNorm.for_dimension(0), "positive"),
        (lambda: SimplexEntropy(-1.0), "radius=-1.0"),
        (lambda: DiagonalMetric(np.array([1.0, 0.0])), "> 0"),
        (lambda: Product({}), "non-empty"),
        (lambda: Product({"x": 3.0}), "mirror map"),
        (lambda: DiagonalMetric(np.ones(2)).retrieve(np.zeros(3), 1.0, Zero()), "2 weights.*3"),
        (lambda: PNorm(3.0, center=np.ones(2)).retrieve(np.zeros(3), 1.0, Zero()), "2 elements.*3"),
        (lambda: PNorm(3.0).retrieve(np.zeros(3), 1.0, L1(1.0, weights=np.ones(2))), r"'threshold': \(2,\).*\(3,\)"),
        (lambda: PNorm(3.0).retrieve(np.zeros(3), -1.0, Zero()), "t=-1.0"),
        (lambda: SimplexEntropy().retrieve(np.zeros(3), np.nan, Zero()), "t=nan"),
        (lambda: SimplexEntropy().gradient(np.array([0.5, 0.0, 0.5])), r"coordinate is 0.*interior.*start"),
    ],
)
def test_bad_arguments_say_what_and_why(build, message):
    with pytest.raises(ConfigurationError, match=message):
        build()


def test_a_nan_in_the_dual_stays_visible():
    z = np.array([1.0, np.nan, 0.5])
    for mirror_map in (PNorm(3.0), PNorm(3.0, center=np.ones(3)), SimplexEntropy(), DiagonalMetric(np.ones(3))):
        assert np.isnan(mirror_map.retrieve(z, 1.0, L1(0.1))).any(), mirror_map


class TestProduct:
    layout = Layout.from_arrays({"x": np.zeros(3), "y": np.zeros(2), "y2": np.zeros(2)})

    def test_each_array_has_its_own_psi_and_its_own_reshape(self):
        layout = Layout.from_arrays({"matrix": np.zeros((2, 3)), "vector": np.zeros(3)}, apply_to="matrix")
        product = Product({"matrix": Euclidean(), "*": SimplexEntropy()}).bind(layout)
        z = np.arange(9.0)
        psi = Nuclear(0.5).bind(layout)
        w = product.retrieve(z, 1.0, psi)
        assert_allclose(w[:6].reshape(2, 3), Nuclear(0.5).prox(z[:6].reshape(2, 3), 1.0), rtol=1e-15)
        assert_allclose(w[6:], SimplexEntropy().conjugate_gradient(z[6:]), rtol=1e-15)

    def test_every_array_needs_a_map_and_every_pattern_an_array(self):
        with pytest.raises(ConfigurationError, match=r"no map for the array 'y'"):
            Product({"x": Euclidean()}).bind(self.layout)
        with pytest.raises(ConfigurationError, match=r"\['z'\] match no array"):
            Product({"z": Euclidean(), "*": Euclidean()}).bind(self.layout)
        with pytest.raises(ConfigurationError, match="2 weights"):
            Product({"*": DiagonalMetric(np.ones(2))}).bind(self.layout)

    def test_what_it_refuses(self):
        product = Product({"*": PNorm(3.0)})
        bound = product.bind(self.layout)
        for call in (product.value, product.gradient, product.conjugate_gradient, product.supports):
            with pytest.raises(ConfigurationError, match="bind"):
                call(np.zeros(7))
        with pytest.raises(UnsupportedPairError, match=r"L1.*bind\(layout\)"):
            bound.retrieve(np.zeros(7), 1.0, L1(1.0))
        with pytest.raises(UnsupportedPairError, match="joint"):
            bound.require(L1(1.0).bind(self.layout, scope="joint"))
        with pytest.raises(UnsupportedPairError, match="same layout"):
            bound.require(L1(1.0).bind(Layout.from_arrays({"w": np.zeros(7)})))
        with pytest.raises(UnsupportedPairError, match=r"Product.*L2.*array 'x'.*PNorm"):
            bound.require(L2(1.0).bind(self.layout))
        with pytest.raises(SpecError):
            bound.to_spec()

    def test_it_travels_with_the_arrays_of_its_maps(self):
        product = Product({"x": PNorm(4.0, center=np.arange(3.0)), "*": DiagonalMetric(np.array([1.0, 2.0]))})
        twin = MirrorMap.from_spec(product.to_spec())
        assert twin == product
        z = np.linspace(-1, 1, 7)
        assert np.array_equal(
            twin.bind(self.layout).conjugate_gradient(z), product.bind(self.layout).conjugate_gradient(z)
        )
        assert twin != Product({"*": Euclidean()})
