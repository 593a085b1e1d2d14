"""Runs: settings, what is evaluated when, rates that follow a plateau, stages, graphs, divergence."""

import inspect
from dataclasses import replace

import numpy as np
import pytest

from flwr_fco.engines import FirstOrder
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import run_of
from flwr_fco.topology import consensus_error
from reproduction.problems.named import load_task
from reproduction.rivals import STRATEGIES
from reproduction.running import Plateau, Recorder, run, train
from reproduction.settings import RunSettings, build_strategy, named_map, option_names


def settings(strategy="FedDualAvg", seed=0, problem="lasso-small", **values):
    return RunSettings.of(problem, strategy, values, seed)


def graph(strategy="DFedDAGT", **values):
    small = {"num_clients": 4, "dimension": 40, "num_nonzero": 4, "num_rounds": 20, "mirror_map": "p-norm(6)"}
    return settings(strategy, problem="sparse-linear-graph", **{**small, **values})


def recorded(own, keep=lambda recorder: None):
    """Run what a recorder records, and call `keep` with it after each round; return the recorder."""
    recorder = Recorder(own.load(), own)
    given = {"evaluate_fn": recorder.evaluate, "callbacks": [lambda number, arrays, metrics: keep(recorder)]}
    train(recorder.strategy, recorder.task, own.exchanges, **given)
    return recorder


def points_of_nodes(recorder):
    own = run_of(recorder.strategy)
    return own.method.node_points(own.problem, own.state)


def halvings(scores, patience):
    best = np.inf
    waited = 0
    halved = 0
    for score in scores:
        best, waited = (score, 0) if score < best else (best, waited + 1)
        if waited == patience:
            waited = 0
            halved = halved + 1
    return halved


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_runs_and_lowers_the_objective(strategy):
    # The methods with quadratic models have no client rate: the weight of their anchor is an inverse step size.
    step = {"anchor_weight": 600.0} if strategy in ("FastFedDA", "CFedDA", "MCFedDA") else {"client_lr": 3e-3}
    own = settings(strategy, num_rounds=10, **step)
    if "regularizer" in STRATEGIES[strategy].algorithm.refuses:
        # DualFL's own minimisations need strong convexity, which this problem does not have.
        convexity = {"alpha": 0.01} if strategy == "DualFL" else {}
        own = settings(strategy, problem="logistic-convex", num_rounds=10, client_lr=0.1, **convexity)
    result = run(own)
    # FedNewton ends at its tolerance.
    assert [line["round"] for line in result.history] == list(range(3 if strategy == "FedNewton" else 11))
    assert (result.diverged, result.left_out) == (0, 0)
    assert result.history[-1]["objective"] < 0.8 * result.history[0]["objective"]


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_what_the_run_decides_reaches_every_strategy(name):
    clients = 16 if STRATEGIES[name].algorithm.reads == "everyone" else 8
    own = settings(name, seed=9, client_lr=0.03, server_lr=0.5, local_steps=4, clients_per_round=clients)
    psi = Zero() if "regularizer" in STRATEGIES[name].algorithm.refuses else L1(0.5)
    strategy = build_strategy(own, 16, psi)
    assert (strategy.regularizer, strategy.seed, strategy.min_train_nodes) == (psi, 9, clients)
    if isinstance(getattr(strategy, "work", None), FirstOrder):
        assert strategy.work.steps == 4
    for key in {"client_lr", "server_lr"} & {*inspect.signature(STRATEGIES[name]).parameters}:
        assert getattr(strategy, key) == getattr(own, key)
    # What the run decides cannot be set a second time as an option.
    assert not {"regularizer", "client_lr", "seed", "work", "fraction_train"} & {*option_names(name)}


def test_equal_settings_give_equal_runs_and_another_seed_other_data():
    first, again, other = (run(settings(num_rounds=5, seed=seed)).history for seed in (1, 1, 2))
    assert first == again != other


def test_metrics_are_evaluated_in_their_intervals_and_at_the_end():
    history = run(settings(num_rounds=10, structure_every=2, objective_every=4)).history
    assert [line["round"] for line in history] == [0, 2, 4, 6, 8, 10]
    assert [line["round"] for line in history if "objective" in line] == [0, 4, 8, 10]


