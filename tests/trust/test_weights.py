"""The weight of a client: what it says first, within bounds, and the same for good where clients remember."""

import numpy as np
from fault_bars import imbalance
from faulty import Faulty, start_on, with_metrics
from problems import app_of, clients, flat, optimum, problem
from together import together

from flwr_fco.strategies import Epochs, FedDAGT, FedDualAvg, Steps


@together("lie", [0, 20_000])
def test_another_number_than_the_first_is_left_out_and_the_limit_stays(lie):
    objectives = problem((30, 40, 20, 30, 25, 30, 30))
    fault = with_metrics(lambda m: {**m, "num-examples": lie})
    chosen = FedDAGT(client_lr=0.05, work=Steps(4, batch_size=None), fraction_evaluate=0.0)
    grid = Faulty(app_of(objectives), len(objectives), fault, rounds=(3, 4))
    balanced = []
    result = start_on(grid, chosen, rounds=150, callbacks=[lambda n, a, m: balanced.append(imbalance(chosen))])
    assert max(balanced) <= 1e-10
    assert chosen.memories.members[(0, 1)].examples == 40
    assert [(row.round, row.partition_id) for row in result.left_out] == [(3, 1), (4, 1)]
    weights = np.array([f.num_examples for f in objectives]) / sum(f.num_examples for f in objectives)
    assert np.abs(flat(result.arrays) - optimum(objectives, weights)).max() < 1e-8


def test_steps_follow_from_examples_also_where_another_number_is_the_weight():
    weighted = with_metrics(lambda m: {**m, "weight": 0.5})
    make = FedDualAvg(client_lr=0.02, work=Epochs(2, batch_size=5), weighted_by_key="weight", fraction_evaluate=0.0)
    result = start_on(Faulty(app_of(clients()), 4, weighted, rounds=range(99), nodes=(2, 3, 4, 5)), make, rounds=4)
    assert [metrics["num-replies"] for metrics in result.train_metrics_clientapp.values()] == [4] * 4


@together("weight", [-1.0, float("nan"), float("inf"), 1e13, None])
def test_a_weight_that_is_none_leaves_the_reply_out(weight):
    def said(metrics):
        return metrics if weight is None else {**metrics, "weight": weight}

    make = FedDualAvg(client_lr=0.02, weighted_by_key="weight", fraction_evaluate=0.0)
    nodes, lies = (2, 4, 5), with_metrics(said)
    honest = with_metrics(lambda metrics: {**metrics, "weight": 1.0})

    def fault(message, reply):
        return (honest if message.metadata.dst_node_id in nodes else lies)(message, reply)

    result = start_on(Faulty(app_of(clients()), 4, fault, rounds=range(99), nodes=(2, 3, 4, 5)), make, rounds=2)
    assert [(row.round, row.node_id) for row in result.left_out] == [(1, 3), (2, 3)]
