"""Options and arguments: visible, documented, typed, positional as in FedAvg; wrong ones are told what is right."""

import ast
import copy
import inspect
import pickle
import re
from dataclasses import fields
from pathlib import Path

import flwr.server.strategy
import flwr.serverapp.strategy
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, Result
from problems import app_of, clients, flat, run, start_arrays
from signatures import KEPT
from together import together

import flwr_fco
from flwr_fco.callbacks import Callback
from flwr_fco.errors import ConfigurationError, UnknownOptionError
from flwr_fco.privacy import GaussianDP
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import (
    STRATEGIES,
    Arrays,
    Average,
    Bounds,
    Density,
    DualFL,
    Epochs,
    Everyone,
    FedDAGT,
    FedDR,
    FedDualAvg,
    FedDualAvgOSP,
    FedMid,
    Last,
    Ledger,
    Minimise,
    Participation,
    Steps,
    Trimmed,
    Wire,
    run_of,
)
from flwr_fco.work import FirstOrder

ALL = together("cls", STRATEGIES.values())


@together("kept", KEPT)
@ALL
def test_every_class_of_a_strategy_keeps(cls, kept):
    kept(cls)


def test_positional_arguments_do_what_they_do_in_fed_avg():
    ours, theirs = FedDualAvg(0.5, 0.25, 3, 1, 4, "weight", "a", "c"), FedAvg(0.5, 0.25, 3, 1, 4, "weight", "a", "c")
    for name in list(inspect.signature(FedAvg).parameters)[:8]:
        assert getattr(ours, name) == getattr(theirs, name)


def test_a_strategy_takes_no_argument_that_means_nothing_to_it():
    assert not {"client_lr", "server_lr"} & inspect.signature(FedDR).parameters.keys()
    assert "client_prox" not in inspect.signature(FedDualAvgOSP).parameters
    with pytest.raises(TypeError, match="client_lr"):
        FedDR(client_lr=0.1)


