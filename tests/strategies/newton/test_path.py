"""A path of strengths and its cross-validation in one run: against runs of one strength each."""

from itertools import combinations

import numpy as np
import pytest
from faulty import Faulty, changing
from flwr.app import ConfigRecord
from newton import objective_value, point, sites, solved
from problems import app_of, simulated, zeros

from flwr_fco.algorithms.newton.path import errors_of, folds_of
from flwr_fco.callbacks import Checkpoint
from flwr_fco.client_apps import Disclosure
from flwr_fco.core.logs import quiet
from flwr_fco.errors import ClientError, ConfigurationError, ProtocolError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, SiteIntercept
from flwr_fco.regularizers import L1, ElasticNet, GroupLasso
from flwr_fco.regularizers.base import with_strength
from flwr_fco.simulation import InProcessGrid, fit_path
from flwr_fco.strategies import FedDAGT, FedNewton, Strengths, run_of
from reproduction.pooled import centralized_solution


def path_of(objectives, psi=None, rounds=60, strategy=None, disclosure=None, **options):
    return fit_path(
        strategy or FedNewton(regularizer=psi or L1(1.0), tolerance=1e-9, fraction_evaluate=0.0),
        app_of(objectives, disclosure=disclosure),
        num_nodes=len(objectives),
        num_rounds=rounds,
        initial_arrays=zeros(objectives[0].layout),
        progress=False,
        **options,
    )


