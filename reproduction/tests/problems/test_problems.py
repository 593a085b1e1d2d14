"""The registry of problems, the metrics of a round, the baselines."""

import numpy as np
import pytest

from flwr_fco.datasets import digits
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1Ball, L2Ball
from reproduction.data import DataNotFoundError
from reproduction.data.fmri import load_haxby
from reproduction.data.saddle_objectives import QuadraticSaddle
from reproduction.pooled import client_weights, composite_objective, duality_gap, stationarity
from reproduction.problems import named as problems
from reproduction.problems.baselines import solve_baseline
from reproduction.problems.loaders import data_directory
from reproduction.problems.named import load_task
from reproduction.problems.tasks import ConstrainedClassification
from reproduction.tests import stand_ins


@pytest.mark.parametrize("name", ["lasso-III", "low-rank-III", "lasso-small"])
def test_the_gram_matrix_gives_the_pooled_objective(name):
    task = load_task(name)
    rng = np.random.default_rng(0)
    for scale in (0.0, 1.0, 30.0):
        w = scale * rng.normal(size=task.layout.size)
        assert task.objective(w) == pytest.approx(
            composite_objective(task.clients, None, task.regularizer, w), rel=1e-9
        )


def test_a_round_of_classification():
    task = load_task("breast-cancer")
    found = task.scores(np.zeros(task.layout.size))
    assert found["density"] == 0.0
    assert found["objective"] == pytest.approx(np.log(2))
    assert found["validation-objective"] == pytest.approx(np.log(2))
    labels = np.concatenate([client.labels for client in task.clients])
    # A model of zeros says one class for all.
    assert found["training-accuracy"] in (pytest.approx(labels.mean()), pytest.approx(1 - labels.mean()))


