"""Models on the wire: same bytes as Flower's, read-only views, precise reasons."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from together import together

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ProtocolError
from flwr_fco.wire.arrays import primal_record, primal_vector

SAMPLES = [
    np.zeros(0),
    np.array(3.0),
    np.arange(6.0).reshape(2, 3),
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([True, False]),
    np.arange(4, dtype=np.float16),
    np.arange(4),
    np.zeros((0, 3)),
]


@together("array", SAMPLES)
def test_arrays_are_flowers_to_the_byte(array):
    layout = Layout.from_arrays({"x": array, "w": np.zeros(1)})
    passed = {"x": array} if array.dtype.kind != "f" else {}
    vector = np.concatenate([array.astype(float).ravel(), [0.0]]) if array.dtype.kind == "f" else np.zeros(1)
    ours = primal_record(layout, vector, passed)["x"]
    assert ours == Array(array)
    assert ours.data == Array(array).data
    np.testing.assert_array_equal(ours.numpy(), array)


def test_other_memory_layouts_are_read_too():
    matrix = np.arange(6.0).reshape(2, 3)
    layout = Layout.from_arrays({"w": matrix})
    for odd in (np.asfortranarray(matrix), matrix.astype(np.float32), matrix[:, ::-1][:, ::-1]):
        vector, _ = primal_vector(layout, ArrayRecord({"w": Array(odd)}))
        np.testing.assert_array_equal(vector, matrix.ravel())


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "missing \\['w'\\]"),
        ({"w": np.zeros(2), "v": np.zeros(2)}, "unexpected \\['v'\\]"),
        ({"w": np.zeros(3)}, r"float64\[3\]"),
        ({"w": np.zeros(2, int)}, "int64"),
        ({"w": np.array([1.0, np.inf])}, "1 NaN or infinite"),
    ],
)
def test_primal_models_are_checked(record, message):
    layout = Layout.from_arrays({"w": np.zeros(2)})
    with pytest.raises(ProtocolError, match=message):
        primal_vector(layout, ArrayRecord({n: Array(a) for n, a in record.items()}))
