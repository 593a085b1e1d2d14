"""A run that is killed at any point and resumed ends in the bits of one that was never stopped."""

import json
import os
import random
import sys

import numpy as np
import pytest
from fitting import fitting
from flwr.app import MetricRecord
from flwr.serverapp import Grid
from problems import CONSTANTS, app_of, problem, start_arrays
from representatives import by_class

from flwr_fco.callbacks import Callback, Checkpoint, EarlyStopping
from flwr_fco.core.computing import single_threaded_blas
from flwr_fco.errors import ConfigurationError, DivergedError
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import (
    STRATEGIES,
    Average,
    DualFL,
    FedDAGT,
    FedDualAvg,
    Participation,
    Steps,
    method_of,
    run_of,
)
from flwr_fco.wire import flower as _flower

ROUNDS = 6


def make(cls, **options):
    """A strategy with options that leave something to remember: sampling, averages, certificates."""
    wanted = {"regularizer": L1(0.05), "client_lr": 0.05, "work": Steps(3, batch_size=4), "seed": 3, "batch_size": 4}
    if "regularizer" in method_of(cls).algorithm.refuses:
        del wanted["regularizer"]
    if method_of(cls).algorithm.reads != "everyone":
        wanted["fraction_train"] = 0.6
    wanted |= {**CONSTANTS.get(cls.__name__, {}), **options}
    return cls(**fitting(cls, wanted))


def sums(server_round, arrays):
    return MetricRecord({"sum": float(arrays["coefficients"].numpy().sum())})


def play(strategy, path, rounds=ROUNDS, *, every=2, resume=None, callbacks=(), evaluate_fn=sums, **options):
    objectives = problem()
    strategy.fraction_evaluate = 0.5
    return simulate(
        strategy,
        app_of(objectives),
        num_nodes=len(objectives),
        num_rounds=rounds,
        initial_arrays=start_arrays(),
        evaluate_fn=evaluate_fn,
        callbacks=[Checkpoint(path, every=every), *callbacks],
        resume=resume,
        progress=False,
        **options,
    )


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
                    os._exit(9)

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


def without_caches(row):
    """A client that is started again computes its Hessian again: that is counted, and changes no bit of the rest."""
    return {name: value for name, value in row.items() if name != "hessian-products"}


def described(result, strategy):
    """All that a run ends in, to the bit."""
    histories = (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
        result.evaluate_metrics_serverapp,
        result.callback_metrics,
    )
    return (
        {name: (array.dtype, array.shape, array.numpy().tobytes()) for name, array in result.arrays.items()},
        json.dumps([{number: without_caches(row) for number, row in history.items()} for history in histories]),
        [np.asarray(value).tobytes() for value in strategy.state],
        list(result.left_out),
        run_of(strategy).chosen,
    )


def whole_and_resumed(build, tmp_path, seed, kills=1, **options):
    """Return what an uninterrupted run ends in, and what a run that was killed ends in."""
    strategy = build()
    whole = described(play(strategy, tmp_path / "whole.npz", **options), strategy)
    calls = killed(lambda: play(build(), tmp_path / "count.npz", **options), 0)
    assert calls > 1000
    points = random.Random(seed)
    for i in range(kills):
        path = tmp_path / f"{i}.npz"
        at = points.randrange(1, calls)
        killed(lambda at=at, path=path: play(build(), path, **options), at)
        strategy = build()
        resume = path if path.exists() else None
        yield whole, described(play(strategy, path, resume=resume, **options), strategy), at


@pytest.mark.parametrize("name", by_class())
def test_every_strategy(name, tmp_path):
    for whole, resumed, at in whole_and_resumed(lambda: make(STRATEGIES[name]), tmp_path, name):
        assert resumed == whole, at


