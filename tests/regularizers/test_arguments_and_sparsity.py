"""Bad arguments are refused in words; the adapter of foreign operators, sparsity, and what the checker finds."""

import itertools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from examples_of_psi import EXAMPLES
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from problems import refused

from flwr_fco import regularizers
from flwr_fco.core.layout import Layout
from flwr_fco.errors import SpecError
from flwr_fco.objectives import BilinearSaddle
from flwr_fco.regularizers import L1, Box, ElasticNet, L1Ball, L2Ball, Nuclear, PerParameter, Regularizer, Simplex, Zero
from flwr_fco.testing import check_regularizer

NAN, INF = np.nan, np.inf
VECTOR = Layout.from_arrays({"w": np.zeros(3)})
TENSOR = Layout.from_arrays({"w": np.zeros((2, 3, 4))})
EVERYWHERE = PerParameter({"*": L1(1.0)})
SPEC = L1(1.0).to_spec()


@dataclass(frozen=True)
class Rewarding(regularizers.Separable):
    kind = "test-rewarding"

    def terms(self):
        return regularizers.Terms(threshold=np.array([0.1, -0.2]))


@dataclass(frozen=True)
class Returning(Regularizer):
    kind = "test-returning"

    def value(self, w):
        return 0.0

    def solve(self, v, step, out):
        return v


WRONG = [
    *(
        (rf"{cls.__name__}\.strength=", cls, strength)
        for cls in (L1, regularizers.L2Squared, ElasticNet, Nuclear)
        for strength in (-1.0, NAN, INF, True, "1", None, np.array([1.0, 2.0]))
    ),
    *(
        (rf"{cls.__name__}\.radius=", cls, radius)
        for cls in (L1Ball, L2Ball, Simplex)
        for radius in (0.0, -1.0, NAN, INF, False, "1")
    ),
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
    ("strength", Regularizer.from_spec, SPEC._replace(header={**SPEC.header, "strength": -1.0})),
    *(
        ("one list of indices for each group; expected the number of each", lambda own, cls=cls: cls(1.0, own), groups)
        for cls in (regularizers.GroupLasso, regularizers.SparseGroupLasso)
        for groups in ([[0, 1, 2], [3]], ([0, 2, 4], [1, 3, 5]), [np.array([0, 3]), np.array([1, 2])])
    ),
    ("conjugate of HardSparsity", regularizers.HardSparsity(2).conjugate, np.ones(2)),
    # A psi of one's own that is not convex or writes nothing.
    (r"Rewarding.terms\(\) has threshold -0.2; expected numbers >= 0", Rewarding().bind, VECTOR),
    (r"Returning.solve returned a ndarray; expected None, and", Returning().prox, np.ones(2), 1.0),
]


@pytest.mark.parametrize("case", WRONG, ids=lambda case: case[0])
def test_what_is_no_regularizer_is_refused(case):
    refused(*case)


def test_what_is_no_spec_is_refused():
    refused("l1-bal", Regularizer.from_spec, SPEC._replace(header={**SPEC.header, "kind": "l1-bal"}), kind=SpecError)
    L1(1.0, weights=np.ones(1)).bind(VECTOR)


def test_per_parameter():
    layout = Layout.from_arrays({"a.weight": np.zeros((2, 2)), "b.weight": np.zeros((2, 2)), "c": np.zeros((1, 2))})
    psi = PerParameter({"a.*": L1(1.0), "*.weight": L1Ball(1.0)})
    assert [psi.for_array(name) for name in layout.shapes] == [L1(1.0), L1Ball(1.0), None]
    v = np.random.default_rng(0).normal(size=layout.size)
    expected = np.r_[L1(1.0).prox(v[:4], 0.5), L1Ball(1.0).prox(v[4:8], 0.5), v[8:]]
    assert_array_equal(psi.bind(layout).prox(v, 0.5), expected)
    copy = Regularizer.from_spec(psi.to_spec())
    assert copy == psi
    assert hash(copy) == hash(psi)
    assert PerParameter({"*.weight": L1Ball(1.0), "a.*": L1(1.0)}) != psi
    assert PerParameter({"a": L1(1.0, weights=[1.0, 2.0])}) == PerParameter({"a": L1(1.0, weights=[1.0, 2.0])})


