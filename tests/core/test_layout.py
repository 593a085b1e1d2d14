"""Named arrays to one flat vector and back."""

import json

import numpy as np
import pytest

from flwr_fco.core.layout import Layout


def arrays():
    rng = np.random.default_rng(0)
    return {
        "features.weight": rng.standard_normal((3, 4)).astype(np.float32),
        "features.bias": rng.standard_normal(3).astype(np.float32),
        "norm.running_mean": rng.standard_normal(3),
        "norm.num_batches_tracked": np.array(7),
        "mask": np.array([True, False]),
        "scale": np.array(2.5),
    }


def test_there_and_back():
    given = arrays()
    layout = Layout.from_arrays(given)
    back = layout.unflatten(layout.flatten(given))
    assert list(back) == ["features.weight", "features.bias", "scale"]
    for name, array in back.items():
        assert array.dtype == given[name].dtype
        np.testing.assert_array_equal(array, given[name])
    assert layout.size == 12 + 3 + 1
    assert [e.name for e in layout.passed_through] == ["norm.running_mean", "norm.num_batches_tracked", "mask"]


@pytest.mark.parametrize(
    ("shapes", "apply_to", "expected"),
    [
        ({"coefficients": (5,), "intercept": (1,)}, None, ("coefficients",)),
        ({"0": (3, 5), "1": (3,)}, None, ("0",)),
        ({"0": (5,), "1": (1,)}, None, ("0",)),
        ({"0": (5,), "1": (1,)}, "*", ("0", "1")),
        ({"0": (5,), "1": (4,)}, None, ("0", "1")),
        ({"x": (3,), "y": (1,)}, None, ("x", "y")),
        ({"x": (3,), "y": (4,)}, None, ("x", "y")),
        ({"layer.bias": (3,), "layer.gain": (3,)}, None, ("layer.gain",)),
        ({"coefficients": (5,), "intercept": (1,)}, "*", ("coefficients", "intercept")),
        ({"a.weight": (2, 2), "b.weight": (2, 2)}, ["b.*"], ("b.weight",)),
    ],
)
def test_where_psi_acts(shapes, apply_to, expected):
    layout = Layout.from_arrays({n: np.zeros(s) for n, s in shapes.items()}, apply_to=apply_to)
    assert layout.regularized_names == expected
    mask = layout.regularized_mask()
    for entry in layout.optimized:
        assert (mask[entry.block] == (entry.name in expected)).all()


def test_header_round_trip_through_json():
    layout = Layout.from_arrays(arrays())
    again = Layout.from_header(json.loads(json.dumps(layout.to_header())))
    assert again == layout
    assert hash(again) == hash(layout)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Layout.from_arrays({"n": np.arange(3)}), "no floating-point array"),
        (lambda: Layout.from_arrays({"w": np.array(["a"])}), "dtype <U1"),
        (lambda: Layout.from_arrays({"w": np.zeros(2, complex)}), "dtype complex128"),
        (lambda: Layout.from_arrays({"w": np.zeros(2)}, apply_to="v*"), "matches none"),
        (lambda: Layout.from_arrays({"w": np.zeros(2)}).flatten({}), "'w' is missing"),
        (lambda: Layout.from_arrays({"w": np.zeros(2)}).flatten({"w": np.zeros(3)}), r"shape \(3,\), expected \(2,\)"),
        (lambda: Layout.from_arrays({"w": np.zeros(2)}).unflatten(np.zeros(3)), r"expected \(2,\)"),
    ],
)
def test_errors_name_the_value(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_byte_order_and_memory_order_do_not_matter():
    given = {"w": np.asfortranarray(np.arange(6.0).reshape(2, 3)).astype(">f8"), "b": np.zeros(1)}
    layout = Layout.from_arrays(given)
    np.testing.assert_array_equal(layout.flatten(given)[:6], np.arange(6.0))
    assert layout["w"].dtype == "float64"
