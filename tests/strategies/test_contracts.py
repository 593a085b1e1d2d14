"""The contracts that methods to come stand on: work that changes, metrics of clients, memories of several vectors."""

from typing import NamedTuple

import numpy as np
import pytest
from problems import app_of, clients, flat, run, start_arrays

from flwr_fco.algorithms import Algorithm, DualAveraging, Moved
from flwr_fco.messages.protocol import Downlink
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import CompositeStrategy, Epochs, FedDualAvg, Ledger, Steps, run_of, strategy
from flwr_fco.work import FirstOrder, Minimise


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
    told = [dict(result.train_metrics_clientapp[r]) for r in (1, 2, 3)]
    assert [metrics.get("sum-of-step-sizes") for metrics in told] == pytest.approx([0.02, 0.04, 0.06])
    assert not any("elapsed" in metrics for metrics in told)
    plain = run(FedDualAvg(client_lr=0.02, work=Steps(1, batch_size=None)), clients(), 1)
    varying = run(RandomSteps(client_lr=0.02), clients(), 1)
    assert flat(plain.arrays).tobytes() == flat(varying.arrays).tobytes()


class AverageState(NamedTuple):
    primal: np.ndarray
    round: int = 0


class ExactProximalPoint(Algorithm):
    """argmin F(w) + 1/2 ||w - primal||^2 of least squares, in closed form; remembers two vectors."""

    name = "test_exact_proximal_point"
    memory = ("seen", "moved")

    def local(self, client, downlink, memory):
        primal, objective = downlink.vectors["primal"], client.objective
        assert isinstance(downlink.local_work, Minimise)
        size = primal.size
        hessian = np.array([objective.hessian_product(primal, e) for e in np.eye(size)])
        w = np.linalg.solve(hessian + np.eye(size), primal - objective.gradient(np.zeros(size)))
        return {"increment": w - primal}, Moved(None, 1, metrics={"inner-iterations": 7.0})

    def remember(self, downlink, memory, sent, elapsed):
        seen = 0.0 if memory is None else memory["seen"]
        return {"seen": seen + sent["increment"], "moved": sent["increment"]}

    def setting(self, given, state):
        return given._replace(work=Minimise(tolerance=1e-12))

    def init(self, problem, primal):
        return AverageState(primal)

    def downlink(self, problem, state, to):
        return Downlink(problem.plan, {"primal": state.primal})

    def aggregate(self, problem, state, replies):
        assert all(uplink.elapsed is None for uplink in replies)
        mean = sum(uplink.weight * uplink.vectors["increment"] for uplink in replies)
        return AverageState(state.primal + mean, state.round + 1)

    def retrieve(self, problem, state):
        return state.primal


@strategy
class ProximalPoint(CompositeStrategy):
    """Averages of proximal points: a strategy with a minimisation for its work, no rates, two vectors a client."""

    algorithm = ExactProximalPoint
    client_state: Ledger = Ledger()


def ledger(strategy):
    return {key: strategy.memories.memory(key) for key in sorted(strategy.memories.present)}


def test_a_minimisation_has_no_rates_no_elapsed_and_its_metrics_arrive():
    strategy = ProximalPoint(fraction_evaluate=0.0)
    result = run(strategy, clients(), 4)
    metrics = result.train_metrics_clientapp[4]
    assert metrics["inner-iterations"] == 7.0
    assert "sum-of-step-sizes" not in metrics
    assert np.isnan(run_of(strategy).problem.client_lr)
    assert np.isnan(run_of(strategy).problem.server_lr)
    with pytest.raises(TypeError, match="client_lr"):
        ProximalPoint(client_lr=0.1)


def test_several_vectors_are_remembered_restored_and_saved(tmp_path):
    """The ledger's copies are the clients' own, a node that lost them goes on as if it had not, a file keeps them."""

    class Forgetful(InProcessGrid):
        direct = None

        def reply(self, message):
            if message.metadata.group_id == "3" and message.metadata.dst_node_id == 3 and not self.done:
                self.done = True
                self.context(3).state.clear()
            return super().reply(message)

    strategies = []
    for kind in (InProcessGrid, Forgetful):
        grid = kind(app_of(clients()), 4)
        grid.done = False
        strategy = ProximalPoint(fraction_evaluate=0.0)
        result = strategy.start(grid, start_arrays(), 5)
        strategies.append(strategy)
        for node, partition in grid.partition_ids.items():
            held = grid.contexts[node].state["fco-memory-new"]
            kept = strategy.memories.memory((0, partition))
            assert kept.keys() == set(held)
            assert all(np.array_equal(held[name].numpy(), kept[name]) for name in kept)
    assert grid.done
    plain, restored = (ledger(strategy) for strategy in strategies)
    assert all(np.array_equal(plain[k][n], restored[k][n]) for k in plain for n in ("seen", "moved"))
    path = tmp_path / "state.npz"
    strategies[0].saved.save(path)
    again = ProximalPoint(fraction_evaluate=0.0)
    result = again.start(InProcessGrid(app_of(clients()), 4), start_arrays(), 5, resume=path)
    assert all(np.array_equal(ledger(again)[k][n], plain[k][n]) for k in plain for n in ("seen", "moved"))
    assert np.isfinite(flat(result.arrays)).all()


def test_a_gradient_solver_refuses_a_minimisation():
    class Minimising(DualAveraging):
        def setting(self, given, state):
            return given._replace(work=Minimise())

    class Wrong(FedDualAvg):
        """Dual averaging of clients that are to minimise."""

        algorithm = Minimising

    with pytest.raises(Exception, match="takes gradient steps"):
        run(Wrong(client_lr=0.02), clients(), 1)


def test_an_epoch_counts_draws_and_a_step_takes_two():
    assert FirstOrder(epochs=2, batch_size=10).num_draws(25) == 6
    assert FirstOrder(epochs=1, batch_size=10).num_draws(25, per_step=2) == 4
    assert FirstOrder(steps=5, batch_size=10).num_draws(25, per_step=2) == 10