@pytest.mark.parametrize(("ball", "order"), [(L1Ball(5.0), 1), (L2Ball(5.0), 2)])
def test_a_round_in_a_ball_reports_the_norm_that_it_bounds(ball, order):
    task = ConstrainedClassification(digits(num_clients=4, alpha=None), ball, order)
    w = np.random.default_rng(0).normal(size=task.layout.size)
    outside = task.scores(w)
    # The intercept is free, and not in the norm.
    assert outside["norm"] == pytest.approx((np.abs(w[:640]) ** order).sum() ** (1 / order))
    assert outside["objective"] == np.inf
    w[:640] = ball.prox(w[:640], 1.0)
    inside = task.scores(w)
    assert inside["norm"] == pytest.approx(5.0)
    assert np.isfinite(inside["objective"])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lasso-V", {}, "lasso-V"),
        ("lasso-I", {"alpha": 1.0}, r"no option 'alpha'.*strength"),
        ("lasso-small", {"strength": "x"}, "strength='x' is a str"),
        ("lasso-small", {"strength": True}, "strength=True is a bool; expected a number"),
        ("lasso-small", {"num-ones": 99}, "num-ones=99"),
        ("digits", {"regularizer": "L3"}, "regularizer='L3' is a str; expected 'L1' or 'L2Squared' or 'Nuclear'"),
        ("mnist-l1-ball", {"ball": "l3"}, "ball='l3'"),
        ("bilinear-l1", {"start": "one"}, "start='one'"),
        ("logistic-digits", {"source": "openml"}, "source='openml'; expected 'files' for digits"),
        ("adversarial-cifar10", {"source": "openml"}, "source='openml'; expected 'files' for cifar"),
    ],
)
def test_options_are_checked(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        load_task(name, options=options)


def test_absent_data_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_FCO_DATA", str(tmp_path))
    with pytest.raises(DataNotFoundError, match="FLWR_FCO_DATA"):
        data_directory("mnist")
    (tmp_path / "mnist").mkdir()
    assert data_directory("mnist") == tmp_path / "mnist"
    with pytest.raises(DataNotFoundError, match="train-images"):
        load_task("mnist-l1-ball", 9)


@pytest.fixture
def nothing_there(monkeypatch):
    """Forget the tasks of stand-ins, before and after, and where files are."""
    monkeypatch.delenv("FLWR_FCO_DATA", raising=False)
    problems._load.cache_clear()
    yield
    problems._load.cache_clear()


def test_mnist_comes_from_openml_where_that_is_asked_for(monkeypatch, nothing_there):
    rng = np.random.default_rng(0)
    # As OpenML has them: numbers as float64, labels as texts.
    images = rng.integers(0, 256, (280, 784)).astype(np.float64), (np.arange(280) % 10).astype(str).astype(object)
    asked = []
    monkeypatch.setattr("sklearn.datasets.fetch_openml", lambda name, **options: asked.append(name) or images)
    sizes = {"num-clients": 2, "num-examples": 200}
    for name in ("mnist-l1-ball", "logistic-mnist", "adversarial-mnist"):
        task = load_task(name, options={"source": "openml", **sizes})
        assert sum(client.num_examples for client in task.clients) == 200
        # Nothing is fetched that was not asked for, and what is said to do can be done.
        with pytest.raises(DataNotFoundError, match="--set source=openml"):
            load_task(name, options=sizes)
    assert len(asked) == 3


def test_the_papers_split_of_what_nilearn_fetches(tmp_path, monkeypatch, nothing_there):
    """B.4: 59 training clients of 18 scans (here 4), 12 held out, the sessions of the sixth subject."""
    pytest.importorskip("nibabel")
    # As in the real data one session of the fifth subject shows neither faces nor houses.
    names = ["rest", "face", "house", "face", "house", "rest"]
    silent = ["rest"] * 6
    sessions = {subject: [names] * 12 for subject in range(1, 7)} | {5: [names] * 8 + [silent] + [names] * 3}
    stand_ins.write_haxby(tmp_path, sessions)
    asked = stand_ins.install_nilearn(monkeypatch, tmp_path)
    with pytest.raises(DataNotFoundError, match="--set fetch=true"):
        load_task("haxby")
    assert asked == []
    options = {"fetch": True, "num-held-out": 12, "path": "kept/here"}
    paper = load_task("haxby", 3, options={**options, "split": 5})
    assert asked == [{"data_dir": "kept/here", "subjects": [1, 2, 3, 4, 5, 6], "fetch_stimuli": False}]
    assert [client.num_examples for client in paper.clients] == [4] * 59
    sixth = load_haxby(tmp_path, subjects=(6,))
    np.testing.assert_array_equal(paper.dataset.test.features, sixth.features)
    # Without a split the seed chooses: six seeds, six subjects.
    chosen = [load_task("haxby", seed, options=options).dataset for seed in range(6)]
    assert [data.num_clients for data in chosen] == [59, 59, 59, 59, 60, 59]
    np.testing.assert_array_equal(chosen[5].test.features, sixth.features)
    for wrong, message in (
        ({"split": 6}, r"split=6; expected 0 \.\. 5"),
        ({"num-held-out": 13}, r"expected 1 \.\. 12.*12"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            load_task("haxby", options={**options, **wrong})


def test_a_bilinear_game_reports_the_gap_of_the_pooled_problem():
    small = {"rows": 8, "columns": 12, "num-clients": 4, "spread": 0.5}
    task = load_task("bilinear-l1", 3, small)
    w = task.layout.flatten(task.initial_arrays())
    assert np.abs(w).max() <= 0.05
    found = task.scores(w)
    assert found["gap"] == pytest.approx(duality_gap(task.clients, None, task.regularizer, w), rel=1e-9)
    # The farthest point is a corner; outside the box the gap is no number of an earlier round.
    assert found["diameter"] == pytest.approx(0.5 * ((w + 0.05 * np.sign(w)) ** 2).sum())
    assert task.scores(w + 0.1)["gap"] == np.inf
    assert found["residual"] == pytest.approx(stationarity(task.clients, None, task.regularizer, w, lipschitz=1.0))
    assert not task.layout.flatten(load_task("bilinear-l1", 3, {**small, "start": "zero"}).initial_arrays()).any()
    with pytest.raises(ConfigurationError, match="BilinearSaddle is a saddle function"):
        solve_baseline(task, "centralized")


def test_a_quadratic_game_has_no_gap_at_its_saddle_point():
    task = load_task("quadratic-saddle", 0, {"rows": 3, "columns": 4, "num-clients": 2})
    pooled = QuadraticSaddle.pooled(task.clients, client_weights(task.clients))
    found = task.structure(pooled.solution)
    assert found["gap"] <= 1e-20
    assert found["distance"] == 0.0


def test_adversarial_training_is_judged_with_and_without_the_attack():
    task = load_task("adversarial-digits", 0, {"num-clients": 4})
    arrays = {**task.initial_arrays(), "coefficients": np.random.default_rng(0).normal(size=(64, 10))}
    assert 0.0 < np.abs(arrays["perturbation"]).max() <= 0.05
    w = task.layout.flatten(arrays)
    found = task.scores(w)
    test = task.dataset.images.test_examples()
    margins = test.features @ arrays["coefficients"]
    assert found["accuracy"] == pytest.approx((margins.argmax(axis=1) == test.targets).mean())
    shifted = (test.features + arrays["perturbation"]) @ arrays["coefficients"]
    assert found["attacked-accuracy"] == pytest.approx((shifted.argmax(axis=1) == test.targets).mean())
    assert found["attack-size"] == pytest.approx(np.abs(arrays["perturbation"]).mean())
    assert set(task.scores(w, full=False)) == {"density", "attack-size"}
