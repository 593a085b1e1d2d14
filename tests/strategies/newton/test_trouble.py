"""FedNewton where data, clients or options are not as they should be: an answer, or an error in words."""

import numpy as np
import pytest
from kinks import Distance
from newton import numbers, point, sites, solved

from flwr_fco.errors import ClientError, ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import run_of
from reproduction.pooled import centralized_solution


def _certified(objectives, psi, **options):
    result, _ = solved(objectives, psi, **options)
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    return point(result, objectives[0])


# --- data -------------------------------------------------------------------------------------------------------------


def test_classes_that_are_separable_along_what_psi_leaves_alone():
    """l1 alone has an optimum; without psi on a separating column the loss has none, and a residual says 'solved'."""
    rng = np.random.default_rng(0)
    objectives = []
    for _ in range(3):
        features = rng.normal(size=(20, 4))
        objectives.append(Logistic(features, features[:, 0] > 0.0))
    _certified(objectives, L1(0.05))
    free = L1(0.05, weights=np.array([0.0, 1.0, 1.0, 1.0]))
    said = r"separable along coefficients that psi leaves alone, coefficients.*: the largest"
    with pytest.raises(ConfigurationError, match=said):
        solved(objectives, free)
    result, _ = solved(objectives, free, hessian="none", rounds=60)
    assert not numbers(result, "duality-gap")


def test_sites_with_one_class_and_with_one_row():
    one, two, three = sites("logistic")
    of_one_class = Logistic(three.features, np.ones(three.num_examples))
    single = Logistic(one.features[:1], one.labels[:1])
    w = _certified([single, two, of_one_class], L1(0.03))
    best = centralized_solution([single, two, of_one_class], L1(0.03), tol=1e-10)
    np.testing.assert_allclose(w, best, atol=1e-4)
    _certified([LeastSquares(np.ones((1, 2)), np.array([3.0]))], L1(0.1))


def test_a_class_that_nobody_has_is_named():
    objectives = [Logistic(np.ones((3, 2)) * m, np.zeros(3, dtype=int)) for m in (1.0, 2.0)]
    with pytest.raises(ConfigurationError, match=r"no client has an example of class 1.*apply_to="):
        solved(objectives, L1(0.1))
    parts = [MultinomialLogistic(np.eye(2), np.array([0, 2]), num_classes=3) for _ in range(2)]
    with pytest.raises(ConfigurationError, match="no client has an example of class 1"):
        solved(parts, L1(0.1))


def test_features_in_other_units_leave_no_site_out():
    """One site's features times 50, and another feature times 1,000: derivatives are not compared with each other."""
    objectives = sites("logistic", sizes=(30, 41, 25, 30, 30, 30))
    objectives[1] = Logistic(50.0 * objectives[1].features, objectives[1].labels)
    objectives[2] = Logistic(objectives[2].features * np.r_[1000.0, np.ones(8)], objectives[2].labels)
    result, strategy = solved(objectives, L1(0.05))
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert not result.left_out
    assert run_of(strategy).state.round == len(result.train_metrics_clientapp)


def test_an_exact_fit_leaves_no_site_out():
    """Loss, mean square and gradient go to 0, and their rounding errors do not."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=5)
    objectives = []
    for _ in range(3):
        features = 1e3 * rng.normal(size=(30, 4))
        objectives.append(LeastSquares(features, features @ truth[:4] + truth[4], scale=0.5))
    result, _ = solved(objectives, Zero(), tolerance=1e-10)
    assert not result.left_out
    np.testing.assert_allclose(point(result, objectives[0]), truth, rtol=1e-6)


# --- clients ----------------------------------------------------------------------------------------------------------


def test_a_loss_without_second_derivatives_is_refused_by_the_client():
    objectives = [Distance(np.ones(3)) for _ in range(2)]
    with pytest.raises((ClientError, ConfigurationError), match=r"Distance does not know its Hessian.*FedDAGT"):
        solved(objectives, L1(0.1), 3)


# --- options ----------------------------------------------------------------------------------------------------------
