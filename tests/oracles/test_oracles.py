"""The strategies, through `simulate`, against an implementation from the paper.

(D)FedDA and its relatives, written from Liang, Peng, Zhang, algorithms 1 to 3; NumPy only. Rows are clients, U is the
gossip matrix (11'/M without a graph). h(w) = ||w||_q^2 / (2 (q - 1)), 1/p + 1/q = 1.
"""

import pickle

import numpy as np
import pytest
from problems import app_of, arrays_of, quadratics, simulated

from flwr_fco import DFedDA, DFedDAGT, DReFedDAGT, FedDAGT, MultistepReFedDAGT, PNorm, ReFedDAGT, Steps
from flwr_fco.strategies import Reference, Stage
from flwr_fco.topology import chain

COUNT, SIZE, ROUNDS, STEPS, P = 4, 6, 12, 5, 4.0
Q = P / (P - 1)
RATES = {"client_lr": 0.02, "server_lr": 0.7}
START = np.linspace(-1.0, 1.0, SIZE)


def mapped(w, r):
    """Return the gradient of ||w||_r^2 / (2 (r - 1)): with r = q grad h, from points to duals, with r = p grad h*."""
    norm = np.linalg.norm(w, r)
    return np.zeros_like(w) if norm == 0 else norm ** (2 - r) * np.abs(w) ** (r - 1) * np.sign(w) / (r - 1)


def tracked(gradients, start, mixing, *, rounds=ROUNDS, tracking=True, radius_squared=None, seen=None):
    """Return the duals after the rounds: DFedDA(-GT), or with `radius_squared` ReFedDA-GT around the start.

    `seen` gets the mean over the nodes of their points after each round.
    """
    client_lr, server_lr = RATES.values()
    restricted = radius_squared is not None

    def point(z):
        w = mapped(z, P)
        if not restricted:
            return w  # algorithm 1, line 7: w <- grad h*(z)
        excess = np.linalg.norm(z, P) / ((P - 1) * np.sqrt(radius_squared)) - 1
        return start + w / (1 + max(excess, 0.0))  # algorithm 2: the q-ball of radius sqrt(Q) around the start

    duals = np.tile(np.zeros_like(start) if restricted else mapped(start, Q), (COUNT, 1))  # Z_0 <- grad h(w_0)
    trackers = np.zeros((COUNT, start.size))  # C_0 <- 0
    for _ in range(rounds):
        ends = duals.copy()
        for m, gradient in enumerate(gradients):
            for _ in range(STEPS):  # z_{r,k+1} <- z_{r,k} - eta_c (g(w_{r,k}) + c_r)
                ends[m] = ends[m] - client_lr * (gradient(point(ends[m])) + trackers[m])
        if tracking:  # C_{r+1} <- C_r + (I - U) (Z_{r,K} - Z_r) / (K eta_c)
            move = (ends - duals) / (STEPS * client_lr)
            trackers = trackers + move - mixing @ move
        duals = mixing @ (duals + server_lr * (ends - duals))  # Z_{r+1} <- U (Z_r + eta_s (Z_{r,K} - Z_r))
        if seen is not None:
            seen.append(np.mean([point(z) for z in duals], axis=0))
    return duals


def staged(gradients, start, mixing, *, radius_squared, stages, sparsity, window, newest):
    """Return the reference after the stages: algorithm 3, with the mean of the last points of a stage, at most all.

    The authors' public code runs it on a graph as well: the mean is over the nodes too. It takes the points in which
    rounds end; printed are those in which they begin.
    """
    reference = start
    for n, rounds in enumerate(stages):
        seen = []
        tracked(gradients, reference, mixing, radius_squared=radius_squared / 2**n, rounds=rounds, seen=seen)
        points = seen if newest else [reference, *seen[:-1]]
        mean = np.mean(points[-(window or rounds) :], axis=0)
        kept = np.argsort(-np.abs(mean))[:sparsity]  # Sparse(., s): the s largest entries
        reference = np.zeros_like(mean)
        reference[kept] = mean[kept]
    return reference


def run(kind, graph, **options):
    """Return the strategy's state after its rounds, the gradients, and the matrix of its network."""
    given = RATES | {"work": Steps(STEPS, batch_size=None), "fraction_evaluate": 0.0, "mirror_map": PNorm(P)}
    strategy = kind(**given, **({"mixing": "chain"} if graph else {}), **options)
    objectives = quadratics(COUNT, SIZE)
    start = arrays_of(objectives[0].layout.unflatten(START))
    simulated(strategy, app_of(objectives), ROUNDS, num_nodes=COUNT, initial_arrays=start)
    mixing = chain(COUNT).mixing if graph else np.full((COUNT, COUNT), 1.0 / COUNT)
    return strategy.state, [own.gradient for own in objectives], mixing


def agree(ours, oracle):
    assert np.abs(oracle).max() > 0.01
    np.testing.assert_allclose(ours, oracle, rtol=0, atol=1e-12 * np.abs(oracle).max())


METHODS_OF_ORACLES = [
    (DFedDA, True, {}, {"tracking": False}),
    (DFedDAGT, True, {"tracker_start": "zero"}, {}),
    (FedDAGT, False, {"tracker_start": "zero"}, {}),
    (ReFedDAGT, False, {"radius_squared": 1.5}, {"radius_squared": 1.5}),
    (DReFedDAGT, True, {"radius_squared": 1.5}, {"radius_squared": 1.5}),
]


@pytest.mark.parametrize(("kind", "graph", "options", "more"), METHODS_OF_ORACLES)
def test_gradient_tracking(kind, graph, options, more):
    state, gradients, mixing = run(kind, graph, **options)
    oracle = tracked(gradients, START, mixing, **more)
    agree(state.dual, oracle if graph else oracle[0])


@pytest.mark.parametrize(("kind", "graph"), [(MultistepReFedDAGT, False), (DReFedDAGT, True)])
@pytest.mark.parametrize(("window", "newest"), [(None, False), (3, True), (6, False), (9, True)])
def test_stages(kind, graph, window, newest):
    """Also with a window that is longer than the second stage, or than each of them."""
    reference = Reference(sparsity=4, window=window, newest=newest)
    stages = [Stage(7), Stage(5), Stage(1)]
    state, gradients, mixing = run(kind, graph, radius_squared=1.5, stages=stages, reference=reference)
    given = {"stages": (7, 5), "sparsity": 4, "window": window, "newest": newest, "radius_squared": 1.5}
    oracle = staged(gradients, START, mixing, **given)
    assert (np.count_nonzero(oracle), np.count_nonzero(state.dual)) == (4, 0)
    agree(pickle.loads(pickle.dumps(state)).reference, oracle)
