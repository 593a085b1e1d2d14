"""Lazy local steps on sparse features against the same steps on dense ones."""

import logging

import numpy as np
import pytest
from halves import find_solver
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

from flwr_fco.engines.sparse_steps import shard_of, shrunk
from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, PNorm
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.regularizers import (
    L1,
    Box,
    ElasticNet,
    GroupLasso,
    L1Ball,
    L2Squared,
    PerParameter,
    SparseGroupLasso,
    Zero,
)
from flwr_fco.work import FirstOrder

N, D = 23, 60
RNG = np.random.default_rng(0)
#: Some columns are in no row, and one row has nothing.
ROWS = sparse.random_array((N, D), density=0.08, rng=np.random.default_rng(1), format="csr")
KINDS = {
    "least squares": lambda x, **o: LeastSquares(x, np.random.default_rng(2).standard_normal(N), **o),
    "logistic": lambda x, **o: Logistic(x, np.arange(N) % 2, **o),
    "multinomial": lambda x, **o: MultinomialLogistic(x, np.arange(N) % 3, **o),
}
WEIGHTS = np.random.default_rng(3).uniform(0.5, 2.0, D)
PSI = {
    "nothing": Zero(),
    "l1": L1(0.03),
    "weighted l1": L1(0.03, weights=WEIGHTS),
    "bounded l1": L1(0.03, bound=0.05),
    "elastic net": ElasticNet(0.1, 0.4),
    "ridge": L2Squared(0.5),
    "box": Box(-0.02, 0.1),
}


def pair(kind="least squares", **options):
    return KINDS[kind](ROWS.toarray(), **options), KINDS[kind](ROWS, **options)


def answers(
    solver, objectives, psi, h=None, vectors=("dual",), work=None, elapsed=0.4, state=None, options=None, **numbers
):
    size = objectives[0].layout.size
    plan = Plan(
        solver,
        objectives[0].layout,
        psi,
        h or Euclidean(),
        work=work or FirstOrder(epochs=3, batch_size=4),
        options=options or {},
    )
    made = {name: np.random.default_rng(i).normal(size=size, scale=0.1) for i, name in enumerate(vectors)}
    downlink = Downlink(plan, made, client_lr=0.1, elapsed=elapsed, numbers=numbers)
    given = None if state is None else {name: np.random.default_rng(7).normal(size=size) for name in state}
    return [find_solver(solver)(downlink, own, given, np.random.default_rng(5)) for own in objectives], plan


def whole(vector):
    return vector if isinstance(vector, np.ndarray) else vector.to_dense()


def agree(found):
    (dense, state), (lazy, after) = found
    assert lazy.steps == dense.steps
    assert lazy.elapsed == dense.elapsed
    for name, vector in dense.vectors.items():
        assert np.abs(vector).max() > 1e-4
        assert_allclose(whole(lazy.vectors[name]), vector, rtol=0, atol=1e-12 * np.abs(vector).max())
        assert_array_equal(whole(lazy.vectors[name]) == 0.0, np.isclose(vector, 0.0, rtol=0, atol=1e-15))
    for name in state or ():
        assert_allclose(after[name], state[name], rtol=0, atol=1e-11)


#: What a message carries, and what a client remembers, by method.
METHODS = {
    "dual_averaging": (("dual",), None),
    "gradient_tracking": (("dual", "control"), ("own",)),
    "tracked_dual_averaging": (("dual", "tracker"), None),
    "mirror_descent": (("primal",), None),
    "gradient_steps": (("primal",), None),
}


@pytest.mark.parametrize("psi", PSI)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_lazy_steps_are_dense_ones(method, kind, psi):
    if kind == "multinomial" and psi == "weighted l1":
        pytest.skip("weights are of one output")
    if method == "gradient_steps" and psi != "nothing":
        pytest.skip("has no place for psi")
    objectives, (vectors, state) = pair(kind), METHODS[method]
    found, plan = answers(method, objectives, PSI[psi], vectors=vectors, state=state)
    assert shard_of(plan, objectives[1]) is not None
    agree(found)


@pytest.mark.parametrize("options", [{}, {"client_prox": False}])
@pytest.mark.parametrize("psi", ["nothing", "l1", "elastic net"])
def test_a_diagonal_metric_agrees(psi, options):
    objectives = pair("logistic")
    h = DiagonalMetric(np.linspace(0.5, 2.0, D + 1))
    found, plan = answers("dual_averaging", objectives, PSI[psi], h, options=options)
    assert shard_of(plan, objectives[1]) is not None
    agree(found)


@pytest.mark.parametrize(
    "work",
    [FirstOrder(steps=7, batch_size=5), FirstOrder(steps=3, batch_size=None), FirstOrder(epochs=1, batch_size=99)],
)
@pytest.mark.parametrize(
    "options", [{}, {"intercept": False}, {"sample_weight": WEIGHTS[:N], "offset": WEIGHTS[N : 2 * N]}]
)
def test_other_work_and_rows_with_weights_and_offsets_agree(work, options):
    agree(answers("dual_averaging", pair("logistic", **options), L1(0.02), work=work)[0])