@pytest.mark.parametrize(
    ("build", "kills"),
    [
        (lambda: make(FedDAGT), 6),
        pytest.param(lambda: make(FedDAGT), 20, marks=pytest.mark.slow),
        pytest.param(lambda: make(FedDAGT, client_state="reset"), 20, marks=pytest.mark.slow),
        pytest.param(lambda: make(FedDualAvg, client_lr="auto", output=Average(100)), 20, marks=pytest.mark.slow),
        pytest.param(lambda: make(DualFL, certificate_every=1), 20, marks=pytest.mark.slow),
    ],
    ids=["in short", "ledger", "reset", "rate that was asked for", "everyone"],
)
def test_many_points(build, kills, tmp_path):
    for whole, resumed, at in whole_and_resumed(build, tmp_path, 0, kills):
        assert resumed == whole, at


class Plateau:
    """A user's callback with a state, which the strategy's rate reads: it shrinks when the model stops shrinking."""

    def __init__(self):
        self.scale, self.best = 1.0, np.inf

    def to_arrays(self):
        return {"numbers": np.array([self.scale, self.best])}

    def from_arrays(self, arrays):
        self.scale, self.best = arrays["numbers"].tolist()

    def __call__(self, server_round, arrays, metrics):
        size = float(np.abs(arrays["coefficients"].numpy()).sum())
        self.scale *= 1.0 if size < self.best else 0.7
        self.best = min(size, self.best)


def test_callbacks_and_rates_go_on_where_they_were(tmp_path):
    def build():
        nonlocal rules
        plateau = Plateau()
        stopping = EarlyStopping(validation="server/sum", patience=3)
        rules = [plateau, stopping]
        return make(FedDualAvg, client_lr=lambda server_round: 0.1 * plateau.scale)

    def ended(strategy, result):
        plateau, stopping = rules
        state = (plateau.scale, plateau.best, stopping.stopped, stopping.best, stopping.best_arrays["intercept"])
        return described(result, strategy), state

    rules = []
    strategy = build()
    whole = ended(strategy, play(strategy, tmp_path / "whole.npz", 12, callbacks=rules))
    assert rules[0].scale < 1.0
    assert 0 < rules[1].stopped < 12
    calls = killed(lambda: (strategy := build(), play(strategy, tmp_path / "count.npz", 12, callbacks=rules)), 0)
    for i in range(3):
        path = tmp_path / f"{i}.npz"
        at = random.Random(i).randrange(calls // 3, calls)
        killed(lambda path=path: (strategy := build(), play(strategy, path, 12, callbacks=rules)), at)
        strategy = build()
        assert ended(strategy, play(strategy, path, 12, callbacks=rules, resume=path)) == whole, at


class Interruption(Exception):
    pass


def raises_in(number):
    def callback(server_round, arrays, metrics):
        if server_round == number:
            raise Interruption

    return callback


def test_a_callback_that_raises_leaves_the_result_and_a_checkpoint(tmp_path):
    path = tmp_path / "run.npz"

    def seen(server_round, arrays, metrics):
        rounds.append(server_round)

    rounds = []
    strategy = make(FedDAGT)
    whole = described(play(strategy, tmp_path / "whole.npz"), strategy)
    strategy = make(FedDAGT)
    with pytest.raises(Interruption) as caught:
        play(strategy, path, every=100, callbacks=[seen, raises_in(4), seen])
    assert "`result`" in caught.value.__notes__[0]
    assert sorted(strategy.result.train_metrics_clientapp) == [1, 2, 3, 4]
    # The round is aggregated and its callbacks are not through: the first one is not called for it again.
    strategy = make(FedDAGT)
    assert described(play(strategy, path, resume=path, callbacks=[seen, lambda *_: None, seen]), strategy) == whole
    assert rounds == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]


def test_evaluation_that_raises_is_repeated(tmp_path):
    path, strategy = tmp_path / "run.npz", make(FedDualAvg)
    whole = described(play(strategy, tmp_path / "whole.npz"), strategy)
    strategy = make(FedDualAvg)

    def score(server_round, arrays):
        if server_round == 3:
            raise Interruption
        return sums(server_round, arrays)

    with pytest.raises(Interruption):
        play(strategy, path, every=100, evaluate_fn=score)
    strategy = make(FedDualAvg)
    assert described(play(strategy, path, resume=path), strategy) == whole


