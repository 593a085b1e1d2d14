"""A run that is killed at any point and resumed ends in the bits of one that was never stopped."""

import itertools
import json
import os
import random
import signal
import sys
import zipfile

import numpy as np
import pytest
from flwr.app import Array, MetricRecord
from newton import sites
from problems import CONSTANTS, FEATURES, app_of, by_class, fitting, foreign_app, problem, refused, simulated
from scipy import sparse

import flwr_fco as fco
from flwr_fco.callbacks import Checkpoint, EarlyStopping
from flwr_fco.client_apps import client
from flwr_fco.core.files import read_npz
from flwr_fco.errors import ConfigurationError
from flwr_fco.strategies import STRATEGIES, FedDAGT, FedDualAvg, FedNewton, Stage, Steps, run_of
from flwr_fco.strategies.nodes import Nodes

ROUNDS = 6


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.npz"


def make(cls, **options):
    """A strategy with options that leave something to remember: sampling, averages, certificates."""
    wanted = {"regularizer": fco.L1(0.05), "client_lr": 0.05, "work": Steps(3, batch_size=4), "seed": 3}
    if "regularizer" in cls.algorithm.refuses:
        del wanted["regularizer"]
    wanted |= {} if cls.algorithm.reads == "everyone" else {"fraction_train": 0.6}
    wanted |= {**CONSTANTS.get(cls.__name__, {}), **options}
    return cls(**fitting(cls, wanted))


def sums(server_round, arrays):
    return MetricRecord({"sum": float(arrays["coefficients"].numpy().sum())})


def play(strategy, path, rounds=ROUNDS, *, every=2, callbacks=(), nodes=5, app=None, start=None, **options):
    strategy.fraction_evaluate = 0.0 if app or getattr(strategy, "privacy", None) else 0.5
    options |= {"num_nodes": nodes, "evaluate_fn": sums, "callbacks": [Checkpoint(path, every=every), *callbacks]}
    return simulated(strategy, app or app_of(problem()[:nodes]), rounds, initial_arrays=start, **options)