def test_a_point_out_of_a_constraint_has_an_infinite_value():
    for psi, inside, out in (
        (L1Ball(1.0), [0.5, -0.5], [0.5, -0.51]),
        (L2Ball(1.0), [0.6, -0.8], [0.6, -0.81]),
        (Simplex(), [0.5, 0.5], [1.5, -0.5]),
        (Simplex(), [1.0, 0.0], [0.5, 0.4]),
        (Box(0.0, 1.0), [0.0, 1.0], [0.0, 1.1]),
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
    assert Regularizer.from_spec(psi.to_spec()) == psi
    refused("taken", regularizers.Adapter.register, "test-huber", L1)
    refused(r"known here: .*test-huber.*both ServerApp and ClientApp", regularizers.Adapter, name="test-hubert")
    regularizers.Adapter.register("test-no-operator", lambda: 3)
    refused("Adapter", regularizers.Adapter, "test-no-operator", {})


def test_operators_of_pyproximal():
    pyproximal = pytest.importorskip("pyproximal")
    regularizers.Adapter.register("test-ball", pyproximal.L1Ball)
    v = np.random.default_rng(1).normal(size=20)
    ball = regularizers.Adapter("test-ball", {"n": 20, "radius": 1.0})
    assert_allclose(ball.prox(v, 0.7), L1Ball(1.0).prox(v, 0.7), atol=1e-5)
    assert ball.value(v) == np.inf
    assert ball.value(np.zeros(20)) == 0.0


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
    for shape, words in (
        ((8,), "second axis of matrices"),
        ((3, 30), r"30 inputs, no multiple of 4; leave it whole"),
    ):
        refused(words, regularizers.NofM(2, 4).check_shape, "weight", shape)
    with_nan = np.array([[np.nan, 1.0, 3.0, 2.0]])
    assert_array_equal(regularizers.NofM(1, 4).prox(with_nan, 1.0), [[np.nan, 0.0, 3.0, 0.0]])


def test_hard_sparsity_of_more_entries_than_there_are_changes_nothing():
    for v in (np.random.default_rng(2).normal(size=6), np.zeros(6)):
        assert_array_equal(regularizers.HardSparsity(10).prox(v, 1.0), v)


# --- the checker ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Broken(Regularizer):
    """An l1 norm with one fault at a time."""

    kind: ClassVar[str] = "test-broken"
    fault: str

    def value(self, w):
        return float(np.abs(w).sum()) * (2.0 if self.fault == "value" else 1.0)

    def prox(self, v, step, out=None):
        soft = L1(1.0).prox(v, step * (1.001 if self.fault == "threshold" else 1.0))
        if self.fault == "negative zero":
            soft = np.where(soft == 0, -0.0, soft).astype(v.dtype)
        if self.fault == "nan":
            soft = np.nan_to_num(soft)
        if self.fault == "dtype":
            return soft.astype(np.float64)
        if self.fault == "expansive":
            soft *= v.dtype.type(1.01)
        if out is None or self.fault == "out":
            return soft
        if self.fault == "in place":
            out[:] = 0.0
            soft = out + L1(1.0).prox(v, step)
        out[...] = soft
        return out


@pytest.mark.parametrize(
    "fault", ["value", "threshold", "negative zero", "nan", "dtype", "expansive", "out", "in place"]
)
def test_the_checker_finds_every_fault(fault):
    check_regularizer(Broken("none"))
    with pytest.raises(AssertionError, match="Broken"):
        check_regularizer(Broken(fault))