def test_a_diverged_state_is_not_saved(tmp_path):
    path = tmp_path / "run.npz"
    with pytest.raises(DivergedError):
        play(make(FedDualAvg, client_lr=40.0), path, 400, every=1)
    strategy = make(FedDualAvg, client_lr=40.0)
    run_of(strategy).prepare(start_arrays())
    run_of(strategy).load(path)
    assert np.isfinite(strategy.state.dual).all()
    with pytest.raises(DivergedError) as caught:
        play(strategy, path, 400, resume=path)
    assert caught.value.good_round < caught.value.server_round


def test_a_wait_that_ends_is_gone_on_with(tmp_path, monkeypatch):
    path, strategy = tmp_path / "run.npz", make(FedDualAvg)
    whole = described(play(strategy, tmp_path / "whole.npz"), strategy)
    strategy = make(FedDualAvg, participation=Participation(node_timeout=0.0))
    true_nodes = InProcessGrid.get_node_ids
    monkeypatch.setattr(
        InProcessGrid,
        "get_node_ids",
        lambda grid: [] if strategy.state is not None and strategy.state.round == 3 else true_nodes(grid),
    )
    with pytest.raises(ConfigurationError, match="0 nodes connected"):
        play(strategy, path, every=100)
    monkeypatch.undo()
    strategy = make(FedDualAvg)
    assert described(play(strategy, path, resume=path), strategy) == whole


