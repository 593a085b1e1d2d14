"""A compiled epoch of dual averaging takes the steps of the loop over minibatches."""

import numpy as np
import pytest
from halves import find_solver

from flwr_fco.engines.client import compiled_steps
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


def stepwise(objective):
    """Return the same objective with batches of its own: nobody may skip those."""

    class Stepwise(type(objective)):
        def batches(self, rng, work, per_step=1):
            yield from super().batches(rng, work, per_step)

    twin = Stepwise.__new__(Stepwise)
    vars(twin).update(vars(objective))
    return twin


def answer(objective, mirror_map, psi, solver, **options):
    """Return what the client sends after nine steps of five rows, and how many of them were in a compiled loop."""
    plan = Plan(solver, objective.layout, psi, mirror_map, work=FirstOrder(steps=9, batch_size=5), options=options)
    vectors = {"dual": DUAL, **({"tracker": TRACKER} if solver == "tracked_dual_averaging" else {})}
    downlink = Downlink(plan, vectors, 0.05, 0.7)
    uplink, _ = find_solver(solver)(downlink, objective, None, np.random.default_rng(1))
    dual = DUAL.copy()
    pairs = solver == "dual_extrapolation"
    done = compiled_steps(downlink, objective, dual, np.random.default_rng(1), pairs=pairs)
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
    assert (done, not_done) == (9, None)
    assert fused.steps == loop.steps == 9
    expected = loop.vectors["increment"]
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(fused.vectors["increment"], expected, rtol=0, atol=1e-13 * np.abs(expected).max())


def test_without_client_prox_psi_does_not_act():
    objective = OBJECTIVES["least squares"]()
    without, _ = answer(objective, Euclidean(), L1(0.3), "dual_averaging", client_prox=False)
    expected, _ = answer(objective, Euclidean(), Zero(), "dual_averaging")
    with_psi, _ = answer(objective, Euclidean(), L1(0.3), "dual_averaging")
    assert (without.vectors["increment"] == expected.vectors["increment"]).all()
    assert np.abs(with_psi.vectors["increment"] - expected.vectors["increment"]).max() > 1e-3


class Doubled(Euclidean):
    """A map of a user that derives from ours, and is another one."""

    def conjugate_gradient(self, z, out=None):
        return np.multiply(z, 2.0, out=out)


class DoubledNorm(PNorm):
    """Another one."""

    def conjugate_gradient(self, z, out=None):
        point = super().conjugate_gradient(z, out)
        point *= 2.0
        return point


class FirstRow(LeastSquares):
    """It has batches of its own."""

    def batches(self, rng, work, per_step=1):
        yield from [np.array([0])] * work.num_draws(self.num_examples, per_step)


@pytest.mark.parametrize(
    ("mirror_map", "psi", "kind"),
    [
        # A norm, a root find or weights of its own in each step.
        (Euclidean(), L2(0.3), LeastSquares),
        (PNorm(12.0, center=CENTER), L1(0.3), LeastSquares),
        (DiagonalMetric(np.linspace(1.0, 2.0, FEATURES + 1)), L1(0.3), LeastSquares),
        (Doubled(), Zero(), LeastSquares),
        (DoubledNorm(12.0), Zero(), LeastSquares),
        (Euclidean(), Zero(), FirstRow),
    ],
)
def test_what_a_compiled_loop_cannot_do_is_done_step_by_step(mirror_map, psi, kind):
    objective = kind(DATA, TARGETS)
    layout = objective.layout
    uplink, done = answer(objective, mirror_map, psi, "dual_averaging")
    assert (uplink.steps, done) == (9, None)
    dual = DUAL.copy()
    h, bound = mirror_map.bind(layout), psi.bind(layout)
    for k, rows in enumerate(objective.batches(np.random.default_rng(1), FirstOrder(steps=9, batch_size=5))):
        point = h.conjugate_gradient(dual) if psi == Zero() else h.retrieve(dual, 0.7 + 0.05 * k, bound)
        dual -= 0.05 * objective.gradient(point, rows)
    np.testing.assert_allclose(uplink.vectors["increment"], dual - DUAL, rtol=1e-9, atol=1e-12)