KINDS = {
    "squares": ("squares", L1(7.0)),
    "logistic": ("logistic", L1(7.0)),
    "softmax": ("multinomial", L1(7.0)),
    "elastic net": ("logistic", ElasticNet(7.0, 0.5)),
    "groups": ("squares", GroupLasso(7.0, groups=np.arange(9) // 3)),
    "confounders": ("logistic", L1(7.0, weights=np.r_[0.0, 0.0, np.ones(7)])),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_model_is_that_of_a_run_of_its_own(kind):
    loss, psi = KINDS[kind]
    objectives = sites(loss, sizes=(60, 80, 50))
    path = path_of(objectives, psi, num_strengths=6, ratio=0.05, validate=False)
    assert path.points[0].nonzero == (2 if kind == "confounders" else 0)
    for at in path.points:
        own = with_strength(psi, at.strength)
        alone, _ = solved(objectives, own, tolerance=1e-10)
        w, best = (point(result, objectives[0]) for result in (at.result, alone))
        assert objective_value(objectives, own, w) <= objective_value(objectives, own, best) + 2e-9
        assert at.gap <= 1e-9 or np.isnan(at.gap)
        np.testing.assert_array_equal(w != 0.0, best != 0.0)
    history = path.points[0].result.train_metrics_clientapp
    gaps = [at.gap for at in path.points]
    assert np.isnan(gaps).all() or history[max(history)]["duality-gap"] >= max(gaps) > min(gaps)


@pytest.mark.parametrize("intercept", [lambda own: own, SiteIntercept], ids=["common", "of each site"])
def test_a_path_of_squares_is_exact_where_it_does_not_ask(intercept):
    """Of more features than rows known gradients bound most of the others, also with site intercepts."""
    objectives = [intercept(own) for own in sites("squares", sizes=(30, 40, 25), p=200)]
    strategy = FedNewton(regularizer=L1(1.0), tolerance=1e-9, fraction_evaluate=0.0)
    path = path_of(objectives, num_strengths=8, ratio=0.05, cv=3, rounds=200, strategy=strategy)
    assert run_of(strategy).state.shares.any()
    for at in path.points:
        w = point(at.result, objectives[0])
        psi = L1(at.strength)
        alone, _ = solved(objectives, psi, tolerance=1e-10)
        best = objective_value(objectives, psi, point(alone, objectives[0]))
        assert objective_value(objectives, psi, w) <= best + 2e-9


@pytest.mark.parametrize("kind", ["squares", "logistic", "multinomial"])
def test_the_held_out_losses_are_those_of_models_of_the_other_rows(kind):
    """Each client's rows of a fold, by a pooled solution on all clients' other rows; two sites have fewer rows."""
    objectives = sites(kind, sizes=(60, 81, 50, 3, 1))
    path = path_of(objectives, num_strengths=3, ratio=0.2, cv=4)
    parts = [folds_of(objective, 4, 0) for objective in objectives]
    losses, weights = [], []
    for fold in range(4):
        rest = [
            np.setdiff1d(np.arange(own.num_examples), rows[fold]) for own, rows in zip(objectives, parts, strict=True)
        ]
        train = [own.subset(rows)[0] for own, rows in zip(objectives, rest, strict=True) if rows.size]
        models = [centralized_solution(train, L1(at.strength), tol=1e-11) for at in path.points]
        for own, rows in zip(objectives, parts, strict=True):
            if rows[fold].size:
                held_out = own.subset(rows[fold])[0]
                losses.append([held_out.value(w) for w in models])
                weights.append(rows[fold].size)
    mean, error, difference = errors_of(np.array(losses), np.array(weights, dtype=float))
    for number, at in enumerate(path.points):
        assert at.held_out == pytest.approx(mean[number], abs=1e-5)
        assert at.standard_error == pytest.approx(error[number], abs=1e-5)
        assert at.difference_error == pytest.approx(difference[number], abs=1e-5)
    assert path.best.held_out == min(at.held_out for at in path.points)


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_folds_part_the_rows_with_the_same_shares_of_each_class(folds):
    labels = np.random.default_rng(0).integers(3, size=83)
    objective = MultinomialLogistic(np.ones((83, 1)), labels, num_classes=3)
    parts, again, others = (folds_of(objective, folds, seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(83))
    counts = np.array([[rows.size, *np.bincount(labels[rows], minlength=3)] for rows in parts])
    assert np.ptp(counts, axis=0).max() <= 1
    assert all(map(np.array_equal, parts, again))
    assert not all(map(np.array_equal, parts, others))
    single = folds_of(LeastSquares(np.ones((1, 1)), np.ones(1)), folds, 5)
    assert sorted(rows.size for rows in single) == [0] * (folds - 1) + [1]


def start_of(strategy, grid, objectives, rounds=60):
    with grid.identity(), quiet(50):
        return strategy.start(grid, zeros(objectives[0].layout), rounds)


def test_messages_and_a_resumed_run_have_the_same_bits(tmp_path):
    objectives = sites("multinomial", sizes=(30, 41, 25))
    file = tmp_path / "run.npz"

    def state_after(rounds=60, mods=(), **more):
        strengths = Strengths(4, 0.1, folds=3)
        strategy = FedNewton(regularizer=L1(1.0), tolerance=1e-7, strengths=strengths, fraction_evaluate=0.0)
        options = {"num_nodes": 3, "initial_arrays": zeros(objectives[0].layout), **more}
        simulated(strategy, app_of(objectives, mods), rounds, **options)
        return run_of(strategy).state

    whole = state_after()
    others = [state_after(mods=[lambda message, context, call_next: call_next(message, context)])]
    for stop in (1, 4):
        state_after(stop, callbacks=[Checkpoint(file, every=1)])
        others.append(state_after(resume=file))
    for other in others:
        for name, value in whole._asdict().items():
            np.testing.assert_array_equal(getattr(other, name), value, err_msg=name)


# --- trouble ----------------------------------------------------------------------------------------------------------


LIES = {
    "shares above 1": ("shares", lambda own: own * 2.0, "shares of rows are"),
    "rows in no fold": ("shares", lambda own: np.r_[1.0, np.ones(own.size - 1)], "each row is in one fold"),
    "a gradient times 3": ("gradient", lambda own: 3.0 * own, "of one convex function"),
    "a loss of -1e9": ("terms", lambda own: np.r_[-1e9, own[1:]], "it says that none is below 0"),
    "a short block": ("block", lambda own: own[:-1], "block"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_one_problem_is_named_and_the_round_is_skipped(lie):
    name, change, reason = LIES[lie]
    objectives = sites("logistic", sizes=(60, 81, 50))
    strategy = FedNewton(regularizer=L1(1.0), strengths=Strengths(4, folds=3), tolerance=1e-7, fraction_evaluate=0.0)
    grid = Faulty(app_of(objectives), 3, changing(name, change), rounds=(4,), nodes=(2,))
    result = start_of(strategy, grid, objectives)
    assert [number for number, own in result.train_metrics_clientapp.items() if own["skipped"]] == [4]
    assert any(reason in row.reason for row in result.left_out)
    assert run_of(strategy).finished()


def test_a_fold_without_a_class_is_named():
    """Of one example with the class, the fold that it is in has none on the other rows."""
    features = np.random.default_rng(0).normal(size=(20, 2))
    objectives = [Logistic(features, np.arange(20) == 3), Logistic(features, np.zeros(20, dtype=int))]
    with pytest.raises(ConfigurationError, match=r"without fold [1-5] of 5: no client has an example of class 1"):
        path_of(objectives, cv=5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strategy": FedDAGT(regularizer=L1(1.0), client_lr=0.1), "cv": 5}, "cv=5: only FedNewton"),
        ({"cv": 5, "validate": False}, "leave one of them out"),
        ({}, "load_evaluation_objective"),
        ({"rounds": 3, "cv": 3}, "not all problems are solved after num_rounds=3"),
    ],
)
def test_cross_validation_needs_newton_and_validation(options, said):
    with pytest.raises(ConfigurationError, match=said):
        path_of(sites("squares"), **options)


@pytest.mark.parametrize(
    ("limits", "cv", "message"),
    [
        ({"min_rows": 20}, 4, r"sums over folds; this site has fewer rows for it than min_rows=20"),
        ({"min_class_rows": 5}, 8, r"has a class with fewer rows than min_class_rows=5"),
        ({"min_events": 5}, 8, r"has fewer events than min_events=5"),
    ],
)
def test_what_a_site_does_not_allow_is_refused_of_each_fold(limits, cv, message):
    """Of 60 rows, 15 are in each of four folds and 45 outside of it."""
    objectives = sites("logistic", sizes=(60, 81, 58))
    with pytest.raises((ClientError, ConfigurationError), match=message):
        path_of(objectives, rounds=20, disclosure=Disclosure(**limits), cv=cv, num_strengths=3)


# --- a server that a site's owner does not trust ----------------------------------------------------------------------


class Captured(InProcessGrid):
    """Keeps the server's second message to a site, to ask again with other numbers."""

    direct = None

    message = None

    def reply(self, message):
        about = message.metadata
        if (about.message_type, about.dst_node_id, about.group_id) == ("train", 2, "2"):
            self.message = message
        return super().reply(message)

    def ask(self, **numbers):
        content = self.message.content.copy()
        fields = {**dict(content["fco"]), **{f"number:{name}": value for name, value in numbers.items()}}
        content["fco"] = ConfigRecord(fields)
        self.message.content = content
        with self.identity():
            return self.client_app(self.message, self.contexts[2]).content


def asked(**options):
    objectives = sites("logistic", sizes=(60, 81, 50))
    strategy = FedNewton(regularizer=L1(1.0), strengths=Strengths(4, folds=3), fraction_evaluate=0.0)
    grid = Captured(app_of(objectives, **options), 3)
    start_of(strategy, grid, objectives, 2)
    return grid


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"folds": -1.0}, r"sends 4 points, of folds with \[\] of them"),
        ({"folds": 0.5}, r"sends 4 points, of folds with \[1\] of them"),
        ({"folds": 4.0}, "lacks 'fold-4'"),
        ({"folds": 1e9}, r"of points and folds: 1e\+09 iterations; this client allows max_iterations"),
        ({"fold-0": -1.0}, r"of folds with \[-1, 1, 1, 1\]"),
        ({"points": 1e15}, "sends 1000000000000000.0 points"),
    ],
)
def test_numbers_of_points_that_are_none_are_refused_in_words(numbers, message):
    with pytest.raises((ProtocolError, ConfigurationError), match=message):
        asked().ask(**numbers)


def test_where_rows_are_limited_a_run_deals_them_into_folds_once():
    """Each row is alone in some intersection of folds of several sizes; the seed of the server deals none."""
    assert asked().ask(folds=2.0, **{"fold-0": 2.0})
    limits = {"disclosure": Disclosure(min_rows=10)}
    grids = [asked(), asked(**limits), asked(**limits)]
    sums = [[grid.ask()["arrays"]["gradient"].numpy() for _ in range(2)] for grid in grids]
    for one, other in sums:
        np.testing.assert_array_equal(one, other)
    assert not any(np.allclose(one[0], other[0]) for one, other in combinations(sums, 2))
    with pytest.raises(ConfigurationError, match="asks for other folds than before in this run"):
        grids[1].ask(folds=2.0, **{"fold-0": 2.0})
