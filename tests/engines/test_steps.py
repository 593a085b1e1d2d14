"""Local steps in one compiled call, or lazily on sparse features, are those of the loop over dense minibatches."""

import logging
from copy import copy
from functools import partialmethod

import numpy as np
import pytest
from halves import find_solver
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import flwr_fco as fco
from flwr_fco.core.layout import dense
from flwr_fco.engines import Client
from flwr_fco.engines.sparse_steps import shard_of
from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, PNorm
from flwr_fco.regularizers import L1, L2, ElasticNet, GroupLasso, NonNegative, Zero
from flwr_fco.work import FirstOrder

FEATURES = 7
RNG = np.random.default_rng(3)
DATA = RNG.standard_normal((23, FEATURES))
TARGETS = DATA @ np.array([1.0, -1.0, 0.5, 0.0, 0.0, 0.0, 2.0])
DUAL, CENTER, TRACKER = RNG.standard_normal((3, FEATURES + 1))

OBJECTIVES = {
    "least squares": lambda: fco.LeastSquares(DATA, TARGETS, scale=0.5, l2=0.1),
    "least squares in float32": lambda: fco.LeastSquares(DATA.astype(np.float32), TARGETS),
    "logistic": lambda: fco.Logistic(DATA, TARGETS > 0, l2=0.1),
}
COMPILED = [
    (Euclidean(), Zero()),
    (Euclidean(), L1(0.3)),
    (Euclidean(), L1(0.3, weights=np.linspace(0.0, 2.0, FEATURES))),
    (Euclidean(), ElasticNet(0.3)),
    (Euclidean(), NonNegative()),
    (Euclidean(), L1(0.3, bound=1.0)),
    (PNorm(12.0), Zero()),
    (PNorm(12.0), L1(0.3)),
    (PNorm(3.5, radius=0.4), L1(0.3)),
    (PNorm(12.0, center=CENTER), Zero()),
    (PNorm(2.0, center=CENTER, radius=0.4), Zero()),
]


def stepwise(objective):
    """Return the same objective with batches of its own: nobody may skip those."""

    twin = copy(objective)
    twin.__class__ = type("Stepwise", (type(objective),), {"batches": partialmethod(type(objective).batches)})
    return twin


def answer(objective, mirror_map, psi, solver, **options):
    """Return what the client sends after nine steps of five rows, and how many of them were in a compiled loop."""
    plan = Plan(solver, objective.layout, psi, mirror_map, work=FirstOrder(steps=9, batch_size=5), options=options)
    vectors = {"dual": DUAL, **({"tracker": TRACKER} if solver == "tracked_dual_averaging" else {})}
    downlink = Downlink(plan, vectors, 0.05, 0.7)
    uplink, _ = find_solver(solver)(downlink, objective, None, np.random.default_rng(1))
    dual = DUAL.copy()
    client = Client(downlink, objective, np.random.default_rng(1))
    done = client.compiled_steps(dual, np.zeros(0), psi=True, pairs=solver == "dual_extrapolation")
    assert done is not None or (dual == DUAL).all()
    return uplink, done


