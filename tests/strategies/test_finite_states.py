"""What is not finite is neither kept as a state nor returned as a model."""

import numpy as np
import pytest
from faulty import Faulty, start_on, with_increment
from problems import FEATURES, D, app_of, changed, clients, flat, run, start_arrays

from flwr_fco.client_apps import client_app
from flwr_fco.mirror_maps import DiagonalMetric
from flwr_fco.objectives import LeastSquares
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Bounds, FedDAGT, FedDualAvg, Steps


def test_a_primal_that_is_not_finite_is_never_returned():
    # The dual stays finite, its quotient by tiny weights does not.
    rng = np.random.default_rng(0)
    features = np.abs(rng.standard_normal((20, FEATURES)))
    objectives = [LeastSquares(-features, 100.0 * np.ones(20), scale=0.5) for _ in range(2)]
    ones = start_arrays(start=np.ones(D))
    go_on = {"fraction_evaluate": 0.0, "on_divergence": "warn"}
    chosen = FedDualAvg(mirror_map=DiagonalMetric(np.full(D, 1e-306)), client_lr=100.0, work=Steps(1), **go_on)
    single = start_arrays(dtype=np.float32)
    for start, used in ((ones, chosen), (single, FedDualAvg(client_lr=1e38, work=Steps(2), **go_on))):
        flipped = objectives if used is not chosen else [LeastSquares(features, 1e6 * np.ones(20)) for _ in range(2)]
        willing = client_app(lambda c, own=flipped: own[c.node_config["partition-id"]])
        result = simulate(used, willing, num_nodes=2, num_rounds=3, initial_arrays=start, progress=False)
        assert np.isfinite(flat(result.arrays)).all()
        assert any(metrics["skipped"] for metrics in result.train_metrics_clientapp.values())


def test_a_state_that_is_not_finite_is_skipped_even_if_its_primal_is():
    """Increments of 1e150 over an elapsed time of 1e-160: the dual stays finite, the trackers' mean would not."""
    options = {"bounds": Bounds(max_ratio=None), "on_divergence": "warn", "fraction_evaluate": 0.0}
    chosen = FedDAGT(client_lr=1e-160, work=Steps(1, batch_size=None), **options)
    fault = with_increment(lambda arrays: {name: np.full(value.size, 1e150) for name, value in arrays.items()})
    result = start_on(Faulty(app_of(clients()), 4, fault, nodes=(2, 3, 4, 5)), chosen)
    assert result.left_out == []
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0, 1, 0]
    assert np.isfinite(chosen.state.control).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_is_not_finite_is_refused_though_its_state_is_finite(bad):
    def retrieve(own, self, problem, state):
        point = own.retrieve(self, problem, state)
        return np.where(np.arange(point.size) == 1, bad, point) if state.round in (3, 4) else point

    kind = changed(FedDualAvg, retrieve=retrieve)
    strategy = kind(client_lr=0.1, work=Steps(2, batch_size=None), fraction_evaluate=0.0, on_divergence="warn")
    seen = []
    result = run(strategy, clients(), 6, callbacks=[lambda n, arrays, m: seen.append(flat(arrays))])
    assert np.isfinite(seen).all()
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0, 0, 1, 1, 1, 1]
