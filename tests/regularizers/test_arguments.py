"""Bad arguments are refused with a message that says what was wrong and what was expected."""

from dataclasses import dataclass

import numpy as np
import pytest

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, SpecError
from flwr_fco.objectives import BilinearSaddle
from flwr_fco.regularizers import (
    L1,
    Box,
    ElasticNet,
    GroupLasso,
    HardSparsity,
    L1Ball,
    L2Ball,
    L2Squared,
    NonNegative,
    Nuclear,
    PerParameter,
    Regularizer,
    Separable,
    Simplex,
    SparseGroupLasso,
    Terms,
    Zero,
)

GROUPED = pytest.mark.parametrize("cls", [GroupLasso, SparseGroupLasso])


@pytest.mark.parametrize("cls", [L1, L2Squared, ElasticNet, Nuclear])
@pytest.mark.parametrize("strength", [-1.0, np.nan, np.inf, True, "1", None, np.array([1.0, 2.0])])
def test_strengths(cls, strength):
    with pytest.raises(ConfigurationError, match=f"{cls.__name__}\\.strength="):
        cls(strength)


@pytest.mark.parametrize("cls", [L1Ball, L2Ball, Simplex])
@pytest.mark.parametrize("radius", [0.0, -1.0, np.nan, np.inf, False, "1"])
def test_radii(cls, radius):
    with pytest.raises(ConfigurationError, match=f"{cls.__name__}\\.radius="):
        cls(radius)


@pytest.mark.parametrize("weights", [[-1.0], [np.nan], [np.inf], ["a"], [True, False], [[1.0], [1.0, 2.0]]])
def test_weights(weights):
    with pytest.raises(ConfigurationError, match=r"L1\(weights="):
        L1(1.0, weights=weights)


def test_weights_must_broadcast():
    layout = Layout.from_arrays({"w": np.zeros(3)})
    with pytest.raises(ConfigurationError, match=r"weights of shape \(2,\).*'w' of shape \(3,\)"):
        L1(1.0, weights=np.ones(2)).bind(layout)
    L1(1.0, weights=np.ones(1)).bind(layout)


@pytest.mark.parametrize(("lower", "upper"), [(1.0, 0.0), ([0.0, 2.0], 1.0), (np.inf, np.inf), (-np.inf, -np.inf)])
def test_empty_boxes(lower, upper):
    with pytest.raises(ConfigurationError, match="empty"):
        Box(lower, upper)


def test_nuclear_wants_matrices():
    with pytest.raises(ConfigurationError, match=r"'w' has shape \(3,\)"):
        Nuclear(1.0).bind(Layout.from_arrays({"w": np.zeros(3)}))
    with pytest.raises(ConfigurationError, match="reshape='first'"):
        Nuclear(1.0).bind(Layout.from_arrays({"w": np.zeros((2, 3, 4))}))
    with pytest.raises(ConfigurationError, match="reshape='rows'"):
        Nuclear(1.0, reshape="rows")


def test_the_elastic_net_without_l1_has_no_strength_max():
    with pytest.raises(ConfigurationError, match="l1_ratio"):
        ElasticNet(1.0, 0.0).strength_max(np.ones(3))
    with pytest.raises(ConfigurationError, match="l1_ratio"):
        ElasticNet(1.0, 1.5)


def test_per_parameter():
    layout = Layout.from_arrays({"a.weight": np.zeros((2, 2)), "b.weight": np.zeros((2, 2)), "c": np.zeros((1, 2))})
    psi = PerParameter({"a.*": L1(1.0), "*.weight": L1Ball(1.0)})
    assert psi.for_array("a.weight") == L1(1.0)
    assert psi.for_array("b.weight") == L1Ball(1.0)
    assert psi.for_array("c") is None
    v = np.random.default_rng(0).normal(size=layout.size)
    p = psi.bind(layout).prox(v, 0.5)
    assert np.array_equal(p[:4], L1(1.0).prox(v[:4], 0.5))
    assert np.array_equal(p[4:8], L1Ball(1.0).prox(v[4:8], 0.5))
    assert np.array_equal(p[8:], v[8:])
    copy = Regularizer.from_spec(psi.to_spec())
    assert copy == psi
    assert hash(copy) == hash(psi)
    assert PerParameter({"*.weight": L1Ball(1.0), "a.*": L1(1.0)}) != psi
    assert PerParameter({"a": L1(1.0, weights=[1.0, 2.0])}) == PerParameter({"a": L1(1.0, weights=[1.0, 2.0])})


