"""Private runs through the whole strategy: what is withheld and refused, what is saved, and what a client can do."""

import os
import re
import stat

import numpy as np
import pytest
from faulty import Faulty, says, scaled, silent, start_on
from flwr.app import MetricRecord
from fresh import blocks, run_code
from problems import app_of, flat, problem, refused, simulated, start_arrays

from flwr_fco import FedDAGT, FedDualAvg, FedDualAvgOSP, FeDualEx, GaussianDP, fit_path
from flwr_fco.callbacks import Callback, Checkpoint
from flwr_fco.errors import DivergedError, RunInterrupted, UnknownOptionError
from flwr_fco.privacy import PrivateMean
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Arrays, Bounds, DualFL, Epochs, Participation, Steps, run_of

pytest.importorskip("dp_accounting")


def privacy(**options):
    return GaussianDP(**{"clip": 0.5, "noise_multiplier": 0.2, "delta": 1e-3, "noise_seed": 5, **options})


def make(cls=FedDualAvg, **options):
    exact = {"weighting": "uniform", "normalize_local_work": False, "fraction_evaluate": 0.0, "privacy": privacy()}
    chosen = {"regularizer": L1(0.1), "client_lr": 0.02, "work": Steps(3, batch_size=4), "fraction_train": 0.4}
    return cls(**exact | chosen | options)


def play(strategy, rounds=6, **options):
    return simulated(strategy, app_of(problem()), rounds, num_nodes=5, **options)


NOISES = [(FedDualAvg, "banded"), (FedDualAvgOSP, "banded"), (FeDualEx, "independent")]


@pytest.mark.parametrize(("cls", "noise"), NOISES)
def test_a_run_shows_the_noisy_model_and_nothing_else_of_the_clients(cls, noise):
    strategy = make(cls, privacy=privacy(noise=noise, noise_seed=None))
    result = play(strategy)
    rounds = result.train_metrics_clientapp.values()
    assert set().union(*rounds) - {"nonzeros", "density"} == {"skipped", "epsilon", "delta"}
    assert not result.left_out
    assert not result.evaluate_metrics_clientapp
    costs = [metrics["epsilon"] for metrics in rounds]
    assert np.all(np.diff(costs) >= 0)
    assert 0 < costs[0] <= costs[-1] < np.inf
    assert costs[-1] == run_of(strategy).privacy.accountant.epsilon(0.2, 6, 1e-3)
    assert strategy.state.elapsed == pytest.approx(6 * 0.02 * 3)


def test_a_run_with_a_seed_says_that_it_is_not_private(caplog):
    result = play(make(), verbose=True)
    last = result.train_metrics_clientapp[6]
    assert (last["epsilon"], last["not-private"]) == (np.inf, 1)
    assert "not-private" in str(result)
    assert re.search(r"Epsilon, delta: \(inf, .*NOT PRIVATE", caplog.text, re.DOTALL)


def test_without_noise_and_clipping_it_is_dual_averaging_over_the_blocks():
    """With b = 1, everyone there and weak clipping: the bits of weighting='uniform', up to rounding."""
    loose = play(make(fraction_train=1.0, privacy=privacy(clip=1e9, noise_multiplier=0.0)))
    plain = play(make(fraction_train=1.0, privacy=None))
    np.testing.assert_allclose(flat(loose.arrays), flat(plain.arrays), rtol=1e-12, atol=1e-14)


#: Options that the accounting cannot have, and the word that the error has if it is not the option's name.
REFUSED = [
    {"weighting": "examples"},
    {"normalize_local_work": True},
    {"fraction_evaluate": 0.5},
    {"fraction_train": 0.0},
    {"client_lr": "auto"},
    {"server_lr": "auto"},
    {"server_lr": lambda server_round: 1.0},
    {"output": "shadow"},
    {"certificate_every": 1},
    {"aggregation": "median"},
    {"work": Epochs(1), "word": "work=Steps"},
    {"participation": Participation(choose_nodes=lambda number, nodes: nodes), "word": "choose_nodes"},
    {"participation": Participation(min_replies=2), "word": "min_replies"},
    {"client": "unmodified", "word": "composite"},
    {"train_metrics_aggr_fn": lambda contents, key: MetricRecord()},
]


