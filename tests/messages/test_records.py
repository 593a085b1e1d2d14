"""What is sent is what is received, through Flower's records and their bytes; what is none is an error in words."""

from collections.abc import Mapping

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from problems import arrays_of, refused

from flwr_fco.core.layout import Layout, NonZeros, SparseVector
from flwr_fco.errors import ProtocolError, SpecError
from flwr_fco.messages import records
from flwr_fco.messages.protocol import Answer, Described, Downlink, Plan, Question, Uplink
from flwr_fco.messages.records import decode_downlink, decode_uplink, digest_of, encode_uplink, from_array, model_vector
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import L1, GroupLasso, PerParameter, Regularizer
from flwr_fco.work import Epochs, Steps

MODEL = {"w": np.zeros(5), "norm.running_mean": np.zeros(2, np.float32)}
LAYOUT = Layout.from_arrays(MODEL)
PLAN = Plan("dual_averaging", LAYOUT, L1(0.1, weights=np.arange(5.0)), Euclidean(), work=Epochs(2, batch_size=3))
VECTOR = np.array([0.1, -0.0, 3.0, 1e-300, -2.0])
AT = np.array([0, 3], dtype=np.int32)
SPARSE = SparseVector(AT, np.array([1.0, -0.0]), 5)
NONZEROS = NonZeros(AT, np.array([1.0, 2.0]), 5)
PASSED = {"norm.running_mean": np.array([1.0, 2.0], np.float32)}


def travelled(content):
    """Return records after a journey as Flower's bytes."""
    return recorddict_from_proto(ProtoRecordDict.FromString(recorddict_to_proto(content).SerializeToString()))


def plain(value):
    """Return a value of which equality is equality to the bit."""
    if isinstance(value, SparseVector):
        return type(value).__name__, value.size, *map(plain, value.parts)
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, Plan):
        return value.text, plain(value.regularizer.weights)
    return value if value == value else "NaN"


def fields(value):
    return plain(value._asdict())


def task(**more):
    return Downlink(**{"plan": PLAN, "vectors": {"dual": VECTOR}, "client_lr": 0.25, **more})


def encode_task(down):
    return records.encoder(ConfigRecord({"server-round": 3}), "arrays", "config")(down)


def decode_reply(content):
    return decode_uplink(content, 5, {})


VALUES = {
    "task": [
        task(),
        task(vectors={"dual": VECTOR, "control": 2.0 * VECTOR}, elapsed=1.5, numbers={"points": 1.0, "half": 0.5}),
        task(client_lr=float("nan"), stamp="", work=Steps(7, batch_size=None), pass_through=PASSED),
        task(stamp="ab12", restored={"tracker": VECTOR, "few": SPARSE}),
        task(vectors={"dual": SPARSE}),
        task(vectors={"dual": NONZEROS}),
        task(vectors={"dual": np.concatenate([VECTOR, VECTOR])}, numbers={"points": 2.0}),
    ],
    "reply": [
        Uplink({"increment": VECTOR}, 0.5, 3, examples=7, metrics={"loss": 0.5, "curve": [1.0, 2.0]}),
        Uplink({"increment": VECTOR.astype(np.float32)}, None, 2, examples=7, pass_through=PASSED),
        Uplink({"increment": SPARSE, "control": SparseVector(AT[:0], np.zeros(0), 5)}, 0.5, 3, examples=1),
        Uplink({}, None, 1, examples=2),
    ],
    "sparse reply": [Uplink({"increment": SPARSE}, 0.5, 3, examples=1)],
    "short reply": [Uplink({"increment": NONZEROS}, 0.5, 3, examples=1)],
    "question": [Question("gradient", LAYOUT, {"primal": VECTOR}, {"mass": 1.0}, PASSED)],
    "answer": [Answer({"loss": 0.5, "held-out": 1.0}, {"gradient": VECTOR, "few": SPARSE}, 7)],
    "table": [
        Described(("a",), None, np.array([0.5]), 40, 64.0),
        Described(("a", "b"), ("0", "1")),
        Described(None, ("0",)),
        Described(),
    ],
}
#: How each is written and read, and which errors say that it is none.
KINDS = {
    "task": (encode_task, decode_downlink, (ProtocolError, SpecError)),
    **dict.fromkeys(("reply", "sparse reply", "short reply"), (encode_uplink, decode_reply, ProtocolError)),
    "question": (records.encode_question, lambda content: records.decode_question(content, 1000), ValueError),
    "answer": (records.encode_answer, lambda content: records.decode_answer(content, 5), ProtocolError),
    "table": (records.encode_described, records.decode_described, ProtocolError),
}


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, values in VALUES.items() for value in values])
def test_what_is_sent_is_what_is_received(kind, value):
    encode, decode, _ = KINDS[kind]
    assert fields(decode(travelled(encode(value)))) == fields(value)


