import json
from dataclasses import replace

import numpy as np
import pytest
from faults import fault_mod

from flwr_fco.client_apps import client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation import simulate
from flwr_fco.strategies import CompositeStrategy, run_of
from flwr_fco.topology import consensus_error
from reproduction.runs import run as runs
from reproduction.runs.methods import STRATEGIES
from reproduction.runs.plateau import Plateau
from reproduction.runs.recorder import Recorder
from reproduction.runs.run import run, save_run
from reproduction.runs.run_folder import read_run
from reproduction.runs.settings import RunSettings, parse_assignments, parse_value


def settings(strategy="FedDualAvg", seed=0, **values):
    return RunSettings.of("lasso-small", strategy, {key.replace("_", "-"): v for key, v in values.items()}, seed)


def settings_without_psi(strategy, **values):
    return RunSettings.of("logistic-convex", strategy, {key.replace("_", "-"): v for key, v in values.items()})


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_runs_and_lowers_the_objective(strategy):
    assert issubclass(STRATEGIES[strategy], CompositeStrategy)
    # The methods with quadratic models have no client rate: the weight of their anchor is an inverse step size.
    step = {"anchor_weight": 600.0} if strategy in ("FastFedDA", "CFedDA", "MCFedDA") else {"client_lr": 3e-3}
    if "regularizer" in STRATEGIES[strategy].algorithm.refuses:
        # DualFL's own minimisations need strong convexity, which this problem does not have.
        convexity = {"alpha": 0.01} if strategy == "DualFL" else {}
        result = run(settings_without_psi(strategy, num_rounds=10, client_lr=0.1, **convexity))
    else:
        result = run(settings(strategy, num_rounds=10, **step))
    # FedNewton ends at its tolerance.
    assert [line["round"] for line in result.history] == list(range(4 if strategy == "FedNewton" else 11))
    assert result.diverged == 0
    assert result.history[-1]["objective"] < 0.8 * result.history[0]["objective"]
    # The bounds on what a client may say are wide: nobody here is dishonest.
    assert result.left_out == []


def test_what_was_left_out_is_in_the_run_folder_also_after_a_stop(tmp_path, monkeypatch):
    def faulty_app(clients):
        def load(context):
            return clients[int(context.node_config["partition-id"])]

        return client_app(load, mods=[fault_mod({"malformed": 0.1, "garbage": 0.1}, seed=2)])

    monkeypatch.setattr(runs, "clients_with", faulty_app)
    stops = iter([False] * 4 + [True])
    assert run(settings(num_rounds=10), folder=tmp_path / "run", stop=lambda: next(stops)).stopped == 5
    assert {int(row["round"]) for row in read_run(tmp_path / "run").left_out} <= set(range(6))
    run(settings(num_rounds=10), folder=tmp_path / "run", resume=True)
    whole = run(settings(num_rounds=10))
    rows = read_run(tmp_path / "run").left_out
    assert len(rows) > 10
    assert [(int(row["round"]), int(row["partition_id"]), row["reason"], row["kind"]) for row in rows] == [
        (row.round, row.partition_id, row.reason, row.kind) for row in whole.left_out
    ]
    # As many as the rounds' metrics say.
    told = [json.loads(line) for line in (tmp_path / "run" / "exchanges.jsonl").read_text().splitlines()]
    assert sum(line["num-left-out"] for line in told) == len(rows)
    table = (tmp_path / "run" / "left-out.csv").read_text().splitlines()
    assert table[0] == "round,node_id,partition_id,reason,kind"


def test_same_seed_same_run_other_seed_other_data():
    first, again, other = (run(settings(num_rounds=5, seed=seed)) for seed in (1, 1, 2))
    assert first.history == again.history
    assert first.history != other.history


def test_evaluation_intervals():
    result = run(settings(num_rounds=10, structure_every=2, objective_every=4))
    assert [line["round"] for line in result.history] == [0, 2, 4, 6, 8, 10]
    assert [line["round"] for line in result.history if "objective" in line] == [0, 4, 8, 10]