def test_exactly_the_wanted_clients_take_part(monkeypatch):
    seen = []
    method = STRATEGIES["FedDualAvg"].algorithm
    original = method.aggregate
    monkeypatch.setattr(method, "aggregate", lambda *own: seen.append(len(own[-1])) or original(*own))
    for clients in (1, 7, 16):
        run(settings(num_rounds=2, clients_per_round=clients))
    assert seen == [1, 1, 7, 7, 16, 16]
    with pytest.raises(ConfigurationError, match="clients-per-round=17"):
        run(settings(clients_per_round=17))
    assert settings("DualFL", problem="logistic-convex").clients_per_round == 0
    with pytest.raises(ConfigurationError, match="because DualFL needs them"):
        run(settings("DualFL", problem="logistic-convex", alpha=0.01, clients_per_round=2))


@pytest.mark.parametrize(("rate", "last"), [(1.0, 20), (1e100, 1)])
def test_a_diverging_run_is_cut_and_marked_also_in_its_first_round(rate, last):
    result = run(settings(client_lr=rate, num_rounds=100))
    assert 0 < result.diverged <= last
    assert result.history[-1]["round"] <= result.diverged


def test_baselines_are_runs_with_a_certificate():
    result = run(settings("centralized"))
    assert result.history[-1]["duality-gap"] < 1e-4
    assert run(settings("local", client=3)).history != result.history
    # The loss of one client is the task's, not that of the labelled rows.
    with pytest.raises(ConfigurationError, match="Hinge is not smooth"):
        run(RunSettings.of("svm-breast-cancer", "local"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num-rounds": 1.5}, "num-rounds=1.5 is a float"),
        ({"num-rounds": 0}, "num-rounds=0; expected a whole number >= 1"),
        ({"client-lr": -1.0}, "client-lr=-1.0; expected a finite number"),
        ({"server-prox": False}, r"unknown setting 'server-prox'.*client-lr.*strength"),
        ({"stretch": 300}, "stretch=300; expected at most num-rounds"),
        ({"stage-rounds": 5}, "FedDualAvg has no stages"),
        ({"plateau": "objective", "client-lr": "auto"}, "plateau='objective' halves it"),
        ({"mirror-map": "cubic"}, "mirror-map='cubic'"),
    ],
)
def test_bad_settings_are_named(given, message):
    with pytest.raises(ConfigurationError, match=message):
        run(settings(**given))


def test_options_reach_the_strategy_and_the_problem():
    printed, once = (run(settings("FedMid", num_rounds=9, server_prox=own)).history for own in (True, False))
    assert printed != once
    assert settings(strength=0.3).load().regularizer == L1(0.3)
    # Rates that were chosen for others are derived.
    assert settings("FedMid").client_lr == "auto"
    assert named_map("simplex-entropy", 4) != named_map("euclidean", 4)


def test_the_l2_term_as_psi_is_the_same_problem_and_costs_grow():
    one, other = (load_task("logistic-digits", 0, {"l2-as-psi": own}) for own in (False, True))
    w = np.random.default_rng(0).standard_normal(one.layout.size)
    for key, value in one.scores(w).items():
        assert other.scores(w)[key] == pytest.approx(value, rel=1e-12), key
    own = {"l2-as-psi": True, "client-lr": 1.0, "local-steps": 1, "num-rounds": 30}
    history = run(settings(problem="logistic-digits", **own)).history
    assert history[-1]["distance"] < 0.5 * history[0]["distance"]
    assert [line["passes"] for line in history[1:]] == list(range(1, 31))
    cpu = [line["cpu-seconds"] for line in history[1:]]
    assert cpu == sorted(cpu)


def test_a_run_over_a_graph_reports_means_over_the_nodes():
    own = graph(mixing="chain", structure_every=5, objective_every=20)
    points = []
    recorder = recorded(own, lambda recorder: points.append(points_of_nodes(recorder)))
    assert [line["round"] for line in recorder.history] == [0, 5, 10, 15, 20]
    optimum = recorder.task.dataset.optimum
    for line, nodes in zip(recorder.history[1:], points[4::5], strict=True):
        assert line["l1-error"] == pytest.approx(np.abs(nodes - optimum).sum(axis=1).mean())
        assert line["gap"] == pytest.approx(0.5 * ((nodes - optimum) ** 2).sum(axis=1).mean())
    assert recorder.history[-1]["consensus-error"] == pytest.approx(consensus_error(recorder.strategy.state.dual))
    assert run(own).history == recorder.history
    assert "consensus-error" not in run(graph("FedDAGT")).history[-1]