def test_per_parameter_errors():
    psi = PerParameter({"*": L1(1.0)})
    with pytest.raises(ConfigurationError, match="named arrays"):
        psi.prox(np.zeros(3), 1.0)
    with pytest.raises(ConfigurationError, match="scope='each'"):
        psi.bind(Layout.from_arrays({"w": np.zeros(3)}), scope="joint")
    for bad in ({}, {"a": 1.0}, {1: Zero()}, [Zero()], {"a": psi}):
        with pytest.raises(ConfigurationError, match="PerParameter"):
            PerParameter(bad)


def test_a_pattern_that_acts_on_nothing_is_an_error():
    """Misspelt, or hidden by an earlier one, it would silently solve another problem."""
    layout = Layout.from_arrays({"w": np.zeros(3)})
    for own in ({"w": L1(1.0), "v*": L1(2.0)}, {"*": L1(1.0), "w": L1(2.0)}):
        with pytest.raises(ConfigurationError, match=r"PerParameter: the patterns \['(v\*|w)'\] match no array"):
            PerParameter(own).bind(layout)


def test_specs_are_checked_like_arguments():
    spec = L1(1.0).to_spec()
    with pytest.raises(ConfigurationError, match="strength"):
        Regularizer.from_spec(spec._replace(header={**spec.header, "strength": -1.0}))
    with pytest.raises(SpecError, match="l1-bal"):
        Regularizer.from_spec(spec._replace(header={**spec.header, "kind": "l1-bal"}))


def test_a_point_out_of_a_constraint_has_an_infinite_value():
    for psi, inside, out in (
        (L1Ball(1.0), [0.5, -0.5], [0.5, -0.51]),
        (L2Ball(1.0), [0.6, -0.8], [0.6, -0.81]),
        (Simplex(), [0.5, 0.5], [1.5, -0.5]),
        (Simplex(), [1.0, 0.0], [0.5, 0.4]),
        (Box(0.0, 1.0), [0.0, 1.0], [0.0, 1.1]),
    ):
        assert psi.value(np.array(inside)) == 0.0
        assert psi.value(np.array(out)) == np.inf
        assert psi.value(np.array([np.nan, 0.0])) == np.inf


@GROUPED
@pytest.mark.parametrize(
    "groups",
    [
        [[0, 1, 2], [3]],
        ([0, 2, 4], [1, 3, 5]),
        [np.array([0, 3]), np.array([1, 2])],
        [range(3), range(3, 6)],
    ],
    ids=str,
)
def test_lists_of_indices_are_no_groups(cls, groups):
    with pytest.raises(ConfigurationError, match="one list of indices for each group; expected the number of each"):
        cls(1.0, groups=groups)


def test_conjugates_that_are_infinite_or_unknown():
    assert L1(1.0).conjugate(np.array([0.5, 1.5])) == np.inf
    # Rounding does not leave the domain.
    assert L1(1.0).conjugate(np.array([1.0 + 5e-13, -1.0])) == 0.0
    assert Nuclear(1.0).conjugate(np.diag([0.5, 1.5])) == np.inf
    assert NonNegative().conjugate(np.array([-1.0, 1e-3])) == np.inf
    assert L1Ball(1.0, weights=np.array([1.0, 0.0])).conjugate(np.array([1.0, 0.5])) == np.inf
    layout = BilinearSaddle([[1.0]]).layout
    assert PerParameter({"x": Box(-1.0, 1.0)}).bind(layout).conjugate(np.array([2.0, 0.0])) == 2.0
    assert PerParameter({"x": Box(-1.0, 1.0)}).bind(layout).conjugate(np.array([2.0, 0.1])) == np.inf
    with pytest.raises(ConfigurationError, match="conjugate of HardSparsity"):
        HardSparsity(2).conjugate(np.ones(2))


@dataclass(frozen=True)
class Rewarding(Separable):
    kind = "test-rewarding"

    def terms(self):
        return Terms(threshold=np.array([0.1, -0.2]))


@dataclass(frozen=True)
class Returning(Regularizer):
    kind = "test-returning"

    def value(self, w):
        return 0.0

    def solve(self, v, step, out):
        return v


def test_a_psi_of_ones_own_that_is_not_convex_or_writes_nothing_is_refused():
    with pytest.raises(ConfigurationError, match=r"Rewarding.terms\(\) has threshold -0.2; expected numbers >= 0"):
        Rewarding().bind(Layout.from_arrays({"w": np.zeros(2)}))
    with pytest.raises(ConfigurationError, match=r"Returning.solve returned a ndarray; expected None, and"):
        Returning().prox(np.ones(2), 1.0)