def test_exactly_the_wanted_clients_take_part():
    seen = []
    for clients in (1, 7, 16):
        strategy = STRATEGIES["FedDualAvg"].algorithm
        original = strategy.aggregate

        def aggregate(self, problem, state, replies, original=original):
            seen.append(len(replies))
            return original(self, problem, state, replies)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(strategy, "aggregate", aggregate)
            run(settings(num_rounds=2, clients_per_round=clients))
    assert seen == [1, 1, 7, 7, 16, 16]
    with pytest.raises(ConfigurationError, match="clients-per-round=17"):
        run(settings(clients_per_round=17))


def test_a_diverging_run_is_cut_and_marked():
    result = run(settings(client_lr=1.0, num_rounds=100))
    assert 0 < result.diverged < 20
    assert result.history[-1]["round"] <= result.diverged
    json.dumps(result.history)


def test_options_of_the_strategy_reach_it():
    printed = run(settings("FedMid", num_rounds=30))
    once = run(settings("FedMid", num_rounds=30, server_prox=False))
    assert printed.history != once.history
    full = run(settings(batch_size=0, local_steps=3, num_rounds=3, clients_per_round=16))
    assert full.history[-1]["objective"] < full.history[0]["objective"]


def test_baselines_are_runs_with_a_certificate(tmp_path):
    result = run(settings("centralized"))
    assert result.history[-1]["duality-gap"] < 1e-4
    assert run(settings("local", client=3)).history != result.history
    save_run(result, tmp_path / "run")
    found = read_run(tmp_path / "run")
    assert found.metrics == result.history
    assert np.array_equal(found.arrays["coefficients"], result.arrays["coefficients"])


def test_settings_survive_the_run_folder(tmp_path):
    own = settings("FedMid", seed=5, num_rounds=3, server_prox=False, strength=0.3, num_clients=12)
    save_run(run(own), tmp_path / "run")
    assert RunSettings.from_config(read_run(tmp_path / "run").config) == own


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        ({"client-lr": 0.0}, "client-lr=0.0; expected a finite number > 0"),
        ({"client-lr": "fast"}, "client-lr='fast' is a str; expected a number"),
        ({"num-rounds": 1.5}, "num-rounds=1.5 is a float"),
        ({"num-rounds": 0}, "num-rounds=0; expected a whole number >= 1"),
        ({"batch-size": -1}, "batch-size=-1"),
        ({"server-prox": False}, r"unknown key 'server-prox'.*client-lr.*strength"),
        ({"regularizer": "L2"}, "unknown key 'regularizer'"),
    ],
)
def test_bad_settings_are_named(assignments, message):
    with pytest.raises(ConfigurationError, match=message):
        RunSettings.of("lasso-small", "FedDualAvg", assignments)


def test_unknown_names_and_seeds():
    with pytest.raises(ConfigurationError, match="strategy='FedSGD'"):
        RunSettings.of("lasso-small", "FedSGD")
    with pytest.raises(ConfigurationError, match="seed=-1"):
        RunSettings.of("lasso-small", "FedMid", seed=-1)


def test_values_and_assignments():
    assert [parse_value(text) for text in ("1", "1.5", "true", "last", "../data", "2024-01-01")] == [
        1,
        1.5,
        True,
        "last",
        "../data",
        "2024-01-01",
    ]
    assert parse_assignments(["a=1", "b = x=y"]) == {"a": "1", "b": "x=y"}
    for bad in (["a"], ["=1"], ["a="], ["a=1", "a=2"]):
        with pytest.raises(ConfigurationError, match="--set"):
            parse_assignments(bad)


def graph(strategy="DFedDAGT", seed=0, **values):
    small = {"num_clients": 4, "dimension": 40, "num_nonzero": 4, "num_rounds": 20, "mirror_map": "p-norm(6)"}
    given = {key.replace("_", "-"): value for key, value in {**small, **values}.items()}
    return RunSettings.of("sparse-linear-graph", strategy, given, seed)


def run_on_graph(recorder, keep):
    """Run what a recorder records, and call `keep` after each round."""
    objectives = recorder.task.clients
    simulate(
        recorder.strategy,
        client_app(lambda context: objectives[int(context.node_config["partition-id"])]),
        num_nodes=len(objectives),
        num_rounds=recorder.settings.num_rounds,
        initial_arrays=recorder.task.initial_arrays(),
        evaluate_fn=recorder.evaluate,
        callbacks=[keep],
        progress=False,
    )


