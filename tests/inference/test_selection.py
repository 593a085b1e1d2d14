"""Stability selection: what halves are, their lassos, the bounds, and what a site may refuse."""

import re

import numpy as np
import pandas as pd
import pytest
from problems import app_of
from sklearn.linear_model import Lasso

from flwr_fco.algorithms.newton.dealing import check_what_leaves, halves_of
from flwr_fco.algorithms.newton.path import models_of_halves
from flwr_fco.client_apps import Disclosure
from flwr_fco.errors import ConfigurationError
from flwr_fco.inference.selection import StabilitySelection, _first
from flwr_fco.objectives import CoxRegression, LeastSquares, Logistic, Poisson
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.sklearn import FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression, Selection
from flwr_fco.strategies import Strengths
from flwr_fco.wire import flower

FEW = Selection(pairs=10, false_selections=2.0)


def federation(p=20, sites=3, rows=60, seed=0):
    """Four columns that matter, of sites of unequal location."""
    rng = np.random.default_rng(seed)
    truth = np.r_[1.0, -1.0, 0.8, 0.8, np.zeros(p - 4)]
    X = [rng.normal(0.3 * m, 1.0, size=(rows + m, p)) for m in range(sites)]
    return X, [own @ truth + rng.normal(size=len(own)) for own in X]


def over(model, X, y, disclosure=None, **options):
    app = model.client_app(
        lambda context: (X[context.node_config["partition-id"]], y[context.node_config["partition-id"]]),
        disclosure=disclosure,
    )
    grid = InProcessGrid(app, len(X), raise_errors=False)
    with flower.identity(grid.run_id), flower.quiet(50):
        return model.fit(grid, features=X[0].shape[1], **options)


def frequencies(model):
    return np.array([row["selection frequency"] for row in model.summary().rows])


# --- halves ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_two_halves_part_the_rows_and_no_two_pairs_are_the_same(rows):
    labels = np.arange(rows) % 3 == 0
    objective = Logistic(np.ones((rows, 1)), labels)
    left_out = halves_of(objective, 20, 5)
    assert len(left_out) == 20
    for one, other in zip(left_out[::2], left_out[1::2], strict=True):
        assert np.array_equal(np.sort(np.concatenate([one, other])), np.arange(rows))
        assert abs(one.size - other.size) <= 1
        assert abs(labels[one].sum() - labels[other].sum()) <= 1
    if rows == 40:
        assert len({tuple(own) for own in left_out}) == 20
    again, others = halves_of(objective, 20, 5), halves_of(objective, 20, 6)
    assert all(np.array_equal(a, b) for a, b in zip(left_out, again, strict=True))
    assert rows < 7 or not all(np.array_equal(a, b) for a, b in zip(left_out, others, strict=True))
    with pytest.raises(ConfigurationError, match="asks for 3 halves; expected two for each pair"):
        halves_of(objective, 3, 0)


def test_models_of_halves_are_scikit_learns_lassos_on_their_rows():
    """Of the half's rows of all sites together, at each strength."""
    X, y = federation()
    objectives = [LeastSquares(*own, scale=0.5) for own in zip(X, y, strict=True)]
    at = [0.5, 0.2, 0.1]
    strategy = StabilitySelection(
        regularizer=L1(1.0), strengths=Strengths(values=at, folds=6), tolerance=1e-13, fraction_evaluate=0.0
    )
    start = {"coefficients": np.zeros(20), "intercept": np.zeros(1)}
    simulate(strategy, app_of(objectives), num_nodes=3, num_rounds=50, initial_arrays=start, progress=False)
    models = models_of_halves(strategy.state)
    assert models.shape == (6, 3, 21)
    left_out = [halves_of(own, 6, 0) for own in objectives]
    for half in range(6):
        kept = [np.setdiff1d(np.arange(len(own)), rows[half]) for own, rows in zip(X, left_out, strict=True)]
        rows, targets = (np.concatenate([own[k] for own, k in zip(each, kept, strict=True)]) for each in (X, y))
        for strength, model in zip(at, models[half], strict=True):
            other = Lasso(strength, tol=1e-12, max_iter=10**6).fit(rows, targets)
            np.testing.assert_allclose(model, np.r_[other.coef_, other.intercept_], atol=1e-6)


