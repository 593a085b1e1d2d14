"""A compiled epoch of dual averaging takes the steps of the loop over minibatches."""

import numpy as np
import pytest
from halves import find_solver

from flwr_fco.engines import LocalClient
from flwr_fco.engines.client import compiled_steps, one_by_one
from flwr_fco.messages.protocol import Downlink, Plan
from flwr_fco.mirror_maps import DiagonalMetric, Euclidean, PNorm
from flwr_fco.objectives import LeastSquares, Logistic
from flwr_fco.regularizers import L1, L2, ElasticNet, NonNegative, Zero
from flwr_fco.work import FirstOrder

ROWS = 23
FEATURES = 7
RNG = np.random.default_rng(3)
DATA = RNG.standard_normal((ROWS, FEATURES))
TARGETS = DATA @ np.array([1.0, -1.0, 0.5, 0.0, 0.0, 0.0, 2.0])
LABELS = (TARGETS > 0).astype(int)
DUAL = RNG.standard_normal(FEATURES + 1)
CENTER = RNG.standard_normal(FEATURES + 1)
TRACKER = RNG.standard_normal(FEATURES + 1)

OBJECTIVES = {
    "least squares": lambda: LeastSquares(DATA, TARGETS, scale=0.5, l2=0.1),
    "least squares in float32": lambda: LeastSquares(DATA.astype(np.float32), TARGETS),
    "logistic": lambda: Logistic(DATA, LABELS, l2=0.1),
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
#: What takes a norm, a root find or weights of its own in each step.
STEP_BY_STEP = [
    (Euclidean(), L2(0.3)),
    (PNorm(12.0, center=CENTER), L1(0.3)),
    (DiagonalMetric(np.linspace(1.0, 2.0, FEATURES + 1)), L1(0.3)),
]


def stepwise(objective):
    """Return the same objective with batches of its own: nobody may skip those."""

    class Stepwise(type(objective)):
        def batches(self, rng, work, per_step=1):
            yield from super().batches(rng, work, per_step)

    twin = Stepwise.__new__(Stepwise)
    vars(twin).update(vars(objective))
    return twin


def answer(objective, mirror_map, psi, solver, *, client_prox=True, steps=9):
    """Return what the client sends after steps of five rows, four of 23 rows' epochs being partial ones."""
    options = {"dual_averaging": {"client_prox": client_prox}}.get(solver, {})
    work = FirstOrder(steps=steps, batch_size=5)
    plan = Plan(solver, objective.layout, psi, mirror_map, work=work, options=options)
    vectors = {"dual": DUAL} if solver == "dual_averaging" else {"dual": DUAL, "tracker": TRACKER}
    downlink = Downlink(plan, vectors, 0.05, 0.7)
    uplink, _ = find_solver(solver)(downlink, objective, None, np.random.default_rng(1))
    # What the solver did is one thing, whether it was in a compiled loop another.
    dual = DUAL.copy()
    done = compiled_steps(downlink, objective, dual, np.random.default_rng(1))
    assert done is not None or (dual == DUAL).all()
    return uplink, done


@pytest.mark.parametrize("solver", ["dual_averaging", "tracked_dual_averaging"])
@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("mirror_map", "psi"), COMPILED)
def test_an_epoch_in_one_call_takes_the_same_steps(solver, name, mirror_map, psi):
    objective = OBJECTIVES[name]()
    fused, done = answer(objective, mirror_map, psi, solver)
    loop, not_done = answer(stepwise(objective), mirror_map, psi, solver)
    assert (done, not_done) == (9, None)
    assert fused.steps == loop.steps == 9
    expected = loop.vectors["increment"]
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(fused.vectors["increment"], expected, rtol=0, atol=1e-13 * np.abs(expected).max())


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize(("mirror_map", "psi"), COMPILED)
def test_pairs_of_batches_in_one_call_take_the_same_steps(name, mirror_map, psi):
    """Also where a pair has the last batch of an epoch and the first of the next one."""
    objective = OBJECTIVES[name]()
    steps = 11
    plan = Plan("dual_extrapolation", objective.layout, psi, mirror_map, work=FirstOrder(steps=steps, batch_size=5))
    downlink = Downlink(plan, {"dual": DUAL}, 0.05, 0.7)
    fused = DUAL.copy()
    loop = DUAL.copy()
    place = LocalClient(downlink, objective, np.random.default_rng())._place(True)
    assert compiled_steps(downlink, objective, fused, np.random.default_rng(1), pairs=True) == steps
    assert compiled_steps(downlink, stepwise(objective), loop, np.random.default_rng(1), pairs=True) is None
    assert len(list(one_by_one(downlink, objective, loop, np.random.default_rng(1), place, pairs=True))) == steps
    assert np.abs(loop - DUAL).max() > 0.1
    np.testing.assert_allclose(fused, loop, rtol=0, atol=1e-13 * np.abs(loop).max())


@pytest.mark.parametrize(("mirror_map", "psi"), STEP_BY_STEP, ids=repr)
def test_what_a_compiled_loop_cannot_do_is_done_step_by_step(mirror_map, psi):
    objective = OBJECTIVES["least squares"]()
    uplink, done = answer(objective, mirror_map, psi, "tracked_dual_averaging")
    assert done is None
    assert uplink.steps == 9


def test_without_client_prox_psi_does_not_act():
    objective = OBJECTIVES["least squares"]()
    without, _ = answer(objective, Euclidean(), L1(0.3), "dual_averaging", client_prox=False)
    expected, _ = answer(objective, Euclidean(), Zero(), "dual_averaging")
    with_psi, _ = answer(objective, Euclidean(), L1(0.3), "dual_averaging")
    assert (without.vectors["increment"] == expected.vectors["increment"]).all()
    assert np.abs(with_psi.vectors["increment"] - expected.vectors["increment"]).max() > 1e-3


@pytest.mark.parametrize("kind", [Euclidean, PNorm])
def test_a_map_that_derives_from_ours_is_taken_at_its_word(kind):
    class Doubled(kind):
        def conjugate_gradient(self, z, out=None):
            point = super().conjugate_gradient(z, out)
            point *= 2.0
            return point

    arguments = () if kind is Euclidean else (12.0,)
    objective = OBJECTIVES["least squares"]()
    uplink, done = answer(objective, Doubled(*arguments), Zero(), "tracked_dual_averaging")
    plain, _ = answer(objective, kind(*arguments), Zero(), "tracked_dual_averaging")
    assert done is None
    assert np.abs(uplink.vectors["increment"] - plain.vectors["increment"]).max() > 1e-3


def _first_row(self, rng, work, per_step=1):
    for _ in range(work.num_draws(self.num_examples, per_step)):
        yield np.array([0])


def test_batches_of_ones_own_are_taken():
    own = type("Own", (LeastSquares,), {"batches": _first_row})(DATA, TARGETS)
    uplink, done = answer(own, Euclidean(), Zero(), "dual_averaging")
    assert done is None
    dual = DUAL.copy()
    objective = LeastSquares(DATA, TARGETS)
    for _ in range(9):
        dual -= 0.05 * objective.gradient(dual, np.array([0]))
    np.testing.assert_allclose(uplink.vectors["increment"], dual - DUAL, rtol=1e-12, atol=1e-14)