def test_a_file_is_whole_at_every_point_of_its_writing(tmp_path):
    path = tmp_path / "run.npz"
    strategy = make(FedDAGT)
    play(strategy, path)
    names = {"open", "write", "truncate", "seek", "flush", "fsync", "close", "replace", "rename", "unlink"}
    calls = killed(lambda: run_of(strategy).save(path), 0, names)
    assert calls > 20
    # All those at the end, where a file takes another's place, and some of those at which arrays are written.
    for at in [*range(1, calls - 20, calls // 10), *range(calls - 20, calls + 1)]:
        killed(lambda at=at: run_of(strategy).save(path), at, names)
        run_of(strategy).read_state(path)


# --- files that are not what they should be ---------------------------------------------------------------------


def test_a_finished_run_can_be_made_longer(tmp_path):
    path, strategy = tmp_path / "run.npz", make(FedDAGT)
    whole = described(play(strategy, tmp_path / "whole.npz"), strategy)
    play(make(FedDAGT), path, 4)
    strategy = make(FedDAGT)
    assert described(play(strategy, path, resume=path), strategy) == whole
    again = make(FedDAGT)
    assert described(play(again, path, resume=path), again) == whole
    with pytest.raises(ConfigurationError, match=r"num_rounds=5, but .* is of round 6; num_rounds is the total"):
        play(make(FedDAGT), path, 5, resume=path)


def foreign(path):
    np.savez(path, features=np.ones(3))


def truncated(path):
    path.write_bytes(path.read_bytes()[:-200])


def tampered(path):
    with np.load(path) as file:
        arrays = dict(file)
    arrays["state/dual"] = arrays["state/dual"] + 1.0
    np.savez(path, **arrays)


def text(path):
    path.write_text("a note")


def of_other_settings(path):
    path.unlink()
    play(make(FedDualAvg, seed=4), path)


@pytest.mark.parametrize("damage", [foreign, truncated, tampered, text, of_other_settings])
def test_what_is_no_checkpoint_of_this_run_is_refused_and_left_alone(damage, tmp_path):
    path = tmp_path / "run.npz"
    play(make(FedDualAvg), path, 3)
    damage(path)
    before = path.read_bytes()
    for resume in (path, None):
        with pytest.raises(ConfigurationError, match=r"run\.npz"):
            play(make(FedDualAvg), path, resume=resume)
        assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.npz"]


def test_a_place_that_cannot_be_written_is_an_error_at_the_start(tmp_path):
    with pytest.raises(ConfigurationError, match=r"expected the name of a file that ends in \.npz"):
        Checkpoint(tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="give a folder that can be written"):
        play(make(FedDualAvg), tmp_path / "file" / "run.npz")
    play(make(FedDualAvg), tmp_path / "new" / "run.npz", 1)
    assert (tmp_path / "new" / "run.npz").exists()


def test_a_run_without_resume_does_not_begin_by_replacing_a_checkpoint(tmp_path):
    path = tmp_path / "run.npz"
    play(make(FedDualAvg), path, 4)
    before = path.read_bytes()
    with pytest.raises(Interruption):
        play(make(FedDualAvg), path, every=2, callbacks=[Beginning()])
    assert path.read_bytes() == before


class Beginning(Callback):
    def on_round_begin(self, server_round, arrays):
        raise Interruption


def test_a_full_disk_does_not_end_the_run(tmp_path, monkeypatch, caplog):
    path, strategy = tmp_path / "run.npz", make(FedDualAvg)

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with caplog.at_level("WARNING", "flwr"):
        result = play(strategy, path)
    assert max(result.train_metrics_clientapp) == ROUNDS
    assert "No space left" in caplog.text


def test_a_state_that_was_loaded_is_not_forgotten_unawares(tmp_path):
    path = tmp_path / "run.npz"
    play(make(FedDualAvg), path, 3)
    strategy = make(FedDualAvg)
    run_of(strategy).prepare(start_arrays())
    run_of(strategy).load(path)
    with pytest.raises(ConfigurationError, match=r"would forget the state that `load` has restored.*`resume`"):
        play(strategy, tmp_path / "other.npz")
    assert strategy.state.round == 3
    run_of(strategy).prepare(start_arrays())
    play(strategy, tmp_path / "other.npz", 1)


def test_a_state_without_its_run_is_no_checkpoint(tmp_path):
    path, strategy = tmp_path / "run.npz", make(FedDualAvg)
    run_of(strategy).prepare(start_arrays())
    run_of(strategy).save(path)
    with pytest.raises(ConfigurationError, match="holds a state without the run"):
        play(make(FedDualAvg), path, resume=path)
    with pytest.raises(FileNotFoundError):
        play(make(FedDualAvg), path, resume=tmp_path / "none.npz")


def test_other_nodes_are_refused(tmp_path):
    path, strategy = tmp_path / "run.npz", make(FedDualAvg)
    play(strategy, path, 3)
    four = problem()[:4]
    with pytest.raises(ConfigurationError, match="it is of 5 nodes, and there are 4"):
        simulate(
            make(FedDualAvg, min_evaluate_nodes=2),
            app_of(four),
            num_nodes=4,
            num_rounds=6,
            initial_arrays=start_arrays(),
            resume=path,
        )


class Deployed(Grid):
    """Nodes of which a server knows what Flower's own grids tell: their memories are not among it."""

    def __init__(self):
        self.nodes = InProcessGrid(app_of(problem()), 5)

    run = property(lambda self: self.nodes.run)


for method in ("set_run", "create_message", "get_node_ids", "push_messages", "pull_messages", "send_and_receive"):
    setattr(Deployed, method, lambda self, *given, _name=method, **more: getattr(self.nodes, _name)(*given, **more))
Deployed.__abstractmethods__ = frozenset()


@pytest.mark.parametrize("cls", [FedDAGT, DualFL])
def test_nodes_that_are_new_after_a_kill_are_told_what_they_were(cls, tmp_path):
    """As in a deployment that is killed as a whole: the ledger has what the nodes had, and no node has the plan."""
    results = []
    for path, rounds in ((tmp_path / "whole.npz", (4,)), (tmp_path / "run.npz", (2, 4))):
        for number in rounds:
            grid, strategy = Deployed(), make(cls, client_state="ledger", fraction_evaluate=0.0)
            resume = path if path.exists() else None
            with _flower.identity(grid.nodes.run_id), single_threaded_blas():
                result = strategy.start(
                    grid, start_arrays(), number, callbacks=[Checkpoint(path, every=1)], resume=resume
                )
        assert not result.left_out
        results.append((strategy.state, result))
    for one, other in zip(results[0][0], results[1][0], strict=True):
        np.testing.assert_array_equal(one, other)
    assert [metrics["num-replies"] for metrics in results[1][1].train_metrics_clientapp.values()] == [
        metrics["num-replies"] for metrics in results[0][1].train_metrics_clientapp.values()
    ]
