"""Specifications travel as JSON and arrays, and never run code."""

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from flwr_fco.core.layout import Layout
from flwr_fco.core.spec import Spec
from flwr_fco.errors import FlwrFcoError, SpecError
from flwr_fco.messages.protocol import Plan
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import L1, Nuclear, PerParameter, Regularizer
from flwr_fco.work import FirstOrder, LocalWork, Minimise

PLAIN = L1(1.0).to_spec().header


def test_equality_sees_arrays_and_numbers():
    some = {
        L1(0.5),
        L1(0.6),
        L1(0.5, weights=np.array([1.0, 2.0])),
        L1(0.5, weights=np.array([2.0, 1.0])),
        L1(0.5, weights=np.array([[1.0, 2.0]])),
        PerParameter({"a*": L1(0.5, weights=np.array([1.0, 2.0])), "b": Nuclear(0.1)}),
    }
    assert len(some) == 6
    assert some == {Regularizer.from_spec(psi.to_spec()) for psi in some}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"family": "regularizer", "kind": "magic"}, "unknown regularizer 'magic'; known here:.*l1"),
        ({**PLAIN, "power": 2}, "no argument power"),
        ({"family": "regularizer", "kind": "l1"}, "lacks bound, strength, weights"),
        ({**PLAIN, "strength": {"$array": "strength"}}, "did not come with it"),
        ({**PLAIN, "strength": {"__class__": "os.system"}}, "not part of a spec"),
        ({"kind": "l1"}, "not a specification"),
        ("l1", "not a specification"),
        ({"family": "mirror map", "kind": "euclidean"}, "expected a Regularizer"),
    ],
)
def test_bad_specs_are_refused(header, message):
    with pytest.raises(SpecError, match=message):
        Regularizer.from_spec(Spec(header, {}))


@pytest.mark.parametrize("kind", ["$list", "$set", "$mapping", "$bytes", "$sparse", "$layout", ""])
def test_what_is_nested_too_deeply_is_refused(kind):
    for depth in (1, 900):
        opening, closing = (f'{{"{kind}":', "}") if kind else ("[", "]")
        strength = json.loads(opening * depth + "1" + closing * depth)
        with pytest.raises(FlwrFcoError):
            Regularizer.from_spec(Spec({**PLAIN, "strength": strength}, {}))


def test_a_class_without_a_name_cannot_travel():
    @dataclass(frozen=True)
    class Nameless(L1):
        kind: ClassVar[str] = ""

    with pytest.raises(SpecError, match="has no registered name"):
        Nameless(1.0).to_spec()


def test_plan_round_trip():
    layout = Layout.from_arrays({"w": np.zeros((2, 3)), "b": np.zeros(3)})
    plan = Plan(
        "dual_averaging",
        layout,
        L1(0.1, weights=np.arange(6.0).reshape(2, 3)),
        Euclidean(),
        work=FirstOrder(steps=3, batch_size=None),
        seed=7,
        options={"client_prox": True},
    )
    spec = plan.spec
    again = Plan.from_spec(spec)
    assert again == plan
    assert again.text == plan.text


def test_work_in_numpys_numbers_travels():
    for given, plain in (
        (FirstOrder(steps=np.int64(3), batch_size=np.int32(5)), FirstOrder(steps=3, batch_size=5)),
        (Minimise(tolerance=np.float32(0.5), max_iterations=np.int64(7)), Minimise(tolerance=0.5, max_iterations=7)),
    ):
        assert given == plain
        assert LocalWork.from_spec(Spec(json.loads(given.to_spec().to_json()), {})) == plain
