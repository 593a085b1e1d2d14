"""Arrays out of bytes that others write: what is damaged is refused or harmless."""

import numpy as np
import pytest
from flwr.app import Array
from together import together

from flwr_fco.errors import ProtocolError
from flwr_fco.wire.arrays import from_array


def read(data, shape=(13,), dtype="float64"):
    return from_array("x", Array(dtype, shape, "numpy.ndarray", data), (dtype,), shape)


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


@together(
    "data",
    [
        b"PK\x03\x04junk",
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff{",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        b"\x93NUMPY\x01\x00\x50\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(79)
        + b"\n",
        b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"-" * 9000,
        b"\x93NUMPY\x01\x00" + (3000).to_bytes(2, "little") + b"-" * 3000,
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
    with pytest.raises(ProtocolError, match="cannot be read: Header info length"):
        read(b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + value.tobytes(), (2, 3))
