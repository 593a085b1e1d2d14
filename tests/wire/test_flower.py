"""What is made for Flower is what its own constructors make, in every supported release."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from flwr_fco.client_apps import client_app
from flwr_fco.client_apps.app import training_handler
from flwr_fco.client_apps.training import TrainingHandler
from flwr_fco.wire import flower as _flower


def load(context):
    raise AssertionError("nobody trains here")


@pytest.fixture
def question():
    with _flower.identity(17):
        return Message(RecordDict(), 5, "train", group_id="3")


@pytest.mark.parametrize("body", [RecordDict(), Error(2, "no")], ids=["content", "error"])
def test_a_number_is_all_that_a_message_is_given(question, body):
    message = Message(body, reply_to=_flower.numbered(question, "an id"))
    twin = _flower.numbered(message, "another id")
    assert twin.metadata.message_id == "another id"
    assert message.metadata.message_id == ""
    about, before = vars(twin.metadata), vars(message.metadata)
    assert {name for name in before if about[name] != before[name]} == {"_message_id"}
    assert twin.metadata.reply_to_message_id == "an id"
    assert twin.has_error() == message.has_error()
    assert (twin.error if twin.has_error() else twin.content) is body


def test_another_content_leaves_the_message_as_it_is(question):
    content, before = RecordDict({"a": MetricRecord({"b": 1})}), question.content
    twin = _flower.with_content(question, content)
    assert (type(twin), twin.content, twin.metadata) == (Message, content, question.metadata)
    assert question.content is before


def test_a_process_is_a_serverapp_for_a_while_only():
    with _flower.identity(17):
        with _flower.identity(18):
            assert Message(RecordDict(), 5, "train").metadata.run_id == 18
        assert Message(RecordDict(), 5, "train").metadata.run_id == 17
    with pytest.raises(RuntimeError, match="not set"):
        Message(RecordDict(), 5, "train")


def test_the_training_handler_is_known_as_long_as_nothing_acts_around_it():
    app = client_app(load)
    assert isinstance(training_handler(app), TrainingHandler)
    app.lifespan()
    assert training_handler(app) is None
    assert training_handler(client_app(load, mods=[lambda message, context, call_next: None])) is None


def test_isolated_records_share_nothing_that_can_change():
    array = Array("float64", (1,), "numpy.ndarray", b"x")
    given = RecordDict({"a": ArrayRecord(), "c": ConfigRecord({"l": [1]}), "m": MetricRecord({"l": [1.0], "n": 1})})
    given["a"]["w"] = array
    copy = _flower.isolated(given)
    assert copy == given
    copy["a"]["w"].data = b"y"
    copy["c"]["l"].append(2)
    copy["m"]["l"].append(2.0)
    copy["m"]["n"] = 2
    del copy["a"]["w"]
    assert array.data == b"x"
    assert dict(given["c"]) == {"l": [1]}
    assert dict(given["m"]) == {"l": [1.0], "n": 1}
    assert list(given["a"]) == ["w"]


@pytest.mark.parametrize("array", [np.eye(3), np.array(2.5), np.zeros((0, 2), np.float32), np.arange(3) > 1])
def test_a_serialised_array_is_flowers_byte_for_byte(array):
    assert vars(_flower.serialised(array)) == vars(Array(array))


@pytest.mark.parametrize("array", [np.eye(2, 3, order="F"), np.arange(3, dtype=">f8"), np.arange(6.0)[::2]])
def test_an_array_of_another_order_is_serialised_in_the_usual_one(array):
    found = _flower.serialised(array)
    np.testing.assert_array_equal(found.numpy(), array)
    assert found.numpy().flags.c_contiguous
    assert found.numpy().dtype.isnative
