"""The same strategies and ClientApp, in this process and in Flower's own Ray simulation, which starts once for all."""

import os
import stat

import numpy as np
import pytest
from problems import app_of, clients, flat, run, start_arrays

from flwr_fco import GaussianDP, Short, short_mod
from flwr_fco.callbacks import Checkpoint
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, FedDualAvg, FedMid, FedNewton, Steps

pytestmark = pytest.mark.flower

ray = pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")
pytest.importorskip("dp_accounting")

# Flower's simulation may begin the first round before all nodes have come.
COMMON = {"work": Epochs(1, batch_size=5), "seed": 11, "fraction_evaluate": 0.0, "min_available_nodes": 4}


def composite(kind, **options):
    # Weights as arrays travel with the plan; unequal sizes make the order of sums matter.
    return kind(regularizer=L1(0.3, weights=np.linspace(0.5, 1.5, 6)), server_lr=0.9, **COMMON | options)


def private(noise_seed, noise):
    return FedDualAvg(
        regularizer=L1(0.1),
        client_lr=0.02,
        fraction_train=0.5,
        weighting="uniform",
        normalize_local_work=False,
        privacy=GaussianDP(clip=0.5, noise_multiplier=1.0, delta=1e-3, noise=noise, noise_seed=noise_seed),
        **COMMON | {"work": Steps(3, batch_size=5)},
    )


#: Enough for what servers and clients remember to have come back.
ROUNDS = 4
#: The second asks its clients for a rate and for certificates.
RUNS = {
    "steps": lambda: composite(FedDualAvg, client_lr=0.02),
    "questions": lambda: composite(FedMid, client_lr="auto", certificate_every=2),
    "short": lambda: FedDualAvg(density=0.5, wire=Short(), client_lr=0.02, **COMMON),
    "newton": lambda: FedNewton(regularizer=L1(0.3), fraction_evaluate=0.0, min_available_nodes=4),
    "private": lambda: private(3, "banded"),
    "private, without a seed": lambda: private(None, "independent"),
}


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """Results of the runs in Flower's simulation, and where their states were saved."""
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    app = ServerApp()
    found = {}
    folder = tmp_path_factory.mktemp("flower")

    @app.main()
    def main(grid, context):
        for name, make in RUNS.items():
            saved = Checkpoint(folder / f"{name}.npz", every=100)
            found[name] = (make().start(grid, start_arrays(), ROUNDS, callbacks=[saved]), saved.path)

    run_simulation(
        server_app=app,
        client_app=app_of(clients(), [short_mod()]),
        num_supernodes=4,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "include_dashboard": False}},
    )
    return found


@pytest.mark.parametrize("name", ["steps", "questions", "short", "newton", "private"])
def test_the_bits_are_those_of_this_process(name, there):
    result, here = there[name][0], run(RUNS[name](), clients(), ROUNDS, mods=[short_mod()])
    assert flat(result.arrays).tobytes() == flat(here.arrays).tobytes()
    assert result.train_metrics_clientapp == here.train_metrics_clientapp
    assert ("duality-gap" in [*result.train_metrics_clientapp.values()][-1]) == (name in ("questions", "newton"))


def test_a_private_run_tells_epsilon_and_nothing_of_its_clients(there):
    result, path = there["private, without a seed"]
    last = result.train_metrics_clientapp[ROUNDS]
    here = run(private(None, "independent"), clients(), ROUNDS).train_metrics_clientapp[ROUNDS]
    assert (here["epsilon"], set(last) - {"delta", "density", "nonzeros", "skipped"}) == (last["epsilon"], {"epsilon"})
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