def points_of_nodes(strategy):
    run = run_of(strategy)
    return run.method.node_points(run.problem, run.state)


def rates_of(strategy):
    return strategy.client_lr, strategy.server_lr


def test_a_run_over_a_graph_reports_means_over_the_nodes():
    own = graph(mixing="chain", structure_every=5, objective_every=20)
    task = own.load()
    recorder = Recorder(task, own)
    points = []

    def keep(number, arrays, metrics):
        if number % 5 == 0:
            points.append(points_of_nodes(recorder.strategy))

    run_on_graph(recorder, keep)
    assert [line["round"] for line in recorder.history] == [0, 5, 10, 15, 20]
    optimum = task.dataset.optimum
    for line, nodes in zip(recorder.history[1:], points, strict=True):
        assert line["l1-error"] == pytest.approx(np.abs(nodes - optimum).sum(axis=1).mean())
        assert line["recovery-error"] == pytest.approx(np.linalg.norm(nodes - optimum, axis=1).mean())
        assert line["gap"] == pytest.approx(0.5 * ((nodes - optimum) ** 2).sum(axis=1).mean())
    assert recorder.history[-1]["consensus-error"] == pytest.approx(consensus_error(recorder.strategy.state.dual))
    assert recorder.history[-1]["tracker-norm"] > 0
    assert ["objective" in line for line in recorder.history] == [True, False, False, False, True]
    assert run(own).history == recorder.history


def test_a_centralised_method_reports_its_output():
    result = run(graph("FedDAGT"))
    w = result.arrays["coefficients"]
    assert result.history[-1]["l1-error"] == pytest.approx(np.abs(w - result.settings.load().dataset.optimum).sum())
    assert "consensus-error" not in result.history[-1]


def test_the_plateau_rule_halves_both_rates():
    # Rates so large that the gap cannot fall below what it is after a few rounds.
    values = {"mixing": "ring", "client_lr": 0.2, "num_rounds": 60, "noise": 30.0, "structure_every": 1}
    free = run(graph(**values))
    ruled = graph(plateau="gap", plateau_every=2, plateau_patience=3, **values)
    result = run(ruled)
    gaps = [line["gap"] for line in result.history if line["round"] % 2 == 0]
    best, waited, halved = np.inf, 0, 0
    for gap in gaps:
        best, waited = (gap, 0) if gap < best else (best, waited + 1)
        if waited == 3:
            waited, halved = 0, halved + 1
    assert halved > 0
    recorder = Recorder(ruled.load(), ruled)
    for line in result.history:
        recorder.history.append(line)
        if line["round"] % 2 == 0:
            recorder._plateau.observe(recorder._score())
    assert recorder._plateau.scale == 0.5**halved
    assert [rate(61) for rate in rates_of(recorder.strategy)] == [0.2 * 0.5**halved, 0.5**halved]
    first = next(i for i, (a, b) in enumerate(zip(free.history, result.history, strict=True)) if a != b)
    assert 0 < first < 60
    with pytest.raises(ConfigurationError, match=r"plateau='loss'.*l1-error"):
        run(graph(plateau="loss"))


@pytest.mark.parametrize(
    ("stretch", "every", "forgotten"), [(1, 2, [10, 20, 30]), (1, 7, [14, 21, 35]), (4, 4, [8, 16, 24, 32])]
)
def test_the_plateau_rule_forgets_its_best_score_with_every_stage(stretch, every, forgotten, monkeypatch):
    """At the first score of a stage, also where stages and scores, or stages and communications, do not fit."""
    when = []
    monkeypatch.setattr(Plateau, "restart", lambda plateau: when.append(int(recorder.history[-1]["round"])))
    values = {"stage_rounds": 10, "radius_squared": 4e3, "num_rounds": 36, "stretch": stretch}
    own = graph("MultistepReFedDAGT", plateau="gap", plateau_every=every, **values)
    recorder = Recorder(own.load(), own)
    run_on_graph(recorder, lambda *of_round: None)
    assert when[: len(forgotten)] == forgotten


