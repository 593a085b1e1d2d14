"""Strategies that need every client in every round: the silent are asked again in the same round."""

from dataclasses import field

import numpy as np
import pytest
from flwr.app import Array, Error, Message, RecordDict
from problems import app_of, clients, flat, run, start_arrays

from flwr_fco.algorithms import DualAveraging
from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import InProcessGrid
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


class Flaky(InProcessGrid):
    """Node 3 does not answer, or answers badly, for some number of times in round 2."""

    def __init__(self, app, failures, kind):
        super().__init__(app, 4)
        self.failures, self.kind, self.asked = failures, kind, []

    def reply(self, message):
        number, node = message.metadata.group_id, message.metadata.dst_node_id
        self.asked.append((number, node))
        if (number, node) == ("2", 3) and self.failures > 0:
            self.failures -= 1
            if self.kind == "silence":
                return None
            reply = super().reply(message)
            if self.kind == "error":
                return Message(Error(2, "the disk is full"), reply_to=message)
            if self.kind == "empty":
                return Message(RecordDict(), reply_to=message)
            if self.kind == "stamp":
                reply.metadata.group_id = "1"
                return reply
            (arrays,) = reply.content.array_records.values()
            for name, array in list(arrays.items()):
                bad = np.full_like(array.numpy(), np.nan) if self.kind == "NaN" else array.numpy()[:-1]
                arrays[name] = Array(bad)
            return reply
        return super().reply(message)


def as_it_is(message, context, call_next):
    """With a mod, messages travel."""
    return call_next(message, context)


def options():
    return {"client_lr": 0.02, "work": Epochs(1, batch_size=None), "fraction_evaluate": 0.0}


def test_a_share_of_the_clients_is_refused_at_construction():
    with pytest.raises(ConfigurationError, match=r"fraction_train=0.5: Everyone needs every client"):
        Everyone(0.5)


#: Why an answer does not count, by what is wrong with it.
KINDS = {
    "silence": "no reply",
    "error": "the disk is full",
    "NaN": "NaN or infinite",
    "shape": "float64[6], expected",
    "empty": "got 0",
    "stamp": "answers round 1",
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_node_without_a_good_answer_is_asked_again_and_nothing_is_lost(kind):
    grid = Flaky(app_of(clients(), [as_it_is]), 2, kind)
    result = Everyone(**options()).start(grid, start_arrays(), 4)
    undisturbed = run(Everyone(**options()), clients(), 4)
    np.testing.assert_allclose(flat(result.arrays), flat(undisturbed.arrays), rtol=1e-12)
    second = [node for number, node in grid.asked if number == "2"]
    assert sorted(second) == [2, 3, 3, 3, 4, 5]
    assert result.train_metrics_clientapp[2]["num-left-out"] == 0
    # What it said before does not matter if an answer counts in the end.
    assert result.left_out == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_without_everybody_is_skipped_and_the_state_stays(kind):
    grid = Flaky(app_of(clients(), [as_it_is]), 3, kind)
    result = Everyone(**options()).start(grid, start_arrays(), 4)
    metrics = result.train_metrics_clientapp[2]
    assert (metrics["skipped"], metrics["num-replies"], metrics["num-left-out"]) == (1, 3, 1)
    np.testing.assert_allclose(flat(result.arrays), flat(run(Everyone(**options()), clients(), 3).arrays), rtol=1e-12)
    # What it said the last time is why.
    (left_out,) = result.left_out
    assert KINDS[kind] in left_out.reason
    assert (left_out.round, left_out.node_id) == (2, 3)


def test_a_sampled_strategy_asks_nobody_again_for_a_bad_answer():
    grid = Flaky(app_of(clients(), [as_it_is]), 1, "NaN")
    FedDualAvg(**options()).start(grid, start_arrays(), 3)
    assert [node for number, node in grid.asked if number == "2"].count(3) == 1
