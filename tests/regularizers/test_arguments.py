"""Bad arguments are refused with a message that says what was wrong and what was expected."""

from dataclasses import dataclass

import numpy as np
import pytest
from refusals import refused

from flwr_fco import regularizers
from flwr_fco.core.layout import Layout
from flwr_fco.errors import SpecError
from flwr_fco.objectives import BilinearSaddle
from flwr_fco.regularizers import L1, Box, ElasticNet, L1Ball, L2Ball, Nuclear, PerParameter, Regularizer, Simplex, Zero

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
        ("one list of indices for each group; expected the number of each", lambda of, own: of(1.0, groups=own), *given)
        for given in (
            (cls, groups)
            for cls in (regularizers.GroupLasso, regularizers.SparseGroupLasso)
            for groups in (
                [[0, 1, 2], [3]],
                ([0, 2, 4], [1, 3, 5]),
                [np.array([0, 3]), np.array([1, 2])],
                [range(3), range(3, 6)],
            )
        )
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
    np.testing.assert_array_equal(psi.bind(layout).prox(v, 0.5), expected)
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