def test_a_frequency_is_the_share_of_halves_with_the_column_among_their_first():
    X, y = federation()
    model = FederatedLasso(0.1).fit(X, y, selection=FEW)
    found = frequencies(model)
    assert set(np.round(20 * found, 9)) <= set(range(21))
    assert found.sum() <= FEW.columns_of_a_half(20)
    assert (found[:4] >= 0.75).all()
    path = np.array([[[0, 0, 0], [0, 1, 0], [1, 1, 1], [1, 1, 0]], [[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 1]]]) == 1
    # A half that has had too many columns has no later ones.
    assert _first(path, 2).astype(int).tolist() == [[0, 1, 0], [0, 1, 1]]


def test_all_sites_take_part_in_each_half_and_a_grid_has_the_bits_of_a_list():
    X, y = federation()
    here, there = (FederatedLasso(0.1, num_clients=3, standardize=True) for _ in range(2))
    here.fit(X, y, selection=FEW)
    over(there, X, y, selection=FEW)
    assert np.array_equal(frequencies(here), frequencies(there))
    assert here.n_iter_ == there.n_iter_
    assert [row["selected"] for row in here.summary().rows[:4]] == [1, 1, 1, 1]
    # The model is the same as without.
    assert np.array_equal(here.coef_, FederatedLasso(0.1, standardize=True).fit(X, y).coef_)
    assert "selection frequency" not in here.fit(X, y).summary().rows[0]


@pytest.mark.slow
def test_other_models_and_columns_without_a_penalty():
    X, y = federation(p=10)
    frames = [pd.DataFrame(own, columns=[f"c{j}" for j in range(10)]) for own in X]
    times = [np.c_[np.exp(-own), np.arange(len(own)) % 4 != 0] for own in y]
    three = [np.digitize(own, [-1.0, 1.0]) for own in y]
    for model, targets in (
        (FederatedLogisticRegression(1.0, l1_ratio=1.0, penalty_factor={"c9": 0}), [own > 0.0 for own in y]),
        (FederatedLogisticRegression(1.0, l1_ratio=0.5), three),
        (FederatedCoxRegression(penalty_factor={"c9": 0}), times),
    ):
        found = frequencies(model.fit(frames, targets, selection=FEW))
        assert found[:4].mean() > 0.6
        assert found[4:9].max() < 0.75
        if model.penalty_factor:
            assert found[9] == 1.0
            assert model.summary().rows[9]["selected"] == 0
            assert "of 9 columns" in model.summary()


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_the_bounds_are_those_of_the_papers():
    assert Selection(threshold=0.6, false_selections=2.5).columns_of_a_half(200) == 10
    assert Selection(threshold=0.9, false_selections=0.625).columns_of_a_half(200) == 10
    for threshold, first, second in (
        (0.6, 2.5, 0.5 / 0.19 * 0.5),
        (0.75, 1.0, 0.5 / 0.49 * 0.5),
        (0.9, 0.625, 4.0 * 0.11 / 1.02 * 0.5),
    ):
        assert Selection(threshold=threshold).bounds(10, 200) == pytest.approx((first, second))
    # Close to a half, and for halves with many columns, the second theorem says nothing.
    assert Selection(threshold=0.501).bounds(20, 200) == pytest.approx((1000.0, 1000.0))
    assert Selection(threshold=0.9).bounds(150, 200)[0] == Selection(threshold=0.9).bounds(150, 200)[1]


@pytest.mark.slow
def test_columns_that_are_chance_are_selected_less_often_than_the_bound():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(10):
        X, y = [rng.normal(size=(30, 30)) for _ in range(3)], [rng.normal(size=30) for _ in range(3)]
        model = FederatedLasso(0.1).fit(X, y, selection=Selection(pairs=10))
        found.append(sum(row["selected"] for row in model.summary().rows))
        assert frequencies(model).sum() <= Selection().columns_of_a_half(30)
        assert frequencies(model).any()
    assert np.mean(found) <= 1.0


def test_the_summary_says_how_many_are_chance():
    X, y = federation()
    text = FederatedLasso(0.1).fit(X, y, selection=FEW).summary()
    assert re.search(r"Selected: 4 of 20 columns, in 75% of 20 halves at least; a half has its first 4", text)
    assert "Selected by chance: at most 1.6 in the mean (Meinshausen-Buehlmann), 0.8" in text


# --- what may leave -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ({"min_rows": 31}, "sums over (half 1|10 pairs of halves)"),
        ({"min_class_rows": 3, "min_rows": 40}, "sums over half 1"),
        ({"hessian_share": 5.0}, "hessian_share"),
    ],
)
def test_a_site_refuses_halves_of_too_few_rows(limit, why):
    X, y = federation()
    with pytest.raises(ConfigurationError, match=why):
        over(FederatedLasso(0.1, num_clients=3), X, y, Disclosure(**limit), selection=FEW)