def test_the_plateau_rule_can_watch_one_node():
    """As in the authors' code, device 0; the mean over the nodes halves the rates at other rounds."""
    values = {"mixing": "chain", "client_lr": 0.2, "num_rounds": 60, "noise": 30.0, "structure_every": 1}
    ruled = graph(plateau="gap", plateau_node=0, plateau_every=1, plateau_patience=3, **values)
    recorder = Recorder(ruled.load(), ruled)
    gaps = []

    def keep(number, arrays, metrics):
        points = points_of_nodes(recorder.strategy)
        assert recorder.history[-1]["gap"] == pytest.approx(np.mean([ruled.load().dataset.gap(w) for w in points]))
        gaps.append(ruled.load().dataset.gap(points[0]))

    run_on_graph(recorder, keep)
    watched = [line["gap-node-0"] for line in recorder.history]
    assert watched[1:] == pytest.approx(gaps, rel=1e-12)
    best, waited, halved = np.inf, 0, 0
    for gap in watched:
        best, waited = (gap, 0) if gap < best else (best, waited + 1)
        if waited == 3:
            waited, halved = 0, halved + 1
    assert halved > 0
    assert [rate(61) for rate in rates_of(recorder.strategy)] == [0.2 * 0.5**halved, 0.5**halved]
    mean = run(replace(ruled, plateau_node=-1))
    assert "gap-node-0" not in mean.history[-1]
    assert mean.history[-1]["gap"] != recorder.history[-1]["gap"]


def test_a_node_to_watch_must_be_there():
    with pytest.raises(ConfigurationError, match=r"plateau-node=4.*0 to 3"):
        run(graph(mixing="ring", plateau="gap", plateau_node=4))
    with pytest.raises(ConfigurationError, match=r"plateau-node=1; expected -1"):
        graph(mixing="ring", plateau_node=1)
    with pytest.raises(ConfigurationError, match=r"plateau-node=0; expected -1, because FedDAGT has no nodes' models"):
        run(graph("FedDAGT", plateau="gap", plateau_node=0))
    assert "plateau-node" not in graph(mixing="ring", plateau="gap").to_config()
    own = graph(mixing="ring", plateau="gap", plateau_node=2)
    assert RunSettings.from_config(own.to_config()) == own


def test_the_theorems_schedule_reaches_its_accuracy():
    """Theorem C.2 with exact gradients: L = mu = 1, so R_n = 64 s log d and K_n = 1; the output is sparse."""
    values = {"stage_accuracy": 1.0, "radius_squared": 32.0, "sparsity": 1, "num_nonzero": 1, "scale": 1.0}
    more = {"spread": 1.0, "batch_size": 0, "structure_every": 237, "mirror_map": "p-norm(2 log d)"}
    own = graph("MultistepReFedDAGT", num_rounds=5 * 237, **values, **more)
    recorder = Recorder(own.load(), own)
    assert [stage.rounds for stage in recorder.strategy.stages] == [237] * 6
    assert {stage.local_steps for stage in recorder.strategy.stages} == {1}
    assert np.abs(own.load().dataset.optimum).sum() ** 2 <= 32.0
    result = run(own)
    assert result.history[-1]["l1-error"] ** 2 <= 1.0
    assert np.count_nonzero(result.arrays["coefficients"]) == 1
    assert result.history[-1]["support-recovery"] == 1.0
    noisy = Recorder(own.load(), replace(own, batch_size=10)).strategy.stages
    assert noisy[1].local_steps > 1.9 * noisy[0].local_steps > 10
    for strategy, wrong in (
        ("MultistepReFedDAGT", {"sparsity": 2}),
        ("DFedDA", {}),
        ("MultistepReFedDAGT", {"sparsity": 2, "radius_squared": 4.0, "stage_rounds": 5}),
    ):
        with pytest.raises(ConfigurationError, match="stage-accuracy=1"):
            run(graph(strategy, stage_accuracy=1.0, **wrong))


def test_the_support_counts_among_as_many_largest_entries():
    task = graph().load()
    w = task.dataset.optimum.copy()
    assert task.structure(w)["support-recovery"] == 1.0
    w[-1] = 2.0 * np.abs(w).max()
    assert task.structure(w)["support-recovery"] == 0.75