@pytest.mark.parametrize("options", REFUSED)
def test_what_the_accounting_cannot_have_is_refused(options):
    given = {name: value for name, value in options.items() if name != "word"}
    refused(options.get("word", next(iter(options))), make, **given)


def test_a_run_whose_noise_overflows_goes_on_if_the_user_says_so(monkeypatch):
    huge = privacy(clip=1e200, noise_multiplier=1e200)
    result = play(make(on_divergence="warn", privacy=huge), 3)
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [1, 1, 1]
    # Whose replies are long is not said.
    monkeypatch.setattr("flwr_fco.strategies.run._MUCH", 0.0)
    assert "partition" not in refused("overflows", play, make(privacy=huge), 3, kind=DivergedError)


def test_what_a_private_run_cannot_have_is_refused():
    for cls in (FedDAGT, DualFL):
        refused("remember", cls, privacy=privacy(), kind=UnknownOptionError)
    options = {"num_nodes": 5, "num_rounds": 2, "initial_arrays": start_arrays()}
    refused("no noise", fit_path, make(), app_of(problem()), validate=False, **options)
    refused("without noise", play, make(arrays=Arrays(pass_through="intercept")))


# --- one client among five, by messages -----------------------------------------------------------------------------


FAULTS = {
    "silent": silent,
    **{f"times {factor}": scaled(factor) for factor in (np.nan, 0.0, 1e200)},
    "examples": says(num_examples=10**9),
    "elapsed": says(elapsed=1e6),
    "metrics": says(secret=42.0),
}


def state_after(fault):
    # No reply is held against another one: whether it counts would say something of the others.
    strategy = make(fraction_train=1.0, privacy=privacy(clip=0.02), bounds=Bounds(max_ratio=1.001, max_share=0.22))
    result = start_on(Faulty(app_of(problem()), 5, fault, rounds=(1,)), strategy, rounds=1)
    return strategy.state, result.train_metrics_clientapp[1]


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_whatever_one_client_says_moves_the_dual_by_twice_the_clip_at_most(fault):
    (honest, _), (other, metrics) = state_after(lambda message, reply: [reply]), state_after(fault)
    assert np.linalg.norm(honest.dual - other.dual) <= 2 * 0.02 / 5 * (1 + 1e-9)
    assert (honest.elapsed, honest.round) == (other.elapsed, other.round)
    assert set(metrics) == {"skipped", "density", "epsilon", "delta", "not-private"}
    assert metrics["skipped"] == 0


@pytest.mark.parametrize("options", [{}, {"fraction_train": 0.02, "min_train_nodes": 1}], ids=["all fail", "few asked"])
def test_a_round_without_a_reply_adds_noise_and_advances(options):
    strategy = make(**{"fraction_train": 1.0, "privacy": privacy(noise="independent"), **options})
    grid = Faulty(app_of(problem()), 5, silent, rounds=range(9), nodes=range(2, 7))
    result = start_on(grid, strategy)
    assert strategy.state.round == 3
    assert strategy.state.elapsed == pytest.approx(3 * 3 * 0.02)
    assert np.all(strategy.state.dual != 0.0)
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0, 0, 0]


# --- save, kill, resume ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["begin", "end"])
@pytest.mark.parametrize("noise", ["banded", "independent"])
def test_a_killed_run_goes_on_to_the_same_bits_with_the_seed_of_tests(tmp_path, noise, where):
    def kill(self, server_round, *given):
        if server_round == 5:
            raise SystemExit("killed")

    def played(**options):
        return play(make(privacy=privacy(noise=noise, rounds=8)), 8, **options)

    killer = type("Killer", (Callback,), {f"on_round_{where}": kill})()
    path = tmp_path / "run.npz"
    refused("killed", played, callbacks=[Checkpoint(path, every=100), killer], kind=SystemExit)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    refused(r"goes on only where it saves itself.*add Checkpoint\(", played, resume=path)
    assert played(resume=path, callbacks=[Checkpoint(path)]).arrays == played().arrays


