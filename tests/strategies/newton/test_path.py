"""A path of strengths and its cross-validation in one run: against runs of one strength each."""

import numpy as np
import pytest
from faulty import Faulty, changing
from newton import objective_value, point, sites, solved
from problems import app_of, simulated, started, zeros

from flwr_fco.algorithms.newton.path import errors_of, folds_of
from flwr_fco.callbacks import Checkpoint
from flwr_fco.client_apps import Disclosure
from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, SiteIntercept
from flwr_fco.regularizers import L1, ElasticNet, GroupLasso
from flwr_fco.regularizers.base import with_strength
from flwr_fco.simulation import fit_path
from flwr_fco.strategies import FedDAGT, FedNewton, Strengths, run_of
from reproduction.pooled import centralized_solution


def path_of(objectives, psi=None, rounds=60, strategy=None, disclosure=None, **options):
    strategy = strategy or FedNewton(regularizer=psi or L1(1.0), tolerance=1e-9, fraction_evaluate=0.0)
    start = zeros(objectives[0].layout)
    given = {"num_nodes": len(objectives), "num_rounds": rounds, "initial_arrays": start, "progress": False}
    return fit_path(strategy, app_of(objectives, disclosure=disclosure), **given, **options)


SIZES = (60, 81, 50)
SIX = {"num_strengths": 6, "ratio": 0.05, "validate": False}
#: More features than rows: known gradients bound most of the others.
WIDE = sites("squares", sizes=(30, 40, 25), p=200)
EIGHT = {"num_strengths": 8, "ratio": 0.05, "cv": 3, "rounds": 200}
KINDS = {
    "squares": (sites("squares", SIZES), L1(7.0), SIX),
    "logistic": (sites("logistic", SIZES), L1(7.0), SIX),
    "softmax": (sites("multinomial", SIZES), L1(7.0), SIX),
    "elastic net": (sites("logistic", SIZES), ElasticNet(7.0, 0.5), SIX),
    "groups": (sites("squares", SIZES), GroupLasso(7.0, groups=np.arange(9) // 3), SIX),
    "confounders": (sites("logistic", SIZES), L1(7.0, weights=np.r_[0.0, 0.0, np.ones(7)]), SIX),
    "wide squares": (WIDE, L1(7.0), EIGHT),
    "wide squares with intercepts of each site": ([SiteIntercept(own) for own in WIDE], L1(7.0), EIGHT),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_model_is_that_of_a_run_of_its_own(kind):
    objectives, psi, options = KINDS[kind]
    strategy = FedNewton(regularizer=psi, tolerance=1e-9, fraction_evaluate=0.0)
    path = path_of(objectives, strategy=strategy, **options)
    assert path.points[0].nonzero == (2 if kind == "confounders" else 0)
    assert run_of(strategy).state.shares.any() == ("cv" in options)
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


@pytest.mark.parametrize("kind", ["squares", "logistic", "multinomial"])
def test_the_held_out_losses_are_those_of_models_of_the_other_rows(kind):
    """Each client's rows of a fold, by a pooled solution on all clients' other rows; two sites have fewer rows."""
    objectives = sites(kind, sizes=(60, 81, 50, 3, 1))
    path = path_of(objectives, num_strengths=3, ratio=0.2, cv=4)
    parts = [folds_of(objective, 4, 0) for objective in objectives]
    losses, weights = [], []
    for fold in range(4):
        train, held_out = [], []
        for own, rows in zip(objectives, parts, strict=True):
            rest = np.setdiff1d(np.arange(own.num_examples), rows[fold])
            train += [own.subset(rest)[0]] if rest.size else []
            held_out += [own.subset(rows[fold])[0]] if rows[fold].size else []
        models = [centralized_solution(train, L1(at.strength), tol=1e-11) for at in path.points]
        losses += [[own.value(w) for w in models] for own in held_out]
        weights += [float(own.num_examples) for own in held_out]
    mean, error, difference = errors_of(np.array(losses), np.array(weights))
    found = [(at.held_out, at.standard_error, at.difference_error) for at in path.points]
    np.testing.assert_allclose(found, np.transpose([mean, error, difference]), rtol=0, atol=1e-5)
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
    objectives = sites("logistic", SIZES)
    grid = Faulty(app_of(objectives), 3, changing(name, change), rounds=(4,), nodes=(2,))
    strategy = FedNewton(regularizer=L1(1.0), strengths=Strengths(4, folds=3), tolerance=1e-7, fraction_evaluate=0.0)
    result = started(strategy, grid, 60, zeros(objectives[0].layout))
    assert [number for number, own in result.train_metrics_clientapp.items() if own["skipped"]] == [4]
    assert any(reason in row.reason for row in result.left_out)
    assert run_of(strategy).finished()


#: Of one example with the class, the fold that it is in has none on the other rows.
RARE = [Logistic(np.eye(20), np.arange(20) == 3), Logistic(np.eye(20), np.zeros(20, dtype=int))]
FEW = {"rounds": 20, "num_strengths": 3}


@pytest.mark.parametrize(
    ("objectives", "options", "said"),
    [
        (RARE, {"cv": 5}, r"without fold [1-5] of 5: no client has an example of class 1"),
        (None, {"strategy": FedDAGT(regularizer=L1(1.0), client_lr=0.1), "cv": 5}, "cv=5: only FedNewton"),
        (None, {"cv": 5, "validate": False}, "leave one of them out"),
        (None, {}, "load_evaluation_objective"),
        (None, {"rounds": 3, "cv": 3}, "not all problems are solved after num_rounds=3"),
        # Of 60 rows, 15 are in each of four folds and 45 outside of it.
        (None, {"disclosure": Disclosure(min_rows=20), "cv": 4, **FEW}, "site has fewer rows for it than min_rows=20"),
        (None, {"disclosure": Disclosure(min_class_rows=5), "cv": 8, **FEW}, "fewer rows than min_class_rows=5"),
        (None, {"disclosure": Disclosure(min_events=5), "cv": 8, **FEW}, "has fewer events than min_events=5"),
    ],
)
def test_what_is_not_allowed_of_each_fold_or_makes_no_folds_is_refused(objectives, options, said):
    with pytest.raises((ClientError, ConfigurationError), match=said):
        path_of(objectives or sites("logistic", sizes=(60, 81, 58)), **options)
