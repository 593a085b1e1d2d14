"""Around a run: callbacks and what they may answer, results as tables, models in files and back."""

import math
import pickle
import sys
from itertools import pairwise

import numpy as np
import pandas
import pytest
from flwr.app import Array, MetricRecord
from problems import arrays_of, clients, flat, nightly, refused, run
from scipy.sparse import csr_array

from flwr_fco.callbacks import Callback, Checkpoint, EarlyStopping
from flwr_fco.errors import DivergedError, NothingTrainedError, RunInterrupted
from flwr_fco.models import load_npz, save_npz, to_sparse
from flwr_fco.regularizers import L1
from flwr_fco.results import Result
from flwr_fco.strategies import FedDualAvg, Steps, run_of
from reproduction.pooled import certify

STRENGTH = 0.3


def strategy(**options):
    return FedDualAvg(**{"regularizer": L1(STRENGTH), "client_lr": 0.15, "work": Steps(1, batch_size=None), **options})


def play(rounds, *callbacks, **options):
    """Run with callbacks; return the result, and how many rounds it had."""
    result = run(strategy(), clients(), rounds, callbacks=list(callbacks), **options)
    return result, max(result.train_metrics_clientapp)


class Diary(Callback):
    def __init__(self):
        self.entries = []

    def on_run_begin(self, strategy, num_rounds):
        self.entries.append(("begin", run_of(strategy).problem.layout is not None, num_rounds))

    def on_round_begin(self, server_round, arrays):
        self.entries.append(("round", server_round, flat(arrays)))

    def on_round_end(self, server_round, arrays, metrics):
        self.entries.append(("end", server_round, dict(metrics)))

    def on_run_end(self, result):
        self.entries.append(("over", max(result.train_metrics_clientapp, default=0)))


def answers(answer):
    """A callback that answers what a function makes of the round's number."""
    return type("Answers", (Callback,), {"on_round_end": lambda self, number, *_: answer(number)})()


def test_the_hooks_are_called_in_order_with_models_and_metrics():
    diary, models = Diary(), [np.zeros(7)]
    scores = {"evaluate_fn": lambda number, arrays: MetricRecord({"loss": float(np.abs(flat(arrays)).sum())})}
    result, _ = play(3, diary, lambda n, arrays, m: models.append(flat(arrays)), fraction_evaluate=1.0, **scores)
    assert [entry[0] for entry in diary.entries] == ["begin", *["round", "end"] * 3, "over"]
    assert (diary.entries[0], diary.entries[-1]) == (("begin", True, 3), ("over", 3))
    np.testing.assert_array_equal([entry[2] for entry in diary.entries if entry[0] == "round"], models[:-1])
    reported = {entry[1]: entry[2] for entry in diary.entries if entry[0] == "end"}
    assert [{"round": row["round"], **reported[row["round"]]} for row in result.rows()[1:]] == result.rows()[1:]
    assert {"train/density", "train/num-left-out", "evaluate/loss", "server/loss"} <= set(reported[1])


TENSOR = type("Tensor", (float,), {"tolist": float.__pos__})


@pytest.mark.parametrize("kind", [int, np.float32, np.int64, np.array, lambda number: np.bool_(number > 1), TENSOR])
def test_numbers_that_a_callback_adds_reach_those_after_it_and_the_result(kind):
    diary = Diary()
    result, _ = play(2, answers(lambda number: (False, {"own": kind(number), "round": 9})), diary)
    added = [entry[2]["own"] for entry in diary.entries if entry[0] == "end"]
    assert added == [row["own"] for row in result.rows()] == [kind(row["round"]) for row in result.rows()]
    assert all(type(number) in (int, float, bool) for number in added)
    assert result.callback_metrics == {n: {"own": added[n - 1], "round": 9} for n in (1, 2)}


@pytest.mark.parametrize("word", [bool, np.bool_, np.array, lambda stop: stop or None, lambda stop: (stop, {})])
def test_any_callback_ends_the_run_after_all_have_had_the_round(word):
    diary = Diary()
    _, rounds = play(9, answers(lambda number: word(number == 2)), diary)
    assert rounds == diary.entries[-2][1] == 2
    if not isinstance(word(True), tuple):
        assert play(9, lambda number, *_: word(number == 2))[1] == 2


def test_a_file_is_free_after_a_run_whichever_callback_raises(tmp_path):
    wrong = type("Wrong", (Callback,), {"on_run_end": lambda self, result: 1 / 0})()
    mine, other = (Checkpoint(tmp_path / "run.npz") for _ in range(2))
    refused("division", play, 1, wrong, mine, kind=ZeroDivisionError)
    play(1, other)


NO_WORDS = [{"own": 1.0}, (False, {"own": object()}), [False, {}], (False,), (False, None), (False, {}, {}), ("no", {})]


