"""Callbacks: what they are told, and what they may answer."""

from itertools import pairwise

import numpy as np
import pytest
from flwr.app import MetricRecord
from problems import clients, flat, run, start_arrays
from together import together

from flwr_fco.callbacks import Callback, Checkpoint, EarlyStopping
from flwr_fco.errors import ConfigurationError, DivergedError
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Steps, run_of
from reproduction.pooled import certify

STRENGTH = 0.3


@pytest.mark.parametrize("before", [np.zeros(0), np.zeros((7, 1)), np.array("x"), np.full(7, np.nan)], ids=repr)
def test_what_a_checkpoint_says_of_the_model_before_is_checked(before):
    stopping = EarlyStopping(1e-9)
    saved = {"numbers": np.array([0.0, np.nan, 0.0, 0.0]), "before": before}
    if before.shape != (0,):
        with pytest.raises(ValueError, match="before"):
            stopping.from_arrays(saved)
    else:
        stopping.from_arrays(saved)
        assert stopping.on_round_end(1, start_arrays(), {}) == (False, {})


def strategy(**options):
    return FedDualAvg(**{"regularizer": L1(STRENGTH), "client_lr": 0.05, "work": Steps(1, batch_size=None), **options})


def loss(server_round, arrays):
    return MetricRecord({"loss": float(np.abs(flat(arrays)).sum())})


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


def test_the_hooks_are_called_in_order_with_the_models_before_and_after():
    diary, models = Diary(), []
    run(strategy(), clients(), 3, callbacks=[diary, lambda n, arrays, m: models.append(flat(arrays))])
    assert [entry[0] for entry in diary.entries] == ["begin", *["round", "end"] * 3, "over"]
    assert diary.entries[0] == ("begin", True, 3)
    assert diary.entries[-1] == ("over", 3)
    befores = [entry[2] for entry in diary.entries if entry[0] == "round"]
    np.testing.assert_array_equal(befores, [np.zeros(7), *models[:-1]])


def test_metrics_are_those_of_the_result_whoever_evaluates():
    diary = Diary()
    result = run(strategy(), clients(), 2, evaluate_fn=loss, fraction_evaluate=1.0, callbacks=[diary])
    told = {entry[1]: entry[2] for entry in diary.entries if entry[0] == "end"}
    for row in result.rows():
        if row["round"]:
            assert {"round": row["round"], **told[row["round"]]} == row
    assert {"train/density", "train/num-left-out", "evaluate/loss", "server/loss"} <= set(told[1])


def test_what_a_callback_adds_is_told_to_those_after_it_and_kept():
    class Adds(Callback):
        def on_round_end(self, server_round, arrays, metrics):
            return False, {"own": 10 * server_round}

    diary = Diary()
    result = run(strategy(), clients(), 2, callbacks=[Adds(), diary])
    assert [entry[2]["own"] for entry in diary.entries if entry[0] == "end"] == [10, 20]
    assert [row["own"] for row in result.rows()] == [10, 20]
    assert result.callback_metrics == {1: {"own": 10}, 2: {"own": 20}}


@pytest.mark.parametrize("value", [np.float32(0.5), np.int64(3), np.bool_(True), np.array(0.5)], ids=repr)
def test_what_a_callback_adds_may_be_a_number_of_numpys(value):
    class Adds(Callback):
        def on_round_end(self, server_round, arrays, metrics):
            return False, {"own": value}

    added = run(strategy(), clients(), 1, callbacks=[Adds()]).callback_metrics[1]["own"]
    assert added == value.item()
    assert type(added) is type(value.item())


@pytest.mark.parametrize("answer", [True, (True, {})])
def test_any_callback_ends_the_run_and_all_are_told_of_the_round(answer):
    class Stops:
        def on_round_end(self, server_round, arrays, metrics):
            return answer if server_round == 2 else None

    diary = Diary()
    result = run(strategy(), clients(), 9, callbacks=[Stops(), diary])
    assert max(result.train_metrics_clientapp) == 2
    assert diary.entries[-2][1] == 2