@pytest.mark.parametrize(
    ("cls", "option", "text"),
    [
        (FedDualAvg, {"clientlr": 1}, "clientlr=1: FedDualAvg has no such option; did you mean client_lr?"),
        (FedDualAvg, {"regularisation": L1(1.0)}, "did you mean regularizer?"),
        (FedDualAvg, {"lr": 0.1}, "write client_lr="),
        (FedDualAvg, {"max_ratio": 10.0}, "max_ratio=10.0: FedDualAvg has no such option; write bounds=Bounds(...)"),
        (FedDualAvg, {"local_steps": 5}, "write work=Steps(...) or work=Epochs(...)"),
        (DualFL, {"local_steps": 5}, "elsewhere it is work=Steps(...) or work=Epochs(...), and this method has none"),
        (FedDR, {"client_lr": 0.1}, "client_lr=0.1: FedDR has no such option"),
        (FedMid, {"density": 0.1}, "FedDualAvg, FedDualAvgOSP and FedDA take it"),
        (FedMid, {"xyz": None}, "xyz=None: FedMid has no such option; help() of the class lists those it has"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_nearest_one(cls, option, text):
    with pytest.raises(TypeError, match=re.escape(text)) as caught:
        cls(**option)
    assert isinstance(caught.value, ConfigurationError)


@together(
    ("option", "expected"),
    [
        ({"normalize_local_work": "no"}, "normalize_local_work='no' is a str; expected True or False"),
        ({"fraction_train": 1.5}, "fraction_train=1.5; expected a number from 0 to 1"),
        ({"min_train_nodes": 2.5}, "min_train_nodes=2.5 is a float; expected a whole number"),
        ({"seed": True}, "seed=True is a bool; expected a whole number"),
        ({"client_lr": float("nan")}, "client_lr=nan; expected a finite number > 0"),
        ({"server_lr": "fast"}, "server_lr='fast' is a str; expected a number or a function"),
        ({"regularizer": 0.1}, "regularizer=0.1 is a float; expected a Regularizer"),
        ({"regularizer": L1}, r"regularizer=L1 is a class; expected a Regularizer, such as L1\(\.\.\.\)"),
        ({"weighting": "size"}, "weighting='size' is a str; expected 'examples' or 'uniform'"),
        ({"output": "average"}, "output='average' is a str; expected 'last' or 'shadow' or a Last or an Average"),
        ({"bounds": {"max_ratio": 2}}, "is a dict; expected a Bounds"),
        ({"regularizer": "l1"}, r"expected a Regularizer; write regularizer=L1\(0\.1\)"),
        ({"work": 3}, r"work=3 is a int; expected a FirstOrder; write work=Steps\(3\) or work=Epochs\(3\)"),
        ({"work": Epochs}, r"work=Epochs is a function; call it: Epochs\(...\)"),
        ({"seed": 2**32}, "seed=4294967296"),
        ({"participation": Everyone()}, "expected a Participation"),
        ({"output": "shadow"}, r"work=Steps\(\.\.\.\)"),
        ({"client": "changed"}, "client='changed'"),
        ({"density": 1.0}, "density=1.0; expected .* to keep all of them leave it out"),
        ({"density": 0}, "density=0.0; expected a number between 0 and 1, the share of weights that are not 0"),
    ],
)
def test_a_wrong_type_or_value_is_an_error_that_names_it(option, expected):
    with pytest.raises(ConfigurationError, match=expected):
        FedDualAvg(**option)


def test_whole_numbers_and_numpy_scalars_are_numbers():
    strategy = FedDualAvg(
        client_lr=1, server_lr=np.float32(0.5), seed=np.int64(3), work=Epochs(1, batch_size=np.int32(7))
    )
    assert (strategy.client_lr, strategy.server_lr, strategy.seed, strategy.work) == (1.0, 0.5, 3, Epochs(1, 7))
    assert type(strategy.client_lr) is float
    assert type(strategy.seed) is int
    # As a loop over an array of settings, or a function of NumPy's, has them.
    strategy = FedDualAvg(weighting=np.str_("uniform"), client_lr=np.str_("auto"), server_lr=np.array(0.5))
    assert (strategy.weighting, strategy.client_lr, strategy.server_lr) == ("uniform", "auto", 0.5)
    assert type(strategy.weighting) is str
    run(FedDualAvg(client_lr=lambda n: np.asarray(0.02)), clients(), 1)


def test_the_representation_shows_what_is_not_the_default():
    assert repr(FedMid(0.5, client_lr=0.2, server_prox=False)) == (
        "FedMid(fraction_train=0.5, client_lr=0.2, server_prox=False)"
    )
    assert "regularizer=L1(" in repr(FedDualAvg(regularizer=L1(0.1)))
    assert repr(FedDAGT()) == "FedDAGT()"


def test_the_user_can_prescribe_who_takes_part():
    asked = []

    def choose(server_round, nodes):
        assert [node.partition_id for node in nodes] == [0, 1, 2, 3]
        return [nodes[3], nodes[server_round % 2]]

    class Seen(FedDualAvg):
        def aggregate_train(self, server_round, replies):
            asked.append([node.partition_id for node in run_of(self).current.nodes.values()])
            return super().aggregate_train(server_round, replies)

    run(Seen(client_lr=0.02, participation=Participation(choose_nodes=choose)), clients(), 3)
    assert asked == [[1, 3], [0, 3], [1, 3]]


@together(
    ("choose", "prefix"),
    [
        (lambda n, nodes: [nodes[0], nodes[0]], "none of them twice"),
        (lambda n, nodes: [nodes[0]._replace(node_id=77)], "expected a list of some of the nodes that it is given"),
        (lambda n, nodes: [node.node_id for node in nodes], "expected a list of some of the nodes that it is given"),
        (lambda n, nodes: None, r"returned None in round 1; expected a list"),
        (lambda n, nodes: (node for node in nodes if n > 1), "in round 1; expected a list of some of the nodes"),
        (lambda n: [], "is a function; expected a function of 2 arguments"),
    ],
)
def test_a_wrong_choice_of_nodes_is_an_error(choose, prefix):
    with pytest.raises(ConfigurationError, match=prefix):
        run(FedDualAvg(client_lr=0.02, participation=Participation(choose_nodes=choose)), clients(), 1)


@together("name", ["client_lr", "server_lr"])
def test_a_function_of_the_round_is_called_once_a_round(name):
    countdown = iter([0.05, 0.04, 0.03])
    run(FedDAGT(work=Steps(2), **{name: lambda server_round: next(countdown)}), clients(), 3)
    assert list(countdown) == []


@together(
    ("make", "message"),
    [
        (lambda: Bounds(max_ratio=0.5), r"Bounds.max_ratio=0.5; expected a finite number >= 1, or None"),
        (lambda: Bounds(max_share=0.0), "Bounds.max_share=0.0; expected a number above 0, at most 1, or None"),
        (lambda: Bounds(max_increment_norm=float("inf")), "expected a finite number > 0, or None"),
        (lambda: Density(0.1, "rows"), "expected 'layers' or 'global'"),
        (lambda: FirstOrder(steps=3, epochs=1), "give one of them"),
        (lambda: Steps(0), "Steps=0; expected a whole number >= 1"),
        (lambda: Epochs(0), "Epochs=0; expected a whole number >= 1"),
        (lambda: Minimise(max_iterations=None), "max_iterations=None is a NoneType; expected a whole number"),
        (lambda: Ledger(10**400), "expected a whole number from 0 to"),
        (lambda: Participation(min_replies=0), "min_replies=0; expected a whole number >= 1"),
        (lambda: Participation(node_timeout=float("inf")), "expected a finite number >= 0, of seconds"),
        (lambda: Participation(choose_nodes=[1, 2]), r"choose_nodes=\[1, 2\] is a list; expected a function"),
        (lambda: Everyone(evict_after=0), "evict_after=0"),
        (lambda: Arrays(scope="all"), "scope='all'"),
        (lambda: Arrays(apply_to=3), "apply_to=3 is a int; expected a string or a sequence of a string or None"),
        (lambda: Wire(dtype="float16"), "dtype='float16'"),
        (lambda: Last(nonzeros=0), "nonzeros=0; expected a whole number >= 1"),
        (lambda: Trimmed(0.5), "expected a number from 0 to 0.5, exclusive"),
        (GaussianDP, "without clip, delta, noise_multiplier or target_epsilon"),
    ],
)
def test_option_objects_check_their_values(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


BETWEEN = {"client_lr": 0.02, "work": Steps(2, batch_size=None)}


@together(
    "options",
    [
        {"aggregation": "median"},
        {"output": Average()},
        {"density": 0.5},
        {"bounds": Bounds(max_share=0.4)},
        {"server_momentum": 0.5},
        {"regularizer": L1(0.3)},
    ],
)
def test_options_set_between_two_runs_act_as_if_they_were_given(options):
    strategy = FedDualAvg(**BETWEEN)
    first = flat(run(strategy, clients(), 3).arrays)
    for name, value in options.items():
        setattr(strategy, name, value)
    second = flat(run(strategy, clients(), 3).arrays)
    np.testing.assert_array_equal(second, flat(run(FedDualAvg(**BETWEEN, **options), clients(), 3).arrays))
    assert not np.array_equal(first, second)


def test_a_class_attribute_is_no_default():
    for name, value in (("client_lr", 0.5), ("regularizer", L1(0.1))):
        with pytest.raises(ConfigurationError, match=f"class Mine has {name} = .*, which changes no default; write"):
            type("Mine", (FedDualAvg,), {name: value})()


def by_hand(strategy, rounds=3):
    """The rounds that a server with a loop of its own plays."""
    grid, arrays = InProcessGrid(app_of(clients()), 4), start_arrays()
    with grid.identity():
        for number in range(1, rounds + 1):
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
    return flat(arrays)


@together("make", [DualFL, lambda: FedDAGT(client_lr=0.02), lambda: FedDualAvg(client_lr=0.02)])
def test_rounds_by_hand_are_the_same_of_a_strategy_set_anew_or_unpickled(make):
    expected = by_hand(make())
    again = make()
    again.participation = type(again.participation)()
    for own in (pickle.loads(pickle.dumps(make())), again, again):
        np.testing.assert_array_equal(by_hand(own), expected)


def test_a_default_that_follows_from_others_follows_when_it_is_set_to_none():
    strategy = DualFL(nu=0.5, smoothness=1.0)
    strategy.nu, strategy.rho = None, None
    run(strategy, clients(), 1)
    assert (strategy.nu, strategy.rho) == (0.01, 0.01)


def one_message_wrong(name):
    """Return names with a letter missing, doubled, replaced, two of them exchanged, and in other writing."""
    indices = range(len(name))
    yield from (name[:i] + name[i + 1 :] for i in indices)
    yield from (name[:i] + name[i] + name[i:] for i in indices)
    yield from (name[:i] + "x" + name[i + 1 :] for i in indices)
    yield from (name[:i] + name[i + 1] + name[i] + name[i + 2 :] for i in indices[:-1])
    yield from (name.replace("_", "-"), name.replace("_", "", 1), name.title(), name.upper())


@ALL
def test_an_option_with_one_letter_wrong_is_recognised(cls):
    taken = inspect.signature(cls).parameters
    for option in taken:
        for wrong in set(one_message_wrong(option)) - set(taken):
            with pytest.raises(UnknownOptionError, match=r"did you mean (\w+)\?") as caught:
                cls(**{wrong: 1})
            # Of two options that are both one letter away either is good.
            meant = re.search(r"did you mean (\w+)\?", f"{caught.value}")[1]
            assert meant == option or wrong in set(one_message_wrong(meant)), (wrong, meant)


def of_flower():
    """Return the options of all strategies of Flower's, of both of its interfaces."""
    for module in (flwr.serverapp.strategy, flwr.server.strategy):
        for kind in vars(module).values():
            if inspect.isclass(kind) and kind is not Result:
                yield from (
                    p.name for p in inspect.signature(kind.__init__).parameters.values() if p.kind < p.VAR_KEYWORD
                )


@ALL
def test_every_option_of_flowers_strategies_is_told_what_it_is_here(cls):
    """By what to write, which the strategy takes, or by who takes it, or by what to do instead."""
    taken = inspect.signature(cls).parameters
    for option in sorted({*of_flower()} - {"self", "args", *taken}):
        with pytest.raises(UnknownOptionError, match=rf"{option}=0\.5: {cls.__name__} has no such option; ") as caught:
            cls(**{option: 0.5})
        said = f"{caught.value}".partition("option; ")[2]
        assert not said.startswith(("help", "did you mean")), (option, said)
        written = re.match(r"write (\w+)=", said)
        assert written is None or written[1] in taken


@pytest.mark.parametrize(
    ("option", "here"),
    {
        "fraction_fit": "write fraction_train=",
        "min_available_clients": "write min_available_nodes=",
        "eta": "write server_lr=",
        "eta_l": "write client_lr=",
        "tau": "FedDualAvg takes server_momentum=",
        "proximal_mu": 'write client="unmodified", .*proximal-mu',
        "noise_multiplier": r"write privacy=GaussianDP\(",
        "on_fit_config_fn": "train_config=ConfigRecord",
        "initial_parameters": "`start`",
        "beta": r"write aggregation=Trimmed\(",
        "accept_failures": r"Participation\(min_replies=",
        "l1": r"regularizer=L1\(",
    }.items(),
)
def test_an_option_of_flower_s_is_told_by_its_name_here(option, here):
    with pytest.raises(UnknownOptionError, match=here):
        FedDualAvg(**{option: 0.5})


@pytest.mark.parametrize(
    "value",
    [
        ArrayRecord({"w": Array(np.zeros((500, 500)))}),
        {f"layer.{i}": np.zeros((100, 100)) for i in range(50)},
        [np.zeros(10_000)] * 20,
        list(range(100_000)),
        "x" * 1_000_000,
        np.zeros((1000, 1000)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_shows_a_value_in_a_line(value):
    def reported(make):
        with pytest.raises(ConfigurationError) as caught:
            make()
        assert len(f"{caught.value}") < 300
        assert "\n" not in f"{caught.value}"

    for option in ("initial_parameters", "seed", "bounds", "regularizer", "density", "weighting", "work", "client_lr"):
        reported(lambda option=option: FedDualAvg(**{option: value}))
    reported(lambda: run(FedDualAvg(client_lr=0.02), clients(), 3, callbacks=[Setting("seed", value)]))
    reported(lambda: FedDualAvg().start(InProcessGrid(app_of(clients()), 4), start_arrays(), value))


class Setting(Callback):
    """Sets an option while the run goes on."""

    def __init__(self, name, value):
        self.name, self.value = name, value

    def on_run_begin(self, strategy, num_rounds):
        self.strategy = strategy

    def on_round_end(self, server_round, arrays, metrics):
        if server_round == 2:
            setattr(self.strategy, self.name, self.value)


@pytest.mark.parametrize("option", [option.name for option in fields(FedDualAvg) if option.init])
def test_an_option_that_is_set_during_a_run_is_an_error_at_the_assignment(option):
    strategy, before = FedDualAvg(**BETWEEN), getattr(FedDualAvg(**BETWEEN), option)
    with pytest.raises(ConfigurationError, match=f"{option}=.* was set while a run .* set options before `start`"):
        run(strategy, clients(), 5, callbacks=[Setting(option, before)])
    assert max(strategy.result.train_metrics_clientapp) == 2
    setattr(strategy, option, before)
    run(strategy, clients(), 1)


def test_a_strategy_of_ones_own_has_its_own_arguments():
    class Mine(FedDualAvg):
        def __init__(self, speed, **options):
            super().__init__(client_lr=speed, **options)

    assert Mine(speed=0.25, seed=3).client_lr == 0.25
    assert copy.copy(Mine(0.25)).client_lr == 0.25
    with pytest.raises(TypeError, match="seeds=3: Mine has no such option; did you mean seed"):
        Mine(speed=1.0, seeds=3)


GOOD = {"initial_arrays": start_arrays(), "num_rounds": 1}


@together(
    ("arguments", "said"),
    [
        ({"train_config": {"lr": 0.1}}, "train_config=.* is a dict; expected a ConfigRecord"),
        ({"initial_arrays": {"w": np.zeros(3)}}, "initial_arrays=.* is a dict; expected an ArrayRecord"),
        ({"initial_arrays": None}, "initial_arrays=None is a NoneType; expected an ArrayRecord"),
        ({"initial_arrays": ArrayRecord()}, "initial arrays"),
        ({"num_rounds": "3"}, "num_rounds='3' is a str; expected a whole number"),
        ({"num_rounds": -1}, "num_rounds=-1; expected"),
        ({"timeout": "long"}, "timeout='long' is a str; expected a number"),
        ({"evaluate_fn": lambda arrays: None}, "evaluate_fn=.*expected a function of 2 arguments"),
        ({"resume": 7}, "resume=7 is a int; expected"),
        ({"callbacks": lambda n, a, m: None}, "callbacks is a function; expected a list"),
        ({"callbacks": [3]}, "callback 3: expected a function"),
        ({"grid": None}, "grid is a NoneType; expected"),
    ],
)
def test_arguments_of_start_are_checked_in_words(arguments, said):
    strategy = FedDualAvg(client_lr=0.02, fraction_evaluate=0.0)
    with pytest.raises(ConfigurationError, match=said):
        strategy.start(**{"grid": InProcessGrid(app_of(clients()), 4), **GOOD, **arguments})
    # It is as if nothing had been begun.
    strategy.start(InProcessGrid(app_of(clients()), 4), **GOOD)


NAMED = re.compile(r"(?<![\w.])([A-Z]\w+)\((?=\.\.\.|\w+=|[\d.])")


def test_what_errors_tell_to_write_can_be_imported_from_flwr_fco():
    """Calls of classes in the texts of the library's errors."""
    foreign = {"ConfigRecord", "ArrayRecord", "MetricRecord", "SparsePCA"}
    for path in sorted(Path(flwr_fco.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Raise):
                continue
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    for name in {*NAMED.findall(part.value)} - foreign:
                        if not (name.endswith("Error") or (path.parts[-2] in ("torch", "tables"))):
                            assert hasattr(flwr_fco, name), (path, part.value)
