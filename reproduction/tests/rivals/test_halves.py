"""Both halves of the rivals without Flower: the papers' boxes written out, equalities and fixed points."""

from dataclasses import replace

import numpy as np
import pytest
from halves import find_solver
from playing import EXACT, MU, TOP, UNEQUAL, Clients, D, begins_where_it_ended, play_fed_dr, remembers
from quadratics import Quadratic, quadratics

from flwr_fco.algorithms import MeanState
from flwr_fco.engines import FirstOrder, Minimise
from reproduction.rivals import apda_inexact as apda_rule
from reproduction.rivals import fed_cm as fed_cm_rule
from reproduction.rivals import fed_dyn as fed_dyn_rule

apda_inexact, client_momentum, fed_pd, five_gcs, sharpness_aware = map(
    find_solver, ("apda_inexact", "client_momentum", "fed_pd", "five_gcs", "sharpness_aware")
)
fed_dyn, fed_prox, scaffnew = map(find_solver, ("fed_dyn", "fed_prox", "scaffnew"))


def play_fed_dyn(objectives, rounds, alpha, weights=None, start=None):
    clients = Clients(fed_dyn, objectives, weights)
    state = MeanState(np.zeros(D) if start is None else start, np.zeros(D))
    path = [state]
    for _ in range(rounds):
        state = fed_dyn_rule.advance(state, clients.ask({"primal": state.primal}, penalty=alpha), alpha)
        path.append(state)
    return clients, path


def play_scaffnew(objectives, rounds, gamma, p, weights=None, coin=None):
    clients, primal = Clients(scaffnew, objectives, weights), np.zeros(D)
    coin = coin or np.random.default_rng(1)
    path = [primal]
    for _ in range(rounds):
        work = FirstOrder(steps=int(coin.geometric(p)), batch_size=None)
        primal = primal + clients.ask({"primal": primal}, client_lr=gamma, work=work, probability=p, last_rate=gamma)
        path.append(primal)
    return clients, path


def play_fed_pd(objectives, rounds, eta, weights=None, start=None, work=EXACT):
    clients, primal = Clients(fed_pd, objectives, weights, work), np.zeros(D) if start is None else start
    path = [primal]
    for _ in range(rounds):
        primal = primal + clients.ask({"primal": primal}, step=eta)
        path.append(primal)
    return clients, path


def play_apda(objectives, rounds, eta_x=0.25, beta_y=0.1, weights=None):
    eta_y = 1 / (32 * eta_x)
    clients, state = Clients(apda_inexact, objectives, weights), MeanState(np.zeros(D), np.zeros(D))
    for n in range(rounds):
        vectors = {"primal": state.primal} if n == 0 else {"dual-mean": state.mean}
        numbers = {"primal_step": eta_x, "dual_step": eta_y, "damping": beta_y, "convexity": MU}
        mean = clients.ask(vectors, **numbers)
        state = apda_rule.advance(state, mean, clients.mean("local-increment"))
    return clients, state


def play_primal(solver, objectives, rounds, rate, steps, **numbers):
    clients, state = Clients(solver, objectives), fed_cm_rule.FedCMState(np.zeros(D), np.zeros(D))
    work = FirstOrder(steps=steps, batch_size=None)
    for _ in range(rounds):
        vectors = {"primal": state.primal, "direction": state.direction}
        mean = clients.ask(vectors, client_lr=rate, work=work, **numbers)
        state = fed_cm_rule.advance(state, mean, rate * steps)
    return state.primal


# --- equalities and fixed points --------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", [None, UNEQUAL])
def test_fed_pd_and_fed_dr_and_fed_dyn_are_one_method(weights):
    objectives, eta = quadratics(), 0.3
    start = np.linspace(-1, 1, D)
    pd = play_fed_pd(objectives, 20, eta, weights, start)
    dr = play_fed_dr(objectives, 20, eta, 1.0, weights, start)
    dyn = play_fed_dyn(objectives, 20, 1 / eta, weights, start)
    np.testing.assert_allclose(pd[1], dr[1], atol=1e-11)
    np.testing.assert_allclose(pd[1], [state.primal for state in dyn[1]], atol=1e-11)
    for a, b in zip(pd[0].memories, dyn[0].memories, strict=True):
        np.testing.assert_allclose(a["dual"], -b["own"], atol=1e-10)


# --- the boxes of the papers, step by step ----------------------------------------------------------------------


def test_apda_inexact_takes_the_steps_of_its_box():
    objectives, eta_x, beta, rounds = quadratics(), 0.25, 0.1, 15
    eta_y = 1 / (32 * eta_x)
    theta = max(2 / (2 + MU * eta_x), 1 - beta * eta_y)
    x, before, y, gradients = np.zeros((5, D)), np.zeros((5, D)), np.zeros((5, D)), np.zeros((5, D))
    gradients = np.array([f.gradient(np.zeros(D)) for f in objectives])
    for _ in range(rounds):
        extrapolated = x + theta * (x - before)
        v = y - eta_y * beta * (y + gradients) + eta_y * extrapolated
        y = v - v.mean(axis=0)
        before = x
        # The exact proximal point, so x+ is x_hat.
        x = np.array(
            [
                np.linalg.solve(f.matrix + np.eye(D) / eta_x, f.vector + (a - eta_x * b) / eta_x)
                for f, a, b in zip(objectives, x, y, strict=True)
            ]
        )
        gradients = np.array([f.gradient(a) for f, a in zip(objectives, x, strict=True)])
    # The first message only says where the duals start.
    clients, state = play_apda(objectives, rounds + 1, eta_x, beta)
    np.testing.assert_allclose([memory["local"] for memory in clients.memories], x, atol=1e-11)
    np.testing.assert_allclose(state.primal, x.mean(axis=0), atol=1e-11)