@together("answer", [{}, {"own": 1.0}, (False, {}), [], 0, 1, "no", np.array([True, False])])
def test_a_functions_answer_that_is_no_word_is_an_error_and_not_the_end_of_the_run(answer):
    with pytest.raises(ConfigurationError, match=f"returned a {type(answer).__name__}; expected True, False or None"):
        run(strategy(), clients(), 3, callbacks=[lambda *_: answer])


@pytest.mark.parametrize(
    "answer", [{"own": 1.0}, [False, {"own": 1.0}], (False,), (False, None), (False, {}, {}), ("no", {})], ids=repr
)
def test_an_objects_answer_that_is_no_word_is_an_error_and_not_the_end_of_the_run(answer):
    class Odd:
        def on_round_end(self, server_round, arrays, metrics):
            return answer

    with pytest.raises(
        ConfigurationError, match=r"returned a \w+; expected True, False or None, or that and a mapping"
    ):
        run(strategy(), clients(), 3, callbacks=[Odd()])


@pytest.mark.parametrize("word", [bool, np.bool_, lambda stop: np.array(stop), lambda stop: stop or None])
def test_a_word_may_come_from_a_comparison(word):
    def after_two(server_round, arrays, metrics):
        return word(server_round == 2)

    assert max(run(strategy(), clients(), 5, callbacks=[after_two]).train_metrics_clientapp) == 2


def test_the_end_is_told_after_an_error_too():
    diary = Diary()
    with pytest.raises(DivergedError):
        run(strategy(client_lr=50.0, regularizer=L1(0.0)), clients(), 500, callbacks=[diary])
    assert diary.entries[-1][0] == "over"


@pytest.mark.parametrize("wrong", [object(), "loss", Diary])
def test_what_is_no_callback_is_refused(wrong):
    with pytest.raises(ConfigurationError, match="expected a function"):
        run(strategy(), clients(), 1, callbacks=[wrong])


# --- early stopping ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tol", [1e-2, 1e-6, 1e-10])
def test_a_certificate_ends_the_run_only_where_it_holds(tol):
    objectives, gaps = clients(), []

    def gap(arrays):
        gaps.append(certify(objectives, None, L1(STRENGTH), flat(arrays)).value)
        return gaps[-1]

    stopping = EarlyStopping(tol, certificate=gap)
    result = run(strategy(), objectives, 5000, callbacks=[stopping])
    assert certify(objectives, None, L1(STRENGTH), flat(result.arrays)).value <= tol
    assert all(earlier > tol for earlier in gaps[:-1])
    assert stopping.stopped == len(gaps) == max(result.train_metrics_clientapp)
    assert result.callback_metrics[stopping.stopped]["certificate"] == gaps[-1]


def test_a_certificate_may_be_a_metric():
    stopping = EarlyStopping(4.0, certificate="server/loss")
    result = run(
        strategy(), clients(), 100, evaluate_fn=lambda n, a: MetricRecord({"loss": 10.0 - n}), callbacks=[stopping]
    )
    assert max(result.train_metrics_clientapp) == stopping.stopped == 6


def test_a_model_that_no_longer_moves_ends_the_run():
    stopping, models = EarlyStopping(1e-9, patience=3), [np.zeros(7)]
    result = run(strategy(), clients(), 5000, callbacks=[stopping, lambda n, a, m: models.append(flat(a))])
    moves = [np.linalg.norm(b - a) / max(1.0, np.linalg.norm(b)) for a, b in pairwise(models)]
    assert 0 < stopping.stopped == max(result.train_metrics_clientapp) < 5000
    assert max(moves[-3:]) <= 1e-9
    assert moves[-4] > 1e-9


def test_validation_keeps_the_best_model():
    scores = [5.0, 4.0, 3.0, 3.5, 3.2, 3.1, 1.0]
    models = []
    stopping = EarlyStopping(validation="server/score", patience=3)
    result = run(
        strategy(),
        clients(),
        7,
        evaluate_fn=lambda n, a: MetricRecord({"score": scores[n - 1]}) if n else None,
        callbacks=[stopping, lambda n, a, m: models.append(flat(a))],
    )
    assert max(result.train_metrics_clientapp) == stopping.stopped == 6
    assert stopping.best == 3.0
    np.testing.assert_array_equal(flat(stopping.best_arrays), models[2])


