"""Plans and regularizers out of specifications: what is none is refused, and so is what would be too large."""

import numpy as np
import pytest
from together import together

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import L1, GroupLasso, PerParameter, Regularizer
from flwr_fco.wire.protocol import Plan, SpecError

LAYOUT = Layout.from_arrays({"w": np.zeros(3)})


@together(
    "change",
    [
        {"seed": 1.5},
        {"seed": -1},
        {"wire-dtype": "complex128"},
        {"scope": "all"},
        {"solver": 3},
        {"options": {"rate": float("nan")}},
        {"options": [1]},
        {"layout": 3},
        {"layout": [["w", [-3], "float64", 0, True]]},
        {"work": {"kind": "first-order", "steps": 0, "epochs": None, "batch-size": 3}},
        {"work": 3},
        {"regularizer": {"family": ["x"], "kind": "l1"}},
        {"regularizer": {"family": "regularizer", "kind": "per-parameter", "regularizers": {"$mapping": 3}}},
        {"mirror-map": []},
    ],
)
def test_a_plan_that_is_none_is_a_clear_error(change):
    spec = Plan("dual_averaging", LAYOUT, L1(0.1), Euclidean()).to_spec()
    assert Plan.from_spec(spec).solver == "dual_averaging"
    with pytest.raises(SpecError):
        Plan.from_spec(spec._replace(header={**spec.header, **change}))


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
