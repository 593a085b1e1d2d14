"""Callbacks: what they get, and what they may answer."""

from itertools import pairwise

import numpy as np
import pytest
from flwr.app import MetricRecord
from problems import clients, flat, refused, run

from flwr_fco.callbacks import Callback, Checkpoint, EarlyStopping
from flwr_fco.errors import DivergedError
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Steps, run_of
from reproduction.pooled import certify

STRENGTH = 0.3
NAN = np.nan


def strategy(**options):
    return FedDualAvg(**{"regularizer": L1(STRENGTH), "client_lr": 0.05, "work": Steps(1, batch_size=None), **options})


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


class Answers(Callback):
    """Answers what a function makes of the round's number."""

    def __init__(self, answer):
        self.answer = answer

    def on_round_end(self, server_round, arrays, metrics):
        return self.answer(server_round)


def test_the_hooks_are_called_in_order_with_models_and_metrics():
    diary = Diary()
    models = [np.zeros(7)]
    scores = {"evaluate_fn": lambda number, arrays: MetricRecord({"loss": float(np.abs(flat(arrays)).sum())})}
    result, _ = play(3, diary, lambda n, arrays, m: models.append(flat(arrays)), fraction_evaluate=1.0, **scores)
    assert [entry[0] for entry in diary.entries] == ["begin", *["round", "end"] * 3, "over"]
    assert (diary.entries[0], diary.entries[-1]) == (("begin", True, 3), ("over", 3))
    np.testing.assert_array_equal([entry[2] for entry in diary.entries if entry[0] == "round"], models[:-1])
    reported = {entry[1]: entry[2] for entry in diary.entries if entry[0] == "end"}
    assert [{"round": row["round"], **reported[row["round"]]} for row in result.rows()[1:]] == result.rows()[1:]
    assert {"train/density", "train/num-left-out", "evaluate/loss", "server/loss"} <= set(reported[1])


@pytest.mark.parametrize("kind", [int, np.float32, np.int64, np.array, lambda number: np.bool_(number > 1)])
def test_numbers_that_a_callback_adds_reach_those_after_it_and_the_result(kind):
    diary = Diary()
    result, _ = play(2, Answers(lambda number: (False, {"own": kind(number)})), diary)
    added = [entry[2]["own"] for entry in diary.entries if entry[0] == "end"]
    assert added == [row["own"] for row in result.rows()] == [kind(1), kind(2)]
    assert all(type(number) in (int, float, bool) for number in added)
    assert result.callback_metrics == {1: {"own": added[0]}, 2: {"own": added[1]}}


@pytest.mark.parametrize("word", [bool, np.bool_, np.array, lambda stop: stop or None, lambda stop: (stop, {})])
def test_any_callback_ends_the_run_after_all_have_had_the_round(word):
    diary = Diary()
    _, rounds = play(9, Answers(lambda number: word(number == 2)), diary)
    assert rounds == diary.entries[-2][1] == 2
    if not isinstance(word(True), tuple):
        assert play(9, lambda number, *_: word(number == 2))[1] == 2


NO_WORDS = [{"own": 1.0}, [False, {"own": 1.0}], (False,), (False, None), (False, {}, {}), ("no", {})]


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        *((Answers(lambda _, answer=answer: answer), r"\w+; .* False or None, or that and a") for answer in NO_WORDS),
        (lambda *_: {}, "returned a dict; expected True, False or None"),
        *((wrong, "expected a function") for wrong in (object(), "loss", Diary)),
        *(
            (EarlyStopping(**more, **{name: lambda arrays, score=score: score}), f"{name} returned a {kind}; .* number")
            for score, kind in ((None, "NoneType"), ("low", "str"), (np.ones(2), "ndarray"))
            for name, more in (("certificate", {"tol": 1.0}), ("validation", {}))
        ),
    ],
)
def test_what_is_no_callback_no_answer_and_no_score_is_named(callback, said):
    refused(said, play, 3, callback)


# --- early stopping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tol", [1e-2, 1e-6, 1e-10])
def test_a_certificate_ends_the_run_only_where_it_holds(tol):
    gaps = []

    def gap(arrays):
        gaps.append(certify(clients(), None, L1(STRENGTH), flat(arrays)).value)
        return gaps[-1]

    stopping = EarlyStopping(tol, certificate=gap)
    result, rounds = play(5000, stopping)
    assert certify(clients(), None, L1(STRENGTH), flat(result.arrays)).value <= tol
    assert all(earlier > tol for earlier in gaps[:-1])
    assert stopping.stopped == len(gaps) == rounds
    assert result.callback_metrics[rounds]["certificate"] == gaps[-1]


def test_a_model_that_no_longer_moves_ends_the_run():
    stopping = EarlyStopping(1e-9, patience=3)
    models = [np.zeros(7)]
    _, rounds = play(5000, stopping, lambda n, arrays, m: models.append(flat(arrays)))
    moves = [np.linalg.norm(b - a) / max(1.0, np.linalg.norm(b)) for a, b in pairwise(models)]
    assert 0 < stopping.stopped == rounds < 5000
    assert max(moves[-3:]) <= 1e-9
    assert moves[-4] > 1e-9


@pytest.mark.parametrize(
    ("options", "scores", "stopped", "best"),
    [
        ({"validation": "server/score", "patience": 3}, [5.0, 4.0, 3.0, 3.5, 3.2, 3.1, 1.0], 6, 3),
        # Rounds without a score do not count.
        ({"validation": "server/score", "mode": "max", "patience": 2}, [None, 5, None, 7, None, 6, 6.5, 9], 7, 4),
        # A score that is NaN is not the best, not even the first.
        ({"validation": "server/score", "patience": 2}, [NAN, 2.0, NAN, NAN, 1.0], 4, 2),
        ({"validation": "server/score", "patience": 2}, [1.0, 1.0, 1.0, 0.0], 3, 1),
        ({"validation": "server/score", "patience": 1, "every": 2}, [1.0, 3.0, 0.0, 4.0, 1.0], 4, 2),
        ({"tol": 4.0, "certificate": "server/score"}, [9.0, 8.0, 4.5, 4.0, 3.0], 4, None),
    ],
)
def test_a_metric_ends_the_run_and_the_best_model_is_kept(options, scores, stopped, best):
    models = [None]
    stopping = EarlyStopping(**options)
    scored = [None, *(None if score is None else MetricRecord({"score": float(score)}) for score in scores)]
    callbacks = [stopping, lambda n, arrays, m: models.append(flat(arrays))]
    _, rounds = play(len(scores), *callbacks, evaluate_fn=lambda n, arrays: scored[n])
    assert rounds == stopping.stopped == stopped
    if best is None:
        assert stopping.best_arrays is None
        assert np.isnan(stopping.best)
    else:
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


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (Checkpoint, {"path": 3}, "path=3 is a int; expected a string or a PathLike"),
        (Checkpoint, {"path": "state.txt"}, "expected the name of a file that ends in .npz"),
        (Checkpoint, {"path": "state.npz", "every": 0}, "every=0; expected a whole number >= 1"),
        (Checkpoint, {"path": "state.npz", "every": 1.5}, "every=1.5 is a float; expected a whole number"),
        *((EarlyStopping, given, "expected") for given in ({}, {"certificate": "x"}, {"validation": float})),
        *((EarlyStopping, {"tol": 1.0, **more}, "expected") for more in ({"validation": "x"}, {"patience": 0})),
        *((EarlyStopping, given, "expected") for given in ({"tol": -1.0}, {"tol": 1.0, "certificate": 3})),
    ],
)
def test_a_callback_says_what_it_needs(make, given, said):
    refused(said, make, **given)
