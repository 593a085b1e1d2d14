"""What `_flower.py` puts together itself is what Flower's constructors make, in every supported release."""

import time

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from problems import clients, flat, run

from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, FedDualAvg
from flwr_fco.wire import flower as _flower


@pytest.fixture
def question():
    with _flower.identity(17):
        message = Message(RecordDict(), 5, "train", group_id="3")
    _flower.set_message_id(message, "an id")
    return message


@pytest.fixture(params=["quick", "public"])
def way(request, monkeypatch):
    """Flower as we know it, and a release whose messages and arrays are others."""
    assert _flower._messages_are_known()
    assert _flower._arrays_are_known()
    if request.param == "public":
        monkeypatch.setattr(_flower, "_messages_are_known", lambda: False)
        monkeypatch.setattr(_flower, "_arrays_are_known", lambda: False)


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


def test_an_array_is_flowers(way):
    array = _flower.new_array("float64", (2, 3), "numpy.ndarray", b"x")
    assert type(array) is Array
    expected = Array("float64", (2, 3), "numpy.ndarray", b"x")
    assert array == expected
    # The mark and the hash appear when Flower first asks for them.
    assert array.object_id == expected.object_id
    assert vars(array) == vars(expected)


@pytest.mark.parametrize("body", [RecordDict(), Error(2, "no")], ids=["content", "error"])
def test_a_number_is_all_that_a_message_is_given(question, way, body):
    message = Message(body, reply_to=question)
    before = vars(message) | {"_metadata": dict(vars(message.metadata))}
    _flower.set_message_id(message, "another id")
    assert message.metadata.message_id == "another id"
    assert before["_metadata"]["_message_id"] == ""
    before["_metadata"]["_message_id"] = "another id"
    assert vars(message) | {"_metadata": vars(message.metadata)} == before


def test_another_content_leaves_the_message_as_it_is(question, way):
    content, before = RecordDict({"a": MetricRecord({"b": 1})}), question.content
    twin = _flower.with_content(question, content)
    assert type(twin) is Message
    assert twin is not question
    assert twin.content is content
    assert question.content is before
    assert vars(twin) == vars(question) | {"_content": content}


class Derived(ClientApp):
    """An app with a door of its own."""

    def __call__(self, message, context):
        self.calls = [*getattr(self, "calls", []), message.metadata.message_type]
        return super().__call__(message, context)


def handled(kind, *, lifespan=False, mods=()):
    """Return an app whose handlers say which of them was called, and what its mods and its lifespan saw."""
    app, seen = kind(mods=list(mods)), []

    @app.train()
    def train(message, context):
        return Message(RecordDict({"it": MetricRecord({"train": 1})}), reply_to=message)

    @app.train("own")
    def own(message, context):
        return Message(RecordDict({"it": MetricRecord({"own": 1})}), reply_to=message)

    @app.evaluate()
    def evaluate(message, context):
        raise RuntimeError("no evaluation here")

    if lifespan:

        @app.lifespan()
        def around(context):
            seen.append("enter")
            yield
            seen.append("exit")

    return app, seen


@pytest.mark.parametrize("lifespan", [False, True])
@pytest.mark.parametrize("kind", [ClientApp, Derived])
def test_a_call_of_an_app_is_flowers(kind, lifespan):
    def mod(message, context, call_next):
        passed.append(message.metadata.message_type)
        return call_next(message, context)

    context = _flower.new_context(17, 5, {}, {})
    found = []
    for call in (_flower.call, lambda app, *args: app(*args)):
        passed = []
        app, seen = handled(kind, lifespan=lifespan, mods=[mod])
        answers = []
        for message_type in ("train", "train.default", "train.own", "evaluate", "query", "query.own"):
            with _flower.identity(17):
                message = Message(RecordDict(), 5, message_type, group_id="3")
            _flower.set_message_id(message, "an id")
            try:
                answers.append(dict(call(app, message, context).content["it"]))
            except (RuntimeError, ValueError) as error:
                answers.append(repr(error))
        found.append((answers, seen, passed, getattr(app, "calls", None)))
    assert found[0] == found[1]
    assert found[0][0][:3] == [{"train": 1}, {"train": 1}, {"own": 1}]
    assert len(found[0][1]) == (12 if lifespan else 0)


def test_an_app_of_a_release_that_keeps_its_handlers_elsewhere_is_called_as_it_wants():
    app, _ = handled(ClientApp)
    handlers = vars(app).pop("_registered_funcs")
    app._call = lambda message, context: handlers["train.own"](message, context)
    with _flower.identity(17):
        message = Message(RecordDict(), 5, "train", group_id="3")
    _flower.set_message_id(message, "an id")
    assert dict(_flower.call(app, message, _flower.new_context(17, 5, {}, {})).content["it"]) == {"own": 1}