def test_fed_cm_and_fed_sam_take_the_steps_of_their_boxes():
    objectives, rate, steps, alpha, radius = quadratics(), 0.02, 3, 0.3, 0.1
    x, direction, sharp = np.zeros(D), np.zeros(D), np.zeros(D)
    for _ in range(4):
        ends, sharp_ends = [], []
        for f in objectives:
            a, b = x.copy(), sharp.copy()
            for _ in range(steps):
                a = a - rate * (alpha * f.gradient(a) + (1 - alpha) * direction)
                g = f.gradient(b)
                b = b - rate * f.gradient(b + radius * g / np.linalg.norm(g))
            ends.append(a)
            sharp_ends.append(b)
        direction = -(np.mean(ends, axis=0) - x) / (rate * steps)
        x, sharp = np.mean(ends, axis=0), np.mean(sharp_ends, axis=0)
    np.testing.assert_allclose(play_primal(client_momentum, objectives, 4, rate, steps, mix=alpha), x, atol=1e-13)
    np.testing.assert_allclose(
        play_primal(sharpness_aware, objectives, 4, rate, steps, radius=radius), sharp, atol=1e-13
    )


class Counted(Quadratic):
    """Counts its gradients."""

    calls = 0

    def gradient(self, w, batch=None, out=None):
        self.calls += 1
        return super().gradient(w, batch, out)


@pytest.mark.parametrize(("radius", "a_step"), [(0.1, 2), (0.0, 1)])
def test_fed_sam_says_how_many_gradients_its_steps_cost(radius, a_step):
    objective = Counted(np.diag(np.arange(1.0, D + 1)), np.ones(D))
    clients = Clients(sharpness_aware, [objective])
    clients.ask({"primal": np.zeros(D)}, client_lr=0.02, work=FirstOrder(steps=7, batch_size=None), radius=radius)
    assert clients.uplinks[0].metrics["gradient-evaluations"] == objective.calls == 7 * a_step


# The first round of APDA-Inexact has no minimisation.
@pytest.mark.parametrize(("solver", "minimisations"), [(fed_pd, 2), (five_gcs, 2), (fed_dyn, 2), (apda_inexact, 1)])
def test_a_minimisation_begins_where_the_last_one_ended(solver, minimisations, monkeypatch):
    begins_where_it_ended(solver, monkeypatch, minimisations)


def test_scaffnew_takes_the_steps_of_its_box_with_the_same_coin():
    objectives, gamma, p, rounds = quadratics(), 0.7 / TOP, 0.3, 12
    path = play_scaffnew(objectives, rounds, gamma, p, coin=np.random.default_rng(5))[1]
    x, h = np.zeros((5, D)), np.zeros((5, D))
    coin = np.random.default_rng(5)
    for point in path[1:]:
        for toss in reversed(range(coin.geometric(p))):
            ahead = np.array([a - gamma * (f.gradient(a) - b) for f, a, b in zip(objectives, x, h, strict=True)])
            x = np.tile(ahead.mean(axis=0), (5, 1)) if toss == 0 else ahead
            h = h + (p / gamma * (x - ahead) if toss == 0 else 0.0)
        np.testing.assert_allclose(point, x[0], atol=1e-12)


def half_of_the_increment(before, point, vectors):
    moved = 0.5 * (vectors["increment"] - 0.4 * before["dual"])
    return {"dual": before["dual"] + moved / 0.4, "local": point + moved}


#: The memory after a round, of the one before, the server's point and what was sent.
MEMORIES = {
    fed_pd: half_of_the_increment,
    five_gcs: lambda b, x, v: {"dual": b["dual"] + v["increment"], "local": x - v["increment"] / 1.0},
    apda_inexact: lambda b, x, v: {"sent": b["sent"] + v["increment"], "local": b["local"] + v["local-increment"]},
    fed_dyn: lambda b, x, v: {"own": b["own"] - 2.0 * v["increment"], "local": x + v["increment"]},
}


@pytest.mark.parametrize("solver", MEMORIES)
def test_a_memory_is_a_function_of_the_messages(solver):
    remembers(solver, MEMORIES[solver])


@pytest.mark.parametrize("solver", [scaffnew, fed_dyn])
def test_where_a_client_has_ended_is_what_it_has_sent(solver):
    """The server's ledger knows the rounded increment alone."""
    clients = Clients(solver, quadratics(count=1), work=Minimise(tolerance=1e-3))
    clients.plan = replace(clients.plan, wire_dtype="float32")
    primal = np.linspace(-1, 1, D)
    work = FirstOrder(steps=3, batch_size=None) if solver is scaffnew else None
    increment = clients.ask({"primal": primal}, client_lr=0.03, work=work, probability=0.3, last_rate=0.03, penalty=0.5)
    assert (increment == increment.astype(np.float32)).all()
    np.testing.assert_array_equal(clients.memories[0]["local"], primal + increment)