def test_a_larger_score_may_be_better_and_rounds_without_one_do_not_count():
    stopping = EarlyStopping(validation="server/accuracy", mode="max", patience=2)
    values = {2: 0.5, 4: 0.7, 6: 0.6, 8: 0.65, 10: 0.9}
    result = run(
        strategy(),
        clients(),
        10,
        evaluate_fn=lambda n, a: MetricRecord({"accuracy": values[n]}) if n in values else None,
        callbacks=[stopping],
    )
    assert max(result.train_metrics_clientapp) == 8
    assert stopping.best == 0.7


def test_a_score_that_is_nan_is_not_the_best():
    stopping = EarlyStopping(validation="evaluate/loss", patience=2)
    scores = [np.nan, 2.0, np.nan, np.nan, 1.0]
    answers = [stopping.on_round_end(n, start_arrays(), {"evaluate/loss": s})[0] for n, s in enumerate(scores)]
    assert answers == [False, False, False, True, False]
    assert stopping.best == 1.0
    stopping = EarlyStopping(validation="evaluate/loss", patience=2)
    assert [stopping.on_round_end(n, start_arrays(), {"evaluate/loss": np.nan})[0] for n in (1, 2)] == [False, True]
    assert stopping.best_arrays is None


def test_a_metric_that_never_comes_is_said(caplog):
    run(strategy(), clients(), 2, callbacks=[EarlyStopping(validation="server/acuracy")])
    assert "'server/acuracy', which no round had; they had" in caplog.text


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"tol": 1.0, "validation": "x"},
        {"certificate": "x"},
        {"tol": -1.0},
        {"tol": 1.0, "patience": 0},
        {"tol": 1.0, "certificate": 3},
        {"validation": float},
    ],
)
def test_early_stopping_says_what_it_needs(options):
    with pytest.raises(ConfigurationError, match="expected"):
        EarlyStopping(**options)


# --- checkpoints ----------------------------------------------------------------------------------------------


def test_a_checkpoint_is_the_state_after_the_last_whole_round(tmp_path):
    path = tmp_path / "state.npz"
    once, checkpoint = strategy(), Checkpoint(path, every=4)
    run(once, clients(), 6, callbacks=[checkpoint])
    assert checkpoint.saved_round == 6
    again = strategy()
    run(again, clients(), 6, resume=path)
    np.testing.assert_array_equal(again.state.dual, once.state.dual)
    assert again.state.round == 6


@together(
    ("given", "said"),
    [
        ((3,), "path=3 is a int; expected a string or a PathLike"),
        (("state.txt",), "expected the name of a file that ends in .npz"),
        (("state.npz", 0), "every=0; expected a whole number >= 1"),
        (("state.npz", 1.5), "every=1.5 is a float; expected a whole number"),
        (("state.npz", "2"), "every='2' is a str; expected a whole number"),
    ],
)
def test_a_checkpoint_takes_the_name_of_a_file_and_a_number(given, said):
    with pytest.raises(ConfigurationError, match=said):
        Checkpoint(*given)


def test_a_diverged_state_does_not_replace_a_checkpoint(tmp_path):
    path = tmp_path / "state.npz"
    diverging = strategy(client_lr=1.2, regularizer=L1(0.0))
    checkpoint = Checkpoint(path, every=5)
    with pytest.raises(DivergedError) as caught:
        run(diverging, clients(), 500, callbacks=[checkpoint])
    again = strategy(regularizer=L1(0.0), client_lr=1.2)
    run(again, clients(), checkpoint.saved_round, resume=path)
    assert again.state.round == checkpoint.saved_round < caught.value.server_round


@pytest.mark.parametrize("score", [None, "low", np.ones(2)], ids=str)
def test_a_score_that_is_no_number_is_named(score):
    for name, callback in (
        ("certificate", EarlyStopping(tol=1.0, certificate=lambda arrays: score)),
        ("validation", EarlyStopping(validation=lambda arrays: score)),
    ):
        with pytest.raises(ConfigurationError, match=f"{name} returned a {type(score).__name__}; expected a number"):
            run(strategy(), clients(), 1, callbacks=[callback])
