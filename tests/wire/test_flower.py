"""What `_flower.py` puts together itself is what Flower's constructors make, in every supported release."""

import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from flwr_fco.wire import flower as _flower


@pytest.fixture
def question():
    with _flower.identity(17):
        message = Message(RecordDict(), 5, "train", group_id="3")
    _flower.set_message_id(message, "an id")
    return message


@pytest.mark.parametrize("body", [RecordDict(), Error(2, "no")], ids=["content", "error"])
def test_a_number_is_all_that_a_message_is_given(question, body):
    message = Message(body, reply_to=question)
    before = vars(message) | {"_metadata": dict(vars(message.metadata))}
    _flower.set_message_id(message, "another id")
    assert message.metadata.message_id == "another id"
    assert before["_metadata"]["_message_id"] == ""
    before["_metadata"]["_message_id"] = "another id"
    assert vars(message) | {"_metadata": vars(message.metadata)} == before


def test_another_content_leaves_the_message_as_it_is(question):
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
        if name == "_fields" or name not in self._fields:
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


@pytest.fixture
def later(monkeypatch):
    """Have `_flower` find a release without any of the private names."""
    monkeypatch.setattr(_flower, "Message", LaterMessage)
    monkeypatch.setattr(_flower, "Metadata", LaterMetadata)


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

    failure = LaterMessage(error="no", reply_to=message)
    _flower.set_message_id(failure, "2")
    assert (failure.metadata.message_id, failure.error, failure.content) == ("2", "no", None)


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
    usual = _flower.items_of(given["a"])["v"] = Array("float64", (1,), "numpy.ndarray", b"x")
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