@pytest.mark.parametrize(
    ("psi", "h", "options", "reason"),
    [
        (GroupLasso(0.01, groups=np.arange(D) % 2), Euclidean(), {}, "the groups of its features have 61 of"),
        (L1Ball(1.0), Euclidean(), {}, "L1Ball is no sum"),
        (L1(0.01), PNorm(3.0), {}, "PNorm with L1"),
        (L1(0.01), Euclidean(), {"l2": 0.1}, "l2 moves every coefficient"),
    ],
)
def test_what_is_no_sum_over_coordinates_takes_dense_steps(psi, h, options, reason, caplog):
    objectives = pair("logistic", **options)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        found, plan = answers("dual_averaging", objectives, psi, h)
    assert shard_of(plan, objectives[1]) is None
    assert reason in caplog.text
    agree(found)


#: Columns 0 to 19 alone have entries, so that a few groups are touched.
FEW = sparse.hstack([ROWS[:, :20], sparse.csr_array((N, D - 20))]).tocsr()
GROUPS = {
    "blocks": GroupLasso(0.02, groups=np.arange(D) // 4),
    "scattered": GroupLasso(0.02, groups=np.where(np.arange(D) < 24, np.arange(D) % 6, 6 + np.arange(D) // 4)),
    "weighted": GroupLasso(0.02, groups=np.arange(D) // 4, weights=np.where(np.arange(15) == 2, 0.0, 1.5)),
    "sparse groups": SparseGroupLasso(0.03, groups=np.arange(D) // 3, l1_ratio=0.4),
    "of one array": PerParameter({"coef*": GroupLasso(0.02, groups=np.arange(D) // 4)}),
}


@pytest.mark.parametrize("solver", ["dual_averaging", "gradient_tracking"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("psi", GROUPS)
def test_groups_are_retrieved_as_they_are_touched(psi, intercept, solver):
    objectives = [Logistic(x, np.arange(N) % 2, intercept=intercept) for x in (FEW.toarray(), FEW)]
    tracks = solver == "gradient_tracking"
    vectors, state = (("dual", "control"), ("own",)) if tracks else (("dual",), None)
    found, plan = answers(solver, objectives, GROUPS[psi], vectors=vectors, state=state)
    shard = shard_of(plan, objectives[1])
    assert shard.indices.size < D / 2
    (dense, _), (lazy, _) = found
    increment = dense.vectors["increment"]
    assert_allclose(whole(lazy.vectors["increment"]), increment, rtol=0, atol=1e-12 * np.abs(increment).max())


@pytest.mark.parametrize("groups", [np.arange(D)[:, None], np.arange(D)[:, None] // 2 + 0 * np.arange(3), np.arange(3)])
def test_groups_of_several_classes(groups):
    objectives = [MultinomialLogistic(x, np.arange(N) % 3) for x in (FEW.toarray(), FEW)]
    found, plan = answers("dual_averaging", objectives, GroupLasso(0.02, groups=np.broadcast_to(groups, (D, 3))))
    # Where the groups are the classes, each has all features.
    assert (shard_of(plan, objectives[1]) is None) == (np.size(groups) == 3)
    agree(found)


def test_groups_without_psi_in_local_steps_and_proximal_steps():
    objectives = [Logistic(x, np.arange(N) % 2) for x in (FEW.toarray(), FEW)]
    agree(answers("dual_averaging", objectives, GROUPS["blocks"], options={"client_prox": False})[0])
    agree(answers("mirror_descent", objectives, GROUPS["blocks"], vectors=("primal",))[0])
    agree(answers("gradient_steps", objectives, GROUPS["blocks"], vectors=("primal",))[0])


@pytest.mark.parametrize("h", [Euclidean(), DiagonalMetric(np.linspace(0.5, 2.0, D + 1))])
@pytest.mark.parametrize("psi", PSI)
def test_coordinates_are_retrieved_as_the_vector_is(psi, h):
    _, objective = pair()
    _, plan = answers("dual_averaging", [objective], PSI[psi], h)
    shard = shard_of(plan, objective)
    z = RNG.normal(size=D + 1)
    indices = np.array([5, 0, 17, 5])
    found = shard.retrieve(z[shard.indices[indices]], 1.7, indices)
    assert_allclose(found, plan.h.retrieve(z, 1.7, plan.psi)[shard.indices[indices]], rtol=1e-14, atol=1e-16)


def test_many_shrinkages_are_one():
    w = RNG.normal(size=D)
    psi = ElasticNet(0.3, 0.5)
    terms = psi.terms()
    for times in (0, 1, 7):
        expected = w.copy()
        for _ in range(times):
            expected = psi.prox(expected, 0.2)
        assert_allclose(shrunk(w, times, 0.2, terms), expected, rtol=1e-13, atol=1e-15)