class LaterMetadata:
    """Metadata of a release that keeps everything elsewhere; what is public is as it was."""

    __slots__ = ("_fields",)

    def __init__(
        self, run_id, message_id, src_node_id, dst_node_id, reply_to_message_id, group_id, created_at, ttl, message_type
    ):
        self._fields = {name: value for name, value in locals().items() if name != "self"}

    def __getattr__(self, name):
        if name == "_fields":
            raise AttributeError(name)
        return self._fields[name]


class LaterMessage:
    """A message of such a release."""

    __slots__ = ("body", "metadata")

    def __init__(self, content=None, *, metadata=None, error=None, reply_to=None):
        if reply_to is not None:
            asked = dict(reply_to.metadata._fields)
            asked.update(message_id="", reply_to_message_id=asked["message_id"])
            asked.update(src_node_id=asked["dst_node_id"], dst_node_id=asked["src_node_id"])
            metadata = LaterMetadata(**asked)
        self.metadata, self.body = metadata, (content, error)

    @property
    def content(self):
        return self.body[0]

    @content.setter
    def content(self, value):
        self.body = (value, self.body[1])

    @property
    def error(self):
        return self.body[1]

    def has_content(self):
        return self.body[0] is not None


class LaterArray:
    """An array of such a release."""

    __slots__ = ("data", "dtype", "shape", "stype")

    def __init__(self, dtype, shape, stype, data):
        self.dtype, self.shape, self.stype, self.data = dtype, shape, stype, data


@pytest.fixture
def later(monkeypatch):
    """Have `_flower` find a release without any of the private names."""
    decisions = (_flower._messages_are_known, _flower._arrays_are_known)
    for name, value in {"Message": LaterMessage, "Metadata": LaterMetadata, "Array": LaterArray}.items():
        monkeypatch.setattr(_flower, name, value)
    for decision in decisions:
        decision.cache_clear()
    yield
    for decision in decisions:
        decision.cache_clear()


def test_a_release_without_our_private_names_is_served_the_public_way(later):
    metadata = LaterMetadata(17, "", 1, 5, "", "3", 2.0, 9.0, "train")
    message = LaterMessage(RecordDict(), metadata=metadata)
    _flower.set_message_id(message, "an id")
    assert message.metadata._fields == metadata._fields | {"message_id": "an id"}

    content, before = RecordDict({"a": MetricRecord({"b": 1})}), message.content
    twin = _flower.with_content(message, content)
    assert type(twin) is LaterMessage
    assert (twin.content, twin.metadata) == (content, message.metadata)
    assert message.content is before

    reply = _flower.reply_to(message, content)
    assert (reply.metadata.reply_to_message_id, reply.metadata.src_node_id, reply.content) == ("an id", 5, content)
    failure = LaterMessage(error="no", reply_to=message)
    _flower.set_message_id(failure, "2")
    assert (failure.metadata.message_id, failure.error, failure.content) == ("2", "no", None)

    array = _flower.new_array("float64", (2, 3), "numpy.ndarray", b"x")
    assert type(array) is LaterArray
    assert (array.dtype, array.shape, array.stype, array.data) == ("float64", (2, 3), "numpy.ndarray", b"x")


def test_a_release_whose_numbers_can_be_set_has_them_set(later):
    class Settable(LaterMetadata):
        @property
        def message_id(self):
            return self._fields["message_id"]

        @message_id.setter
        def message_id(self, value):
            self._fields["message_id"] = value

    metadata = Settable(17, "", 1, 5, "", "3", 2.0, 9.0, "train")
    message = LaterMessage(RecordDict(), metadata=metadata)
    _flower.set_message_id(message, "an id")
    assert message.metadata is metadata
    assert metadata.message_id == "an id"


def test_a_run_the_public_way_ends_in_the_same_bits(monkeypatch):
    def final():
        strategy = FedDualAvg(regularizer=L1(0.3), client_lr=0.02, work=Epochs(1, batch_size=5), seed=3)
        return flat(run(strategy, clients(), 3).arrays).tobytes()

    expected = final()
    monkeypatch.setattr(_flower, "_messages_are_known", lambda: False)
    monkeypatch.setattr(_flower, "_arrays_are_known", lambda: False)
    assert final() == expected


def test_a_release_whose_arrays_hold_more_is_not_copied(later, monkeypatch):
    class Later(Array):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.__dict__["_checksum"] = hash(self.data)

    monkeypatch.setattr(_flower, "Array", Later)
    array = _flower.new_array("float64", (2, 3), "numpy.ndarray", b"x")
    assert vars(array)["_checksum"] == hash(b"x")


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
    usual = _flower.items_of(given["a"])["v"] = _flower.new_array("float64", (1,), "numpy.ndarray", b"x")
    copy = _flower.isolated(given)
    assert dict(vars(copy["a"]["v"])) == dict(vars(usual))
    copy["a"]["v"].data = b"y"
    assert usual.data == b"x"
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
    assert list(given["a"]) == ["w", "v"]