def test_a_task_in_single_precision_is_read_as_float64_and_as_it_was_sent():
    down = task(plan=Plan("dual_averaging", LAYOUT, L1(0.1), Euclidean(), wire_dtype="auto"), dtype="float32")
    content = travelled(encode_task(down))
    found = decode_downlink(content)
    np.testing.assert_array_equal(found.vectors["dual"], VECTOR.astype(np.float32).astype(np.float64))
    assert (found.dtype, found.vectors["dual"].dtype) == ("float32", np.float64)
    assert not found.vectors["dual"].flags.writeable
    # What a client in this process reads is the same.
    assert fields(down.as_received()) == fields(found)
    assert decode_downlink(content, as_sent=True).vectors["dual"].dtype == np.float32
    refused("'dual' is not finite", task(vectors={"dual": np.full(5, np.nan)}).as_received, kind=ProtocolError)


def test_what_several_clients_are_sent_is_written_once():
    encode = records.encoder(ConfigRecord(), "arrays", "config")
    one, other = encode(task()), encode(task(client_lr=0.5))
    assert one["arrays"]["dual"].data is other["arrays"]["dual"].data
    one["arrays"]["dual"] = Array(np.ones(5))
    one["config"]["mine"] = 1
    assert "mine" not in other["config"]
    np.testing.assert_array_equal(other["arrays"]["dual"].numpy(), VECTOR)


def put(record, name, value):
    return lambda content: content[record].update({name: value})


NO_INDICES = [(np.array(at, dtype=np.int32), "ascend, from 0 to 4") for at in ([0, 5], [3, 3], [2**31 - 1, -(2**31)])]
NO_INDICES += [(AT.astype(np.int64), "int64"), *((at, "one int32 for each value") for at in (AT[:1], AT[:, None]))]
NONE = [
    ("task", lambda c: c.pop("fco"), "comes from a strategy that is not of flwr_fco"),
    ("task", put("fco", "plan", 3), "cannot be read: TypeError"),
    ("task", put("fco", "plan", "[" * 100_000), "nested too deeply"),
    ("task", lambda c: c.pop("fco-plan"), "names an array"),
    ("task", put("fco", "elapsed", -1.0), "elapsed=-1.0"),
    ("task", put("fco", "number:points", 1e9), "1000000000.0 points"),
    ("task", put("fco", "number:half", float("nan")), "'half' is nan"),
    ("task", put("arrays", "dual", Array(np.zeros(5, np.float32))), "float32"),
    ("task", put("arrays", "dual", Array(np.full(5, np.nan))), "finite"),
    ("task", put("arrays", "pass:w", Array(np.zeros(5))), r"the arrays \['w'\]"),
    ("task", put("arrays", "indices:dual", Array(np.array([0, 9], np.int32))), "dual"),
    ("task", lambda c: c.update({"more": ArrayRecord()}), "exactly one ArrayRecord, got 2"),
    ("task", lambda c: c.update({"fco-restored": ConfigRecord({"t": 1})}), "cannot be read"),
    ("task", lambda c: c.update({"fco-restored": arrays_of({"t": np.zeros(4)})}), r"float64\[4\]"),
    ("reply", lambda c: c.clear(), "exactly one MetricRecord, got 0"),
    ("reply", lambda c: c.pop("arrays"), "exactly one ArrayRecord, got 0"),
    ("reply", lambda c: c.update({"more": ArrayRecord()}), "exactly one ArrayRecord, got 2"),
    ("reply", put("arrays", "indices:x", Array(np.zeros(1, np.int32))), "have no values of their own beside them"),
    *(("sparse reply", put("arrays", "indices:increment", Array(at)), message) for at, message in NO_INDICES),
    *(("short reply", put("arrays", "nonzeros:increment", Array(at)), message) for at, message in NO_INDICES),
    ("sparse reply", put("arrays", "nonzeros:increment", Array(AT)), "indices of two kinds"),
    ("question", lambda c: c.pop("fco-question"), "cannot be read: KeyError: 'fco-question'"),
    ("question", put("fco-question", "layout", "x" * 2000), "a plan of 2000 characters; .*max_plan=1000"),
    ("question", put("fco-question", "layout", "no"), "cannot be read: JSONDecodeError"),
    ("question", put("fco-question", "number:mass", float("inf")), "expected a finite number"),
    ("question", put("arrays", "primal", Array(np.full(5, np.inf))), "finite"),
    ("table", put("fco-names", "columns", 3), "cannot be read: TypeError"),
    ("table", put("fco-names", "classes", [1, 2]), "expected texts"),
    *(
        ("table", put("metrics", "num-examples", rows), "its rows and the size of its entries are .*, expected finite")
        for rows in (10**400, float("nan"))
    ),
]


