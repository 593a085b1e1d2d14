"""Gradient tracking without a server in between: what the algorithms are, against plain NumPy."""

import numpy as np
import pytest
from problems import D, clients, flat, run
from tracking import EQUAL, grad_conjugate, options, relative, traffic

from flwr_fco.mirror_maps import PNorm
from flwr_fco.strategies import Average, DFedDAGT, FedDAGT, ReFedDAGT, Scaffold, run_of

# --- the printed algorithms ---------------------------------------------------------------------------------------


def noting(cls, sampled):
    """Return a strategy that notes whom each round asks."""

    class Noting(cls):
        def aggregate_train(self, server_round, replies):
            sampled.append([node.partition_id for node in run_of(self).current.nodes.values()])
            return super().aggregate_train(server_round, replies)

    return Noting


# --- partial participation ----------------------------------------------------------------------------------------


def test_partial_participation_is_equation_4_with_the_erratum():
    objectives = clients(EQUAL)
    sampled = []
    strategy = noting(FedDAGT, sampled)(
        tracker_start="zero", fraction_train=0.5, min_train_nodes=1, mirror_map=PNorm(3.0), **options(server_lr=0.7)
    )
    run(strategy, objectives, 25)
    z = np.zeros(D)
    c = np.zeros(D)
    own = np.zeros((4, D))
    for sample in sampled:
        increments, changes = [], []
        for m in sample:
            end = z.copy()
            for _ in range(4):
                end -= 0.02 * (objectives[m].gradient(grad_conjugate(end, 3.0)) + c - own[m])
            increments.append(end - z)
            changes.append(-c - (end - z) / 0.08)
        for m, change in zip(sample, changes, strict=True):
            own[m] += change
        z = z + 0.7 * np.mean(increments, axis=0)
        c = c + len(sample) / 4 * np.mean(changes, axis=0)
    assert len({tuple(sample) for sample in sampled}) > 2
    assert relative(strategy.state.dual, z) <= 1e-10
    assert relative(strategy.state.control, own.mean(axis=0)) <= 1e-10


def test_scaffold_is_the_printed_one():
    objectives = clients(EQUAL)
    sampled = []
    strategy = noting(Scaffold, sampled)(fraction_train=0.5, min_train_nodes=1, **options(server_lr=0.7))
    result = run(strategy, objectives, 25)
    theta = np.zeros(D)
    c = np.zeros(D)
    own = np.zeros((4, D))
    for sample in sampled:
        moves, changes = [], []
        for m in sample:
            end = theta.copy()
            for _ in range(4):
                end -= 0.02 * (objectives[m].gradient(end) - own[m] + c)
            moves.append(end - theta)
            new = own[m] - c + (theta - end) / (4 * 0.02)
            changes.append(new - own[m])
            own[m] = new
        theta = theta + 0.7 * np.mean(moves, axis=0)
        c = c + len(sample) / 4 * np.mean(changes, axis=0)
    assert relative(flat(result.arrays), theta) <= 1e-10
    assert relative(strategy.state.control, own.mean(axis=0)) <= 1e-10


# --- traffic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "sampled"), [("gradient", 4), ("zero", 4), ("zero", 2)])
def test_tracking_sends_one_more_vector_down_where_the_control_is_not_zero(start, sampled):
    values, _ = traffic(FedDAGT(tracker_start=start, fraction_train=sampled / 4, **options()))
    plain = [(sampled * D, sampled * D)]
    first = {0: plain} if start == "gradient" else {1: plain}
    assert values == {**{number: [(2 * sampled * D, sampled * D)] for number in range(1, 5)}, **first}


# --- outputs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [FedDAGT, DFedDAGT])
def test_outputs_are_means_of_the_primals(cls):
    objectives = clients(EQUAL)
    points = []
    last = cls(**options())
    run(last, objectives, 9, callbacks=[lambda n, arrays, m: points.append(flat(arrays))])
    average = run(cls(output=Average(), **options()), objectives, 9)
    np.testing.assert_allclose(flat(average.arrays), np.mean(points, axis=0), rtol=1e-12, atol=1e-14)


def test_the_restricted_average_is_of_the_points_in_which_rounds_began():
    points = [np.linspace(0, 1, D)]
    run(ReFedDAGT(**options()), clients(EQUAL), 6, start=points[0], callbacks=[lambda n, a, m: points.append(flat(a))])
    average = run(ReFedDAGT(output=Average(), **options()), clients(EQUAL), 6, start=points[0])
    np.testing.assert_allclose(flat(average.arrays), np.mean(points[:-1], axis=0), rtol=1e-12, atol=1e-14)
