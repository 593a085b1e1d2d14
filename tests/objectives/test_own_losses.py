"""Losses of one's own: a link of five formulas, or a value and a gradient."""

import re
from pathlib import Path

import numpy as np
import pytest
from newton import point
from problems import app_of, refused, simulated
from scipy.sparse import csr_array
from scipy.special import xlogy

from flwr_fco.core.layout import Layout
from flwr_fco.errors import ClientError
from flwr_fco.objectives import Linear, Link, Objective
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, FedMid, FeDualEx, Steps
from flwr_fco.testing import check_objective
from reproduction.pooled import centralized_solution, certify, composite_objective

RNG = np.random.default_rng(0)
DATA = RNG.standard_normal((60, 5))
TARGETS = RNG.standard_t(2, 60)


#: The link of the page, as it stands there.
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "own-loss.md").read_text(encoding="utf-8")
NAMES = {"np": np, "xlogy": xlogy, "Link": Link}
exec(re.search(r"class LogCosh.*?\n\n\n", PAGE, re.DOTALL)[0], NAMES)
LogCosh = NAMES["LogCosh"]


class TwoSquares(Link):
    """Squares of two scores, which have nothing to do with each other: no softmax."""

    outputs = 2
    bounds = (1.0, 1.0)
    quadratic = True

    def value(self, s, y):
        return 0.5 * ((s[:, 0] - y) ** 2 + (s[:, 1] + y) ** 2)

    def slope(self, s, y):
        return s - np.column_stack([y, -y])

    def curvature(self, s, y, change):
        return change

    def conjugate(self, a, y):
        return 0.5 * (a * a).sum(axis=1) + (a[:, 0] - a[:, 1]) * y


def _sites(form, link=LogCosh, **options):
    features = DATA * (np.abs(DATA) > 0.5)
    return [Linear(link(), form(features[m::3]), TARGETS[m::3], **options) for m in range(3)]


@pytest.mark.parametrize("form", [np.asarray, csr_array])
@pytest.mark.parametrize(
    ("link", "options"),
    [
        (LogCosh, {}),
        (LogCosh, {"l2": 0.3, "intercept": False, "offset": np.linspace(-1.0, 1.0, 20)}),
        (LogCosh, {"sample_weight": np.linspace(0.5, 2.0, 20)}),
        (TwoSquares, {"sample_weight": np.linspace(0.5, 2.0, 20)}),
    ],
)
def test_a_link_of_five_formulas_is_an_objective_also_of_several_scores(form, link, options):
    objective = _sites(form, link, **options)[0]
    check_objective(objective)
    assert objective.compiled[0] == -1


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_it_trains_by_gradients_too_and_has_certificates(form):
    sites = _sites(form)
    psi = L1(0.05)
    best = centralized_solution(sites, psi, tol=1e-12)
    assert certify(sites, None, psi, best).value < 1e-10
    zeros = {name: np.zeros(shape) for name, shape in sites[0].layout.shapes.items()}
    strategy = FedDualAvg(regularizer=psi, client_lr=0.5, work=Steps(3, batch_size=20), fraction_evaluate=0.0)
    slow = simulated(strategy, app_of(sites), 100, num_nodes=3, initial_arrays=zeros)
    values = [composite_objective(sites, None, psi, w) for w in (point(slow, sites[0]), best)]
    assert values[0] - values[1] < 1e-3


class Centre(Objective):
    """The smallest objective, the mean of ||w - 1||^2 / 2, with what a test would have of it."""

    def __init__(self, num_examples=10, change=lambda gradient: gradient):
        self.layout = Layout.from_arrays({"coefficients": np.zeros(3)})
        self.num_examples = num_examples
        self.change = change

    def value(self, w):
        return 0.5 * float((w - 1.0) @ (w - 1.0))

    def gradient(self, w, batch=None, out=None):
        return self.change(w - 1.0)


def test_a_bare_objective_says_what_it_does_not_know():
    objective = Centre()
    w = np.full(3, 2.0)
    value, gradient = objective.value_and_gradient(w)
    assert (value, gradient.tolist()) == (1.5, [1.0] * 3)
    assert objective.compiled is None
    for ask in (
        objective.lipschitz,
        objective.strong_convexity,
        lambda: objective.hessian_product(w, w),
        lambda: objective.along(w, w).curvature(1.0)(w),
        lambda: objective.value_and_gradient(w, np.array([0])),
    ):
        refused("Centre does not know its", ask)


WRONG = [
    (Centre(change=change), r"ConfigurationError .* the gradient has shape .*; expected \(3,\)")
    for change in (np.sum, lambda g: g[:1], lambda g: g[:, None], lambda g: None)
]
WRONG += [
    (Centre(count), rf"num_examples.*={count!r}.*; expected a whole number") for count in (0, -1, 2.5, None, True, "3")
]


@pytest.mark.parametrize("make", [FedDualAvg, FedMid, FeDualEx])
@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize(("objective", "message"), WRONG)
def test_no_gradient_is_stretched_and_no_count_goes_on_for_ever(make, batch_size, objective, message):
    strategy = make(client_lr=0.1, work=Steps(2, batch_size=batch_size), fraction_evaluate=0.0)
    options = {"num_nodes": 2, "initial_arrays": {"coefficients": np.zeros(3)}, "kind": ClientError}
    refused(message, simulated, strategy, app_of([objective] * 2), 2, **options)
