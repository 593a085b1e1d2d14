"""The answers of a worker's clients, sent as one array: the same answers come out."""

import pickle

import numpy as np
from together import together

from flwr_fco.core.sparse import SparseVector
from flwr_fco.regularizers import L1
from flwr_fco.simulation import Processes
from flwr_fco.simulation.worker import Joined, joined
from flwr_fco.strategies import FedDualAvg
from flwr_fco.wire.uplink import Sent
from tests.problems import SIZES, app_of, clients, simulated


def sent(seed=0, size=5, names=("increment", "control"), digest="", units=()):
    rng = np.random.default_rng(seed)
    return Sent({name: rng.normal(size=size) for name in names}, {"num-examples": 3 + seed // 2}, digest, units)


def sparse(place):
    return Sent({"increment": SparseVector(np.array([place], np.int32), np.ones(1), 5)}, {"n": 1})


def plain(vector):
    return (vector.to_dense() if isinstance(vector, SparseVector) else vector).tobytes()


def seen(answers):
    return [
        answer and ({name: plain(vector) for name, vector in answer.vectors.items()}, *answer[1:3], list(answer.units))
        for answer in answers
    ]


def through(answers):
    found = pickle.loads(pickle.dumps(joined(answers)))
    return found.apart() if isinstance(found, Joined) else found


@together(
    "answers",
    [
        [],
        [None],
        [sent()],
        [sent(i, digest=f"{i}") for i in range(7)],
        [sent(i, units=np.arange(i)) for i in range(3)],
        [sent(0), None, sent(1), sent(1)],
        [sent(0), sent(1, size=6)],
        [sent(0), sent(1, names=("increment",))],
        [Sent({"increment": np.ones((2, 3))}, {"n": 1}), Sent({"increment": np.zeros((2, 3))}, {"n": 1})],
        [sent(0), sparse(1)],
        [sparse(1), sparse(3)],
        [Sent({"increment": np.ones(5)}, {"n": 1}), sparse(3)],
        [Sent({}, {"n": 1}), Sent({}, {"n": 2})],
    ],
)
def test_what_comes_out_is_what_went_in(answers):
    assert seen(through(answers)) == seen(answers)


def test_small_vectors_of_one_form_are_joined_and_long_ones_are_not():
    assert isinstance(joined([sent(0), sent(1)]), Joined)
    assert not isinstance(joined([sent(0, 10_000), sent(1, 10_000)]), Joined)


def test_equal_numbers_are_one_object_and_the_vectors_read_only():
    first, second, third = through([sent(0), sent(1), sent(2)])
    assert first.content is second.content
    assert second.content != third.content
    assert not any(vector.flags.writeable for vector in first.vectors.values())


def test_a_worker_imports_nothing_from_where_the_user_happens_to_be(tmp_path, monkeypatch):
    (tmp_path / "numba.py").write_text("raise RuntimeError('not the one that is meant')")
    monkeypatch.chdir(tmp_path)
    app = app_of(clients())
    with Processes(1) as workers:
        result = simulated(
            FedDualAvg(regularizer=L1(0.1), client_lr=0.02, fraction_evaluate=0.0),
            app,
            2,
            num_nodes=len(SIZES),
            engine=workers,
        )
    assert len(result.train_metrics_clientapp) == 2
