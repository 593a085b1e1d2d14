"""Strategies against the papers, written again as plain NumPy loops, and against their theorems."""

import numpy as np
import pytest
from problems import FEATURES, D, Quadratic, clients, flat, nightly, optimum, problem, quadratics, run
from saddles import CASES

import flwr_fco as fco
from flwr_fco.algorithms import DualAveraging
from flwr_fco.core.computing import random_generator
from flwr_fco.mirror_maps import DiagonalMetric, PNorm
from flwr_fco.regularizers import L1
from flwr_fco.strategies import DualFL, Epochs, FedDualAvg, FedMid, LocalSGD, Minimise, Steps
from flwr_fco.work import FirstOrder
from reproduction.pooled import centralized_solution

ROUNDS = 7
ETA_C = 0.02
ETA_S = 0.7
LAMBDA = 0.4
SEED = 5
START = np.linspace(-1.0, 1.0, D)
WEIGHTS = np.linspace(0.5, 2.0, D)


def soft(v, a):
    """prox of a * l1 on the coefficients, written differently from the package's kernel."""
    w = v.copy()
    w[:FEATURES] = np.sign(v[:FEATURES]) * np.maximum(np.abs(v[:FEATURES]) - a, 0.0)
    return w


def batches(objective, number, partition, epochs, size):
    rng = random_generator(SEED, number, partition)
    for _ in range(epochs):
        order = rng.permutation(objective.num_examples)
        yield from (order[i : i + size] for i in range(0, objective.num_examples, size))


def paper(name, objectives, weights, normalize, d=1.0, momentum=0.0):
    """The box of a method, in the metric of h = 1/2 sum d_i w_i^2."""
    w = START
    z = d * START
    strength = 0.0 if name == "LocalSGD" else LAMBDA
    t = pace = velocity = 0.0
    for number in range(1, ROUNDS + 1):
        increments, works = [], []
        for m, objective in enumerate(objectives):
            point = w.copy()
            dual = z.copy()
            k = 0
            for rows in batches(objective, number, m, epochs=2, size=5):
                if name == "FedAvgSubgradient":
                    s = strength * np.append(np.sign(point[:FEATURES]), 0.0)
                    point = point - ETA_C * (objective.gradient(point, rows) + s)
                elif name in ("FedMid", "FedMidOSP", "LocalSGD"):
                    moved = d * point - ETA_C * objective.gradient(point, rows)
                    point = soft(moved, ETA_C * strength if name == "FedMid" else 0.0) / d
                else:
                    point = soft(dual, (t + ETA_C * k) * strength if name == "FedDualAvg" else 0.0) / d
                    dual = dual - ETA_C * objective.gradient(point, rows)
                k += 1
            increments.append(dual - z if "Dual" in name else point - w)
            works.append(ETA_C * k)
        work = weights @ works
        if normalize:
            increments = [i * work / own for i, own in zip(increments, works, strict=True)]
        velocity = momentum * velocity + ETA_S * (weights @ np.array(increments))
        pace = momentum * pace + ETA_S * work
        if name == "FedAvgSubgradient":
            w = w + velocity
        elif name in ("FedMid", "FedMidOSP", "LocalSGD"):
            w = soft(d * w + velocity, pace * strength) / d
        else:
            z = z + velocity
            t = t + pace
            w = soft(z, t * strength) / d
    return w


BOXES = [(kind, {}) for kind in (fco.FedAvgSubgradient, fco.FedMidOSP, FedDualAvg, fco.FedDualAvgOSP, LocalSGD, FedMid)]
# Printed so: the limit of the second is not the optimum.
BOXES += [(kind, {"mirror_map": DiagonalMetric(WEIGHTS)}) for kind in (FedDualAvg, FedMid)]
BOXES += [(FedDualAvg, {"server_momentum": 0.8})]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize(("strategy", "more"), BOXES)
def test_strategy_is_the_papers_box(strategy, more, weighting, normalize):
    objectives = clients()
    options = {"client_lr": ETA_C, "server_lr": ETA_S, "work": Epochs(2, batch_size=5), "seed": SEED, **more}
    psi = {} if strategy is LocalSGD else {"regularizer": L1(LAMBDA)}
    own = strategy(**options, **psi, weighting=weighting, normalize_local_work=normalize)
    result = run(own, objectives, ROUNDS, start=START)
    sizes = np.array([objective.num_examples for objective in objectives])
    weights = sizes / sizes.sum() if weighting == "examples" else np.full(len(sizes), 1 / len(sizes))
    metric = WEIGHTS if "mirror_map" in more else 1.0
    momentum = more.get("server_momentum", 0.0)
    expected = paper(strategy.__name__, objectives, weights, normalize, metric, momentum)
    np.testing.assert_allclose(flat(result.arrays), expected, rtol=0, atol=1e-13)