def killed(action, at, names=None):
    """Run in a process of its own, killed at a given call of a function (of these names); return how many it made."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        calls = 0

        def count(frame, event, argument):
            nonlocal calls
            if (event == "c_call" and (names is None or argument.__name__ in names)) or (event == "call" and not names):
                calls += 1
                if calls == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.setprofile(count)
            action()
        finally:
            sys.setprofile(None)
            os.write(write, str(calls).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        calls = pipe.read()
    os.waitpid(child, 0)
    return int(calls or 0)


def described(result, strategy):
    """All that a run ends in, to the bit.

    But for products with Hessians: a client that is started again computes its Hessian again, which changes no bit.
    """
    kept = ("train_metrics_clientapp", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp", "callback_metrics")
    histories = {name: {n: dict(row) for n, row in getattr(result, name).items()} for name in kept}
    for row in histories["train_metrics_clientapp"].values():
        row.pop("hessian-products", None)
    arrays = {name: (array.dtype, array.shape, array.numpy().tobytes()) for name, array in result.arrays.items()}
    state = [np.asarray(value).tobytes() for value in strategy.state]
    return arrays, json.dumps(histories), state, list(result.left_out), run_of(strategy).chosen


def whole_run(build, path, rounds=ROUNDS, **options):
    """Return what a run that is never stopped ends in."""
    strategy = build()
    return described(play(strategy, path.with_name("whole.npz"), rounds, **options), strategy)


@pytest.mark.parametrize("name", by_class())
def test_every_strategy_killed_and_resumed_ends_in_the_same_bits(name, path, tmp_path):
    def build():
        return make(STRATEGIES[name])

    whole = whole_run(build, path)
    calls = killed(lambda: play(build(), tmp_path / "count.npz"), 0)
    assert calls > 1000
    at = random.Random(name).randrange(1, calls)
    killed(lambda: play(build(), path), at)
    again = build()
    assert described(play(again, path, resume=path if path.exists() else None), again) == whole, at


class Plateau:
    """A user's callback with a state, which the strategy's rate reads: it shrinks when the model stops shrinking."""

    def __init__(self):
        self.scale = 1.0
        self.best = np.inf

    def to_arrays(self):
        return {"numbers": np.array([self.scale, self.best])}

    def from_arrays(self, arrays):
        self.scale, self.best = arrays["numbers"].tolist()

    def __call__(self, server_round, arrays, metrics):
        size = float(np.abs(arrays["coefficients"].numpy()).sum())
        self.scale *= 1.0 if size < self.best else 0.7
        self.best = min(size, self.best)


def test_callbacks_and_rates_go_on_where_they_were(tmp_path, caplog):
    def ended(path, rounds=12, order=1, **options):
        plateau = Plateau()
        stopping, still = EarlyStopping(validation="server/sum", patience=3), EarlyStopping(1e9, patience=99)
        strategy = make(FedDualAvg, client_lr=lambda server_round: 0.1 * plateau.scale)
        result = play(strategy, path, rounds, callbacks=[plateau, stopping, still][::order], **options)
        best = stopping.best, stopping.best_arrays["intercept"], [own.tobytes() for own in still.to_arrays().values()]
        return described(result, strategy), plateau.scale, stopping.stopped, best

    whole = ended(tmp_path / "whole.npz")
    assert whole[1] < 1.0
    assert 3 < whole[2] < 12
    for stop in (1, 2, 3):
        ended(path := tmp_path / f"{stop}.npz", stop)
        assert ended(path, resume=path) == whole
    assert ended(path, 99, resume=path) == whole
    refused("EarlyStopping-0 is not this callback's.*'change of the model'", ended, path, order=-1, resume=path)
    assert f"npz was over after round {whole[2]}, and stays so" in caplog.text


def interrupt(*_):
    raise RuntimeError("interrupted")


def test_a_callback_that_raises_leaves_the_result_and_a_checkpoint(path):
    rounds = []
    seen = lambda server_round, arrays, metrics: rounds.append(server_round)  # noqa: E731
    whole = whole_run(lambda: make(FedDAGT), path)
    strategy = make(FedDAGT)
    with pytest.raises(RuntimeError, match="interrupted") as caught:
        play(strategy, path, every=1, callbacks=[seen, lambda number, *_: number == 4 and interrupt(), seen])
    assert "`result`" in caught.value.__notes__[0]
    assert sorted(strategy.result.train_metrics_clientapp) == [1, 2, 3, 4]
    # The round of which a callback raises is not done: it is played again.
    strategy = make(FedDAGT)
    assert described(play(strategy, path, resume=path, callbacks=[seen, lambda *_: None, seen]), strategy) == whole
    assert rounds == [1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 6, 6]


@pytest.mark.parametrize("where", [(client.records, "stamp_of"), (client, "pack"), (zipfile._ZipWriteFile, "close")])
def test_who_is_interrupted_within_a_step_resumes_from_before_it(where, path, monkeypatch):
    """While memories are moved, by the server or a client, which then has none; or while the run is saved."""
    whole = whole_run(lambda: make(FedDAGT), path)
    plain, calls = getattr(*where), itertools.count()
    with monkeypatch.context() as patch:
        patch.setattr(*where, lambda *given: interrupt() if next(calls) == 10 else plain(*given))
        refused("interrupted", play, make(FedDAGT), path, kind=RuntimeError, every=1)
    strategy = make(FedDAGT)
    found = described(play(strategy, path, resume=path if path.exists() else None), strategy)
    assert (found[0], found[2]) == (whole[0], whole[2])


@pytest.mark.parametrize(("where", "at", "saved"), [((Nodes, "sample"), 6, 3), ((FedDAGT.algorithm, "restart"), 1, 0)])
def test_an_error_before_a_round_saves_the_last_unless_half_has_changed(where, at, saved, path, monkeypatch):
    plain, calls, own = getattr(*where), itertools.count(), make(FedDAGT)
    ids = lambda grid: [*grid.partition_ids][: 4 if own.state.round >= 3 else 5]  # noqa: E731
    monkeypatch.setattr(fco.simulation.InProcessGrid, "get_node_ids", ids)
    monkeypatch.setattr(*where, lambda *given: interrupt() if next(calls) == at else plain(*given))
    refused("interrupted", play, own, path, kind=RuntimeError, every=99)
    assert own.saved.read(path)["parts"]["run"]["number"] == saved


def test_a_file_is_whole_at_every_point_of_its_writing(path):
    path = path.with_name(f"{'long' * 20}.npz")
    play(strategy := make(FedDAGT), path)
    names = {"open", "write", "truncate", "seek", "flush", "fsync", "close", "replace", "rename", "unlink"}
    calls = killed(lambda: strategy.saved.save(path), 0, names)
    assert calls > 20
    # All those at the end, where a file takes another's place, and some of those at which arrays are written.
    for at in [*range(1, calls - 20, calls // 10), *range(calls - 20, calls + 1)]:
        killed(lambda at=at: strategy.saved.save(path), at, names)
        strategy.saved.read(path)
    # What the killed ones have left goes with the next run, and not what another run is writing.
    assert [*path.parent.glob(".*.partial")]
    (path.parent / (other := f".{path.name[-50:]}.npz.{'0' * 16}.partial")).touch()
    play(make(FedDAGT), path, 1)
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, f"{path.name}.lock", other}


# --- files that are not what they should be ---------------------------------------------------------------------


def tampered(path):
    arrays = read_npz(path)
    name = next(name for name, array in arrays.items() if array.dtype == np.float64)
    np.savez(path, **{**arrays, name: arrays[name] + 1.0})


def of_an_older_version(path):
    """Whose states had other fields."""
    of = {name: array for name, array in read_npz(path).items() if name != "checksum"}
    saved = json.loads(of["tree"].tobytes()) | {"version": 7, "tree": "none of this version"}
    of["tree"] = np.frombuffer(json.dumps(saved).encode(), np.uint8)
    np.savez(path, **of, checksum=fco.strategies.rounds._checksum(of))


#: What is done to a file, whose run goes on with which seed, and what is wrong then.
DAMAGES = [(tampered, 3, "damaged"), (str, 4, "seed=3, here .*seed=4"), (of_an_older_version, 3, "by another version")]


@pytest.mark.parametrize(("damage", "seed", "why"), DAMAGES)
def test_what_is_no_checkpoint_of_this_run_is_refused_and_left_alone(damage, seed, why, path, tmp_path):
    play(make(FedDualAvg), path, 3)
    damage(path)
    before = path.read_bytes()
    for resume in (path, None):
        refused(rf"run\.npz.*{why}", play, make(FedDualAvg, seed=seed), path, resume=resume)
        assert path.read_bytes() == before
    assert {entry.name for entry in tmp_path.iterdir()} == {"run.npz", "run.npz.lock"}


def test_a_place_that_cannot_be_written_is_an_error_at_the_start(tmp_path):
    play(make(FedDualAvg), made := tmp_path / "new" / "run.npz", 1)
    # As the first is a file.
    refused("give a folder that can be written", play, make(FedDualAvg), made / "run.npz")


def test_a_run_without_resume_does_not_begin_by_replacing_a_checkpoint(path):
    play(make(FedDualAvg), path, 4)
    before = path.read_bytes()
    refused("interrupted", play, make(FedDualAvg), path, kind=RuntimeError, callbacks=[interrupt])
    assert path.read_bytes() == before


def test_a_full_disk_does_not_end_the_run(path, monkeypatch, caplog):
    monkeypatch.setattr(os, "fsync", lambda file: type(path)("/dev/full").write_text("full"))
    assert (max(play(make(FedDualAvg), path).train_metrics_clientapp), "No space" in caplog.text) == (ROUNDS, True)


# --- two servers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "name"), [("run.npz", "run.npz"), ("run.npz", "link.npz"), ("link.npz", "link.npz")])
def test_of_two_servers_one_saves_itself_to_a_file(first, name, path, tmp_path):
    """A private round is released by one of them, with one noise."""
    pytest.importorskip("dp_accounting")
    exact = {"weighting": "uniform", "normalize_local_work": False, "fraction_evaluate": 0.0}
    noise = fco.GaussianDP(clip=1.0, delta=0.05, noise_multiplier=1.0, rounds=ROUNDS)
    (tmp_path / "link.npz").symlink_to(path)

    workers = []

    def second():
        with pytest.raises(ConfigurationError, match=rf"another run saves itself to .*{name}; wait until"):
            play(make(FedDualAvg, privacy=noise, **exact), tmp_path / name, every=1, resume=path)
        workers.append(os.fork() or signal.alarm(60) or signal.pause())

    strategy, again = (make(FedDualAvg, privacy=noise, **exact) for _ in range(2))
    play(strategy, tmp_path / first, every=1, callbacks=[lambda number, *_: number == 3 and second()])
    # When the first has ended, the file is free, whatever process it has left behind.
    play(again, path, resume=path)
    os.kill(workers.pop(), signal.SIGKILL)
    np.testing.assert_array_equal(again.state.dual, strategy.state.dual)


# --- what is on the disk ----------------------------------------------------------------------------------------------


def another(path, way, change):
    """Write a file of another tree."""
    about = json.loads(read_npz(path)["tree"].tobytes())["about"]
    fco.strategies.rounds.save(path, about, with_entry(fco.strategies.rounds.load(path, about), way, change))


def with_entry(tree, way, change):
    """Return a tree with one entry changed, or without it if it becomes `...`; None is its first key."""
    entries = dict(enumerate(tree) if isinstance(tree, tuple) else tree)
    key = next(iter(entries)) if way[0] is None else way[0]
    entries[key] = with_entry(entries[key], way[1:], change) if way[1:] else change(entries[key])
    entries = {name: entry for name, entry in entries.items() if entry is not ...}
    return tuple(entries.values()) if isinstance(tree, tuple) else entries


PLATEAU = {"cls": FedDualAvg, "callbacks": [Plateau()]}
DAMAGED = r"run\.npz is damaged"
DENSITY = {"cls": FedDualAvg, "regularizer": fco.Zero(), "density": 0.3}
AROUND = {"cls": fco.ReFedDAGT}
GRAPH = {"cls": fco.DFedDA}
START = {"coefficients": np.ones(FEATURES), "intercept": np.zeros(1)}
DUAL = ("parts", "run", "state", 0)
WEIGHT = ("parts", "ledger", "members", None, 0)
MEMORY = ("parts", "ledger", "members", None, 2)
#: A run, what is changed in its file, the run that is to go on with it, and why it cannot.
REFUSED = {
    "NaN in the state": ({}, (DUAL, lambda a: a * np.nan), {}, DAMAGED),
    "complex numbers": ({}, (DUAL, lambda a: a.astype(complex)), {}, DAMAGED),
    "a short array": ({}, (DUAL, lambda a: a[:-1]), {}, DAMAGED),
    "no state": ({}, (DUAL[:-1], lambda state: ...), {}, DAMAGED),
    "no number of rounds": ({}, (DUAL[:-1], lambda state: state[:-1]), {}, DAMAGED),
    "half a round": ({}, (("parts", "run", "number"), lambda number: 0.5), {}, DAMAGED),
    "a text for a length": ({}, (("parts", "cap", "usual", None), lambda usual: "far"), {}, DAMAGED),
    "no lengths": ({}, (("parts", "cap"), lambda cap: ...), {}, DAMAGED),
    "a memory of another width": ({}, (MEMORY, lambda held: {"own": held["own"][:-1]}), {}, DAMAGED),
    "a graph without a node": (GRAPH, (("parts", "graph", "rows", None), lambda row: ...), GRAPH, DAMAGED),
    "a memory of nothing": ({}, (MEMORY, lambda held: {}), {}, DAMAGED),
    "NaN in a memory": ({}, (MEMORY, lambda held: {"own": held["own"] * np.nan}), {}, DAMAGED),
    "a negative weight": ({}, (WEIGHT, lambda weight: -1.0), {}, DAMAGED),
    "text for a weight": ({}, (WEIGHT, lambda weight: "w"), {}, DAMAGED),
    "no numbers of a callback": (PLATEAU, (("callbacks", None), lambda own: {}), PLATEAU, "callbacks"),
    "another strategy": ({}, None, {"cls": fco.Scaffold}, "other settings: .*Scaffold"),
    "another rate": ({}, None, {"client_lr": 0.03}, r"other settings: .*client_lr=0\.05, here client_lr=0\.03"),
    "another psi": ({}, None, {"regularizer": fco.L1(0.06)}, r"other settings: .*here regularizer=L1\(0\.06"),
    "other work": ({}, None, {"work": Steps(4)}, "other settings: .*here work="),
    "another start": (AROUND, None, {**AROUND, "start": START}, "settings: map around the initial arrays: PNorm"),
    "other nodes": ({}, None, {"nodes": 4, "min_evaluate_nodes": 2}, "of 5 nodes, and .* 4: resume with the nodes"),
    "more rounds": (DENSITY, None, DENSITY, r"falls otherwise: .*Density\(share=0\.3, .*rounds=3\)"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_that_cannot_go_on_with_a_file_is_refused_in_words(name, path, tmp_path):
    first, change, other, said = REFUSED[name]

    def go(path, rounds, cls=FedDAGT, nodes=5, callbacks=(), resume=None, start=None, **options):
        play(make(cls, **options), path, rounds, nodes=nodes, callbacks=callbacks, resume=resume, start=start)

    go(path, 4, **first)
    if change is not None:
        another(path, *change)
    refused(said, go, tmp_path / "other.npz", 8, resume=path, **other)


def test_options_that_may_change_may_and_the_grid_too(path, monkeypatch):
    whole = whole_run(lambda: make(FedDAGT), path)
    play(make(FedDAGT), path, 3)
    with monkeypatch.context() as patch:
        # A ServerApp's grid has clients of its own.
        patch.delattr(fco.simulation.InProcessGrid, "restore")
        strategy = make(FedDAGT)
        assert described(play(strategy, path.with_name("there.npz"), resume=path), strategy)[0] == whole[0]
    changed = {"bounds": fco.Bounds(max_ratio=500.0), "on_divergence": "warn", "min_available_nodes": 1}
    strategy = make(FedDAGT, **changed, participation=fco.Participation(node_timeout=3.0))
    assert described(play(strategy, path, resume=path), strategy) == whole


# --- longer runs ------------------------------------------------------------------------------------------------------


STAGES = {"stages": [Stage(4), Stage(3), Stage(5)], "mirror_map": fco.PNorm(4.0)}
#: In runs of nine rounds, and of fewer.
SAME = itertools.cycle([0.3, *2 * [fco.Density(0.3, rounds=7)]])
FALLING = {"density": fco.Density(0.3, rounds=3), "regularizer": fco.Zero()}


def by_columns(context):
    rows = sparse.random_array((20, 60), density=0.05, rng=np.random.default_rng(context.node_id), format="csr")
    return fco.Logistic(rows, np.arange(20) % 2)


def head_alone(arrays, message, context):
    """Train one array of two."""
    return arrays | {"coefficients": 0.9 * arrays["coefficients"] + context.node_id}


MOVES = lambda number, arrays, metrics: arrays.update(intercept=Array(np.full(1, 1.0 / number)))  # noqa: E731
SHORT, PLAIN = (app_of(problem(), [mod]) for mod in (fco.short_mod(), lambda *given: given[2](*given[:2])))
WIDE = {"app": fco.client_app(by_columns), "start": {"coefficients": np.zeros(60), "intercept": np.zeros(1)}}
SITES = {"app": app_of(sites("logistic", (30, 41, 25, 30, 25), 6))}
LONGER = {
    "density": (lambda: make(FedDualAvg, regularizer=fco.Zero(), density=next(SAME)), {}),
    "a model that a callback changes": (lambda: make(FedDualAvg), {"callbacks": [MOVES]}),
    "momentum": (lambda: make(FedDualAvg, server_momentum=0.5), {}),
    "extrapolation": (lambda: make(fco.FeDualEx), {}),
    "everyone": (lambda: make(fco.DualFL), {}),
    "a path": (lambda: make(FedNewton, strengths=fco.Strengths(3, 0.1, folds=2), tolerance=1e-15), SITES),
    "average": (lambda: make(FedDAGT, output=fco.Average()), {}),
    "rates": (lambda: make(FedDualAvg, client_lr="auto"), {}),
    "evaluations alone": (lambda: make(FedDualAvg, fraction_train=0.0), {}),
    "stages": (lambda: make(fco.MultistepReFedDAGT, reference=fco.Reference(window=3), **STAGES), {}),
    "a graph in stages": (lambda: make(fco.DReFedDAGT, mixing="ring", **STAGES), {}),
    "short messages": (lambda: make(FedDualAvg, wire=fco.Short(), **FALLING), {"app": SHORT}),
    "memories in messages": (lambda: make(FedDAGT), {"app": PLAIN}),
    "everyone in messages": (lambda: make(fco.DualFL), {"app": PLAIN}),
    "memories by columns": (lambda: make(FedDAGT, client_lr=0.5), WIDE),
    "what nobody trains": (
        lambda: FedDualAvg(client="unmodified", fraction_train=0.6, seed=3, **FALLING),
        {
            "app": foreign_app(head_alone),
            "start": {"coefficients": np.arange(12.0).reshape(3, 4), "body": np.arange(1.0, 61.0).reshape(6, 10)},
        },
    ),
}


@pytest.mark.parametrize("name", LONGER)
def test_a_run_resumed_for_more_rounds_equals_the_longer_run(name, path):
    """On new nodes, which remember nothing."""
    build, of_clients = LONGER[name]
    whole = whole_run(build, path, 9, **of_clients)
    for rounds in (2, 5, 9):
        strategy = build()
        result = play(strategy, path, rounds, resume=path if path.exists() else None, **of_clients)
    assert described(result, strategy) == whole
    refused("is of round 9, and num_rounds=5: it is", play, build(), path, 5, resume=path, **of_clients)
