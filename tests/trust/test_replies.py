"""Whose reply counts: one of each node that was asked, of this round, in a form that the method reads."""

import numpy as np
import pytest
from faulty import BAD_NODE, Faulty, start_on, strategy, with_increment
from flwr.app import Message
from problems import app_of, clients, flat
from together import together

from flwr_fco.simulation import InProcessGrid


def model(fault, rounds=(2,)):
    grid = Faulty(app_of(clients()), 4, fault, rounds=rounds)
    result = start_on(grid, strategy())
    return flat(result.arrays), [(row.round, row.node_id, row.reason) for row in result.left_out]


def silent(message, reply):
    return []


def honest(message, reply):
    return [reply]


def other(message, reply):
    return with_increment(lambda arrays: {name: 3.0 * value for name, value in arrays.items()})(message, reply)[0]


def test_of_two_answers_of_a_node_the_first_counts():
    found, rows = model(lambda message, reply: [reply, other(message, reply)])
    np.testing.assert_array_equal(found, model(honest)[0])
    assert rows == [(2, BAD_NODE, "it answered twice; the first answer counts")]


def test_a_node_that_was_not_asked_counts_nothing_and_is_named():
    class Strange(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = list(super().send_and_receive(messages, timeout=timeout))
            if replies[0].metadata.message_type == "train":
                reply = replies[0]
                stranger = Message(reply.content, reply_to=next(iter(messages)))
                stranger.metadata._src_node_id = 99
                replies.append(stranger)
            return replies

    result = start_on(Strange(app_of(clients()), 4), strategy(), rounds=1)
    np.testing.assert_array_equal(
        flat(result.arrays), flat(start_on(InProcessGrid(app_of(clients()), 4), strategy(), rounds=1).arrays)
    )
    assert [(row.node_id, row.reason) for row in result.left_out] == [(99, "this node was not asked")]


@together("dtype", [np.float16, np.int64, np.bool_, np.uint8])
def test_vectors_of_other_types_are_left_out(dtype):
    found, rows = model(with_increment(lambda arrays: {name: value.astype(dtype) for name, value in arrays.items()}))
    np.testing.assert_array_equal(found, model(silent)[0])
    ((number, node, reason),) = rows
    assert (number, node) == (2, BAD_NODE)
    assert "expected float64 or float32[7]" in reason


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e200])
def test_what_is_not_finite_or_overflows_is_left_out(value):
    found, rows = model(with_increment(lambda arrays: {name: np.full_like(a, value) for name, a in arrays.items()}))
    np.testing.assert_array_equal(found, model(silent)[0])
    assert "overflows" in rows[0][2] if np.isfinite(value) else "7 NaN or infinite" in rows[0][2]
