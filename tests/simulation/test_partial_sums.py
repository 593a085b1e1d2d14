"""Workers that send one weighted sum each: the usual run to rounding, or a refusal in words; and nothing is lost."""

import copy
import os
import signal

import numpy as np
import pytest
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAvg
from scipy import sparse

from flwr_fco.client_apps import client_app
from flwr_fco.client_apps.table import SOLVERS
from flwr_fco.core.elsewhere import Elsewhere
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.objectives import LeastSquares
from flwr_fco.privacy import GaussianDP
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, Processes, RayActors, WorkerGrid, simulate
from flwr_fco.simulation.partial_sums import KeptThere
from flwr_fco.strategies import FedAvgSubgradient, FedDAGT, FedDualAvg, Scaffold
from flwr_fco.wire import flower
from tests.fault_bars import STRATEGIES, make, problem_of
from tests.problems import app_of, clients, start_arrays


@pytest.fixture(scope="module")
def adding():
    with Processes(2, partial_sums=True) as both:
        yield both


def outcome(grid, strategy, start, rounds=6, **options):
    with flower.identity(grid.run_id), flower.quiet(50):
        result = strategy.start(grid, start, rounds, **options)
    arrays = np.concatenate([array.numpy().ravel() for array in result.arrays.values()])
    return arrays, {k: dict(v) for k, v in result.train_metrics_clientapp.items()}, strategy.left_out


def same(ours, theirs):
    assert np.linalg.norm(ours[0] - theirs[0]) <= 1e-12 * max(1.0, np.linalg.norm(theirs[0]))
    assert ours[2] == theirs[2]
    for number, metrics in theirs[1].items():
        assert ours[1][number] == pytest.approx(metrics, rel=1e-9, abs=1e-12)


def strategy(cls=FedDualAvg, **options):
    return cls(**{"regularizer": L1(0.1), "client_lr": 0.02, "fraction_evaluate": 0.0, **options})


def both_ways(adding, make_strategy, app, start, number=4, **options):
    here = outcome(InProcessGrid(app(), number), make_strategy(), start, **options)
    with WorkerGrid(adding, app(), number) as grid:
        return outcome(grid, make_strategy(), start, **options), here


@pytest.fixture
def asked(monkeypatch):
    """Counts the sums that workers are asked for, and the vectors among them that are asked for alone."""
    counted = {"sums": 0, "whole": 0}

    def counting(name, original):
        def method(self, *arguments):
            counted[name] += 1
            return original(self, *arguments)

        return method

    for name in counted:
        monkeypatch.setattr(KeptThere, name, counting(name, vars(KeptThere)[name]))
    return counted


@pytest.mark.parametrize(
    ("cls", "options"),
    [
        (FedDAGT, {"fraction_train": 0.5}),
        (FedDAGT, {"normalize_local_work": False, "batch_size": 5}),
        (Scaffold, {"variate": "gradient", "fraction_train": 0.5}),
    ],
)
def test_trackers_that_do_not_show_in_the_duals(cls, options, adding):
    def made():
        return strategy(cls, client_state="reset", **options)

    same(*both_ways(adding, made, lambda: app_of(clients()), start_arrays()))