def test_a_schedule_that_leaves_the_positive_numbers_is_an_error():
    with pytest.raises(ValueError, match=r"client_lr\(2\)=0.0"):
        run(FedDualAvg(client_lr=lambda r: 2.0 - r, work=Epochs(1, batch_size=5)), clients(), 3)


# --- momentum and shadows ---------------------------------------------------------------------------------------------


class Recording(Quadratic):
    """It keeps the gradients that it has given."""

    given = ()

    def gradient(self, w, batch=None, out=None):
        self.given = [*self.given, super().gradient(w)]
        return super().gradient(w, batch, out)


def test_the_shadow_takes_the_mean_of_the_gradients_as_in_equation_45(monkeypatch):
    """Section 4.3 of Yuan, Zaheer, Reddi (2021), of each round: the clients' z_{r,k} for k = 1 .. K."""
    duals = []
    aggregate = DualAveraging.aggregate

    def record(self, problem, state, replies):
        duals.append(np.array([state.dual + uplink.vectors["trajectory"] for uplink in replies]))
        return aggregate(self, problem, state, replies)

    monkeypatch.setattr(DualAveraging, "aggregate", record)
    objectives = [Recording(own.matrix, own.vector) for own in quadratics(4, 12)]
    strategy = FedDualAvg(regularizer=L1(0.2), client_lr=0.1, output="shadow", work=Steps(6, batch_size=None))
    run(strategy, objectives, 5, start={"x": np.zeros(12)})
    gradients = np.mean([own.given for own in objectives], axis=0)
    shadow = np.concatenate([z.mean(axis=0) for z in duals])
    np.testing.assert_allclose(np.diff(shadow, axis=0, prepend=0.0), -0.1 * gradients, rtol=0, atol=1e-12)


# --- other geometries -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mirror_map", [PNorm.for_dimension(D), DiagonalMetric(WEIGHTS), *nightly(PNorm(3))])
def test_one_step_reaches_the_sparse_optimum_in_every_geometry(mirror_map):
    losses = [fco.LeastSquares(own.features, own.targets, scale=0.5) for own in clients()]
    options = {"client_lr": 0.4, "work": Steps(1, batch_size=None), "min_train_nodes": 4}
    result = run(FedDualAvg(regularizer=L1(0.2), mirror_map=mirror_map, **options), losses, 350, start=np.full(D, 0.1))
    optimal = centralized_solution(losses, L1(0.2), tol=1e-12)
    assert (optimal == 0.0).any()
    np.testing.assert_allclose(flat(result.arrays), optimal, rtol=0, atol=1e-6)


# --- minimisations ---------------------------------------------------------------------------------------------------


def test_dual_fl_takes_its_constants_from_theory():
    made = DualFL(nu=0.1, smoothness=2.0), DualFL(nu=0.1), DualFL(alpha=0.1, smoothness=0.9)
    assert [(strategy.nu, strategy.rho) for strategy in made] == [(0.1, 0.05), (0.1, 0.0), (0.1, pytest.approx(0.1))]


TOLERANCES = {"sublinear": lambda n: 1.0 / (5 * 0.05 * (n + 1) ** 4.5)}
TOLERANCES["linear"] = lambda n: ((1.0 - 0.01**0.5) / 1.5) ** n / 5


