"""What the rounds prove zero, however loose their gaps, against the optimum that CVXPY finds."""

import cvxpy as cp
import numpy as np
import pytest
from newton import exchanged, numbers, solved
from representatives import crossed
from scipy.sparse import csr_array, vstack

from flwr_fco.errors import ClientError
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic, Objective, SiteIntercept
from flwr_fco.regularizers import L1, ElasticNet
from flwr_fco.strategies import proved_zero

P = 8


def problem(kind, seed, sparse=False, l2=0.0, intercept=True):
    """Three sites of unequal columns, of which two are equal and some are rare."""
    rng = np.random.default_rng(seed)
    found = []
    for m, n in enumerate((12, 20, 9)):
        X = rng.normal(0.4 * m, 1.0, size=(n, P)) * np.exp(rng.normal(0.0, 0.7, P))
        if sparse:
            X *= rng.random((n, P)) < 0.4
        X[:, 3] = X[:, 2]
        scores = X @ (np.arange(P) % 3 == 0) * 0.8 + rng.normal(size=n)
        features = csr_array(X) if sparse else X
        options = {"l2": l2, "intercept": intercept}
        classes = np.arange(n) % 3 if seed % 3 == 0 else np.digitize(scores, [-0.7, 0.7])
        if kind == "squares":
            found.append(LeastSquares(features, scores, scale=0.5 + seed % 2, **options))
        elif kind == "logistic":
            found.append(Logistic(features, scores > np.median(scores), **options))
        else:
            found.append(MultinomialLogistic(features, classes, num_classes=3, **options))
    return found


def slopes_at_the_optimum(objectives, l1, ridge, box=None):
    """Return |x_j'u*|/n, which is the same at all optima, and the coefficients of one of them."""
    X = vstack([csr_array(own.features) for own in objectives]).toarray()
    total = sum(own.num_examples for own in objectives)
    first = objectives[0]
    outputs = getattr(first, "num_classes", 1)
    W = cp.Variable((P, outputs))
    b = cp.Variable((1, outputs)) if first.intercept else np.zeros((1, outputs))
    scores = X @ W + np.ones((total, 1)) @ b
    if isinstance(first, LeastSquares):
        y = np.concatenate([own.targets for own in objectives])
        loss = first.scale * cp.sum_squares(scores[:, 0] - y)
    elif outputs == 1:
        signs = np.concatenate([np.where(own.labels == 1, 1.0, -1.0) for own in objectives])
        loss = cp.sum(cp.logistic(-cp.multiply(signs, scores[:, 0])))
    else:
        Y = np.eye(3)[np.concatenate([own.labels for own in objectives])]
        loss = cp.sum(cp.log_sum_exp(scores, axis=1)) - cp.sum(cp.multiply(Y, scores))
    psi = cp.sum(cp.multiply(l1, cp.abs(W))) + 0.5 * cp.sum(cp.multiply(ridge + first.l2, W**2))
    limits = [] if box is None else [cp.abs(W) <= box]
    cp.Problem(cp.Minimize(loss / total + psi), limits).solve(solver="CLARABEL")
    w = np.concatenate([W.value.reshape(-1), b.value[0] if first.intercept else []])
    gradient = sum(own.num_examples * own.gradient(w) for own in objectives) / total
    return np.abs(gradient[: P * outputs] - first.l2 * w[: P * outputs]), W.value.reshape(-1)


#: psi of a threshold, its l2 term and box, and options of the losses. The features 2 and 3 are equal.
CASES = {
    "l1": (L1, 0.0, None, {}),
    "elastic net": (lambda a: ElasticNet(2.0 * a, 0.5), 1.0, None, {}),
    "box": (lambda a: L1(a, bound=0.1), 0.0, 0.1, {}),
    "an l2 term of the losses": (L1, 0.0, None, {"l2": 0.3}),
    "no intercept": (L1, 0.0, None, {"intercept": False}),
    "sparse features": (L1, 0.0, None, {"sparse": True}),
    "weights": (L1, 0.0, None, {}),
}


