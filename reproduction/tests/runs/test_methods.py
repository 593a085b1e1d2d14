"""How a strategy is built from the settings of a run, whatever arguments it has."""

import inspect

import pytest

from flwr_fco.regularizers import L1, Zero
from flwr_fco.work import FirstOrder
from reproduction.runs import methods
from reproduction.runs.methods import STRATEGIES, equal_stages, make_strategy, option_names
from reproduction.runs.recorder import build_strategy
from reproduction.runs.settings import RunSettings


class NoRates:
    """Called as a strategy without learning rates would be."""

    def __init__(self, *, regularizer, damping=1.0, seed=0):
        self.regularizer, self.damping, self.seed = regularizer, damping, seed


@pytest.fixture
def no_rates(monkeypatch):
    monkeypatch.setitem(methods.STRATEGIES, "NoRates", NoRates)


def test_a_strategy_gets_the_arguments_that_it_has_and_no_others(no_rates):
    decided = {"regularizer": L1(0.5), "client_lr": 0.1, "server_lr": 1.0, "seed": 3}
    strategy = make_strategy("NoRates", decided, {"damping": 2.0})
    assert (strategy.regularizer, strategy.damping, strategy.seed) == (L1(0.5), 2.0, 3)
    assert option_names("NoRates") == ["damping"]


def test_an_option_that_a_strategy_does_not_have_is_not_dropped(no_rates):
    with pytest.raises(TypeError, match="momentum"):
        make_strategy("NoRates", {"regularizer": L1(0.5)}, {"momentum": 0.9})


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_what_the_run_decides_reaches_every_strategy(name):
    everyone = STRATEGIES[name].algorithm.reads == "everyone"
    values = {"client-lr": 0.03, "server-lr": 0.5, "local-steps": 4, "clients-per-round": 16 if everyone else 8}
    settings = RunSettings.of("lasso-small", name, values, seed=9)
    psi = Zero() if "regularizer" in STRATEGIES[name].algorithm.refuses else L1(0.5)
    strategy = build_strategy(settings, 16, psi)
    assert strategy.regularizer == psi
    assert (strategy.seed, strategy.min_train_nodes) == (9, 16 if everyone else 8)
    if isinstance(getattr(strategy, "work", None), FirstOrder):
        assert strategy.work.steps == 4
    for key in ("client_lr", "server_lr"):
        if key in inspect.signature(STRATEGIES[name]).parameters:
            assert getattr(strategy, key) == getattr(settings, key)
    # What the run decides cannot be set a second time as an option.
    assert not {"regularizer", "client_lr", "seed", "work", "fraction_train"} & set(option_names(name))


def test_stages_outlast_the_run():
    for length, rounds in ((3, 10), (5, 5), (7, 3)):
        stages = equal_stages(length, rounds)
        assert sum(stage.rounds for stage in stages) > rounds >= sum(stage.rounds for stage in stages[:-1])
