"""Paths of strengths: against scikit-learn's, and what they choose."""

import numpy as np
import pytest
from problems import app_of, refused, zeros
from sklearn.linear_model import lasso_path

from flwr_fco.callbacks import Checkpoint, EarlyStopping
from flwr_fco.client_apps import client_app
from flwr_fco.objectives import LeastSquares, MultinomialLogistic
from flwr_fco.objectives.linear import sklearn_strength
from flwr_fco.regularizers import L1, ElasticNet, GroupLasso, L1Ball, Nuclear, PerParameter, Zero
from flwr_fco.results import Result
from flwr_fco.simulation.fit_path import PathPoint, PathResult, fit_path
from flwr_fco.strategies import FedDualAvg, Steps

SIZES = (20, 25, 35)
#: 1/(4 L) on the clients and four times that on the server: gradient steps of about 1/L.
FAST = {"client_lr": "auto", "server_lr": 4.0, "work": Steps(1, batch_size=None), "fraction_evaluate": 0.0}


def objectives_of(kind, shift=0, **options):
    found = []
    for m, size in enumerate(SIZES):
        rng = np.random.default_rng(10 * shift + m)
        features = rng.normal(size=(size, 5)) + 0.2
        scores = features @ [2.0, -1.0, 0.5, 0.0, 0.0] + 1.0 + 0.5 * rng.normal(size=size)
        if kind is MultinomialLogistic:
            scores, options["num_classes"] = np.clip(np.round(scores), 0, 2).astype(int), 3
        found.append(kind(features, scores, **options))
    return found


def path_of(kind, regularizer=None, rounds=60, app=None, strategy_options=None, objective_options=None, **options):
    train, held_out = (objectives_of(kind, shift, **objective_options or {}) for shift in (0, 1))
    held = {"load_evaluation_objective": lambda context: held_out[context.node_config["partition-id"]]}
    strategy = FedDualAvg(regularizer=regularizer or L1(1.0), **FAST, **(strategy_options or {}))
    where = {"num_nodes": 3, "num_rounds": rounds, "initial_arrays": zeros(train[0].layout), "progress": False}
    return fit_path(strategy, app or app_of(train, **held), **where, **options)


def test_a_path_of_least_squares_is_scikit_learns():
    objectives = objectives_of(LeastSquares)
    stop = EarlyStopping(tol=1e-10, certificate="train/duality-gap")
    options = {"num_strengths": 5, "ratio": 0.02, "callbacks": [stop]}
    path = path_of(LeastSquares, rounds=400, strategy_options={"certificate_every": 20}, **options)
    features, targets = (np.concatenate([getattr(own, name) for own in objectives]) for name in ("features", "targets"))
    centred, level = (own - own.mean(axis=0) for own in (features, targets))
    alpha_max = np.abs(centred.T @ level).max() / len(targets)
    strengths = [point.strength for point in path.points]
    assert sklearn_strength(strengths[0], objectives[0]) == pytest.approx(alpha_max * (1 + 1e-6), rel=1e-8)
    np.testing.assert_allclose(np.diff(np.log(strengths)), np.log(0.02) / 4, rtol=1e-9)
    alphas = [sklearn_strength(strength, objectives[0]) for strength in strengths]
    _, theirs, _ = lasso_path(centred, level, alphas=alphas, tol=1e-12, max_iter=100_000)
    for point, column in zip(path.points, theirs.T, strict=True):
        np.testing.assert_allclose(point.result.arrays["coefficients"].numpy(), column, atol=2e-5)
        assert point.nonzero == np.count_nonzero(column)
    # Warm starts: a run ends as soon as it is certified, long before its last round.
    assert sum(row["rounds"] for row in path.rows()) < 5 * 400
    assert all(row["certificate"] <= 1e-10 for row in path.rows())


OTHERS = [
    (LeastSquares, GroupLasso(1.0, groups=[0, 0, 1, 1, 1]), {}),
    (LeastSquares, ElasticNet(1.0, l1_ratio=0.5), {"intercept": False}),
    (MultinomialLogistic, Nuclear(1.0), {}),
]