NO_CALLBACKS = [
    *((answers(lambda _, answer=answer: answer), r"\w+; .* False or None, or that and a") for answer in NO_WORDS),
    (lambda *_: {}, "returned a dict; expected True, False or None"),
    (EarlyStopping(validation="density"), "validation='density' is no metric of a round; give 'train/density'"),
    *((wrong, "expected a function") for wrong in (object(), "loss", Diary)),
    *(
        (EarlyStopping(**more, **{name: lambda arrays, score=score: score}), f"{name} returned {kind}; .* number")
        for score, kind in ((None, "a NoneType"), ("low", "a str"), (np.ones(2), "an ndarray"))
        for name, more in (("certificate", {"tol": 1.0}), ("validation", {}))
    ),
]


@pytest.mark.parametrize(("callback", "said"), NO_CALLBACKS)
def test_what_is_no_callback_no_answer_and_no_score_is_named(callback, said):
    refused(said, play, 3, callback)


# --- early stopping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tol", [1e-2, *nightly(1e-6), 1e-10])
def test_a_certificate_ends_the_run_only_where_it_holds(tol):
    gaps = []

    def gap(arrays):
        gaps.append(certify(clients(), None, L1(STRENGTH), flat(arrays)).value)
        return gaps[-1]

    stopping = EarlyStopping(tol, certificate=gap)
    result, rounds = play(5000, stopping)
    assert certify(clients(), None, L1(STRENGTH), flat(result.arrays)).value <= tol
    assert all(earlier > tol for earlier in gaps[:-1])
    assert (stopping.stopped, len(gaps), result.callback_metrics[rounds]["certificate"]) == (rounds, rounds, gaps[-1])


def test_a_model_that_no_longer_moves_ends_the_run():
    hook = {"on_run_begin": lambda own, strategy, num_rounds: EarlyStopping.on_run_begin(own, strategy, num_rounds)}
    models, stopping = [np.zeros(7)], type("Own", (EarlyStopping,), hook)(1e-9, patience=3)
    _, rounds = play(5000, stopping, lambda n, arrays, m: models.append(flat(arrays)))
    moves = [np.linalg.norm(b - a) / max(1.0, np.linalg.norm(b)) for a, b in pairwise(models)]
    assert 0 < stopping.stopped == rounds < 5000
    assert max(moves[-3:]) <= 1e-9 < moves[-4]


STOPS = [
    ({"validation": "server/score", "patience": 3}, [5.0, 4.0, 3.0, 3.5, 3.2, 3.1, 1.0], 6, 3),
    # Rounds without a score do not count.
    ({"validation": "server/score", "mode": "max", "patience": 2}, [None, 5, None, 7, None, 6, 6.5, 9], 7, 4),
    # A score that is NaN is not the best, not even the first.
    ({"validation": "server/score", "patience": 2}, [np.nan, 2.0, np.nan, np.nan, 1.0], 4, 2),
    ({"validation": "server/score", "patience": 2}, [1.0, 1.0, 1.0, 0.0], 3, 1),
    ({"validation": "server/score", "patience": 1, "every": 2}, [1.0, 3.0, 0.0, 4.0, 1.0], 4, 2),
    ({"tol": 4.0, "certificate": "server/score"}, [9.0, 8.0, 4.5, 4.0, 3.0], 4, None),
]


@pytest.mark.parametrize(("options", "scores", "stopped", "best"), STOPS)
def test_a_metric_ends_the_run_and_the_best_model_is_kept(options, scores, stopped, best):
    models, stopping = [None], EarlyStopping(**options)
    scored = [None, *(None if score is None else MetricRecord({"score": float(score)}) for score in scores)]
    zero = Array(np.zeros(1))
    callbacks = [stopping, lambda n, arrays, m: models.append(flat(arrays)) or arrays.update(intercept=zero)]
    _, rounds = play(len(scores), *callbacks, evaluate_fn=lambda n, arrays: scored[n])
    assert rounds == stopping.stopped == stopped
    assert (stopping.best_arrays is None) == np.isnan(stopping.best) == (best is None)
    if best is not None:
        assert stopping.best == scores[best - 1]
        np.testing.assert_array_equal(flat(stopping.best_arrays), models[best])


# --- checkpoints ----------------------------------------------------------------------------------------------


def test_a_checkpoint_is_the_state_after_the_last_whole_and_sound_round(tmp_path):
    checkpoint = Checkpoint(tmp_path / "state.npz", every=4)
    play(6, checkpoint)
    assert checkpoint.saved_round == 6
    checkpoint = Checkpoint(tmp_path / "other.npz", every=5)
    diverging, again = (strategy(client_lr=1.2, regularizer=L1(0.0)) for _ in range(2))
    with pytest.raises(DivergedError) as caught:
        run(diverging, clients(), 500, callbacks=[checkpoint])
    run(again, clients(), checkpoint.saved_round, resume=checkpoint.path)
    assert again.state.round == checkpoint.saved_round < caught.value.server_round