@pytest.mark.parametrize("solver", ["dual_averaging", "tracked_dual_averaging", "dual_extrapolation"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("mirror_map", "psi"), COMPILED)
def test_an_epoch_in_one_call_takes_the_same_steps(solver, name, mirror_map, psi):
    """Also pairs of batches, of which some have the last of an epoch and the first of the next one."""
    objective = OBJECTIVES[name]()
    fused, done = answer(objective, mirror_map, psi, solver)
    loop, not_done = answer(stepwise(objective), mirror_map, psi, solver)
    assert (done, not_done, fused.steps, loop.steps) == (9, None, 9, 9)
    expected = loop.vectors["increment"]
    assert np.abs(expected).max() > 0.1
    assert_allclose(fused.vectors["increment"], expected, rtol=0, atol=1e-13 * np.abs(expected).max())


def doubled(base, *given):
    """Return a map of a user that derives from ours, and is another one."""

    def conjugate_gradient(self, z, out=None):
        return np.multiply(2.0, base.conjugate_gradient(self, z), out=out)

    return type("Doubled", (base,), {"conjugate_gradient": conjugate_gradient})(*given)


MAPS_AND_PSI = [
    # A norm, a root find or weights of its own in each step.
    (Euclidean(), L2(0.3)),
    (PNorm(12.0, center=CENTER), L1(0.3)),
    (DiagonalMetric(np.linspace(1.0, 2.0, FEATURES + 1)), L1(0.3)),
    (doubled(Euclidean), Zero()),
    (doubled(PNorm, 12.0), Zero()),
]


@pytest.mark.parametrize(("mirror_map", "psi"), MAPS_AND_PSI)
def test_what_a_compiled_loop_cannot_do_is_done_step_by_step(mirror_map, psi):
    objective = fco.LeastSquares(DATA, TARGETS)
    uplink, done = answer(objective, mirror_map, psi, "dual_averaging")
    assert (uplink.steps, done) == (9, None)
    dual = DUAL.copy()
    h, bound = (part.bind(objective.layout) for part in (mirror_map, psi))
    for k, rows in enumerate(objective.batches(np.random.default_rng(1), FirstOrder(steps=9, batch_size=5))):
        point = h.conjugate_gradient(dual) if psi == Zero() else h.retrieve(dual, 0.7 + 0.05 * k, bound)
        dual -= 0.05 * objective.gradient(point, rows)
    assert_allclose(uplink.vectors["increment"], dual - DUAL, rtol=1e-9, atol=1e-12)


# --- sparse features --------------------------------------------------------------------------------------------------

N, D = 23, 60
#: Some columns are in no row, and one row has nothing.
ROWS = sparse.random_array((N, D), density=0.08, rng=np.random.default_rng(1), format="csr")
#: Columns 0 to 19 alone have entries, so that a few groups are touched.
FEW = sparse.hstack([ROWS[:, :20], sparse.csr_array((N, D - 20))]).tocsr()
KINDS = {
    "least squares": lambda x, **o: fco.LeastSquares(x, np.random.default_rng(2).standard_normal(N), **o),
    "logistic": lambda x, **o: fco.Logistic(x, np.arange(N) % 2, **o),
    "multinomial": lambda x, **o: fco.MultinomialLogistic(x, np.arange(N) % 3, **o),
}
WEIGHTS = np.random.default_rng(3).uniform(0.5, 2.0, D)
METRIC = DiagonalMetric(np.linspace(0.5, 2.0, D + 1))
PSI = {
    "nothing": Zero(),
    "l1": L1(0.03),
    "weighted l1": L1(0.03, weights=WEIGHTS),
    "bounded l1": L1(0.03, bound=0.05),
    "elastic net": ElasticNet(0.1, 0.4),
    "ridge": fco.L2Squared(0.5),
    "box": fco.Box(-0.02, 0.1),
}
#: What a message carries, and what a client remembers, by method.
METHODS = {
    "dual_averaging": (("dual",), ()),
    "gradient_tracking": (("dual", "control"), ("own",)),
    "tracked_dual_averaging": (("dual", "tracker"), ()),
    "mirror_descent": (("primal",), ()),
    "gradient_steps": (("primal",), ()),
    "pairs_of_few": (("dual",), ()),
}


class PairsOfFew(fco.algorithms.DualExtrapolation):
    name, sparse = "pairs_of_few", True


def agree(method, kind, psi, h=Euclidean(), *, rows=ROWS, work=None, options=None, lazily=True, **of_loss):
    """Check that a client with sparse rows sends and remembers what one with dense rows does; return its shard."""
    objectives = [KINDS[kind](form, **of_loss) for form in (rows.toarray(), rows)]
    layout = objectives[0].layout
    work = work or FirstOrder(epochs=3, batch_size=4)
    plan = Plan(method, layout, psi, h, work=work, options=options or {})
    vectors, memory = METHODS[method]
    sent = {name: np.random.default_rng(i).normal(size=layout.size, scale=0.1) for i, name in enumerate(vectors)}
    downlink = Downlink(plan, sent, client_lr=0.1, elapsed=0.4)
    state = {name: np.random.default_rng(7).normal(size=layout.size) for name in memory} or None
    answers = [find_solver(method)(downlink, own, state, np.random.default_rng(5)) for own in objectives]
    (usual, state), (lazy, after) = answers
    shard = shard_of(plan, objectives[1])
    assert (shard is not None, lazy.steps, lazy.elapsed) == (lazily, usual.steps, usual.elapsed)
    for name, vector in usual.vectors.items():
        assert np.abs(vector).max() > 1e-4
        assert_allclose(dense(lazy.vectors[name]), vector, rtol=0, atol=1e-12 * np.abs(vector).max())
        assert_array_equal(dense(lazy.vectors[name]) == 0.0, np.isclose(vector, 0.0, rtol=0, atol=1e-15))
    for name in state or ():
        assert_allclose(after[name], state[name], rtol=0, atol=1e-11)
    return shard


@pytest.mark.parametrize("psi", PSI)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_lazy_steps_are_dense_ones(method, kind, psi):
    if kind == "multinomial" and psi == "weighted l1":
        pytest.skip("weights are of one output")
    if method == "gradient_steps" and psi != "nothing":
        pytest.skip("has no place for psi")
    agree(method, kind, PSI[psi])


CASES = {
    "a diagonal metric": {"psi": L1(0.03), "h": METRIC},
    "a diagonal metric and nothing": {"psi": Zero(), "h": METRIC},
    "a diagonal metric and two terms": {"psi": PSI["elastic net"], "h": METRIC},
    "a box in a diagonal metric": {"psi": PSI["box"], "h": METRIC},
    "a metric without psi in local steps": {"h": METRIC, "options": {"client_prox": False}},
    "steps": {"work": FirstOrder(steps=7, batch_size=5)},
    "full batches": {"work": FirstOrder(steps=3, batch_size=None), "intercept": False},
    "a batch of more than all": {"work": FirstOrder(epochs=1, batch_size=99)},
    "weights and offsets": {"sample_weight": WEIGHTS[:N], "offset": WEIGHTS[N : 2 * N]},
}


@pytest.mark.parametrize("case", CASES)
def test_other_metrics_work_and_rows_agree(case):
    agree("dual_averaging", "logistic", **{"psi": L1(0.02), **CASES[case]})


NOT_COMPILED = [
    (GroupLasso(0.01, groups=np.arange(D) % 2), Euclidean(), {}, "the groups of its features have 61 of"),
    (fco.L1Ball(1.0), Euclidean(), {}, "L1Ball is no sum"),
    (L1(0.01), PNorm(3.0), {}, "PNorm with L1"),
    (L1(0.01), Euclidean(), {"l2": 0.1}, "l2 moves every coefficient"),
]


@pytest.mark.parametrize(("psi", "h", "options", "reason"), NOT_COMPILED)
def test_what_is_no_sum_over_coordinates_takes_dense_steps(psi, h, options, reason, caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        agree("dual_averaging", "logistic", psi, h, lazily=False, **options)
    assert reason in caplog.text


GROUPS = {
    "blocks": GroupLasso(0.02, groups=np.arange(D) // 4),
    "scattered": GroupLasso(0.02, groups=np.where(np.arange(D) < 24, np.arange(D) % 6, 6 + np.arange(D) // 4)),
    "weighted": GroupLasso(0.02, groups=np.arange(D) // 4, weights=np.where(np.arange(15) == 2, 0.0, 1.5)),
    "sparse groups": fco.SparseGroupLasso(0.03, groups=np.arange(D) // 3, l1_ratio=0.4),
    "of one array": fco.PerParameter({"coef*": GroupLasso(0.02, groups=np.arange(D) // 4)}),
    "of strength 0": GroupLasso(0.0, groups=np.arange(D) // 4),
}


@pytest.mark.parametrize("method", ["dual_averaging", "gradient_tracking", "mirror_descent", "pairs_of_few"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("psi", GROUPS)
def test_groups_are_retrieved_as_they_are_touched(psi, intercept, method):
    assert agree(method, "logistic", GROUPS[psi], rows=FEW, intercept=intercept).indices.size < D / 2


@pytest.mark.parametrize("method", ["dual_averaging", "gradient_steps"])
def test_groups_without_psi_in_local_steps(method):
    agree(method, "logistic", GROUPS["blocks"], rows=FEW, options={"client_prox": False})
    agree("gradient_tracking", "logistic", GROUPS["blocks"], rows=0.0 * FEW, intercept=False)


@pytest.mark.parametrize("groups", [np.arange(D)[:, None], np.arange(D)[:, None] // 2 + 0 * np.arange(3), np.arange(3)])
def test_groups_of_several_classes(groups):
    """Where the groups are the classes, each has all features."""
    psi = GroupLasso(0.02, groups=np.broadcast_to(groups, (D, 3)))
    agree("dual_averaging", "multinomial", psi, rows=FEW, lazily=np.size(groups) != 3)