def test_a_stretched_run_has_larger_batches_and_fewer_exchanges():
    stretched = run(graph("FedDAGT", stretch=4, batch_size=10))
    plain = run(graph("FedDAGT", num_rounds=5, batch_size=40))
    assert [line["round"] for line in stretched.history] == [0, 12, 20]
    assert stretched.history[-1]["l1-error"] == plain.history[-1]["l1-error"]


def test_stages_restart_from_a_sparse_mean():
    own = graph("MultistepReFedDAGT", stage_rounds=10, radius_squared=4e3, sparsity=4, restart_window=5)
    result = run(own)
    assert np.count_nonzero(result.arrays["coefficients"]) == 4
    assert np.count_nonzero(run(replace(own, num_rounds=19)).arrays["coefficients"]) > 4
    with pytest.raises(ConfigurationError, match=r"stage-rounds=10.*DFedDA has no stages.*MultistepReFedDAGT"):
        graph("DFedDA", stage_rounds=10)


def test_the_stages_of_mc_fedda_halve_ball_and_strength():
    own = graph("MCFedDA", stage_rounds=10, variant="liang", radius=64.0)
    strategy = Recorder(own.load(), own).strategy
    assert [tuple(stage) for stage in strategy.stages] == [(10, 64.0, 1.0), (10, 32.0, 0.5), (10, 16.0, 0.25)]
    # The last one goes on to the end.
    assert strategy._method().stage_at(2).rounds == 0
    for wrong in ({}, {"radius": "large"}):
        with pytest.raises(ConfigurationError, match=r"stage-rounds=10; expected 0, or a number as the option radius"):
            graph("MCFedDA", stage_rounds=10, variant="liang", **wrong)
    with pytest.raises(ConfigurationError, match=r"radius=-1\.0"):
        Recorder(own.load(), replace(own, strategy_options={**own.strategy_options, "radius": -1.0}))
    with pytest.raises(ConfigurationError, match=r"stage-accuracy=1.*MultistepReFedDAGT"):
        graph("MCFedDA", stage_accuracy=1.0, variant="liang", radius=64.0)
    with pytest.raises(ConfigurationError, match="stage-rounds=0; expected a number > 0, because radius is"):
        graph("MCFedDA", variant="liang", radius=64.0)


def test_settings_of_a_graph_survive_and_others_keep_their_configuration():
    own = graph(mixing="chain", plateau="gap", stretch=2)
    assert RunSettings.from_config(own.to_config()) == own
    assert not {"mirror-map", "stretch", "plateau", "stage-rounds"} & set(settings().to_config())


def test_mirror_maps_by_name():
    assert run(graph("FedDAGT", mirror_map="euclidean", client_lr=1e-3)).diverged == 0
    for text in ("p-norm", "p-norm(x)", "entropy"):
        with pytest.raises(ConfigurationError, match=f"mirror-map='{text}'".replace("(", r"\(").replace(")", r"\)")):
            run(graph(mirror_map=text))
    with pytest.raises(ConfigurationError, match="p=1"):
        run(graph(mirror_map="p-norm(1)"))


def test_a_method_that_needs_all_clients_gets_them_unless_others_are_asked_for():
    assert RunSettings.of("lasso-small", "FedDualAvg").clients_per_round == 8
    assert RunSettings.of("lasso-small", "DualFL").clients_per_round == 0
    some = RunSettings.of("lasso-small", "DualFL", {"clients-per-round": 3})
    with pytest.raises(ConfigurationError, match=r"clients-per-round=3; expected 0, because DualFL needs all 16"):
        run(some)


def test_steps_and_epochs_together_are_refused():
    with pytest.raises(ConfigurationError, match=r"local-steps=3 and --set local-epochs=2; expected one of them"):
        parse_assignments(["local-steps=3", "local-epochs=2"])
    assert parse_assignments(["local-steps=0", "local-epochs=2"]) == {"local-steps": "0", "local-epochs": "2"}


def test_what_is_for_other_projects_clients_is_no_setting_of_a_run():
    for key in ("client", "density", "density-rounds"):
        with pytest.raises(ConfigurationError, match=f"unknown key '{key}'"):
            RunSettings.of("lasso-small", "FedDualAvg", {key: 1})
