"""A certificate bounds the distance to the optimum, whatever the loss, psi and the split over clients are."""

import numpy as np
import pytest
from examples_of_psi import EXAMPLES
from problems import refused

from flwr_fco import certificates, regularizers
from flwr_fco.errors import NoAnswerError, ProtocolError
from flwr_fco.objectives import Huber, LeastSquares, Logistic, MultinomialLogistic, Objective, Poisson
from flwr_fco.regularizers import L1, Adapter, GroupLasso
from reproduction.pooled import centralized_solution, certify, client_weights, composite_objective

N, D = 80, 8
KINDS = [LeastSquares, Logistic, MultinomialLogistic, Huber, Poisson]
PSI = (
    L1(0.05),
    L1(0.3),
    L1(0.1, bound=0.5),
    regularizers.L2Squared(0.1),
    regularizers.ElasticNet(0.2),
    regularizers.Box(-0.3, 0.4),
    regularizers.L1Ball(0.7),
    regularizers.L2(0.1),
    GroupLasso(0.1, groups=np.arange(D) // 4),
)


def loss_of(kind, rng, *, weighted=False, shifted=False, **options):
    """Return a loss of N rows; some have weights and offsets."""
    features = rng.normal(size=(N, D))
    classes = rng.permutation(np.arange(N) % 3)
    targets = {LeastSquares: rng.normal(size=N), Huber: rng.standard_t(2, N), Poisson: rng.poisson(2.0, N)}
    targets |= {Logistic: classes % 2, MultinomialLogistic: classes}
    if weighted:
        options["sample_weight"] = rng.uniform(0.2, 2.0, N)
    if shifted:
        options["offset"] = 0.5 * rng.normal(size=(N, 3) if kind is MultinomialLogistic else N)
    return kind(features, targets[kind], **options)


def clients_of(kind, rng, **options):
    """Return unequal clients of one problem, so that their weights matter."""
    whole = loss_of(kind, rng, **options)
    return [whole.subset(rows)[0] for rows in np.split(rng.permutation(N), [15, 40])]


#: An operator of another library, of which nobody knows the conjugate.
FOREIGN = next(psi for psi, _ in EXAMPLES if isinstance(psi, Adapter))
#: A loss of which nobody knows that it is convex.
UNKNOWN = type("Own", (LeastSquares,), {"least": None, "dual_terms": Objective.dual_terms})(np.eye(3), np.ones(3))


WITHOUT_A_CLASS = MultinomialLogistic(np.eye(6), np.arange(6) % 2, num_classes=3)
SQUARES = clients_of(LeastSquares, np.random.default_rng(0))


NO_GAPS = [
    ([UNKNOWN], L1(0.1), "not known to be convex"),
    ([WITHOUT_A_CLASS, WITHOUT_A_CLASS], L1(0.1), "no minimum in the intercept"),
    (SQUARES, regularizers.HardSparsity(2), "not convex"),
    (SQUARES, regularizers.NonNegative(), "some directions"),
    (SQUARES, FOREIGN, "the conjugate of Adapter("),
    (SQUARES, L1(0.0), "psi leaves coefficients alone"),
    (SQUARES, L1(0.1, weights=np.eye(D)[0]), "coefficients alone"),
    (SQUARES, regularizers.L1Ball(0.1, weights=np.eye(D)[0]), "coefficients alone"),
]


@pytest.mark.parametrize(("clients", "psi", "reason"), NO_GAPS)
def test_a_residual_where_there_is_no_gap_and_why(clients, psi, reason):
    w = np.full(clients[0].layout.size, 0.5)
    found = certify(clients, None, psi, w)
    assert found.kind == "residual"
    assert reason in found.reason
    gradient = sum(p * c.gradient(w) for p, c in zip(client_weights(clients), clients, strict=True))
    assert found.value == pytest.approx(np.linalg.norm(w - psi.bind(clients[0].layout).prox(w - gradient, 1.0)))


def test_a_loss_that_is_level_between_two_far_groups_of_rows_has_a_gap():
    client = Huber(np.diag([-0.5, -0.8]), np.array([-3.5, 2.6]))
    assert certify([client], None, L1(0.001), np.array([0.0, -7.0, -3.5])).kind == "duality-gap"


@pytest.mark.parametrize("first", [0, pytest.param(40, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("case", range(40))
def test_no_gap_is_below_the_distance_to_what_a_solver_finds(first, case):
    """Weights, offsets, ridges, several outputs, constraints; near the optimum and far from it, and 0 at it."""
    rng = np.random.default_rng(first + case)
    weighted, shifted, intercept, ridge = rng.random(4) < [0.5, 0.5, 0.7, 0.5]
    options = {"weighted": weighted, "shifted": shifted, "intercept": bool(intercept), "l2": 0.1 * ridge}
    clients = clients_of(KINDS[case % 5], rng, **options)
    psi = PSI[rng.integers(len(PSI))]
    if isinstance(psi, GroupLasso) and isinstance(clients[0], MultinomialLogistic):
        psi = regularizers.Nuclear(0.1)
    best = centralized_solution(clients, psi, tol=1e-10)
    least = composite_objective(clients, None, psi, best)
    bound = psi.bind(clients[0].layout)
    for size in (0.0, 1e-6, 1e-3, 0.1, 2.0):
        found = certify(clients, None, psi, bound.prox(best + size * rng.normal(size=best.size), 0.1 * size))
        assert found.kind == "duality-gap", found.reason
        assert found.value >= found.objective - least - 1e-12 * (1.0 + abs(least))
        assert size > 0.0 or found.value <= 1e-8 * (1.0 + abs(least))


def test_losses_of_several_kinds_have_a_gap_together():
    """Each bounds its own conjugate; their ridges add up by their weights."""
    rng = np.random.default_rng(5)
    clients = [loss_of(kind, rng, l2=l2) for kind, l2 in ((LeastSquares, 0.0), (Logistic, 0.3), (Huber, 0.1))]
    best = centralized_solution(clients, L1(0.05), tol=1e-12)
    found = [certify(clients, None, L1(0.05), best + size * rng.normal(size=best.size)) for size in (1.0, 0.1, 0.0)]
    assert all(own.kind == "duality-gap" for own in found)
    assert all(own.value >= own.objective - found[-1].objective - 1e-12 for own in found)
    assert found[-1].value <= 1e-12


# --- answers ----------------------------------------------------------------------------------------------------------


def settled(own, w, change=lambda numbers, vectors: None, *, checked=True):
    """Settle a certificate of one client, of whose answers some numbers are changed."""

    def ask(request):
        numbers, vectors = certificates.reported_at(own, w, request.numbers)
        change(numbers, vectors)
        answer = certificates.Answer(numbers, vectors, weight=1.0, node_id=1)
        if checked:
            request.check(answer)
        return [answer]

    return certificates.settle(certificates.certificate(L1(0.1).bind(own.layout), w), ask)


def _scaled(name, factor):
    def change(numbers, vectors):
        if name in numbers:
            numbers[name] *= factor
        if name == "rows" and name in vectors:
            vectors["rows"][0] *= factor

    return change


def _says(name, value):
    return lambda numbers, vectors: numbers.update({name: value}) if name in numbers else None


def test_no_answers_or_such_as_contradict_each_other_are_no_certificate():
    """Also where nobody has looked at each of them."""
    asked = certificates.certificate(L1(0.1).bind(UNKNOWN.layout), np.zeros(4))
    refused("no client answered", certificates.settle, asked, lambda request: [], kind=ValueError)
    own = loss_of(Logistic, np.random.default_rng(1))
    with pytest.raises(NoAnswerError, match="contradict each other"):
        settled(own, np.ones(own.layout.size), _says("conjugate", -1e3), checked=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "change",
    [
        _says("loss", -1e9), _scaled("loss", 0.5), _scaled("loss", 2.0), _says("convex", 0.5), _says("l2", -1.0),
        _scaled("rows", 0.5), _scaled("rows", 2.0), _says("conjugate", -1e3),
        lambda numbers, vectors: vectors["rows"].__setitem__((1, -1), -1e3) if vectors else None,
    ],
)  # fmt: skip
def test_what_a_client_says_is_of_one_convex_function(kind, change):
    rng = np.random.default_rng(1)
    own = loss_of(kind, rng, weighted=True, l2=0.1)
    w = 0.3 * rng.normal(size=own.layout.size)
    assert settled(own, w).kind == "duality-gap"
    refused(r"of one convex function|(convex|l2)=.*expected", settled, own, w, change, kind=ProtocolError)


@pytest.mark.parametrize("value", [1e150, 1e300, -1e300, 1.7e308])
@pytest.mark.parametrize("place", [(0, 0), (0, -2), (1, -2), (2, -2), (1, -1), (slice(None), slice(None))], ids=str)
def test_numbers_that_overflow_end_in_words_or_bound_nothing(place, value):
    rng = np.random.default_rng(1)
    own = loss_of(Logistic, rng)
    w = rng.normal(size=own.layout.size)

    def change(numbers, vectors):
        if vectors:
            vectors["rows"][place] = value

    with np.errstate(all="ignore"):
        try:
            found = settled(own, w, change)
        except (ProtocolError, NoAnswerError):
            return
    assert not found.value < 0.1
