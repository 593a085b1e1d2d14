"""What `_flower.py` puts together itself is what Flower's constructors make, in every supported release."""

import time

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from flwr_fco import _flower


@pytest.fixture
def question():
    with _flower.identity(17):
        message = Message(RecordDict(), 5, "train", group_id="3")
    _flower.set_message_id(message, "an id")
    return message


@pytest.fixture(params=["quick", "public"])
def way(request, monkeypatch):
    """Flower as we know it, and a release whose messages are others."""
    assert _flower._messages_are_known()
    if request.param == "public":
        monkeypatch.setattr(_flower, "_messages_are_known", lambda: False)


def attributes(message):
    """Return all that a message consists of, but for the moment it was made."""
    metadata = vars(message.metadata) | {"_created_at": None, "_ttl": None}
    return vars(message) | {"_metadata": metadata}


def test_a_reply_is_flowers(question, way):
    content = RecordDict()
    # What a message has been given since it was made must not get into its reply.
    vars(question)["_object_id"] = "a hash"
    expected, before = Message(content, reply_to=question), time.time()
    reply = _flower.reply_to(question, content)
    assert type(reply) is Message
    assert attributes(reply) == attributes(expected)
    assert reply.content is content
    assert before - 1e-3 <= reply.metadata.created_at <= time.time() + 1e-3
    expires = question.metadata.created_at + question.metadata.ttl
    assert reply.metadata.created_at + reply.metadata.ttl == pytest.approx(expires, abs=1e-5)


def test_a_message_to_another_node_is_flowers(question, way):
    content = RecordDict()
    _flower.set_message_id(question, "")
    with _flower.identity(17):
        expected = Message(content, 6, "train", group_id="3")
        message = _flower.readdressed(question, content, 6)
    assert attributes(message) == attributes(expected)
    assert message.metadata.ttl == expected.metadata.ttl
    assert question.metadata.dst_node_id == 5


def test_a_release_whose_messages_hold_more_is_not_copied(monkeypatch):
    class Later(Message):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.__dict__["_signature"] = object()

    monkeypatch.setattr(_flower, "Message", Later)
    _flower._messages_are_known.cache_clear()
    try:
        assert not _flower._messages_are_known()
    finally:
        _flower._messages_are_known.cache_clear()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("kind", "items"),
    [
        (ArrayRecord, {"a": Array("float64", (1,), "numpy.ndarray", b"x")}),
        (ConfigRecord, {"a": "text", "b": [1, 2]}),
        (MetricRecord, {"a": 1.0}),
        (RecordDict, {"a": MetricRecord({"b": 1})}),
    ],
)
def test_a_filled_record_is_flowers(kind, items, known, monkeypatch):
    if not known:
        monkeypatch.setitem(_flower._ATTRIBUTES, kind, None)
    record = _flower.filled(kind, dict(items))
    assert type(record) is kind
    assert record == kind(dict(items))
    assert vars(kind()).keys() <= vars(record).keys()
    # Flower's checks are those of the record.
    with pytest.raises(TypeError):
        record[1] = "not a key"
    assert dict(_flower.items_of(record)) == items
    assert not kind(), "records do not share their items"


def test_isolated_records_share_nothing_that_can_change():
    array = Array("float64", (1,), "numpy.ndarray", b"x")
    array.shape = [1]  # a list where the message was decoded
    given = RecordDict({"a": ArrayRecord(), "c": ConfigRecord({"l": [1]}), "m": MetricRecord({"l": [1.0], "n": 1})})
    _flower.items_of(given["a"])["w"] = array
    copy = _flower.isolated(given)
    assert list(copy["a"]["w"].shape) == [1]
    copy["a"]["w"].data = b"y"
    copy["c"]["l"].append(2)
    copy["m"]["l"].append(2.0)
    copy["m"]["n"] = 2
    del copy["a"]["w"]
    assert array.data == b"x"
    assert array.shape == [1]
    assert dict(given["c"]) == {"l": [1]}
    assert dict(given["m"]) == {"l": [1.0], "n": 1}
    assert list(given["a"]) == ["w"]
