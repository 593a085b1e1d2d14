"""The sparse regressions over a graph: closed forms against samples and against each other."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from flwr_fco.engines import FirstOrder
from flwr_fco.errors import ConfigurationError
from flwr_fco.testing import check_objective
from reproduction.data import graph as module
from reproduction.data.graph import SparseGraphProblem

SMALL = {"num_clients": 4, "dimension": 12, "sparsity": 3}
PROBLEMS = [SparseGraphProblem("linear", **SMALL), SparseGraphProblem("logistic", scale=0.5, spread=0.7, **SMALL)]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.kind)
def test_the_optimum_is_sparse_and_that_of_the_mean_of_clients_that_differ(problem):
    objectives = [problem.objective(m) for m in range(4)]
    gradients = np.array([own.gradient(problem.optimum) for own in objectives])
    assert np.abs(gradients.mean(axis=0)).max() <= 1e-12
    assert np.abs(gradients).max() > 0.05
    assert np.flatnonzero(problem.optimum).tolist() == [0, 1, 2]
    assert all(np.count_nonzero(problem.models[m]) == 12 for m in range(4))
    assert problem.gap(problem.optimum) == pytest.approx(0.0, abs=1e-14)
    for m, objective in enumerate(objectives):
        assert np.abs(objective.gradient(problem.models[m])).max() <= 1e-12
    for w in np.random.default_rng(0).standard_normal((3, 12)):
        assert np.mean([own.value(w) for own in objectives]) == pytest.approx(problem.value(w), rel=1e-12)
        assert problem.gap(w) == pytest.approx(problem.value(w) - problem.value(problem.optimum), rel=1e-9)
        assert problem.gap(w) > 0


@pytest.mark.parametrize("sampling", ["examples", "gradients"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.kind)
def test_draws_that_are_no_rows_keep_the_contract(problem, sampling):
    check_objective(replace(problem, sampling=sampling).objective(1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparseGraphProblem("linear", sparsity=2000), "sparsity=2000"),
        (lambda: SparseGraphProblem("logistic", num_clients=3), "in pairs"),
        (lambda: SparseGraphProblem("linear", noise=-1.0), "noise=-1.0"),
        (lambda: SparseGraphProblem("linear", num_clients=0), "num_clients=0"),
        (lambda: PROBLEMS[0].objective(4), "index=4"),
        (lambda: PROBLEMS[0].objective(1, l2=1.0), "no options"),
    ],
)
def test_refusals_name_the_value(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.kind)
@pytest.mark.parametrize("place", ["far", "own", "zero"])
def test_gradients_drawn_at_once_are_distributed_as_those_of_examples(problem, place):
    w = {"far": 0.5 * np.random.default_rng(3).standard_normal(12), "own": problem.models[1], "zero": np.zeros(12)}
    count = 6_000
    found = []
    for sampling in ("examples", "gradients"):
        objective = replace(problem, sampling=sampling).objective(1)
        batches = objective.batches(np.random.default_rng(4), FirstOrder(steps=count, batch_size=5))
        found.append(np.array([objective.gradient(w[place], batch) for batch in batches]))
    examples, gradients = found
    sizes = examples.std(axis=0).max()
    assert np.abs(examples.mean(axis=0) - gradients.mean(axis=0)).max() < 6 * sizes / np.sqrt(count)
    covariances = [np.cov(sample.T) for sample in found]
    assert np.abs(covariances[0] - covariances[1]).max() < 10 * sizes**2 / np.sqrt(count)
    # Beyond the covariance: the tails of each coordinate, and of the length.
    for part in (lambda sample: np.abs(sample), lambda sample: np.linalg.norm(sample, axis=1, keepdims=True)):
        tails = [np.quantile(part(sample), [0.1, 0.5, 0.9, 0.99], axis=0) for sample in found]
        np.testing.assert_allclose(tails[0], tails[1], rtol=0.12, atol=0.02 * sizes)


@pytest.mark.parametrize("spread", [0.01, 1.0, 1.001, 5.0, 164.0])
def test_the_mean_slope_is_the_integral(spread):
    def integrand(margin):
        return expit(margin) * expit(-margin) * norm.pdf(margin / spread) / spread

    ends = min(40.0, 12.0 * spread)
    expected = quad(integrand, -ends, ends, epsabs=0.0, epsrel=1e-12, limit=500, points=[0.0])[0]
    assert module._mean_slope(spread) == pytest.approx(expected, rel=1e-10)


def test_truncated_covariates_are_bounded_and_keep_their_variance():
    problem = SparseGraphProblem("linear", truncation=1.5, noise=0.0, **SMALL)
    features, targets = problem.draw(1, np.random.default_rng(0), 20_000)
    assert np.all(features[:, 0] == 1.0)
    # Of a normal number within 1.5: standard deviation 0.743.
    assert np.abs(features[:, 1:]).max() == pytest.approx(1.5 / 0.7426, rel=1e-3)
    assert np.abs(features[:, 1:].var(axis=0) - 1.0).max() < 0.03
    np.testing.assert_allclose(targets, features @ problem.models[1])
    wide = SparseGraphProblem("linear", truncation=8.0, **SMALL).draw(1, np.random.default_rng(0), 4000)[0]
    assert np.abs(wide[:, 1:].std() - 1.0) < 0.02
    for kind, wrong in (("linear", {"truncation": -1.0}), ("linear", {"sampling": "gradients"}), ("logistic", {})):
        with pytest.raises(ConfigurationError, match="truncation="):
            SparseGraphProblem(kind, **{"truncation": 2.0, **wrong})


def test_the_deviation_of_a_gradients_entries_is_that_of_samples():
    problem = PROBLEMS[0]
    found = []
    for m in range(4):
        objective = problem.objective(m)
        batches = objective.batches(np.random.default_rng(m), FirstOrder(steps=2000, batch_size=5))
        found.append(np.std([objective.gradient(np.zeros(12), batch) for batch in batches], axis=0).max())
    assert problem.gradient_deviation(5) == pytest.approx(max(found), rel=0.05)
    assert problem.gradient_deviation(None) == 0.0
    with pytest.raises(ConfigurationError, match="logistic"):
        PROBLEMS[1].gradient_deviation(5)
