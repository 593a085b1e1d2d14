"""The contracts that methods to come stand on: work that changes, and replies that a method rejects."""

import numpy as np
import pytest
from problems import clients, flat, run

from flwr_fco.algorithms import DualAveraging, Rejected
from flwr_fco.strategies import Epochs, FedDualAvg, Steps
from flwr_fco.work import FirstOrder


class GrowingWork(DualAveraging):
    """The number of local steps changes from round to round."""

    def downlink(self, problem, state, to):
        work = FirstOrder(steps=problem.round, batch_size=None)
        return super().downlink(problem, state, to)._replace(work=work)


class RandomSteps(FedDualAvg):
    """Dual averaging with them."""

    algorithm = GrowingWork


def test_a_message_can_override_the_work_of_the_plan():
    result = run(RandomSteps(client_lr=0.02, work=Epochs(1)), clients(), 3)
    assert [result.train_metrics_clientapp[r]["local-steps"] for r in (1, 2, 3)] == [1, 2, 3]
    # 'elapsed', which is what a message calls it, would be read as seconds in a table.
    reported = [dict(result.train_metrics_clientapp[r]) for r in (1, 2, 3)]
    assert [metrics.get("sum-of-step-sizes") for metrics in reported] == pytest.approx([0.02, 0.04, 0.06])
    assert not any("elapsed" in metrics for metrics in reported)
    plain = run(FedDualAvg(client_lr=0.02, work=Steps(1, batch_size=None)), clients(), 1)
    varying = run(RandomSteps(client_lr=0.02), clients(), 1)
    assert flat(plain.arrays).tobytes() == flat(varying.arrays).tobytes()


class Suspicious(DualAveraging):
    """Dual averaging that takes no reply from partitions 1 and 3, and has enough after four rounds."""

    def aggregate(self, problem, state, replies):
        for uplink in replies:
            if uplink.node.partition_id in (1, 3):
                raise Rejected(uplink, f"partition {uplink.node.partition_id} is not to be believed")
        return super().aggregate(problem, state, replies)

    def metrics(self, problem, state):
        return {"seen": state.round, **({"finished": "that will do"} if state.round == 4 else {})}


def test_what_a_method_rejects_is_left_out_and_the_step_is_of_the_others():
    options = {"client_lr": 0.02, "work": Steps(2, batch_size=None)}
    strategy = type("Doubting", (FedDualAvg,), {"algorithm": Suspicious})(**options)
    result = run(strategy, clients(), 9)
    losses = clients()
    believed = run(FedDualAvg(**options), [losses[0], losses[2]], 4)
    np.testing.assert_allclose(flat(result.arrays), flat(believed.arrays), rtol=1e-12)
    # A text in the metrics ends the run, and is none of them.
    assert {*result.train_metrics_clientapp} == {1, 2, 3, 4}
    last = dict(result.train_metrics_clientapp[4])
    assert (last["seen"], last["num-replies"], last["num-left-out"], "finished" in last) == (4, 2, 2, False)
    reasons = {row.reason for row in result.left_out}
    assert reasons == {"partition 1 is not to be believed", "partition 3 is not to be believed"}
