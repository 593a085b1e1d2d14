"""Mods that scale, clip or add noise to replies: trackers still sum to zero and the optimum is found."""

import numpy as np
import pytest
from faulty import invariant
from flwr.app import Array, ArrayRecord
from problems import flat, optimum, problem, start_arrays
from representatives import crossed

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDAGT, Scaffold, Steps
from flwr_fco.wire import flower as _flower


def altering(first=1, last=10**9):
    """A mod that scales, clips and adds a noise that fades."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        number = int(message.metadata.group_id or 0)
        if message.metadata.message_type != "train" or not first <= number <= last or not reply.has_content():
            return reply
        if "arrays" not in reply.content:
            return reply
        rng = np.random.default_rng((number, int(context.node_config["partition-id"])))
        arrays = {}
        for name, array in reply.content["arrays"].items():
            value = 0.8 * array.numpy()
            value = value * min(1.0, 5.0 / np.linalg.norm(value)) + 0.75**number * 0.1 * rng.standard_normal(value.size)
            arrays[name] = Array(value)
        content = reply.content.copy()
        content["arrays"] = ArrayRecord(arrays)
        reply.content = content
        return reply

    return mod


def tracked_run(chosen, objectives, rounds, mods, check=lambda strategy: None):
    app = client_app(lambda context: objectives[int(context.node_config["partition-id"])], mods=mods)
    chosen.fraction_evaluate = 0.0
    grid = InProcessGrid(app, len(objectives))
    with _flower.identity(grid.run_id):
        return chosen.start(grid, start_arrays(), rounds, callbacks=[lambda n, a, m: check(chosen)])


@pytest.mark.parametrize(("cls", "altered"), crossed([FedDAGT, Scaffold], [(1, 10**9), (3, 3)]))
def test_what_alters_the_uplink_acts_on_a_tracker_without_breaking_it(cls, altered):
    objectives = problem()
    chosen = cls(client_lr=0.1, work=Steps(4, batch_size=None), client_state="ledger")
    result = tracked_run(chosen, objectives, 110, [altering(*altered)], invariant)
    weights = np.array([f.num_examples for f in objectives]) / sum(f.num_examples for f in objectives)
    assert np.abs(flat(result.arrays) - optimum(objectives, weights)).max() < 1e-8


def test_with_reset_an_accident_is_mended_and_the_rule_is_an_error_that_names_the_ledger():
    objectives = problem()
    options = {"client_lr": 0.1, "work": Steps(4, batch_size=None), "client_state": "reset"}
    result = tracked_run(FedDAGT(**options), objectives, 110, [altering(3, 3)])
    weights = np.array([f.num_examples for f in objectives]) / sum(f.num_examples for f in objectives)
    assert np.abs(flat(result.arrays) - optimum(objectives, weights)).max() < 1e-8
    with pytest.raises(ConfigurationError, match='client_state="ledger"'):
        tracked_run(FedDAGT(**options), objectives, 20, [altering()])
