"""What is sent is what is received, through Flower's records and their bytes; what is none is an error in words."""

from collections.abc import Mapping

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict

from flwr_fco.core.layout import Layout, NonZeros, SparseVector
from flwr_fco.errors import ConfigurationError, ProtocolError, SpecError
from flwr_fco.messages.arrays import digest_of
from flwr_fco.messages.protocol import Answer, Described, Downlink, Plan, Question, Uplink
from flwr_fco.messages.records import (
    Encoder,
    decode_answer,
    decode_described,
    decode_downlink,
    decode_question,
    decode_uplink,
    encode_answer,
    encode_described,
    encode_question,
    encode_uplink,
)
from flwr_fco.mirror_maps import Euclidean, PNorm
from flwr_fco.regularizers import L1, GroupLasso, PerParameter, Regularizer, Zero
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
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value if value == value else "NaN"


def fields(value):
    """Return the fields of a NamedTuple but for the plan, as :func:`plain` does."""
    found = {name: each for name, each in value._asdict().items() if name != "plan"}
    return {name: plain(dict(each) if isinstance(each, Mapping) else each) for name, each in found.items()}


def task(**more):
    return Downlink(**{"plan": PLAN, "vectors": {"dual": VECTOR}, "client_lr": 0.25, **more})


def sent(down, config=None):
    return travelled(Encoder(config or ConfigRecord({"server-round": 3}), "arrays", "config")(down))


@pytest.mark.parametrize(
    "down",
    [
        task(),
        task(vectors={"dual": VECTOR, "control": 2.0 * VECTOR}, elapsed=1.5, numbers={"points": 1.0, "half": 0.5}),
        task(client_lr=float("nan"), stamp="", work=Steps(7, batch_size=None), pass_through=PASSED),
        task(stamp="ab12", restored={"tracker": VECTOR, "few": SPARSE}),
        task(vectors={"dual": SPARSE}),
        task(vectors={"dual": NONZEROS}),
        task(vectors={"dual": np.concatenate([VECTOR, VECTOR])}, numbers={"points": 2.0}),
    ],
)
def test_a_task_is_what_was_sent(down):
    found = decode_downlink(sent(down))
    assert fields(found) == fields(down)
    assert found.plan.text == PLAN.text
    np.testing.assert_array_equal(found.plan.regularizer.weights, np.arange(5.0))


def test_a_task_in_single_precision_is_read_as_float64_and_as_it_was_sent():
    plan = Plan("dual_averaging", LAYOUT, L1(0.1), Euclidean(), wire_dtype="auto")
    down = task(plan=plan, dtype="float32")
    content = sent(down)
    found = decode_downlink(content)
    np.testing.assert_array_equal(found.vectors["dual"], VECTOR.astype(np.float32).astype(np.float64))
    assert (found.dtype, found.vectors["dual"].dtype) == ("float32", np.float64)
    assert not found.vectors["dual"].flags.writeable
    # What a client in this process reads is the same.
    assert fields(down.as_received()) == fields(found)
    assert decode_downlink(content, as_sent=True).vectors["dual"].dtype == np.float32
    with pytest.raises(ProtocolError, match="'dual' is not finite"):
        task(vectors={"dual": np.full(5, np.nan)}).as_received()


def test_what_several_clients_are_sent_is_written_once():
    encode = Encoder(ConfigRecord(), "arrays", "config")
    one = encode(task())
    other = encode(task(client_lr=0.5))
    assert one["arrays"]["dual"].data is other["arrays"]["dual"].data
    one["arrays"]["dual"] = Array(np.ones(5))
    one["config"]["mine"] = 1
    assert "mine" not in other["config"]
    np.testing.assert_array_equal(other["arrays"]["dual"].numpy(), VECTOR)