@pytest.mark.parametrize(("kind", "regularizer", "options"), OTHERS)
def test_above_the_largest_strength_there_is_nothing_and_below_something(kind, regularizer, options):
    path = path_of(kind, regularizer, rounds=50, num_strengths=2, ratio=0.9, objective_options=options, validate=False)
    assert path.points[0].nonzero == 0
    assert path.points[1].nonzero > 0
    assert np.isnan(path.points[0].held_out)
    refused("not validated", getattr, path, "best")
    assert "held-out" not in path.rows()[0]


def test_the_loss_on_held_out_data_and_its_standard_error():
    path = path_of(LeastSquares, num_strengths=4)
    shares = np.array(SIZES) / sum(SIZES)
    for point in path.points:
        w = np.concatenate([array.numpy() for array in point.result.arrays.values()])
        losses = np.array([objective.value(w) for objective in objectives_of(LeastSquares, 1)])
        mean = shares @ losses
        assert point.held_out == pytest.approx(mean)
        assert point.standard_error == pytest.approx(np.sqrt(1.5 * (shares**2 @ (losses - mean) ** 2)))
    assert path.best.held_out == min(point.held_out for point in path.points)
    assert path.one_standard_error.strength >= path.best.strength


def made_up(losses, error):
    return PathResult([PathPoint(10.0 / 2**i, Result(), i, loss, error) for i, loss in enumerate(losses)])


def test_the_rules():
    path = made_up([5.0, 2.2, 2.0, 2.0, 3.0], 0.25)
    assert (path.best.strength, path.one_standard_error.strength) == (2.5, 5.0)
    assert made_up([5.0, 2.3, 2.0], 0.25).one_standard_error.strength == 2.5
    assert ("smallest held-out loss 2 at 2.5" in repr(path), f"{PathResult([])!r}") == (True, "PathResult: 0 strengths")


def test_a_path_leaves_the_strategy_as_it_was_and_is_not_resumed():
    strategy = FedDualAvg(regularizer=L1(7.0), **FAST)
    objectives = objectives_of(LeastSquares)
    more = {"num_nodes": 3, "num_rounds": 2, "initial_arrays": zeros(objectives[0].layout), "progress": False}
    fit_path(strategy, app_of(objectives), num_strengths=2, validate=False, **more)
    assert strategy.regularizer == L1(7.0)
    for given in ({"resume": "run.npz"}, {"callbacks": [Checkpoint("run.npz")]}):
        refused("run.npz is the file of one run", fit_path, strategy, app_of(objectives), **given, **more)


WRONG = [({"regularizer": psi}, "has no strength") for psi in (Zero(), L1Ball(1.0), PerParameter({"*": L1(1.0)}))]
WRONG += [({"strengths": strengths}, "expected") for strengths in ([], [-1.0], "auto")]
WRONG += [({name: value}, "expected") for name, value in (("num_strengths", 1), ("ratio", 1.0), ("validate", "no"))]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_what_makes_no_path_is_refused(options, said):
    refused(said, path_of, LeastSquares, **options)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, ConnectionError])
def test_a_path_that_is_not_done_has_the_strengths_that_are(kind):
    rounds = iter(range(5))

    def end(*_):
        if next(rounds) == 4:
            raise kind

    with pytest.raises(kind) as caught:
        path_of(LeastSquares, rounds=2, strengths=[0.3, 0.2, 0.1], callbacks=[end])
    assert [row["strength"] for row in caught.value.path.rows()] == [0.3, 0.2]


def test_a_gradient_of_zero_at_zero_has_no_path():
    flat = client_app(lambda context: LeastSquares(np.eye(5), np.ones(5)))
    refused(r"strengths=\[...\] by hand", path_of, LeastSquares, app=flat, rounds=1)
    refused("'patients': the gradients", path_of, LeastSquares, strategy_options={"weighted_by_key": "patients"})