def test_the_state_is_on_the_disk_before_anything_is_said_of_a_round(tmp_path, monkeypatch):
    order = []

    def noted(owner, name, event):
        plain = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *given: (order.append(event), plain(*given))[1])

    noted(os, "fsync", "saved")
    noted(PrivateMean, "release", "released")
    shown = {"evaluate_fn": lambda number, arrays: order.append("shown")}
    play(make(fraction_train=1.0), 3, callbacks=[Checkpoint(tmp_path / "run.npz", every=100)], **shown)
    later = order[order.index("released") :]
    assert later.count("released") == later.count("shown") == 3
    assert all(later[i + 1] == "saved" for i, prefix in enumerate(later) if prefix == "released")


@pytest.mark.parametrize("end", ["divergence", "a hook", "Ctrl-C while it is saved"])
def test_a_round_whose_model_is_in_an_error_is_on_the_disk_too(tmp_path, monkeypatch, end):
    def interrupted(number):
        monkeypatch.undo()
        raise KeyboardInterrupt

    class Hooked(FedDualAvg):
        def aggregate_train(self, server_round, replies):
            found = super().aggregate_train(server_round, replies)
            if server_round == 2 and end == "a hook":
                raise DivergedError("as it says", server_round=2, result=self.result, good_round=1)
            if server_round == 2:
                monkeypatch.setattr(os, "fsync", interrupted)
            return found

    huge = {"privacy": privacy(clip=1e200, noise_multiplier=1.0)} if end == "divergence" else {}
    with pytest.raises((DivergedError, RunInterrupted)) as caught:
        play(make(Hooked, **huge), callbacks=[Checkpoint(path := tmp_path / "run.npz")], on_interrupt="raise")
    # Another run does not release that round again.
    last = max(caught.value.result.train_metrics_clientapp)
    refused(f"released {last} rounds", play, make(Hooked, **huge), 6, callbacks=[Checkpoint(path)])
    if not huge:
        resumed = play(make(Hooked), resume=path, callbacks=[Checkpoint(path)])
        assert [*resumed.train_metrics_clientapp] == [1, 2, 3, 4, 5, 6]


def test_a_file_that_cannot_be_written_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda number: (_ for _ in ()).throw(OSError("no space left")))
    refused("no space", play, make(), callbacks=[Checkpoint(tmp_path / "run.npz")], kind=OSError)


def test_a_new_run_beside_the_file_of_one_that_has_released_is_refused(tmp_path):
    path = tmp_path / "run.npz"
    play(make(), callbacks=[Checkpoint(path)])
    refused("spent again", play, make(), callbacks=[Checkpoint(path)])
    refused("other settings", play, make(privacy=None), resume=path)
    refused("accounted for 6 rounds, and this run is to have 7", play, make(), 7, resume=path)


@pytest.mark.parametrize("between", ["nothing", "an option", "a run without privacy"])
def test_a_second_run_of_a_strategy_is_refused_whatever_is_between(between):
    strategy = make(privacy=privacy(rounds=3))
    play(strategy, 3)
    if between == "an option":
        strategy.client_lr = 0.03
    elif between == "a run without privacy":
        settings, strategy.privacy = strategy.privacy, None
        play(strategy, 3)
        strategy.privacy = settings
    refused("released already, up to round 3", play, strategy, 3)


def test_the_code_of_the_page_keeps_its_promise():
    printed = run_code(blocks("tutorials/privacy")[0]).stdout.splitlines()
    epsilon, delta, density = map(float, re.findall(r"[\d.e-]*\d", " ".join(printed[-2:])))
    assert epsilon <= 4.0
    assert delta == 1e-3
    assert density < 1.0