@pytest.mark.parametrize("node", [-1, 0])
def test_both_rates_are_halved_where_the_mean_or_a_node_sees_a_plateau(node):
    values = {"mixing": "chain", "client_lr": 0.2, "num_rounds": 60, "noise": 30.0, "structure_every": 1}
    gaps = []
    recorder = recorded(
        graph(plateau="gap", plateau_node=node, plateau_every=1, plateau_patience=3, **values),
        lambda recorder: gaps.append(recorder.task.dataset.gap(points_of_nodes(recorder)[0])),
    )
    watched = [line["gap" if node < 0 else "gap-node-0"] for line in recorder.history]
    if node == 0:
        assert watched[1:] == pytest.approx(gaps, rel=1e-12)
    halved = halvings(watched, 3)
    assert halved > 0
    strategy = recorder.strategy
    assert [rate(61) for rate in (strategy.client_lr, strategy.server_lr)] == [0.2 * 0.5**halved, 0.5**halved]


def test_what_a_plateau_watches_must_be_there():
    with pytest.raises(ConfigurationError, match=r"plateau='loss'.*l1-error"):
        run(graph(mixing="ring", plateau="loss"))
    for strategy, node in (("DFedDAGT", 4), ("FedDAGT", 0)):
        with pytest.raises(ConfigurationError, match=f"plateau-node={node}"):
            run(graph(strategy, plateau="gap", plateau_node=node))


@pytest.mark.parametrize(
    ("stretch", "every", "forgotten"), [(1, 2, [10, 20, 30]), (1, 7, [14, 21, 35]), (4, 4, [8, 16, 24, 32])]
)
def test_the_plateau_rule_forgets_its_best_score_with_every_stage(stretch, every, forgotten, monkeypatch):
    when = []
    known = Plateau.observe

    def observe(plateau, score):
        if plateau.best == np.inf and recorders:
            when.append(int(recorders[0].history[-1]["round"]))
        known(plateau, score)

    recorders = []
    monkeypatch.setattr(Plateau, "observe", observe)
    values = {"stage_rounds": 10, "radius_squared": 4e3, "num_rounds": 36, "stretch": stretch}
    own = graph("MultistepReFedDAGT", plateau="gap", plateau_every=every, **values)
    recorded(own, lambda recorder: recorders.append(recorder))
    assert when[: len(forgotten)] == forgotten


def test_stages_have_the_rounds_and_steps_of_the_theorem():
    """Theorem C.2 with exact gradients: L = mu = 1, so R_n = 64 s log d and K_n = 1."""
    values = {"stage_accuracy": 1.0, "radius_squared": 32.0, "sparsity": 1, "num_nonzero": 1, "scale": 1.0}
    own = graph("MultistepReFedDAGT", spread=1.0, batch_size=0, mirror_map="p-norm(2 log d)", **values)
    exact, noisy = (Recorder(one.load(), one).strategy.stages for one in (own, replace(own, batch_size=10)))
    assert [(stage.rounds, stage.local_steps) for stage in exact] == [(237, 1)] * 6
    assert noisy[1].local_steps > 1.9 * noisy[0].local_steps > 10
    with pytest.raises(ConfigurationError, match="stage-accuracy=1"):
        run(graph("MultistepReFedDAGT", stage_accuracy=1.0, sparsity=2))


def test_stages_and_stretched_rounds():
    own = graph("MultistepReFedDAGT", stage_rounds=10, radius_squared=4e3, sparsity=4, restart_window=5)
    assert np.count_nonzero(run(own).arrays["coefficients"]) == 4
    assert np.count_nonzero(run(replace(own, num_rounds=19)).arrays["coefficients"]) > 4
    stretched = run(graph("FedDAGT", stretch=4, batch_size=10)).history
    plain = run(graph("FedDAGT", num_rounds=5, batch_size=40)).history
    assert [line["round"] for line in stretched] == [0, 12, 20]
    assert stretched[-1]["l1-error"] == plain[-1]["l1-error"]
    halving = settings("MCFedDA", stage_rounds=250, radius=5e3, anchor_weight=600.0)
    found = build_strategy(halving, 16, L1(0.1)).stages
    assert [tuple(stage) for stage in found] == [(250, 5e3, 1.0), (250, 2.5e3, 0.5), (250, 1.25e3, 0.25)]
