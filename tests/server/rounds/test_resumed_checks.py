"""What a run has learnt of its clients' replies is resumed too: a replay of the time before is one still."""

import numpy as np
import pytest
from lies_of_one import in_messages, make, regressions
from problems import flat, start_arrays

from flwr_fco.callbacks import Checkpoint
from flwr_fco.client_apps import client_app
from flwr_fco.simulation import simulate

OBJECTIVES, ROUNDS, STOP = regressions(), 12, 7


class Stop(Exception):
    pass


def play(lie, path, *, resume=None, stop=False):
    def end(number, arrays, metrics):
        if stop and number == STOP:
            raise Stop

    return simulate(
        make("FedDualAvg"),
        client_app(lambda context: OBJECTIVES[int(context.node_config["partition-id"])], mods=[in_messages(lie)]),
        num_nodes=len(OBJECTIVES),
        num_rounds=ROUNDS,
        initial_arrays=start_arrays(),
        callbacks=[Checkpoint(path, every=1), end],
        resume=resume,
        progress=False,
    )


def test_a_replay_is_known_after_a_resume(tmp_path):
    kept = {}

    def replay(number, vectors, claims):
        if number == 3:
            kept.update({key: value.copy() for key, value in vectors.items()})
        if number > STOP:
            vectors.update({key: value.copy() for key, value in kept.items()})

    unbroken = play(replay, tmp_path / "unbroken.npz")
    with pytest.raises(Stop):
        play(replay, tmp_path / "saved.npz", stop=True)
    resumed = play(replay, tmp_path / "saved.npz", resume=tmp_path / "saved.npz")
    assert [row.round for row in unbroken.left_out] == list(range(STOP + 1, ROUNDS + 1))
    assert [(row.round, row.reason) for row in resumed.left_out] == [
        (row.round, row.reason) for row in unbroken.left_out
    ]
    np.testing.assert_array_equal(flat(resumed.arrays), flat(unbroken.arrays))
