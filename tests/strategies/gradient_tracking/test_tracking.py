"""Gradient tracking, with a server or on a graph: against plain NumPy, its centralised form and the optimum."""

from functools import partial

import numpy as np
import pytest
from faulty import FAULTS, VICTIM, faulty_run, leave
from numpy.testing import assert_allclose
from problems import D, arrays_of, clients, crossed, flat, optimum, problem, run, start_arrays, started, trackers_of
from scipy import sparse

import flwr_fco as fco
from flwr_fco import topology
from flwr_fco.core.layout import SparseVector
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Node
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import DFedDA, DFedDAGT, DReFedDAGT, FedDAGT, run_of

EQUAL = (20, 20, 20, 20)
FOUR_STEPS = fco.Steps(4, batch_size=None)
OPTIONS = {"client_lr": 0.02, "work": FOUR_STEPS, "weighting": "uniform"}
SPARSE = partial(fco.FedDualAvg, density=0.3)


def grad_conjugate(z, p):
    """The paper's map, straight from its formula."""
    n = np.sum(np.abs(z) ** p) ** (1 / p)
    return n / (p - 1) * np.abs(z / n) ** (p - 1) * np.sign(z) if n else np.zeros_like(z)


def relative(a, b):
    return float(np.abs(a - b).max() / max(1e-300, np.abs(b).max()))


@pytest.mark.parametrize(
    ("kind", "p", "more"),
    [(FedDAGT, 3.0, {"tracker_start": "zero", "mirror_map": fco.PNorm(3.0)}), (fco.Scaffold, 2.0, {})],
    ids=["equation 4 with the erratum", "SCAFFOLD as printed"],
)
def test_with_some_of_the_clients_it_is_the_printed_algorithm(kind, p, more):
    objectives = clients(EQUAL)
    sampled = []

    class Noting(kind):
        def aggregate_train(self, server_round, replies):
            sampled.append([node.partition_id for node in run_of(self).current.nodes.values()])
            return super().aggregate_train(server_round, replies)

    strategy = Noting(fraction_train=0.5, min_train_nodes=1, server_lr=0.7, **OPTIONS, **more)
    result = run(strategy, objectives, 25)
    z, c, own = np.zeros(D), np.zeros(D), np.zeros((4, D))
    for sample in sampled:
        increments, changes = [], []
        for m in sample:
            end = z.copy()
            for _ in range(4):
                end -= 0.02 * (objectives[m].gradient(grad_conjugate(end, p)) + c - own[m])
            increments.append(end - z)
            changes.append(-c - (end - z) / 0.08)
        for m, change in zip(sample, changes, strict=True):
            own[m] += change
        z = z + 0.7 * np.mean(increments, axis=0)
        c = c + len(sample) / 4 * np.mean(changes, axis=0)
    assert len({tuple(sample) for sample in sampled}) > 2
    assert relative(flat(result.arrays), grad_conjugate(z, p)) <= 1e-10
    assert relative(strategy.state.control, own.mean(axis=0)) <= 1e-10


@pytest.mark.parametrize(("start", "sampled"), [("gradient", 4), ("zero", 4), ("zero", 2)])
def test_tracking_sends_one_more_vector_down_where_the_control_is_not_zero(start, sampled):
    strategy = FedDAGT(tracker_start=start, fraction_train=sampled / 4, **OPTIONS)
    metrics = run(strategy, clients(EQUAL), 4).train_metrics_clientapp
    vectors = [(row["bytes-down"] / (8 * D * sampled), row["bytes-up"] / (8 * D * sampled)) for row in metrics.values()]
    assert vectors == [(2 if start == "gradient" else 1, 1), (2, 1), (2, 1), (2, 1)]


@pytest.mark.parametrize(("kind", "first"), [(FedDAGT, 1), (DFedDAGT, 1), (fco.ReFedDAGT, 0), (SPARSE, 1)])
def test_outputs_are_means_of_the_primals(kind, first):
    """The restricted average is of the points in which rounds began."""
    points = [np.linspace(0, 1, D)]
    run(kind(**OPTIONS), clients(EQUAL), 9, start=points[0], callbacks=[lambda n, a, m: points.append(flat(a))])
    average = run(kind(output=fco.Average(), **OPTIONS), clients(EQUAL), 9, start=points[0])
    assert_allclose(flat(average.arrays), np.mean(points[first:][:9], axis=0), rtol=1e-12, atol=1e-14)


