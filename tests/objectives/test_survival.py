"""Cox regression against the definition; counts and Huber's loss against scikit-learn."""

import numpy as np
import pytest
from newton import numbers, objective_value, point, solved

from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import CoxRegression, Huber, Poisson
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Strengths
from reproduction.pooled import centralized_solution, certify


def partial_likelihood(eta, times, events, ties="efron", entry=None, strata=None, weights=None):
    """The negative log partial likelihood over the sum of the weights, term by term."""
    n = len(eta)
    v = np.ones(n) if weights is None else weights
    entry = np.full(n, -np.inf) if entry is None else entry
    strata = np.zeros(n) if strata is None else strata
    total = 0.0
    for stratum in np.unique(strata):
        for t in np.unique(times[(events == 1) & (strata == stratum)]):
            dead = (times == t) & (events == 1) & (strata == stratum)
            risk = np.exp(eta[(times >= t) & (entry < t) & (strata == stratum)])
            risk = (v[(times >= t) & (entry < t) & (strata == stratum)] * risk).sum()
            own = (v * np.exp(eta))[dead].sum()
            d = dead.sum()
            gone = np.arange(d) / d * own if ties == "efron" else np.zeros(d)
            total += v[dead].mean() * np.log(risk - gone).sum() - (v * eta)[dead].sum()
    return total / v.sum()


def rows_of(seed, n, p=6):
    """Rows with ties, censoring, late entries and strata, whose scale and baseline differ between sites."""
    rng = np.random.default_rng(seed)
    X = rng.normal(0.2 * seed, 1.0 + 0.3 * seed, size=(n, p))
    hazard = np.exp(0.8 * X[:, 0] - 0.5 * X[:, 1])
    times = np.ceil(rng.exponential((1 + seed) * 6.0 / hazard))
    ends = np.ceil(rng.exponential(12.0, n))
    entry = np.maximum(np.minimum(times, ends) - rng.integers(1, 12, n), 0.0)
    return {
        "features": X,
        "times": np.minimum(times, ends),
        "events": (times <= ends).astype(int),
        "entry": entry,
        "strata": rng.integers(0, 2, n),
        "sample_weight": rng.uniform(0.2, 3.0, n),
    }


def hospitals(**options):
    """Six sites like those of a registry: one without an event, one with one row."""
    sites = [rows_of(seed, n) for seed, n in enumerate((150, 80, 40, 25, 1, 30))]
    sites[5]["events"][:] = 0
    names = ("features", "times", "events", *options.pop("more", ()))
    return [CoxRegression(**{name: site[name] for name in names}, **options) for site in sites]


@pytest.mark.parametrize("ties", ["efron", "breslow"])
def test_the_value_is_that_of_the_definition(ties):
    rng = np.random.default_rng(0)
    for seed in range(12):
        data = rows_of(seed % 4, int(rng.integers(1, 40)))
        if seed % 2:
            del data["entry"]
        if seed % 3 == 0:
            del data["strata"]
        if seed % 5 == 0:
            del data["sample_weight"]
        objective = CoxRegression(**data, ties=ties, offset=np.full(len(data["times"]), 0.3))
        for size in (0.0, 0.5, 5.0):
            w = size * rng.normal(size=6)
            weights = data.get("sample_weight")
            others = data["times"], data["events"], ties, data.get("entry"), data.get("strata"), weights
            expected = partial_likelihood(data["features"] @ w, *others)
            assert objective.value(w) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_scores_of_any_size_neither_overflow_nor_lose_who_is_left():
    """The log likelihood of two at risk is the larger score's difference, however far apart."""
    X = np.array([[0.0], [1.0], [-1.0]])
    objective = CoxRegression(X, [1.0, 2.0, 3.0], [1, 1, 1], ties="breslow")
    for size in (50.0, 800.0, 1e5):
        assert objective.value(np.array([size])) == pytest.approx(size / 3.0, rel=1e-12)
        assert objective.gradient(np.array([size])) == pytest.approx([1.0 / 3.0], rel=1e-9)
    late = CoxRegression(X, [1.0, 2.0, 3.0], [1, 1, 1], entry=[0.0, 1.5, 1.5])
    # Alone when it happens; then the one who has entered since.
    assert late.value(np.array([-800.0])) == pytest.approx(1600.0 / 3.0, rel=1e-12)


