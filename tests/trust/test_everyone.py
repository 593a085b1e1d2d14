"""Strategies that need every client in every round: the silent are asked again in the same round."""

from dataclasses import field

import numpy as np
import pytest
from faulty import Faulty, error, silent, with_content, with_increment
from problems import app_of, clients, flat, run, start_arrays

from flwr_fco.algorithms import DualAveraging
from flwr_fco.strategies import Epochs, FedDualAvg, strategy
from flwr_fco.strategies import Everyone as Patience


class Whole(DualAveraging):
    """Dual averaging that refuses to go on without everybody."""

    reads = "everyone"


@strategy
class Everyone(FedDualAvg):
    """The strategy of it."""

    algorithm = Whole
    participation: Patience = field(default=Patience())


def stamped(message, reply):
    reply.metadata.group_id = "1"
    return [reply]


#: What is wrong with an answer, and why it does not count.
KINDS = {
    "silence": (silent, "no reply"),
    "error": (error(2, "the disk is full"), "the disk is full"),
    "NaN": (with_increment(lambda a: {n: np.nan * value for n, value in a.items()}), "NaN or infinite"),
    "shape": (with_increment(lambda a: {n: value[:-1] for n, value in a.items()}), "float64[6], expected"),
    "empty": (with_content(lambda content: content.clear() or {}), "got 0"),
    "stamp": (stamped, "answers round 1"),
}


def flaky(failures, kind):
    """Return a grid on which node 3 answers badly for some number of times in round 2, and whom that round asks."""
    asked = []
    left = iter(range(failures))

    def note(message, context, call_next):
        if (message.metadata.message_type, message.metadata.group_id) == ("train", "2"):
            asked.append(context.node_id)
        return call_next(message, context)

    def fault(message, reply):
        return [reply] if next(left, None) is None else KINDS[kind][0](message, reply)

    return Faulty(app_of(clients(), [note]), 4, fault), asked


OPTIONS = {"client_lr": 0.02, "work": Epochs(1, batch_size=None), "fraction_evaluate": 0.0}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_node_without_a_good_answer_is_asked_again(kind):
    grid, asked = flaky(2, kind)
    result = Everyone(**OPTIONS).start(grid, start_arrays(), 4)
    np.testing.assert_allclose(flat(result.arrays), flat(run(Everyone(**OPTIONS), clients(), 4).arrays), rtol=1e-12)
    assert sorted(asked) == [2, 3, 3, 3, 4, 5]
    # What it said before does not matter if an answer counts in the end.
    assert result.train_metrics_clientapp[2]["num-left-out"] == 0
    assert result.left_out == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_without_everybody_is_skipped_and_the_state_stays(kind):
    result = Everyone(**OPTIONS).start(flaky(3, kind)[0], start_arrays(), 4)
    metrics = result.train_metrics_clientapp[2]
    assert (metrics["skipped"], metrics["num-replies"], metrics["num-left-out"]) == (1, 3, 1)
    np.testing.assert_allclose(flat(result.arrays), flat(run(Everyone(**OPTIONS), clients(), 3).arrays), rtol=1e-12)
    # What it said the last time is why.
    (left_out,) = result.left_out
    assert KINDS[kind][1] in left_out.reason
    assert (left_out.round, left_out.node_id) == (2, 3)