def changed(content, record, **entries):
    for name, value in entries.items():
        content[record][name.replace("_", "-")] = value
    return content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("fco"), "comes from a strategy that is not of flwr_fco"),
        (lambda c: changed(c, "fco", plan=3), "cannot be read: TypeError"),
        (lambda c: changed(c, "fco", plan="[" * 100_000), "nested too deeply"),
        (lambda c: c.pop("fco-plan"), "names an array"),
        (lambda c: changed(c, "fco", elapsed=-1.0), "elapsed=-1.0"),
        (lambda c: c["fco"].update({"number:points": 1e9}), "1000000000.0 points"),
        (lambda c: c["fco"].update({"number:half": float("nan")}), "'half' is nan"),
        (lambda c: changed(c, "arrays", dual=Array(np.zeros(5, np.float32))), "float32"),
        (lambda c: changed(c, "arrays", dual=Array(np.full(5, np.nan))), "finite"),
        (lambda c: c["arrays"].update({"pass:w": Array(np.zeros(5))}), r"the arrays \['w'\]"),
        (lambda c: c["arrays"].update({"indices:dual": Array(np.array([0, 9], np.int32))}), "dual"),
        (lambda c: c.update({"more": ArrayRecord()}), "exactly one ArrayRecord, got 2"),
        (lambda c: c.update({"fco-restored": ConfigRecord({"t": 1})}), "cannot be read"),
        (lambda c: c.update({"fco-restored": ArrayRecord({"t": Array(np.zeros(4))})}), r"float64\[4\]"),
    ],
)
def test_a_task_that_is_none_is_an_error_in_words(change, message):
    content = sent(task())
    change(content)
    with pytest.raises((ProtocolError, SpecError), match=message):
        decode_downlink(content)


@pytest.mark.parametrize(
    "up",
    [
        Uplink({"increment": VECTOR}, 0.5, 3, examples=7, metrics={"loss": 0.5, "curve": [1.0, 2.0]}),
        Uplink({"increment": VECTOR.astype(np.float32)}, None, 2, examples=7, pass_through=PASSED),
        Uplink({"increment": SPARSE, "control": SparseVector(AT[:0], np.zeros(0), 5)}, 0.5, 3, examples=1),
        Uplink({"increment": NONZEROS}, 0.5, 3, examples=1),
        Uplink({}, None, 1, examples=2),
    ],
)
def test_a_reply_is_what_was_sent(up):
    assert fields(decode_uplink(travelled(encode_uplink(up)), 5, {})) == fields(up)


def test_a_sparse_vector_has_the_length_that_the_method_says():
    long = SparseVector(AT, np.ones(2), 16)
    content = travelled(encode_uplink(Uplink({"rows": long, "increment": SPARSE}, None, 1, examples=1)))
    found = decode_uplink(content, 5, {"rows": (2, 8), "increment": (5,)})
    assert {name: vector.size for name, vector in found.vectors.items()} == {"rows": 16, "increment": 5}


def test_a_lost_memory_is_told_by_nothing_else():
    assert decode_uplink(travelled(encode_uplink(None)), 5, {}) is None


@pytest.mark.parametrize("name", ["num-examples", "local-steps", "elapsed", "fco-memory-lost"])
def test_a_client_cannot_report_a_metric_of_the_protocol(name):
    with pytest.raises(ProtocolError, match="is the protocol's own; rename it"):
        encode_uplink(Uplink({}, None, 1, examples=1, metrics={name: 1.0}))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (RecordDict(), "exactly one MetricRecord, got 0"),
        (RecordDict({"metrics": MetricRecord({"n": 1})}), "exactly one ArrayRecord, got 0"),
        (RecordDict({"a": ArrayRecord(), "b": ArrayRecord(), "m": MetricRecord()}), "exactly one ArrayRecord, got 2"),
        (
            RecordDict({"a": ArrayRecord({"indices:x": Array(np.zeros(1, np.int32))}), "m": MetricRecord()}),
            "have no values of their own beside them",
        ),
    ],
)
def test_a_reply_that_is_none_is_an_error_in_words(content, message):
    with pytest.raises(ProtocolError, match=message):
        decode_uplink(content, 5, {})