def test_late_entries_cost_no_digits():
    """Risk sets of which nearly everything has left again are summed anew."""
    rng = np.random.default_rng(1)
    n = 400
    times = np.ceil(rng.exponential(50.0, n)) + 1.0
    entry = 0.99 * np.maximum(times - rng.exponential(5.0, n), 0.0)
    events = rng.integers(0, 2, n)
    X = rng.normal(size=(n, 2))
    objective = CoxRegression(X, times, events, entry=entry)
    w = np.array([15.0, -15.0])
    # In extended precision.
    expected = partial_likelihood((X @ w).astype(np.longdouble), times, events, "efron", entry)
    assert objective.value(w) == pytest.approx(float(expected), rel=1e-13)


def test_a_column_that_is_the_same_at_a_site_has_no_covariance():
    """Rounding would be refused by the server as a Hessian that is not positive semidefinite."""
    sites = []
    for seed in range(4):
        data = rows_of(seed, 60)
        data["features"][:, 3] = 1999.0 + seed / 3.0
        sites.append(CoxRegression(data["features"], data["times"], data["events"]))
    result, _ = solved(sites, L1(0.01), 20, tolerance=1e-12)
    assert numbers(result, "duality-gap")[-1] <= 1e-12
    assert point(result, sites[0])[3] == 0.0


def test_where_one_row_has_all_of_a_risk_set_rounding_is_no_covariance():
    """Two rows with scores far apart: 1e-16 on the diagonal, and beside it, is no matrix of covariances."""
    features = 1000.0 + np.random.default_rng(0).standard_normal((2, 12))
    objective = CoxRegression(features, [1.0, 2.0], [True, True])
    apart = features[1] - features[0]
    for score in np.linspace(30.0, 40.0, 21):
        block = np.zeros((12, 12))
        block[np.triu_indices(12)] = objective.hessian_block(score * apart / (apart @ apart), np.arange(12))
        block += np.triu(block, 1).T
        roots = np.sqrt(np.where(np.diag(block) > 0.0, np.diag(block), 1.0))
        assert np.linalg.eigvalsh(block / np.outer(roots, roots)).min() >= -1e-6


def test_the_gap_knows_that_small_weights_have_negative_losses():
    """The logarithm of a sum of weights far below 1: a scaled dual point has a part of the conjugate at 0."""
    sites = hospitals(ties="breslow", more=("sample_weight",))
    light = [
        CoxRegression(s.features, s.times, s.labels, ties="breslow", sample_weight=1e-4 * s.link.raw) for s in sites
    ]
    psi = L1(0.05)
    rng = np.random.default_rng(0)
    best = centralized_solution(light, psi, tol=1e-12)
    least = objective_value(light, psi, best)
    assert least < 0.0
    for size in (0.1, 1.0, 10.0):
        found = certify(light, None, psi, best + size * rng.normal(size=6))
        assert found.value >= found.objective - least
    result, _ = solved(light, psi, 20, tolerance=1e-12)
    assert numbers(result, "objective")[-1] == pytest.approx(least, abs=1e-11)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": [-1.0, 2.0, 3.0]}, r"times\[0\] is -1; expected numbers >= 0"),
        ({"times": [np.nan, 2.0, 3.0]}, r"times\[0\] is nan"),
        ({"times": [1.0, 2.0]}, r"times have shape \(2,\), but there are 3 examples"),
        ({"events": [0, 1, 2]}, "events hold 0, 1, 2; expected 1 for an event and 0 for a censored row"),
        ({"events": ["yes", "no", "no"]}, "events hold no, yes"),
        ({"entry": [0.0, 2.0, 0.0]}, r"entry\[1\] is not before times\[1\]"),
        ({"entry": [0.0, 0.0]}, "entry have shape"),
        ({"strata": ["a", None, "b"]}, "strata hold a label that is missing"),
        ({"strata": ["a"]}, "strata have shape"),
        ({"ties": "exact"}, "ties='exact' is a str; expected 'efron' or 'breslow'"),
    ],
)
def test_what_cannot_be_survival_data_is_refused(change, message):
    given = {"times": [1.0, 2.0, 3.0], "events": [1, 0, 1], **change}
    with pytest.raises(ConfigurationError, match=message):
        CoxRegression(np.eye(3), **given)


def test_without_an_event_at_any_site_there_is_nothing_to_learn():
    silent = [CoxRegression(np.eye(3), [1.0, 2.0, 3.0], np.zeros(3)) for _ in range(2)]
    for options in ({}, {"hessian": "none"}):
        with pytest.raises(ConfigurationError, match="no client has an event"):
            solved(silent, L1(0.1), 5, **options)
    # One of them is enough.
    result, _ = solved([*silent, CoxRegression(np.eye(3), [1.0, 2.0, 3.0], [1, 1, 0])], L1(0.001), 20)
    assert numbers(result, "duality-gap")[-1] < 1e-8


