"""What a deployment survives: SuperNodes that are killed and come back, and clients that answer badly. Minutes each.

Kills come at a random moment, which is printed: of the work of a node, of the server's or of the wait between them.
"""

import random
import time

import numpy as np
import pytest

pytestmark = [pytest.mark.deployment, pytest.mark.slow]


def same(arrays, others):
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name])


def wait_for_a_moment(deployment, name, after):
    """Wait for a round, then for any moment of it or of the next."""
    deployment.wait_for_round(name, after)
    seconds = random.uniform(0.0, 8.0)
    print(f"{seconds:.2f} s after the beginning of round {after} of {name}")
    time.sleep(seconds)


@pytest.mark.parametrize(
    ("strategy", "nodes"), [("FedDualAvg", [1]), ("FedDAGT", [1, 2]), ("DualFL", [1]), ("DualFL", [1, 2])]
)
def test_killed_nodes_come_back_in_the_midst_of_a_run(strategy, nodes, deployments, here):
    deployment = deployments()
    rounds = 12 if strategy == "DualFL" else 8
    # A message that dies with its process is answered by nobody where the node is back in time.
    deployment.begin("run", strategy=strategy, rounds=rounds, timeout=150.0)
    wait_for_a_moment(deployment, "run", 3)
    for i in nodes:
        deployment.kill(f"node-{i}")
    for i in nodes:
        deployment.restart_node(i)
    arrays, rows, left_out = deployment.ended("run")
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    assert rows[-1]["train/num-replies"] == 3
    # One of two may be back before anybody misses it.
    lost = {row[2] for row in left_out}
    assert lost
    assert lost <= set(nodes)
    assert all(np.isfinite(array).all() for array in arrays.values())
    if strategy == "DualFL":
        # It needs everyone: a round without somebody is skipped, and those that count are those of the whole run.
        counted = sum(not row["train/skipped"] for row in rows)
        same(arrays, here(strategy, counted)[0])


def test_bad_answers_are_left_out_as_they_are_in_one_process(deployments, here):
    arrays, rows, left_out = deployments().run("faults", strategy="FedDAGT", rounds=10, faults=0.2)
    expected, expected_rows = here("FedDAGT", 10, faults=0.2)
    same(arrays, expected)
    assert left_out
    assert [row["train/num-replies"] for row in rows] == [row["train/num-replies"] for row in expected_rows]