def test_the_digest_of_a_reply_is_that_of_all_that_a_memory_follows_from():
    base = digest_of({"increment": VECTOR}, 0.5)
    assert base == digest_of({"increment": VECTOR.copy()}, 0.5)
    # Through messages and back it stays, or no memory would be found again.
    up = Uplink({"increment": VECTOR, "few": SPARSE}, 0.5, 3, examples=7)
    found = decode_uplink(travelled(encode_uplink(up)), 5, {})
    assert digest_of(found.vectors, found.elapsed) == digest_of(up.vectors, up.elapsed)
    others = [
        digest_of({"increment": VECTOR}, 0.6),
        digest_of({"increment": VECTOR}, None),
        digest_of({"other": VECTOR}, 0.5),
        digest_of({"increment": -VECTOR}, 0.5),
        digest_of({"increment": np.where(VECTOR == 0.0, 0.0, VECTOR)}, 0.5),
        digest_of({"increment": VECTOR.astype(np.float32)}, 0.5),
        *(digest_of({"increment": s * VECTOR, "control": t * VECTOR}, 0.5) for s, t in ((1, 1), (-1, 1), (1, -1))),
        digest_of({"increment": SPARSE}, 0.5),
        digest_of({"increment": SparseVector(AT + 1, SPARSE.values, 5)}, 0.5),
    ]
    assert len({base, *others}) == len(others) + 1


def test_questions_and_answers_are_what_was_sent():
    asked = Question("gradient", LAYOUT, {"primal": VECTOR}, {"mass": 1.0}, PASSED)
    assert fields(decode_question(travelled(encode_question(asked)))) == fields(asked)
    answer = Answer({"loss": 0.5, "held-out": 1.0}, {"gradient": VECTOR, "few": SPARSE}, 7)
    assert fields(decode_answer(travelled(encode_answer(answer)), 5)) == fields(answer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("fco-question"), "cannot be read: KeyError: 'fco-question'"),
        (lambda c: changed(c, "fco-question", layout="x" * 2000), "a plan of 2000 characters; .*max_plan=1000"),
        (lambda c: changed(c, "fco-question", layout="no"), "cannot be read: JSONDecodeError"),
        (lambda c: c["fco-question"].update({"number:mass": float("inf")}), "expected a finite number"),
        (lambda c: changed(c, "arrays", primal=Array(np.full(5, np.inf))), "finite"),
    ],
)
def test_a_question_that_is_none_is_an_error_in_words(change, message):
    content = encode_question(Question("gradient", LAYOUT, {"primal": VECTOR}))
    change(content)
    with pytest.raises(ValueError, match=message):
        decode_question(content, 1000)


@pytest.mark.parametrize(
    "said",
    [
        Described(),
        Described(("a", "b"), ("0", "1")),
        Described(("a",), None, np.array([0.5]), 40),
        Described(None, ("0",)),
    ],
)
def test_what_a_table_is_is_what_was_said(said):
    assert fields(decode_described(travelled(encode_described(said)))) == fields(said)


@pytest.mark.parametrize(
    ("entry", "message"), [(("columns", 3), "cannot be read: TypeError"), (("classes", [1, 2]), "expected texts")]
)
def test_names_that_are_none_are_refused(entry, message):
    content = encode_described(Described(("a",), None, np.array([0.5])))
    content["fco-names"][entry[0]] = entry[1]
    with pytest.raises(ProtocolError, match=message):
        decode_described(content)


@pytest.mark.parametrize("rows", [-1, 2**63, 10**400, 40.0, float("nan")])
def test_numbers_of_rows_that_are_none_are_refused(rows):
    content = encode_described(Described(("a",), examples=40))
    content["metrics"]["num-examples"] = rows
    with pytest.raises(ProtocolError, match=r"number of examples is .*; expected a whole number"):
        decode_described(content)


# --- plans and regularizers out of specifications ---------------------------------------------------------------------


LAYOUT_OF_THREE = Layout.from_arrays({"w": np.zeros(3)})


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
    plan = Plan("dual_averaging", LAYOUT_OF_THREE, regularizer, mirror_map)
    z = np.array([0.5, -0.01, 2.0])
    expected = plan.h.retrieve(z, 1.5, plan.psi)
    np.testing.assert_array_equal(plan.point(z, 1.5), expected)
    assert plan.point(z, 1.5, z) is z
    np.testing.assert_array_equal(z, expected)


def test_the_point_of_a_plan_is_that_of_a_map_derived_from_the_euclidean():
    class Halved(Euclidean):
        def retrieve(self, z, t, regularizer, out=None):
            return super().retrieve(z / 2.0, t, regularizer, out)

    plan = Plan("dual_averaging", LAYOUT_OF_THREE, L1(0.1), Halved())
    z = np.array([1.0, -1.0, 4.0])
    np.testing.assert_array_equal(plan.point(z, 1.0), L1(0.1).prox(z / 2.0, 1.0))
