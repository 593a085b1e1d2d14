"""Arrays out of bytes that others write: what is damaged is refused or harmless."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ProtocolError
from flwr_fco.messages.arrays import from_array, model_record, model_vector, to_array


def read(data, shape=(13,), dtype="float64"):
    return from_array("x", Array(dtype, shape, "numpy.ndarray", data))


@pytest.mark.parametrize("shape", [(13,), (2, 3), ()])
def test_every_single_bit_flip_of_a_header_is_refused_or_harmless(shape):
    value = np.arange(1.0, 1.0 + int(np.prod(shape))).reshape(shape)
    data = Array(value).data
    header = len(data) - value.nbytes
    refused = 0
    for place in range(header):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            try:
                np.testing.assert_array_equal(read(bytes(flipped), shape), value)
            except ProtocolError:
                refused += 1
    assert refused > 7 * header


@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04junk",
        b"",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        b"\x93NUMPY\x01\x00\x50\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(79)
        + b"\n",
        b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"-" * 9000,
        Array(np.ones(13)).data[:-1],
        Array(np.ones(13)).data + b"x",
        Array(np.ones(13)).data.replace(b"(13,)", b"(31,)"),
        Array(np.ones(13)).data.replace(b"<f8", b">f8"),
        Array(np.ones(13)).data.replace(b"'<f8'", b"'|O8'"),
    ],
)
def test_bytes_that_are_no_array_of_ours(data):
    with pytest.raises(ProtocolError, match="'x'"):
        read(data)


def test_the_other_memory_order_and_padding_are_read():
    value = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(read(Array(np.asfortranarray(value)).data, (2, 3)), value)
    text = b"{'descr': '<f8', 'shape': (2,3), 'fortran_order': False}\n"
    for padding in (0, 4000):
        header = text[:-1] + b" " * padding + b"\n"
        data = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + value.tobytes()
        np.testing.assert_array_equal(read(data, (2, 3)), value)
    header = text[:-1] + b" " * 4100 + b"\n"
    with pytest.raises(ProtocolError, match="cannot be read: "):
        read(b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + value.tobytes(), (2, 3))


@pytest.mark.parametrize(
    "label",
    [
        ("object", (13,), "numpy.ndarray"),
        ("float64", (-13,), "numpy.ndarray"),
        ("float64", (10**12,), "numpy.ndarray"),
        ("float64", (13,), "torch.Tensor"),
        ("float32", (26,), "numpy.ndarray"),
    ],
)
def test_a_label_that_lies_is_refused_before_memory_is_taken(label):
    with pytest.raises(ProtocolError, match="'x'"):
        from_array("x", Array(*label, Array(np.ones(13)).data))


def test_what_is_read_is_read_only():
    assert not read(Array(np.ones(13)).data).flags.writeable


SAMPLES = [
    *(np.zeros(0), np.array(3.0), np.arange(6.0).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(2, 3)),
    *(np.array([True, False]), np.arange(4, dtype=np.float16), np.arange(4), np.zeros((0, 3)), np.arange(3) > 1),
]


@pytest.mark.parametrize("array", SAMPLES)
def test_arrays_are_flowers_to_the_byte(array):
    assert vars(to_array(array)) == vars(Array(array))
    layout = Layout.from_arrays({"x": array, "w": np.zeros(1)})
    passed = {"x": array} if array.dtype.kind != "f" else {}
    vector = np.concatenate([array.astype(float).ravel(), [0.0]]) if array.dtype.kind == "f" else np.zeros(1)
    ours = model_record(layout, vector, passed)["x"]
    assert ours == Array(array)
    assert ours.data == Array(array).data


@pytest.mark.parametrize("array", [np.eye(2, 3, order="F"), np.arange(3, dtype=">f8"), np.arange(6.0)[::2]])
def test_an_array_of_another_order_is_written_in_the_usual_one(array):
    found = to_array(array).numpy()
    np.testing.assert_array_equal(found, array)
    assert found.flags.c_contiguous
    assert found.dtype.isnative


@pytest.mark.parametrize(("given", "kept"), [(6.5, 6), (7.6, 8), (1e300, 2**53), (-3.0, 0)])
def test_an_average_of_counters_is_a_whole_number_again(given, kept):
    layout = Layout.from_arrays({"w": np.zeros(1), "bn.num_batches_tracked": np.array(0)})
    arrays = {"w": Array(np.zeros(1)), "bn.num_batches_tracked": Array(np.array(given))}
    (found,) = model_vector(layout, ArrayRecord(arrays))[1].values()
    assert (found, found.dtype) == (kept, np.int64)


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
def test_models_are_checked(record, message):
    with pytest.raises(ProtocolError, match=message):
        model_vector(Layout.from_arrays({"w": np.zeros(2)}), ArrayRecord({n: Array(a) for n, a in record.items()}))