NEEDS = [
    (Checkpoint, {"path": 3}, "path=3 is an int; expected a string or a PathLike"),
    (Checkpoint, {"path": "state.txt"}, "expected the name of a file that ends in .npz"),
    (Checkpoint, {"path": "state.npz", "every": 0}, "every=0; expected a whole number >= 1"),
    *((EarlyStopping, given, "expected") for given in ({}, {"certificate": "x"}, {"validation": 3.0}, {"tol": -1.0})),
    *((EarlyStopping, {"tol": 1, **m}, "expected") for m in ({"validation": "x"}, {"patience": 0}, {"certificate": 3})),
    (EarlyStopping, {"validation": "evaluate/accuracy"}, 'expected mode="max"'),
]


@pytest.mark.parametrize(("make", "given", "said"), NEEDS)
def test_a_callback_says_what_it_needs(make, given, said):
    refused(said, make, **given)


# --- results ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result():
    scores = {"evaluate_fn": lambda n, arrays: None if n % 10 else MetricRecord({"score": float(n)})}
    return run(FedDualAvg(regularizer=L1(0.3), client_lr=0.05), clients(), 200, fraction_evaluate=1.0, **scores)


def test_two_hundred_rounds_print_a_few_lines_with_the_last_round(result):
    text = f"{result}"
    assert len(text.splitlines()) <= 8
    assert max(map(len, text.splitlines())) < 400
    nonzero = np.count_nonzero(result.arrays["coefficients"].numpy())
    density = f"density {result.train_metrics_clientapp[200]['density']:.6g}"
    for said in ("after round 200", density, "score 200", f"coefficients float64[6], {nonzero} not zero"):
        assert said in text


def test_the_table_has_every_number_of_every_round(result):
    table = result.table()
    assert (type(table), list(table["round"])) == (pandas.DataFrame, list(range(201)))
    for name, history in result.histories.items():
        for number, metrics in history.items():
            assert {key: table[f"{name}/{key}"][number] for key in metrics} == dict(metrics)
    assert math.isnan(table["server/score"][7])


def test_an_error_of_another_process_has_its_result():
    for kind in (DivergedError, NothingTrainedError, RunInterrupted):
        again = pickle.loads(pickle.dumps(kind("why", result=Result())))
        assert (str(again), again.result) == ("why", Result())


def test_without_pandas_the_error_names_the_command(result, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    refused("pip install pandas", result.table)
    assert len(result.rows()) == 201


# --- models -----------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
MODEL = {
    "dense": RNG.standard_normal((7, 5)),
    "tensor/with.a:name": np.where(RNG.random((8, 4, 9)) < 0.03, 1.5, 0.0).astype(np.float32),
    "vector": np.eye(1, 500, 7)[0],
    "scalar": np.array(2.5),
    "file": np.zeros(0),
    "counter": np.array([3], dtype=np.int64),
    "half": RNG.standard_normal(3).astype(np.float16),
}


def same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("model", [MODEL, arrays_of(MODEL), dict(arrays_of(MODEL).items())], ids=["a", "b", "c"])
def test_a_file_gives_the_same_model_back_and_is_plain_numpys(tmp_path, model):
    path = tmp_path / "model.npz"
    save_npz(model, path)
    same(load_npz(path), MODEL)
    assert list(tmp_path.iterdir()) == [path]
    with np.load(path) as file:
        same(dict(file), MODEL)


def test_arrays_are_sparse_matrices_of_scipys():
    model = {name: MODEL[name] for name in ("dense", "tensor/with.a:name", "vector", "scalar", "counter")}
    for name, matrix in to_sparse(model).items():
        assert isinstance(matrix, csr_array)
        assert matrix.nnz == np.count_nonzero(model[name])
        np.testing.assert_array_equal(matrix.toarray().reshape(model[name].shape), model[name])


@pytest.mark.parametrize("wrong", [3, {"w": ["a", "b"]}, {"w": [1.0, None]}, {"w": object()}, {"w": "text"}], ids=str)
def test_what_is_no_model_of_numbers_is_refused(wrong, tmp_path):
    said = "expected a Result|the array 'w' has dtype"
    refused(said, save_npz, wrong, tmp_path / "model.npz")
    refused(said, to_sparse, wrong)
    assert not (tmp_path / "model.npz").exists()


def test_a_damaged_file_and_one_of_another_format_are_refused(tmp_path):
    path = tmp_path / "model.npz"
    save_npz(MODEL, path)
    whole = path.read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"text", whole[whole.index(b"\x93NUMPY") : 400]):
        path.write_bytes(content)
        refused(r"is no \.npz file", load_npz, path)
    refused("missing", load_npz, tmp_path / "missing.npz", kind=FileNotFoundError)