# --- on graphs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [DFedDA, DFedDAGT, DReFedDAGT])
def test_a_graph_may_be_given_by_its_matrix(kind):
    matrix = topology.chain(4).mixing
    for given in (matrix, matrix.tolist(), list(matrix)):
        np.testing.assert_array_equal(kind(mixing=given).prepare(start_arrays()).graph.topology.mixing, matrix)


@pytest.mark.parametrize("psi", [fco.Zero(), fco.L1(0.3)])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_the_complete_graph_is_the_centralised_method(psi, batch_size):
    """U = 11'/M, also with psi and minibatches; unequal work is normalised on both sides."""
    work = fco.Steps(4, batch_size=batch_size)
    more = {**OPTIONS, "regularizer": psi, "work": work, "mirror_map": fco.PNorm(3.0), "server_lr": 0.7}
    for graph, central in [(DFedDAGT, FedDAGT), (DFedDA, fco.FedDA), (DReFedDAGT, fco.ReFedDAGT)]:
        for own in (a := graph(mixing="complete", **more), b := central(**more)):
            run(own, clients(EQUAL), 20)
        assert relative(a.state.dual, np.repeat(b.state.dual[None], 4, axis=0)) <= 1e-10, graph.__name__


def test_the_metrics_name_consensus_and_trackers():
    strategy = DFedDAGT(mixing="ring", **OPTIONS)
    metrics = run(strategy, clients(EQUAL), 3).train_metrics_clientapp[3]
    points, trackers = strategy.state.dual, strategy.state.trackers
    assert metrics["consensus-error"] == pytest.approx(np.sqrt(((points - points.mean(0)) ** 2).sum() / 4))
    assert metrics["tracker-norm"] == pytest.approx(np.sqrt((trackers**2).sum() / 4))


def test_a_graph_of_another_size_is_refused_and_one_that_falls_apart_named(caplog):
    with pytest.raises(ConfigurationError, match="3 nodes, but 4"):
        run(DFedDA(mixing=topology.chain(3), **OPTIONS), clients(EQUAL), 1)
    graph = DFedDA(mixing="star").prepare(start_arrays()).graph
    for first in (0, 1, 5):
        graph.notice([Node(m, m) for m in range(first, 5)])
    assert "nodes [0] of the graph have left, or do not answer; the others are 4 parts" in caplog.text
    with pytest.raises(ConfigurationError, match="no node of the graph is left"):
        graph.members([Node(m, m) for m in range(5, 10)])


def check_sums(strategy, grid, number, metrics):
    trackers = strategy.state.trackers
    here = [m for m in range(len(trackers)) if m not in run_of(strategy).graph.gone]
    assert np.abs(trackers[here].sum(axis=0)).max() <= 1e-10 * max(1e-300, np.abs(trackers).max()), f"round {number}"


#: A strategy, a fault or who leaves for good, and after how many rounds it is at the optimum.
TROUBLE = [
    *((DFedDAGT, {"client_lr": 0.1, "mixing": "ring"}, fault, 85) for fault in FAULTS),
    *((DReFedDAGT, {"client_lr": 0.2, "mixing": "complete"}, fault, 38) for fault in FAULTS),
    (DFedDAGT, {"client_lr": 0.05, "mixing": "ring", "fraction_train": 0.6}, "a sample", 330),
    (DFedDAGT, {"client_lr": 0.03, "mixing": "chain"}, 4, 205),
    (DFedDAGT, {"client_lr": 0.2, "mixing": "complete"}, 0, 40),
    # One that fails in all rounds has left, but in its state.
    (DFedDAGT, {"client_lr": 0.05, "mixing": "ring"}, range(3, 999), 230),
]


@pytest.mark.parametrize("case", TROUBLE)
def test_whatever_happens_trackers_sum_to_zero_and_the_optimum_is_reached(case):
    kind, options, trouble, num_rounds = case
    rounds = trouble if isinstance(trouble, range) else (3, 4, 9)
    gone = {trouble} - {*FAULTS, "a sample"} if trouble != rounds else {VICTIM}
    strategy = kind(work=FOUR_STEPS, **options)
    fault = FAULTS.get("raises" if trouble == rounds else trouble)
    when = {"rounds": rounds, "before": leave(trouble) if gone and not fault else None}
    w, grid, result = faulty_run(strategy, fault, num_rounds=num_rounds, check=check_sums, **when)
    assert run_of(strategy).graph.gone == gone
    rest = [f for m, f in enumerate(problem()) if m not in gone]
    assert np.abs(w - optimum(rest, np.ones(len(rest)))).max() <= 1e-8
    if fault:
        assert len(grid.injected) >= 3
        assert result.train_metrics_clientapp[num_rounds]["consensus-error"] <= 1e-8


