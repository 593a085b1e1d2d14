"""What a duality gap takes of a loss: its conjugate at a mixture of gradients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.sparse import csr_array

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import (
    CoxRegression,
    Huber,
    LeastSquares,
    Logistic,
    MultinomialLogistic,
    Objective,
    Poisson,
    SiteIntercept,
)
from flwr_fco.objectives.links import Categories, HuberLoss, LogisticLoss, PoissonLoss, SquaredHingeLoss, Squares

N, D, K = 40, 4, 3
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(N, D)) * (RNG.random((N, D)) < 0.6)
LABELS = RNG.permutation(np.arange(N) % 2)
ROWS = {"sample_weight": RNG.uniform(0.2, 3.0, N), "offset": 0.3 * RNG.normal(size=N)}
LOSSES = {
    LeastSquares: RNG.normal(size=N),
    Huber: 2.0 * RNG.normal(size=N),
    Poisson: RNG.poisson(2.0, N),
    Logistic: LABELS,
    MultinomialLogistic: np.arange(N) % K,
}
LINKS = [
    (Squares(0.7), RNG.normal(size=N)),
    (HuberLoss(0.8), 2.0 * RNG.normal(size=N)),
    (PoissonLoss(), RNG.poisson(1.5, N).astype(float)),
    (LogisticLoss(), 2.0 * LABELS - 1.0),
    (SquaredHingeLoss(), 2.0 * LABELS - 1.0),
    (Categories(K), np.arange(N) % K),
]


@pytest.mark.parametrize(("link", "y"), LINKS)
def test_a_conjugate_is_that_of_its_loss(link, y):
    shape = (N, K) if link.outputs > 1 else N
    s = RNG.normal(size=shape)
    t = 3.0 * RNG.normal(size=shape)
    rng = np.random.default_rng(1)
    a = link.slope(s, y)

    def inner(a, s):
        return (a * s).reshape(N, -1).sum(axis=1)

    assert_allclose(link.conjugate(a, y), inner(a, s) - link.value(s, y), atol=1e-12)
    # Fenchel and Young, inside of the domain; a mixture with the slopes elsewhere is there too.
    mixed = 0.4 * a + 0.3 * link.slope(rng.normal(size=shape), y)
    assert (link.conjugate(mixed, y) >= inner(mixed, t) - link.value(t, y) - 1e-12).all()


@pytest.mark.parametrize("cls", LOSSES)
@pytest.mark.parametrize("form", [np.asarray, csr_array])
@pytest.mark.parametrize("given", [(), ("sample_weight",), ("sample_weight", "offset")])
def test_the_conjugate_at_a_mixture_is_the_closest_bound(cls, form, given):
    """Squares, Huber, Poisson and logistic: of the losses' own sum it is what maximising <r, w> - G(w) gives."""
    rows = {name: ROWS[name] for name in given}
    if cls is MultinomialLogistic and "offset" in rows:
        rows["offset"] = RNG.normal(size=(N, K))
    objective = cls(form(FEATURES), LOSSES[cls], l2=0.4, **rows)
    w, v = 0.3 * RNG.normal(size=(2, objective.layout.size))
    plain = cls(form(FEATURES), LOSSES[cls], **rows)
    conjugate, mixture = objective.dual_terms([w, v], [0.5, 0.3])
    assert_allclose(mixture, 0.5 * plain.gradient(w) + 0.3 * plain.gradient(v), atol=1e-13)
    by_convexity, same = Objective.dual_terms(objective, [w, v], [0.5, 0.3])
    assert_allclose(same, mixture, atol=1e-13)
    assert conjugate <= by_convexity + 1e-13
    # One point with the whole share: both are exact, and equal.
    alone = [Objective.dual_terms(objective, [w], [1.0])[0], objective.dual_terms([w], [1.0])[0]]
    assert_allclose(alone, float(plain.gradient(w) @ w) - plain.value(w), rtol=1e-10)
    found = minimize(lambda x: plain.value(x) - mixture @ x, w, jac=lambda x: plain.gradient(x) - mixture, tol=1e-12)
    assert conjugate >= -found.fun - 1e-9


def test_losses_without_a_link_are_bounded_by_convexity():
    times = RNG.exponential(size=N)
    for objective in (
        SiteIntercept(Logistic(FEATURES, LABELS, l2=0.1)),
        CoxRegression(FEATURES, times, LABELS, l2=0.2, sample_weight=ROWS["sample_weight"]),
    ):
        w, v = RNG.normal(size=(2, D))
        conjugate, mixture = objective.dual_terms([w], [0.8])
        ridge = objective.l2
        assert_allclose(mixture, 0.8 * (objective.gradient(w) - ridge * w))
        assert conjugate >= mixture @ v - (objective.value(v) - 0.5 * ridge * v @ v) - 1e-12


def test_a_loss_that_does_not_say_that_it_is_convex_has_no_dual_terms():
    class Own(LeastSquares):
        least = None
        dual_terms = Objective.dual_terms

    with pytest.raises(ConfigurationError, match="Own does not know a duality gap"):
        Own(FEATURES, LABELS).dual_terms([np.zeros(D + 1)], [1.0])