@pytest.mark.parametrize(("kind", "case"), crossed(["squares", "logistic", "multinomial"], CASES))
def test_no_optimum_has_what_a_round_has_proved_zero(kind, case):
    """The proofs of all rounds are kept, those at loose gaps too; in the end nearly all is proved that can be."""
    psi_of, ridge, box, options = CASES[case]
    counts = []
    for seed in range(4):
        objectives = problem(kind, seed, **options)
        shape = (P, 3) if kind == "multinomial" else (P, 1)
        zero = sum(own.num_examples * own.gradient(np.zeros(own.layout.size)) for own in objectives) / 41
        strength = (0.3, 0.1)[seed % 2] * np.abs(zero[: np.prod(shape)]).max()
        weights = np.linspace(0.5, 2.0, P) if case == "weights" else np.ones(P)
        thresholds = np.repeat(strength * weights, shape[1])
        psi = psi_of(strength)
        if case == "weights":
            psi = L1(strength, weights if shape[1] == 1 else weights[:, None])
        slopes, w = slopes_at_the_optimum(objectives, thresholds.reshape(shape), ridge * strength, box)
        result, strategy = solved(objectives, psi)
        assert numbers(result, "duality-gap")[-1] <= 1e-8
        proved = proved_zero(strategy)["coefficients"].reshape(-1)
        # CVXPY's slopes are good to about 1e-7; those of any optimum's support are the threshold itself, or above.
        assert (slopes[proved] < (1.0 - 1e-5) * thresholds[proved]).all()
        assert (np.abs(w[proved]) < 1e-4).all()
        assert not any(mask.any() for name, mask in proved_zero(strategy).items() if name == "intercept")
        counts.append((proved.sum(), (slopes < 0.99 * thresholds).sum()))
    found, provable = np.sum(counts, axis=0)
    assert found >= 0.95 * provable > 0


def _reach(objective, point, at_zero):
    """Return what `zeros` adds to the slope of one coefficient, by bisection of the threshold."""
    lower, upper = 0.0, 10.0
    for _ in range(60):
        middle = 0.5 * (lower + upper)
        # An elastic net of a large threshold leaves the dual point as it is, and 0 is its optimum.
        state, known = exchanged(objective, ElasticNet(100.0, 0.5), point)
        bound, slopes = known.dual(state)
        narrow = known._replace(psi=ElasticNet(2.0 * middle, 0.5).bind(objective.layout))
        proved = narrow.zeros(at_zero, bound, slopes, state)
        lower, upper = (lower, middle) if proved[0] else (middle, upper)
    return middle - abs(slopes[0]), abs(slopes[0] - objective.gradient(np.zeros(point.size))[0])


@pytest.mark.parametrize(
    ("objective", "slack"),
    [
        (LeastSquares([[2.0]], [1.0], scale=0.5, intercept=False), 1.0),
        (LeastSquares([[2.0]], [1.0], scale=2.0, intercept=False), 1.0),
        (Logistic([[2.0]], [1], intercept=False), 1.0),
        # The slopes of two classes are opposite, and the radius is of both.
        (MultinomialLogistic([[2.0]], [1], num_classes=2, intercept=False), 2.0**0.5),
        (SiteIntercept(LeastSquares([[7.0], [9.0]], [1.0, 2.0], scale=0.5)), 1.0),
        (SiteIntercept(Logistic([[7.0], [9.0]] * 13, [0, 1] * 13)), 1.0),
    ],
    ids=["squares", "scaled squares", "logistic", "multinomial", "own", "own logistic"],
)
def test_the_radius_reaches_the_optimal_slope_and_no_further(objective, slack):
    """Of one example the dual is as curved as the bound says: a smaller radius would be wrong."""
    size = objective.layout.size
    point = np.array([0.05, -0.05])[:size]
    reach, distance = _reach(objective, point, objective.value(np.zeros(size)))
    assert distance * (1.0 - 1e-9) <= reach
    assert reach == pytest.approx(slack * distance, rel=0.02)


def own_loss(largest):
    """Return a loss that a user has written, here one with an intercept of each site, and what it says of its rows."""
    return type("Own", (SiteIntercept,), {"largest_square": largest, "least": 0.0})


@pytest.mark.parametrize("seed", range(3))
def test_a_loss_of_ones_own_is_proved_zero_by_its_own_bound_only(seed):
    """Without a bound of its own it has no radius, and one of 0 would prove what the optimum has."""
    rng = np.random.default_rng(seed)
    losses = []
    for m in range(3):
        X = rng.normal(m, 1.0, size=(30, P))
        losses.append(LeastSquares(X, X[:, 0] - 0.5 * X[:, 3] + rng.normal(size=30)))
    psi = L1(0.2 * np.abs(sum(SiteIntercept(own).gradient(np.zeros(P)) for own in losses) / 3).max())

    def found(kind):
        return proved_zero(solved([kind(own) for own in losses], psi)[1])["coefficients"]

    np.testing.assert_array_equal(found(own_loss(SiteIntercept.largest_square)), found(SiteIntercept))
    assert 0 < found(SiteIntercept).sum() < P
    assert not found(own_loss(Objective.largest_square)).any()
    for wrong in (-1.0, np.nan, np.inf):
        with pytest.raises(ClientError, match=r"Own.largest_square\(\)=.*expected a finite number >= 0"):
            found(own_loss(lambda self, wrong=wrong: wrong))


def test_zeros_are_proved_without_a_block_too():
    objectives = problem("logistic", 1)
    psi = L1(0.05)
    found = [proved_zero(solved(objectives, psi, 400, hessian=name)[1])["coefficients"] for name in ("block", "none")]
    np.testing.assert_array_equal(*found)
    assert 0 < found[0].sum() < P