#: What needs every client's vector: the neighbours of a graph.
REFUSING = {"DFedDA", "DFedDAGT", "DFedMid", "DReFedDAGT", "DScaffold"}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_is_the_usual_run_or_refuses_in_words(name, adding, asked):
    objectives = problem_of(name).objectives
    layout = objectives[0].layout
    start = ArrayRecord({n: flower.serialised(a) for n, a in layout.unflatten(np.zeros(layout.size)).items()})
    reset = {"client_state": "reset"} if "client_state" in STRATEGIES[name].__dataclass_fields__ else {}
    arguments = adding, lambda: make(name, **reset), lambda: app_of(copy.deepcopy(objectives)), start, len(objectives)
    if name in REFUSING:
        with pytest.raises(ConfigurationError, match=r"partial_sums=True: .*or run without partial_sums"):
            both_ways(*arguments)
        return
    same(*both_ways(*arguments))
    assert asked["sums"] >= 6
    assert asked["whole"] == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"aggregation": "median"}, "aggregation='median'"),
        (
            {
                "privacy": GaussianDP(clip=1.0, noise_multiplier=1.0, delta=1e-3),
                "weighting": "uniform",
                "local_steps": 2,
                "max_ratio": None,
                "normalize_local_work": False,
            },
            "differential privacy",
        ),
        ({"cls": FedDAGT, "client_state": "ledger"}, "client_state='reset'"),
        ({"server_lr": "auto"}, "server_lr as a number"),
        ({"wire_dtype": "float32"}, "wire_dtype='float64'"),
    ],
)
def test_what_needs_each_vector_is_refused_with_what_to_do(options, words, adding):
    if "privacy" in options:
        pytest.importorskip("dp_accounting")
    with WorkerGrid(adding, app_of(clients()), 4) as grid, pytest.raises(ConfigurationError) as caught:
        outcome(grid, strategy(**options), start_arrays())
    assert str(caught.value).startswith("partial_sums=True")
    assert words in str(caught.value)


def test_options_that_are_linear_are_the_usual_run(adding):
    for options in (
        {"output": "shadow", "local_steps": 3},
        {"fraction_train": 0.5, "seed": 3},
        {"weighting": "uniform", "server_momentum": 0.5},
        {"client_weights": {0: 1.0, 1: 2.0, 2: 0.0, 3: 5.0}},
        {"max_increment_norm": 1.0},
    ):
        same(*both_ways(adding, lambda options=options: strategy(**options), lambda: app_of(clients()), start_arrays()))


def answering(vector, who):
    """Return a strategy whose clients with these numbers of examples answer `vector(increment)` from round 2 on."""

    def solver(downlink, objective, state, rng):
        uplink, state = SOLVERS["subgradient"](downlink, objective, state, rng)
        if objective.num_examples in who and downlink.vectors["primal"].any():
            uplink = uplink._replace(vectors={"increment": vector(uplink.vectors["increment"])})
        return uplink, state

    class Own(FedAvgSubgradient):
        local_solver = "test-answering"

    SOLVERS["test-answering"] = solver
    return lambda: Own(client_lr=0.02, fraction_evaluate=0.0)


@pytest.fixture
def _forgotten():
    yield
    SOLVERS.pop("test-answering", None)


@pytest.mark.usefixtures("_forgotten")
@pytest.mark.parametrize("bad", [1, 2], ids=["one client", "all of a worker"])
@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (lambda own: own * np.nan, "NaN or infinite values"),
        (lambda own: own[:-1], "expected float64"),
        (lambda own: own * 1e9, "max_ratio=1000 times"),
    ],
    ids=["NaN", "another shape", "too long"],
)
def test_what_cannot_count_is_left_out_and_counted(vector, reason, bad, adding):
    sizes = [objective.num_examples for objective in clients()]
    make_strategy = answering(vector, sizes[0::2][:bad])
    ours, theirs = both_ways(adding, make_strategy, lambda: app_of(clients()), start_arrays())
    same(ours, theirs)
    assert [entry.round for entry in ours[2]] == [n for n in range(2, 7) for _ in range(bad)]
    assert all(reason in entry.reason for entry in ours[2])
    assert ours[1][6]["num-replies"] == 4 - bad


@pytest.mark.usefixtures("_forgotten")
def test_a_round_in_which_nobody_counts_is_skipped(adding):
    make_strategy = answering(lambda own: own * np.nan, [objective.num_examples for objective in clients()])
    make_warning = lambda: type(make_strategy())(client_lr=0.02, fraction_evaluate=0.0, on_divergence="warn")  # noqa: E731
    ours, theirs = both_ways(adding, make_warning, lambda: app_of(clients()), start_arrays())
    same(ours, theirs)
    assert ours[1][6]["skipped"] == 1


