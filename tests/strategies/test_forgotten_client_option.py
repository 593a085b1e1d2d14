"""Where a ClientApp of FedAvg meets a strategy that sends duals, the reason says what to do, on every way there."""

import numpy as np
import pytest
from flwr.app import ArrayRecord
from problems import Foreign, arrays_of, foreign_app

from flwr_fco.errors import NothingTrainedError
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg

START = {"0.weight": np.ones((3, 2), np.float32), "0.bias": np.zeros(3, np.float32)}
ADVICE = 'give the strategy client="unmodified"'


def pytorch(arrays, *_):
    """As `load_state_dict`, which refuses other names."""
    if set(arrays) != set(START):
        raise RuntimeError(f"Error(s) in loading state_dict for Net: Unexpected key(s) in state_dict: {set(arrays)}")
    return arrays


def loosely(arrays, *_):
    """As `load_state_dict(strict=False)`, which takes what it knows."""
    return START


def numpy(arrays, *_):
    """Takes arrays as they come."""
    return ArrayRecord([0.7 * array + 0.3 for array in arrays.values()])


@pytest.mark.parametrize("trained", [pytorch, loosely, numpy])
@pytest.mark.parametrize("elsewhere", [lambda grid: grid, Foreign], ids=["here", "elsewhere"])
def test_the_reason_of_a_reply_that_does_not_count_says_what_to_do(trained, elsewhere):
    grid = InProcessGrid(foreign_app(trained), 2, raise_errors=False)
    with grid.identity(), pytest.raises(NothingTrainedError) as caught:
        FedDualAvg(fraction_evaluate=0.0).start(elsewhere(grid), arrays_of(START), 1)
    rows = caught.value.result.left_out
    assert len(rows) == 2
    assert all(ADVICE in row.reason for row in rows)
