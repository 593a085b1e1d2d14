"""The short form: a few rounds of a deployment with TLS and authentication, and one that is killed and resumed."""

import numpy as np
import pytest

pytestmark = [pytest.mark.flower, pytest.mark.slow]


def same(arrays, others):
    assert arrays.keys() == others.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, others[name])


@pytest.mark.parametrize(
    "strategy", ["FedDAGT", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("FedDualAvg", "Short"))]
)
def test_the_bits_are_those_of_simulate_and_strangers_stay_out(strategy, deployments, here):
    """By day with memories and a round 0, of which the other's messages are a part."""
    deployment = deployments(2)
    deployment.make_ca("other-ca")
    deployment.start_stranger(2, register=False, ca="ca.crt")
    deployment.start_stranger(3, register=True, ca="other-ca.crt")
    arrays, rows, left_out = deployment.run(strategy, strategy=strategy, rounds=2)
    expected, expected_rows = here(strategy, 2, 2)
    same(arrays, expected)
    assert left_out == []
    replies = [row["train/num-replies"] for row in rows]
    assert replies == [row["train/num-replies"] for row in expected_rows] == [2, 2]


# It waits a minute for the keys of killed nodes to be free. By day test_killed_runs.py goes on with new nodes on a grid
# that tells no more than Flower's, and test_deploy.py starts a node until it is taken.
@pytest.mark.nightly
def test_a_killed_superlink_is_resumed_from_the_checkpoint(deployments, here):
    deployment = deployments(2)
    saved = str(deployment.home / "saved.npz")
    deployment.begin("first", strategy="FedDAGT", rounds=4, checkpoint=saved, resume=True)
    deployment.wait_for_round("first", 3)
    deployment.kill("superlink")
    deployment.kill("first")
    for i in range(2):
        deployment.kill(f"node-{i}")
    deployment.start_superlink()
    for i in range(2):
        deployment.restart_node(i)
    arrays, rows, _ = deployment.run("second", strategy="FedDAGT", rounds=4, checkpoint=saved, resume=True)
    assert "Resumed after round" in deployment.log("second")
    same(arrays, here("FedDAGT", 4, 2)[0])
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
