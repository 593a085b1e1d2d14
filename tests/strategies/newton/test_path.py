"""A path of strengths and its cross-validation in one run: against runs of one strength each, and scikit-learn."""

import numpy as np
import pytest
from newton import objective_value, point, sites, solved
from problems import app_of
from sklearn.linear_model import Lasso, LogisticRegression

from flwr_fco.algorithms.newton.path import errors_of, folds_of
from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.pooled import centralized_solution
from flwr_fco.regularizers import L1, ElasticNet, GroupLasso, L1Ball
from flwr_fco.regularizers.base import with_strength
from flwr_fco.simulation import InProcessGrid, fit_path
from flwr_fco.strategies import FedDAGT, FedNewton, Strengths, run_of


def path_of(objectives, psi=None, rounds=60, grid=None, strategy=None, **options):
    start = {name: np.zeros(shape) for name, shape in objectives[0].layout.shapes.items()}
    return fit_path(
        strategy or FedNewton(regularizer=psi or L1(1.0), tolerance=1e-9, fraction_evaluate=0.0),
        app_of(objectives),
        num_nodes=len(objectives),
        num_rounds=rounds,
        initial_arrays=start,
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