# --- on sparse features: the numbers of dense ones; messages, memories and ledger by touched columns ------------------

COLUMNS = 400


def rows_of(partition, seed=0):
    rng = np.random.default_rng([seed, partition])
    return sparse.random_array((10 + partition, COLUMNS), density=0.02, rng=rng, format="csr")


def run_sparse(kind, options, form="sparse", rounds=6, since=99):
    """Run on five clients with few columns each, one with others since a round; return strategy, result, grid."""
    done = [0]

    def load(context):
        partition = context.node_config["partition-id"]
        rows = rows_of(partition, int(partition == 1 and done[-1] >= since))
        whole = form == "dense" or (form == "mixed" and partition == 2)
        return fco.Logistic(rows.toarray() if whole else rows, np.arange(rows.shape[0]) % 2)

    # Every message loads the data anew.
    grid = InProcessGrid(fco.client_app(load, max_objectives=1), 5, raise_errors=False)
    given = {"regularizer": fco.L1(0.001), "client_lr": 0.5, "work": fco.Epochs(1, batch_size=4), "seed": 1, **options}
    strategy = kind(**given, fraction_evaluate=0.0)
    start = arrays_of({"coefficients": np.zeros(COLUMNS), "intercept": np.zeros(1)})
    return strategy, started(strategy, grid, rounds, start, callbacks=[lambda number, *_: done.append(number)]), grid


SPARSE = {
    "everybody": (FedDAGT, {}),
    "from zero": (FedDAGT, {"tracker_start": "zero"}),
    "a sample": (FedDAGT, {"fraction_train": 0.4}),
    "no two alike": (FedDAGT, {"normalize_local_work": False}),
    "uniform": (FedDAGT, {"weighting": "uniform", "server_lr": 0.7}),
    "decaying": (FedDAGT, {"client_lr": lambda number: 0.5 / number, "fraction_train": 0.4}),
    "groups": (FedDAGT, {"regularizer": fco.GroupLasso(0.01, groups=np.arange(COLUMNS) // 2)}),
    "SCAFFOLD": (fco.Scaffold, {}),
}


@pytest.mark.parametrize(("case", "form"), crossed(SPARSE, ["sparse", "mixed"]))
def test_numbers_are_those_of_dense_features(case, form):
    expected, dense, _ = run_sparse(*SPARSE[case], "dense")
    found, result, _ = run_sparse(*SPARSE[case], form)
    for name in ("dual", "control"):
        own = getattr(expected.state, name)
        assert_allclose(getattr(found.state, name), own, rtol=0, atol=1e-12 * np.abs(own).max())
    for number, metrics in result.train_metrics_clientapp.items():
        for name, value in dense.train_metrics_clientapp[number].items():
            if name in ("tracker-norm", "objective", "elapsed", "num-left-out"):
                assert metrics[name] == pytest.approx(value, rel=1e-9)
    for key, tracker in trackers_of(expected).items():
        assert_allclose(trackers_of(found)[key], tracker, rtol=0, atol=1e-13)


def test_all_that_a_client_sends_gets_and_remembers_is_at_its_columns():
    strategy, result, grid = run_sparse(fco.Scaffold, {})
    counts = [np.unique(rows_of(m).indices).size + 1 for m in range(5)]
    last = result.train_metrics_clientapp[6]
    assert last["bytes-up"] == 12 * sum(counts)
    assert last["bytes-down"] <= 2 * 12 * sum(counts)
    for (_, partition), member in strategy.memories.members.items():
        assert isinstance(member.memory["own"], SparseVector)
        assert member.memory["own"].indices.size == counts[partition]
    for context in grid.contexts.values():
        held = sum(len(array.data) for record in context.state.values() for array in record.values())
        assert held <= 4 * (12 * max(counts) + 256)


def test_a_client_whose_features_change_is_asked_again_and_goes_on():
    strategy, result, _ = run_sparse(FedDAGT, {}, rounds=12, since=4)
    assert 1 <= len(result.left_out) <= 2
    weights = np.arange(10.0, 15.0)
    trackers = np.array([*trackers_of(strategy).values()])
    assert np.abs(weights @ trackers).max() <= 1e-12 * np.abs(trackers).max() * weights.sum()