@pytest.mark.parametrize("schedule", TOLERANCES)
def test_the_tolerances_of_theorems_3_2_and_3_3_travel_with_every_round(schedule, monkeypatch):
    seen = []
    original = Minimise.stopping_norm

    def recorded(self, *options):
        seen.append(self)
        return original(self, *options)

    monkeypatch.setattr(Minimise, "stopping_norm", recorded)
    # With nu below mu, so that the gap is finite.
    strategy = DualFL(nu=0.05, rho=0.01, schedule=schedule, work=Minimise(tolerance=1e-5), gamma=0.5)
    run(strategy, problem(), 12)
    assert strategy.state.round == 12
    assert {work.rule for work in seen} == {"gap"}
    expected = [max(TOLERANCES[schedule](k // 5), 1e-5) for k in range(60)]
    np.testing.assert_allclose([work.tolerance for work in seen], expected, rtol=1e-12)


def test_a_warm_start_that_is_good_enough_is_an_answer():
    """Equal clients at their minimiser have nothing to do, and say so."""
    shard = clients((20,))[0]
    result = run(DualFL(nu=0.05), [shard] * 3, 6)
    last = result.train_metrics_clientapp[6]
    assert (last["num-replies"], last["skipped"], last["num-capped"]) == (3, 0, 0)
    np.testing.assert_allclose(flat(result.arrays), optimum([shard], [1.0]), atol=1e-9)


# --- saddle points ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("output", ["last", "ergodic"])
@pytest.mark.parametrize("kind", [fco.FeDualEx, fco.FedMiP])
def test_extra_steps_are_those_of_the_printed_algorithms(kind, output, case):
    """Of algorithm 1 ergodic points are those of the mean duals, by formula (4); of algorithm 2 means of half steps."""
    objective, psi, h = CASES[case]
    layout = objective.layout
    options = {"regularizer": psi, "mirror_map": h, "client_lr": 0.07, "server_lr": ETA_S, "seed": SEED}
    options["arrays"] = fco.Arrays(apply_to=layout.regularized_names)
    strategy = kind(**options, work=Steps(4, batch_size=3), output=output)
    psi, h = psi.bind(layout), h.bind(layout)
    start = h.retrieve(np.linspace(-1.0, 1.0, layout.size), 0.0, psi)
    of_duals = kind is fco.FeDualEx
    z = h.gradient(start) if of_duals else start
    elapsed = 0.0
    points = []
    for number in range(1, 4):
        ends, halves = [], []
        for m in range(3):
            batches = objective.batches(random_generator(SEED, number, m), FirstOrder(steps=8, batch_size=3))
            g = (lambda w, b=b: objective.gradient(w, b) for b in batches)
            end = z
            for k in range(4):
                t = elapsed + 0.07 * k
                if of_duals:
                    halves.append(end - 0.07 * next(g)(h.retrieve(end, t, psi)))
                    end = end - 0.07 * next(g)(h.retrieve(halves[-1], t + 0.07, psi))
                else:
                    halves.append(h.retrieve(h.gradient(end) - 0.07 * next(g)(end), 0.07, psi))
                    end = h.retrieve(h.gradient(end) - 0.07 * next(g)(halves[-1]), 0.07, psi)
            ends.append(end)
        for k in range(4):
            half = np.mean(halves[k::4], axis=0)
            points.append(h.retrieve(half, elapsed + 0.07 * (k + 1), psi) if of_duals else half)
        step = ETA_S * (np.mean(ends, axis=0) - z)
        z = z + step if of_duals else h.retrieve(h.gradient(z) + step, ETA_S * 0.28, psi)
        elapsed += ETA_S * 0.28
    last = h.retrieve(z, elapsed, psi) if of_duals else z
    result = run(strategy, [objective] * 3, 3, start=layout.unflatten(start))
    found = layout.flatten({name: array.numpy() for name, array in result.arrays.items()})
    np.testing.assert_allclose(found, np.mean(points, axis=0) if output == "ergodic" else last, atol=1e-13)


@pytest.mark.parametrize("kind", [fco.FeDualEx, fco.FedMiP])
def test_an_epoch_counts_batches_and_a_step_takes_two(kind):
    """17 rows in batches of 4 are five batches, three steps of two."""
    objective, psi, _ = CASES["adversarial"]
    start = objective.layout.unflatten(np.zeros(objective.layout.size))
    arrays = fco.Arrays(apply_to=objective.layout.regularized_names)
    strategy = kind(regularizer=psi, client_lr=0.1, work=Epochs(1, batch_size=4), arrays=arrays)
    metrics = run(strategy, [objective] * 2, 1, start=start).train_metrics_clientapp[1]
    assert (metrics["local-steps"], metrics["sum-of-step-sizes"]) == (3, pytest.approx(0.3))