def test_halves_in_many_ways_tell_sums_over_few_rows():
    objective = Logistic(np.ones((60, 1)), np.arange(60) % 3 == 0)
    for pairs, allowed in ((2, True), (40, True), (51, False)):
        left_out = halves_of(objective, 2 * pairs, 0)
        if allowed:
            check_what_leaves(Disclosure(min_rows=10), objective, left_out, halves=True)
        else:
            with pytest.raises(ConfigurationError, match=r"51 pairs of halves, which tell .* min_rows=10"):
                check_what_leaves(Disclosure(min_rows=10), objective, left_out, halves=True)
    # Two pairs that differ in two rows only.
    one, other = np.arange(30), np.r_[np.arange(29), 59]
    pairs = [one, np.setdiff1d(np.arange(60), one), other, np.setdiff1d(np.arange(60), other)]
    # Turned round, they agree in these two only.
    for way in (pairs, [*pairs[:2], *pairs[:1:-1]]):
        check_what_leaves(Disclosure(min_rows=2), objective, way, halves=True)
        with pytest.raises(ConfigurationError, match="min_rows=3"):
            check_what_leaves(Disclosure(min_rows=3), objective, way, halves=True)
    with pytest.raises(ConfigurationError, match="min_class_rows=3"):
        check_what_leaves(Disclosure(min_class_rows=3), objective, pairs, halves=True)
    with pytest.raises(ConfigurationError, match="fewer events than min_events=3"):
        check_what_leaves(Disclosure(min_events=3), objective, pairs, halves=True)


def test_halves_that_differ_in_few_events_are_refused_whatever_the_loss():
    """Two pairs of halves that differ in the first two rows and the last two."""
    pairs = [half for first in (np.arange(20), np.r_[np.arange(2, 20), 38, 39]) for half in (first, first)]
    dead = np.ones(40)
    for events in (dead, np.r_[np.zeros(1), dead[1:]]):
        X = np.ones((40, 1))
        for objective in (CoxRegression(X, np.arange(40.0), events), Poisson(X, 3.0 * events)):
            least = int(events[[0, 1, 38, 39]].sum())
            check_what_leaves(Disclosure(min_events=least), objective, pairs, halves=True)
            with pytest.raises(ConfigurationError, match=f"pairs of halves.*min_events={least + 1}"):
                check_what_leaves(Disclosure(min_events=least + 1), objective, pairs, halves=True)


def test_a_second_way_of_dealing_in_the_same_run_is_refused():
    """A cross-validation beside: differences of folds and halves can be single rows."""
    X, y = federation()
    with pytest.raises(ConfigurationError, match=r"asks for 3 folds .* and has asked for 20 halves"):
        over(FederatedLasso(cv=3, num_clients=3), X, y, Disclosure(min_rows=5), selection=FEW)
    over(FederatedLasso(0.1, num_clients=3), X, y, Disclosure(min_rows=5), selection=FEW)


# --- what is refused ------------------------------------------------------------------------------------------------


def test_what_selects_nothing_is_refused_in_words():
    X, y = federation()
    with pytest.raises(ConfigurationError, match="a ridge selects nothing; give l1_ratio=1"):
        FederatedLogisticRegression().fit(X, [own > 0.0 for own in y], selection=True)
    with pytest.raises(ConfigurationError, match=r"of 20 columns: a half may not have one .* such as 0\.1"):
        FederatedLasso(0.1).fit(X, y, selection=Selection(false_selections=0.01))
    with pytest.raises(ConfigurationError, match="every penalty_factor is 0, so no column is selected"):
        FederatedLasso(0.1, penalty_factor=np.zeros(20)).fit(X, y, selection=True)
    with pytest.raises(ConfigurationError, match="has not ended after 2 rounds; raise max_rounds"):
        FederatedLasso(0.1, max_rounds=3).fit(X, y, selection=FEW)
    with pytest.raises(ConfigurationError, match="selection='yes'"):
        FederatedLasso(0.1).fit(X, y, selection="yes")


@pytest.mark.parametrize("options", [{"threshold": 0.5}, {"pairs": 5}, {"false_selections": 0.0}])
def test_an_option_out_of_range_is_refused(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        Selection(**options)


def test_it_is_offered_where_intervals_are_refused():
    X, y = federation(p=10)
    with pytest.raises(ConfigurationError, match=r"intervals of 10 columns .*selection=True.* how many are chance"):
        FederatedLogisticRegression(1.0, l1_ratio=1.0).fit(X, [own > 0.0 for own in y], intervals=True)