# --- counts and Huber's loss ------------------------------------------------------------------------------------------


def _counts(seed, n, high=0.0, **options):
    rng = np.random.default_rng(seed)
    X = rng.normal(0.3 * seed, 1.0, size=(n, 5))
    exposure = rng.uniform(0.1, 8.0, n)
    rates = np.exp(0.4 * X[:, 0] - 0.3 * X[:, 1] + high)
    return Poisson(X, rng.poisson(exposure * rates), offset=np.log(exposure), **options)


@pytest.mark.parametrize("high", [0.0, 4.0, 13.0])
def test_newton_counts_in_few_rounds_whatever_the_mean(high):
    """Also from 0, where a step towards a mean of a million events would be one of a million."""
    sites = [_counts(seed, n, high) for seed, n in enumerate((60, 30, 1))]
    result, _ = solved(sites, L1(0.05), 20, tolerance=1e-14)
    # What is left of sums of so many events is rounding, of a few units in the last place by the order of the sums.
    rounding = 16 * np.finfo(np.float64).eps * np.mean([site.targets.mean() for site in sites])
    assert min(numbers(result, "duality-gap")) <= 1e-10 * numbers(result, "objective")[-1] + rounding


@pytest.mark.parametrize("level", [0.0, 1e3, 1e6])
def test_newton_fits_huber_from_where_its_hessian_is_zero(level):
    rng = np.random.default_rng(0)
    sites = []
    for n in (60, 30, 1):
        X = rng.normal(size=(n, 5))
        sites.append(Huber(X, level + X[:, 0] + rng.standard_t(1.5, n), delta=0.8))
    result, _ = solved(sites, L1(0.05), 20, tolerance=1e-14)
    # Of targets around a million ten digits are the level.
    most = 1e-10 if level < 1e6 else 1e-6
    assert min(numbers(result, "duality-gap")) <= most * numbers(result, "objective")[-1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Poisson(np.eye(2), [1.0, -2.0]), r"counts\[1\] is -2; expected numbers >= 0"),
        (lambda: Poisson(np.eye(2), [1.0, np.nan]), r"counts\[1\] is nan"),
        (lambda: Poisson(np.eye(2), [1.0]), r"counts have shape \(1,\)"),
        (lambda: Poisson(np.eye(2), np.ones(2)).lipschitz(), "does not know its Lipschitz constant, for there is none"),
        (lambda: Huber(np.eye(2), [1.0, 2.0], delta=0.0), "delta=0.0; expected a finite number > 0"),
        (lambda: Huber(np.eye(2), [1.0, np.inf]), r"targets\[1\] is inf"),
    ],
)
def test_what_is_no_count_or_target_is_refused(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


@pytest.mark.parametrize("offset", [0.0, 20.0, 800.0])
def test_without_an_event_counts_have_no_intercept(offset):
    """Also where rounding leaves some; and with offsets of another unit the few there are."""
    features = np.random.default_rng(0).standard_normal((40, 3))
    nothing = [Poisson(features + m, np.zeros(40), offset=np.full(40, offset)) for m in range(3)]
    with pytest.raises(ConfigurationError, match=r"all counts are 0, or as good as 0.*no minimum"):
        solved(nothing, L1(0.1), 5)
    some = [Poisson(features + m, np.ones(40), offset=np.full(40, offset)) for m in range(3)]
    if offset == 800.0:
        with pytest.raises(ConfigurationError, match="Otherwise subtract a constant from all offsets"):
            solved(some, L1(0.1), 5)
    else:
        assert numbers(solved(some, L1(0.1), 20)[0], "duality-gap")[-1] <= 1e-8


# --- all of them, in every method -------------------------------------------------------------------------------------


def _wild():
    rng = np.random.default_rng(0)
    return [Huber(X, X[:, 0] + rng.standard_t(2, 40), delta=1.0) for X in (rng.normal(size=(40, 5)) for _ in range(3))]


FAMILIES = {
    "cox": lambda: hospitals(ties="breslow"),
    "poisson": lambda: [_counts(seed, 40) for seed in range(3)],
    "huber": _wild,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_path_with_folds_solves_all_strengths(family):
    sites = [site for site in FAMILIES[family]() if site.num_examples > 30]
    result, strategy = solved(sites, L1(1.0), 100, tolerance=1e-8, strengths=Strengths(5, folds=2))
    assert numbers(result, "duality-gap")[-1] <= 1e-8
    assert np.isfinite(strategy.state.held_out).all()
