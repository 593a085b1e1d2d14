"""float32 on the wire for float32 models: as many bytes as FedAvg, and float64 where the digits are needed."""

import numpy as np
import pytest
from problems import FEATURES, app_of, clients, flat, simulated, start_arrays

from flwr_fco.mirror_maps import PNorm
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, FedDA, FedDAGT, FedDualAvg, Steps, Wire

OPTIONS = {"regularizer": L1(0.3), "client_lr": 0.05, "work": Epochs(1, batch_size=None), "fraction_evaluate": 0.0}
START = np.full(FEATURES + 1, 0.5)


def go(strategy, rounds=30, dtype=np.float32, start=START):
    return simulated(strategy, app_of(clients()), rounds, initial_arrays=start_arrays(dtype=dtype, start=start))


def test_the_model_is_that_of_float64_messages():
    strategy = FedDualAvg(**OPTIONS, wire=Wire(dtype="auto"))
    short = go(strategy)
    full = go(FedDualAvg(**OPTIONS))
    assert strategy.state.dual.dtype == np.float64
    assert not np.array_equal(strategy.state.dual, strategy.state.dual.astype(np.float32))
    np.testing.assert_allclose(flat(short.arrays), flat(full.arrays), rtol=0, atol=1e-6)
    np.testing.assert_array_equal(flat(short.arrays) == 0, flat(full.arrays) == 0)
    # The bytes of FedAvg's float32 models.
    few, all_ = (result.train_metrics_clientapp[3] for result in (short, full))
    assert few["bytes-up"] == few["bytes-down"] == 4 * 4 * (FEATURES + 1)
    assert all_["bytes-up"] == all_["bytes-down"] == 2 * few["bytes-up"]


@pytest.mark.parametrize(
    ("strategy", "dtype"),
    [
        (lambda **o: FedDualAvg(**OPTIONS, **o), np.float64),
        (lambda **o: FedDAGT(**OPTIONS | {"work": Steps(3, batch_size=None)}, **o), np.float32),
        (lambda **o: FedDA(**OPTIONS, mirror_map=PNorm(3.0), **o), np.float32),
    ],
)
def test_all_digits_where_they_are_needed(strategy, dtype):
    """float64 models, clients that remember, and other geometries: bit by bit what float64 gives."""
    auto = go(strategy(wire=Wire(dtype="auto")), 6, dtype)
    full = go(strategy(), 6, dtype)
    np.testing.assert_array_equal(flat(auto.arrays), flat(full.arrays))
    for number in range(1, 7):
        for name in ("bytes-up", "bytes-down"):
            assert auto.train_metrics_clientapp[number][name] == full.train_metrics_clientapp[number][name]


def test_float64_once_the_threshold_is_far_above_the_weights():
    """The threshold grows by 15 a round, and the weights are about .5."""
    strategy = FedDualAvg(
        **OPTIONS | {"regularizer": L1(3.0), "work": Steps(100, batch_size=None)}, wire=Wire(dtype="auto")
    )
    result = go(strategy, 60)
    sizes = [result.train_metrics_clientapp[number]["bytes-down"] for number in range(1, 61)]
    assert sizes[0] == 4 * 4 * (FEATURES + 1)
    assert sizes[-1] == 2 * sizes[0]
    assert sizes == sorted(sizes)