@pytest.mark.parametrize(("kind", "change", "message"), NONE)
def test_what_is_none_is_an_error_in_words(kind, change, message):
    encode, decode, errors = KINDS[kind]
    content = encode(VALUES[kind][0])
    change(content)
    refused(message, decode, content, kind=errors)


def test_a_sparse_vector_has_the_length_that_the_method_says():
    long = SparseVector(AT, np.ones(2), 16)
    content = travelled(encode_uplink(Uplink({"rows": long, "increment": SPARSE}, None, 1, examples=1)))
    found = decode_uplink(content, 5, {"rows": (2, 8), "increment": (5,)})
    assert {name: vector.size for name, vector in found.vectors.items()} == {"rows": 16, "increment": 5}


@pytest.mark.parametrize("name", ["num-examples", "local-steps", "elapsed", "fco-memory-lost"])
def test_a_client_cannot_report_a_metric_of_the_protocol(name):
    refused(
        "'s own; rename it", encode_uplink, Uplink({}, None, 1, examples=1, metrics={name: 1.0}), kind=ProtocolError
    )


def test_the_digest_of_a_reply_is_that_of_all_that_a_memory_follows_from():
    base = digest_of({"increment": VECTOR}, 0.5)
    assert base == digest_of({"increment": VECTOR.copy()}, 0.5)
    # Through messages and back it stays, or no memory would be found again.
    up = Uplink({"increment": VECTOR, "few": SPARSE}, 0.5, 3, examples=7)
    found = decode_reply(travelled(encode_uplink(up)))
    assert digest_of(found.vectors, found.elapsed) == digest_of(up.vectors, up.elapsed)
    increments = [-VECTOR, np.where(VECTOR == 0.0, 0.0, VECTOR), VECTOR.astype(np.float32), SPARSE]
    increments += [SparseVector(AT + 1, SPARSE.values, 5)]
    others = [
        *(digest_of({"increment": VECTOR}, elapsed) for elapsed in (0.6, None)),
        digest_of({"other": VECTOR}, 0.5),
        *(digest_of({"increment": increment}, 0.5) for increment in increments),
        *(digest_of({"increment": s * VECTOR, "control": t * VECTOR}, 0.5) for s, t in ((1, 1), (-1, 1), (1, -1))),
    ]
    assert len({base, *others}) == len(others) + 1


# --- plans and regularizers out of specifications ---------------------------------------------------------------------


def test_specifications_do_not_build_anything_of_any_size():
    refused("largest group number", GroupLasso, 1.0, groups=np.array([0, 10**9]))
    refused("20000 patterns", PerParameter, {f"a{i}": L1(1.0) for i in range(20_000)})
    spec = PerParameter({"a": L1(1.0)}).to_spec()
    many = {**spec.header, "regularizers": {"$mapping": [["a", 1.0]] * 20_000}}
    refused("at most", Regularizer.from_spec, spec._replace(header=many), kind=SpecError)


# --- bytes that others write ------------------------------------------------------------------------------------------

ONES = Array(np.ones(13)).data


def read(data=ONES, shape=(13,), dtype="float64", stype="numpy.ndarray", read_as=from_array):
    return read_as("x", Array(dtype, shape, stype, data))


def npy(header, version=1):
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 * version, "little") + header


