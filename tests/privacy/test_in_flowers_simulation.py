"""A private run over Flower's own runtime: the bits of this process, the state on the disk, epsilon in the result."""

import os
import stat

import pytest
from problems import app_of, clients, flat, run, start_arrays

from flwr_fco import L1, FedDualAvg, GaussianDP
from flwr_fco.callbacks import Checkpoint

pytest.importorskip("dp_accounting")
pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")
pytestmark = pytest.mark.flower


def strategy(noise_seed, noise="banded"):
    return FedDualAvg(
        regularizer=L1(0.1),
        client_lr=0.02,
        local_steps=3,
        batch_size=5,
        seed=11,
        fraction_train=0.5,
        fraction_evaluate=0.0,
        min_available_nodes=4,
        weighting="uniform",
        normalize_local_work=False,
        privacy=GaussianDP(clip=0.5, noise_multiplier=1.0, delta=1e-3, noise=noise, noise_seed=noise_seed),
    )


def test_private_rounds_in_flowers_simulation(tmp_path):
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation

    app, results = ServerApp(), []

    @app.main()
    def main(grid, context):
        for number, (seed, noise) in enumerate([(3, "banded"), (None, "independent")]):
            saved = Checkpoint(tmp_path / f"{number}.npz", every=100)
            results.append(strategy(seed, noise).start(grid, start_arrays(), 6, callbacks=[saved]))

    run_simulation(
        server_app=app,
        client_app=app_of(clients()),
        num_supernodes=4,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2, "include_dashboard": False}},
    )
    seeded, private = results
    here = run(strategy(3), clients(), 6)
    assert flat(seeded.arrays).tobytes() == flat(here.arrays).tobytes()
    assert seeded.train_metrics_clientapp == here.train_metrics_clientapp
    last = private.train_metrics_clientapp[6]
    assert last["epsilon"] == strategy(None, "independent").private_mean.accountant.epsilon(1.0, 6, 1e-3)
    assert set(last) <= {"epsilon", "delta", "density", "nonzeros", "skipped"}
    for path in tmp_path.iterdir():
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
