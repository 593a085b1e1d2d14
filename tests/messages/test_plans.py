"""Plans and regularizers out of specifications: what is none is refused, and so is what would be too large."""

import numpy as np
import pytest

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, SpecError
from flwr_fco.messages.protocol import Plan
from flwr_fco.mirror_maps import Euclidean, PNorm
from flwr_fco.regularizers import L1, GroupLasso, PerParameter, Regularizer, Zero

LAYOUT = Layout.from_arrays({"w": np.zeros(3)})


def test_specifications_do_not_build_anything_of_any_size():
    with pytest.raises(ConfigurationError, match="largest group number"):
        GroupLasso(1.0, groups=np.array([0, 10**9]))
    with pytest.raises(ConfigurationError, match="20000 patterns"):
        PerParameter({f"a{i}": L1(1.0) for i in range(20_000)})
    bomb = Regularizer.from_spec
    spec = PerParameter({"a": L1(1.0)}).to_spec()
    many = {"$mapping": [["a", 1.0]] * 20_000}
    with pytest.raises(SpecError, match="at most"):
        bomb(spec._replace(header={**spec.header, "regularizers": many}))


GROUPS = GroupLasso(0.2, groups=np.array([0, 0, 1]))


@pytest.mark.parametrize(
    "pair", [(Euclidean(), psi) for psi in (L1(0.1), Zero(), GROUPS)] + [(PNorm(3.0), psi) for psi in (L1(0.1), Zero())]
)
def test_the_point_of_a_plan_is_what_its_map_retrieves(pair):
    mirror_map, regularizer = pair
    plan, z = Plan("dual_averaging", LAYOUT, regularizer, mirror_map), np.array([0.5, -0.01, 2.0])
    expected = plan.h.retrieve(z, 1.5, plan.psi)
    np.testing.assert_array_equal(plan.point(z, 1.5), expected)
    assert plan.point(z, 1.5, z) is z
    np.testing.assert_array_equal(z, expected)


def test_the_point_of_a_plan_is_that_of_a_map_derived_from_the_euclidean():
    class Halved(Euclidean):
        def retrieve(self, z, t, regularizer, out=None):
            return super().retrieve(z / 2.0, t, regularizer, out)

    plan, z = Plan("dual_averaging", LAYOUT, L1(0.1), Halved()), np.array([1.0, -1.0, 4.0])
    np.testing.assert_array_equal(plan.point(z, 1.0), L1(0.1).prox(z / 2.0, 1.0))