@pytest.mark.parametrize("shape", [(13,), (2, 3), ()])
def test_every_single_bit_flip_of_a_header_is_refused_or_harmless(shape):
    value = np.arange(1.0, 1.0 + int(np.prod(shape))).reshape(shape)
    data = Array(value).data
    header = len(data) - value.nbytes
    refused = 0
    for bit in range(8 * header):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            np.testing.assert_array_equal(read(bytes(flipped), shape), value)
        except ProtocolError:
            refused += 1
    assert refused > 7 * header


NO_ARRAYS = [b"PK\x03\x04junk", b"", b"\x93NUMPY\x02\x00\xff\xff\xff\xff{", npy(b"-" * 9000), ONES[:-1], ONES + b"x"]
NO_ARRAYS += [
    npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(79) + b"\n"),
    *(ONES.replace(*other) for other in ((b"(13,)", b"(31,)"), (b"<f8", b">f8"), (b"'<f8'", b"'|O8'"))),
]
#: They are refused before memory is taken.
LABELS = [{"dtype": "object"}, {"shape": (-13,)}, {"shape": (10**12,)}, {"stype": "torch.Tensor"}]
LABELS += [{"dtype": "float32", "shape": (26,)}, {"dtype": "bfloat16"}]


@pytest.mark.parametrize("given", [*({"data": data} for data in NO_ARRAYS), *LABELS])
def test_bytes_that_are_no_array_of_ours_and_labels_that_lie_are_refused(given):
    for read_as in (from_array, lambda name, array: records.layout_of({name: array}, None, ())):
        refused("'x'", read, **given, read_as=read_as, kind=ProtocolError)


def test_the_other_memory_order_and_padding_are_read():
    value = np.arange(6.0).reshape(2, 3)
    found = read(Array(np.asfortranarray(value)).data, (2, 3))
    np.testing.assert_array_equal(found, value)
    assert not found.flags.writeable
    header = b"{'descr': '<f8', 'shape': (2,3), 'fortran_order': False}"
    for padding in (0, 4000):
        data = npy(header + b" " * padding + b"\n", version=2) + value.tobytes()
        np.testing.assert_array_equal(read(data, (2, 3)), value)
    data = npy(header + b" " * 4100 + b"\n", version=2) + value.tobytes()
    refused("cannot be read: ", read, data, (2, 3), kind=ProtocolError)


SAMPLES = [np.zeros(0), np.array(3.0), np.arange(6.0).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(2, 3)]
SAMPLES += [np.array([True, False]), np.arange(4, dtype=np.float16), np.arange(4), np.zeros((0, 3))]


@pytest.mark.parametrize("array", SAMPLES)
def test_arrays_are_flowers_to_the_byte(array):
    assert vars(records.to_array(array)) == vars(Array(array))
    layout = Layout.from_arrays({"x": array, "w": np.zeros(1)})
    trained = array.dtype.kind == "f"
    vector = np.concatenate([array.astype(float).ravel() if trained else [], [0.0]])
    ours = records.model_record(layout, vector, {} if trained else {"x": array})["x"]
    assert ours == Array(array)
    assert ours.data == Array(array).data


@pytest.mark.parametrize("array", [np.eye(2, 3, order="F"), np.arange(3, dtype=">f8"), np.arange(6.0)[::2]])
def test_an_array_of_another_order_is_written_in_the_usual_one(array):
    found = records.to_array(array).numpy()
    np.testing.assert_array_equal(found, array)
    assert (found.flags.c_contiguous, found.dtype.isnative) == (True, True)


@pytest.mark.parametrize(("given", "kept"), [(6.5, 6), (7.6, 8), (1e300, 2**53), (-3.0, 0), (np.int32(-5), -5)])
def test_counters_that_return_as_averages_or_narrower_are_whole_numbers_again_and_no_others(given, kept):
    layout = Layout.from_arrays({"w": np.zeros(1), "bn.num_batches_tracked": np.array(0)})
    model = {"w": np.zeros(1), "bn.num_batches_tracked": np.array(given)}
    (found,) = model_vector(layout, arrays_of(model))[1].values()
    assert (found, found.dtype) == (kept, np.int64)
    for name, wrong in (("w", np.zeros(1, int)), ("bn.num_batches_tracked", np.array(6, np.uint8))):
        refused("int", model_vector, layout, arrays_of({**model, name: wrong}), kind=ProtocolError)
