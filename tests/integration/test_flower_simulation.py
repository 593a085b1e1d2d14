"""The same strategy and ClientApp, in this process and in Flower's own Ray simulation."""

import numpy as np
import pytest
from problems import app_of, clients, flat, run, start_arrays

from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, FedMid

pytestmark = pytest.mark.flower

ray = pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")


def strategy(kind):
    # The second asks its clients for a rate and for certificates.
    asking = {"client_lr": "auto", "certificate_every": 10} if kind is FedMid else {"client_lr": 0.02}
    # Weights as arrays travel with the plan; unequal sizes make the order of sums matter.
    return kind(
        regularizer=L1(0.3, weights=np.linspace(0.5, 1.5, 6)),
        server_lr=0.9,
        batch_size=5,
        seed=11,
        fraction_evaluate=0.0,
        # Flower's simulation may begin the first round before all nodes have come.
        min_available_nodes=4,
        **asking,
    )


def in_flower(kind, rounds):
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    app = ServerApp()
    results = []

    @app.main()
    def main(grid, context):
        results.append(strategy(kind).start(grid, start_arrays(), rounds))

    run_simulation(
        server_app=app,
        client_app=app_of(clients()),
        num_supernodes=4,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "include_dashboard": False}},
    )
    return results[0]


@pytest.mark.parametrize("kind", [FedDualAvg, pytest.param(FedMid, marks=pytest.mark.slow)])
def test_twenty_rounds_end_in_the_same_bits(kind):
    there = in_flower(kind, 20)
    here = run(strategy(kind), clients(), 20)
    assert flat(there.arrays).tobytes() == flat(here.arrays).tobytes()
    assert there.train_metrics_clientapp == here.train_metrics_clientapp
    assert ("duality-gap" in there.train_metrics_clientapp[20]) == (kind is FedMid)