@pytest.fixture
def mortal(adding, monkeypatch):
    """Workers of which the first one is killed before a call of a kind, the third one of these."""

    def before(what):
        ask, seen = adding.ask, []

        def killing(calls):
            seen.extend({call[0] for call in calls.values()} & {what})
            if len(seen) == 3 and what in {call[0] for call in calls.values()}:
                os.kill(adding.pids()[0], signal.SIGKILL)
            return ask(calls)

        monkeypatch.setattr(adding, "ask", killing)
        return adding

    return before


@pytest.mark.parametrize("what", ["exchange", "sum"])
def test_a_worker_that_dies_loses_no_reply(what, mortal):
    here = outcome(InProcessGrid(app_of(clients()), 4), strategy(), start_arrays())
    with WorkerGrid(mortal(what), app_of(clients()), 4) as grid:
        there = outcome(grid, strategy(), start_arrays())
    assert np.linalg.norm(there[0] - here[0]) <= 1e-12
    assert {metrics["num-replies"] for metrics in there[1].values()} == {4}
    assert there[2] == []


def test_what_clients_remember_dies_with_a_worker_in_the_midst_of_a_round(mortal):
    chosen, error = (
        strategy(FedDAGT, client_state="reset"),
        pytest.raises(FlwrFcoError, match="go on from a checkpoint"),
    )
    with WorkerGrid(mortal("sum"), app_of(clients()), 4) as grid, error:
        outcome(grid, chosen, start_arrays())


def test_where_there_are_no_partial_sums_they_are_refused(adding):
    given = {"num_nodes": 4, "num_rounds": 1, "initial_arrays": start_arrays()}
    with pytest.raises(ConfigurationError, match="engine='in-process'"):
        simulate(strategy(), app_of(clients()), partial_sums=True, **given)
    with pytest.raises(ConfigurationError, match="FedAvg is not a strategy of this package"):
        simulate(FedAvg(fraction_evaluate=0.0), app_of(clients()), engine=adding, **given)
    mods = [lambda message, context, call_next: call_next(message, context)]
    with pytest.raises(ConfigurationError, match="mods"):
        simulate(strategy(), app_of(clients(), mods), engine=adding, **given)
    with Processes(1) as plain, pytest.raises(ConfigurationError, match=r"give it to Processes\(\.\.\.\)"):
        simulate(strategy(), app_of(clients()), engine=plain, partial_sums=True, **given)


def test_sparse_answers_travel_as_they_are(adding):
    def load(context):
        rng = np.random.default_rng(int(context.node_config["partition-id"]))
        features = sparse.random_array((20, 3000), density=0.002, rng=rng, format="csr")
        return LeastSquares(features, np.asarray(features.sum(axis=1)).ravel())

    start = ArrayRecord(
        {"coefficients": flower.serialised(np.zeros(3000)), "intercept": flower.serialised(np.zeros(1))}
    )
    same(*both_ways(adding, strategy, lambda: client_app(load), start))


def test_a_vector_that_lies_elsewhere_says_so():
    vector = Elsewhere(None, (0, 0), "increment", (3,), 1.0, (0.0, 1.0))
    for use in (np.asarray, lambda v: 2.0 * v, lambda v: np.float64(2.0) * v, lambda v: v[0], lambda v: v.copy(), len):
        with pytest.raises(ConfigurationError, match="every client's 'increment' by itself"):
            use(vector)
    assert (vector.shape, vector.size, vector.item(0), vector.item(-1)) == ((3,), 3, 0.0, 1.0)


@pytest.mark.flower
@pytest.mark.slow
def test_actors_of_rays_add_up_too_and_one_that_dies_is_replaced():
    here = outcome(InProcessGrid(app_of(clients()), 4), strategy(), start_arrays())
    with RayActors(2, num_cpus=0.5, partial_sums=True) as actors, WorkerGrid(actors, app_of(clients()), 4) as grid:
        callbacks = [lambda number, *_: actors.kill(0) if number == 3 else None]
        there = outcome(grid, strategy(), start_arrays(), callbacks=callbacks)
    assert np.linalg.norm(there[0] - here[0]) <= 1e-12
    assert {metrics["num-replies"] for metrics in there[1].values()} == {4}
