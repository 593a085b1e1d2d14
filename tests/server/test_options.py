"""Options: visible, documented, typed, positional as in Flower's FedAvg, and only those that mean something."""

import copy
import inspect
import logging
import pickle
import re
from dataclasses import dataclass

import numpy as np
import pytest
from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg
from problems import app_of, clients, flat, run, start_arrays, trackers_of
from signatures import KEPT
from together import together

from flwr_fco import strategies
from flwr_fco.algorithms import DualAcceleration
from flwr_fco.errors import ConfigurationError, UnknownOptionError
from flwr_fco.regularizers import L1
from flwr_fco.server.options import _NOT_IN_EVERY_METHOD, parameter_entries
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import (
    STRATEGIES,
    Arrays,
    Average,
    Bounds,
    CompositeStrategy,
    Density,
    DFedDA,
    DualFL,
    Epochs,
    Everyone,
    EveryoneOptions,
    FedDAGT,
    FedDR,
    FedDualAvg,
    FedDualAvgOSP,
    FedMid,
    FedNewton,
    FeDualEx,
    Last,
    Ledger,
    MemoryOptions,
    Minimise,
    MultistepReFedDAGT,
    Participation,
    Steps,
    Trimmed,
    Wire,
    run_of,
)
from flwr_fco.wire import flower
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
        (FedDualAvg, {"lr": 0.1}, "did you mean client_lr?"),
        (FedDualAvg, {"client_learning_rate": 0.1}, "did you mean client_lr?"),
        (FedDualAvg, {"fraction_fit": 0.1}, "did you mean fraction_train?"),
        (FedDR, {"client_lr": 0.1}, "client_lr=0.1: FedDR has no such option"),
        (FedMid, {"xyz": None}, "xyz=None: FedMid has no such option; help(FedMid) lists those it has"),
    ],
)
def test_an_option_that_does_not_exist_is_refused_with_the_nearest_one(cls, option, text):
    with pytest.raises(TypeError, match=re.escape(text)) as caught:
        cls(**option)
    assert isinstance(caught.value, ConfigurationError)


def test_a_strategy_of_ones_own_has_its_own_arguments():
    class Mine(FedDualAvg):
        def __init__(self, speed, **options):
            super().__init__(client_lr=speed, **options)

    class Strict(FedDualAvg):
        def __init__(self, speed=0.5):
            super().__init__(client_lr=speed)

    assert Mine(speed=0.25, seed=3).client_lr == 0.25
    assert Strict(speed=0.25).client_lr == 0.25
    assert copy.copy(Mine(0.25)).client_lr == 0.25
    with pytest.raises(TypeError, match="Strict has no such option; did you mean speed"):
        Strict(sped=3)
    # Who takes anything answers for it: Python says what the strategy says that is given it.
    with pytest.raises(TypeError, match="seeds"):
        Mine(speed=1.0, seeds=3)


@together(
    ("option", "expected"),
    [
        ({"normalize_local_work": "no"}, "normalize_local_work='no' is a str; expected True or False"),
        ({"normalize_local_work": 1}, "normalize_local_work=1 is a int; expected True or False"),
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
        ({"mirror_map": "euclidean"}, "mirror_map='euclidean'"),
        ({"client_lr": 0.0}, "client_lr=0.0"),
        ({"client_lr": True}, "client_lr=True"),
        ({"server_lr": -1}, "server_lr=-1"),
        ({"work": 3}, "work=3 is a int; expected a FirstOrder"),
        ({"work": Epochs}, r"work=Epochs is a function; call it: Epochs\(...\)"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**32}, "seed=4294967296"),
        ({"participation": Everyone()}, "expected a Participation"),
        ({"participation": Participation}, r"expected a .*, such as Participation\(...\)"),
        ({"arrays": "*"}, "expected an Arrays"),
        ({"output": "shadow"}, r"work=Steps\(\.\.\.\)"),
        ({"client": "changed"}, "client='changed'"),
        ({"density": 1.5}, "density=1.5; expected a number between 0 and 1, or a Density"),
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


def test_nothing_evaluated_on_the_clients_is_no_reason_for_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="flwr"):
        strategy = FedDualAvg(fraction_evaluate=0.0)
    assert caplog.text == ""
    assert strategy.fraction_evaluate == 0.0


def test_a_grid_of_this_process_needs_no_simulate():
    """`start` with an InProcessGrid, outside `simulate`: the same bits."""
    objectives = clients()
    options = {"regularizer": L1(0.1), "client_lr": 0.02, "fraction_evaluate": 0.0, "work": Epochs(1, batch_size=None)}
    result = FedDualAvg(**options).start(InProcessGrid(app_of(objectives), 4), start_arrays(), 3)
    np.testing.assert_allclose(flat(result.arrays), flat(run(FedDualAvg(**options), objectives, 3).arrays), rtol=1e-12)


def test_the_user_can_prescribe_who_takes_part():
    asked = []

    def choose(server_round, nodes):
        assert [node.partition_id for node in nodes] == [0, 1, 2, 3]
        return [nodes[3], nodes[server_round % 2]]

    strategy = FedDualAvg(client_lr=0.02, participation=Participation(choose_nodes=choose))
    run(strategy, clients(), 3, callbacks=[lambda *_: asked.append(run_of(strategy).asked_partitions())])
    assert asked == [[1, 3], [0, 3], [1, 3]]


@together(
    ("choose", "what"),
    [
        (lambda n, nodes: [nodes[0], nodes[0]], "a node twice"),
        (lambda n, nodes: [nodes[0]._replace(node_id=77)], "not one of the connected nodes"),
        (lambda n, nodes: [node.node_id for node in nodes], "not one of the connected nodes"),
        (lambda n, nodes: np.array(nodes), "not one of the connected nodes"),
        (lambda n, nodes: None, r"returned None in round 1; expected a list"),
        (lambda n, nodes: [], "returned no nodes in round 1"),
        (lambda n, nodes: (node for node in nodes if n > 1), "returned no nodes in round 1"),
        (lambda n, nodes: nodes[0], r"returned Node\(.*expected a list"),
        (lambda n: [], "is a function; expected a function of 2 arguments"),
    ],
)
def test_a_wrong_choice_of_nodes_is_an_error(choose, what):
    with pytest.raises(ConfigurationError, match=what):
        run(FedDualAvg(client_lr=0.02, participation=Participation(choose_nodes=choose)), clients(), 1)


def test_trackers_with_prescribed_nodes_sum_to_zero_and_reach_the_optimum():
    """A sample by choice is a sample: `control` must travel, clients cannot derive it."""
    objectives = clients()
    strategy = FedDAGT(
        client_lr=0.02,
        work=Steps(3, batch_size=None),
        participation=Participation(choose_nodes=lambda n, nodes: [nodes[n % 4], nodes[(n + 1) % 4]]),
    )
    result = run(strategy, objectives, 380)
    weights = np.array([f.num_examples for f in objectives]) / sum(f.num_examples for f in objectives)
    trackers = np.array(list(trackers_of(strategy).values()))
    assert np.abs(weights @ trackers).max() <= 1e-12
    gradient = sum(w * f.gradient(flat(result.arrays)) for w, f in zip(weights, objectives, strict=True))
    assert np.abs(gradient).max() <= 1e-6


@together("name", ["client_lr", "server_lr"])
@together("make", [FedDualAvg, FeDualEx, FedMid, FedDAGT, DFedDA])
def test_a_function_of_the_round_may_count_by_itself(make, name):
    """It is called once a round: clients and server mean the same number, and none is passed over."""
    values = [0.05, 0.04, 0.03, 0.02, 0.01]
    countdown = iter(values)
    options = {"work": Steps(2, batch_size=None), **({"mixing": "ring"} if make is DFedDA else {})}
    asked = run(make(**{name: lambda server_round: next(countdown)}, **options), clients(), 5)
    by_round = run(make(**{name: lambda server_round: values[server_round - 1]}, **options), clients(), 5)
    assert not asked.left_out
    np.testing.assert_array_equal(flat(asked.arrays), flat(by_round.arrays))
    assert list(countdown) == []


@together(
    ("options", "message"),
    [
        ({"max_ratio": 10.0}, r"max_ratio=10.0: FedDualAvg has no such option; write bounds=Bounds\(max_ratio=10.0\)"),
        ({"window": 3}, r"write output=Average\(window=3\)"),
        ({"output_window": 3}, r"write output=Average\(window=3\)"),
        ({"trim": 0.1}, r"write aggregation=Trimmed\(0.1\)"),
        ({"local_steps": 5}, r"write work=Steps\(5, batch_size=32\)"),
        ({"local_steps": 5, "batch_size": 8}, r"write work=Steps\(5, batch_size=8\)"),
        ({"batch_size": None, "local_epochs": 2}, r"write work=Epochs\(2, batch_size=None\)"),
        ({"batch_size": None}, r"write work=Epochs\(1, batch_size=None\)"),
        ({"apply_to": "*"}, r"write arrays=Arrays\(apply_to='\*'\)"),
        ({"min_replies": 2}, r"write participation=Participation\(min_replies=2\)"),
        ({"client_weights": {0: 1.0}}, r"write weighting=\{0: 1.0\}"),
    ],
)
def test_what_belongs_into_an_option_object_is_told_where(options, message):
    with pytest.raises(UnknownOptionError, match=message):
        FedDualAvg(**options)


#: What users of other libraries give, and of option objects what they give without the object.
GUESSES = (
    {"window": 3, "output_window": 3, "sparsity": 9, "trim": 0.1, "client_weights": {0: 1.0}, "l1": 0.1, "lam": 0.1}
    | {"local_steps": 5, "local_epochs": 5, "batch_size": 8, "max_iterations": 9, "apply_to": "*", "max_ratio": 9.0}
    | {"min_replies": 3, "node_timeout": 3.0, "evict_after": 3, "on_missing": "error", "own_loops": True}
    | {"ledger_bytes": 9, "restart_window": 3, "sparse_wire": True, "proximal_mu": 0.1}
    | {"accept_failures": True, "client_manager": None, "client_learning_rate": 0.1, "fraction_clients": 1.0}
)


@together(("option", "value"), list(GUESSES.items()))
def test_what_is_advised_works(option, value):
    """Whatever a strategy says to write, it takes; what it does not take, it does not advise."""
    for name, kind in STRATEGIES.items():
        taken = inspect.signature(kind).parameters
        if option in taken:
            continue
        with pytest.raises(UnknownOptionError, match=f"{option}=.*: {name} has no such option[;.] ") as raised:
            kind(**{option: value})
        said = f"{raised.value}".replace("min_replies=...", "min_replies=2").replace(
            "choose_nodes=...", "choose_nodes=max"
        )
        meant = re.search(r"did you mean (\w+)\?", said)
        assert meant is None or meant[1] in taken
        written = re.search(r'write (\w+)=(\w+\([^()]*\)|"\w+"|\{.*?\})', said)
        assert (written is None) == ("; write" not in said)
        if written:
            kind(**{written[1]: eval(written[2], {**vars(strategies), "L1": L1})})


def test_what_a_method_refuses_is_told_with_its_reason():
    for kind, option, reason in (
        (FedDAGT, {"trim": 0.1}, "its sums .* hold only with the clients' weights"),
        (DualFL, {"l1": 0.1}, "no place for psi"),
        (DualFL, {"sparsity": 0.9}, "no place for psi"),
        (FedDAGT, {"sparsity": 0.9}, "here write regularizer=L1"),
        (FedNewton, {"sparsity": 9}, "certifies its last point"),
        (FedDualAvg, {"sparsity": np.array([0.5, 0.5])}, r"write output=Last\(nonzeros=array"),
        (DualFL, {"client_manager": None}, "asks every node in every round"),
        (FedDualAvg, {"proximal_mu": 0.1}, 'write client="unmodified" .*proximal-mu'),
        (FedDualAvg, {"accept_failures": 0.1}, r"Participation\(min_replies=.*: the others are left out"),
        (DualFL, {"accept_failures": 0.1}, r"Everyone\(min_replies=.*: one that keeps failing is given up"),
        (FedDualAvg, {"on_evaluate_config_fn": None}, "evaluate_config=.* `configure_evaluate`"),
    ):
        with pytest.raises(UnknownOptionError, match=rf"{kind.__name__} has no such option[;.] .*{reason}"):
            kind(**option)


@pytest.mark.parametrize("option", sorted(_NOT_IN_EVERY_METHOD))
def test_an_option_of_few_methods_names_them(option):
    takes = {name for name, kind in STRATEGIES.items() if option in inspect.signature(kind).parameters}
    other = next(kind for name, kind in STRATEGIES.items() if name not in takes)
    with pytest.raises(UnknownOptionError) as raised:
        other(**{option: 0.1})
    assert {name for name in STRATEGIES if re.search(rf"\b{name}\b", f"{raised.value}")} - {other.__name__} == takes


@together(
    ("option", "value", "advice"),
    [
        ("sparsity", 0.9, "write density=0.1"),
        ("sparsity", 9, "write output=Last(nonzeros=9)"),
        ("sparsity", 0.0, "without it no weight is left out"),
        ("sparsity", 1.0, "write density=..., the share of the weights that stay"),
        ("client_manager", None, "choose_nodes="),
        ("num_clients", 4, "num_nodes="),
        ("noise_multiplier", 1.0, "write privacy=GaussianDP(..., noise_multiplier=1.0)"),
    ],
)
def test_names_of_other_libraries_lead_to_ours(option, value, advice):
    with pytest.raises(UnknownOptionError, match=re.escape(advice)):
        FedDualAvg(**{option: value})


@pytest.mark.parametrize(
    ("option", "meant"), [("sparsity", "density"), ("dp", "privacy"), ("target_epsilon", "privacy")]
)
def test_what_a_method_cannot_have_is_not_advised_by_another_name(option, meant):
    with pytest.raises(UnknownOptionError, match=re.escape(_NOT_IN_EVERY_METHOD[meant])):
        FedDAGT(**{option: 0.9})


@together(
    ("make", "message"),
    [
        (lambda: Bounds(max_ratio=0.5), r"Bounds.max_ratio=0.5; expected a finite number >= 1, or None"),
        (lambda: Bounds(max_examples=0.0), "expected a finite number > 0, at most 1e100"),
        (lambda: Bounds(max_examples=10**400), "expected a finite number > 0, at most 1e100"),
        (lambda: Bounds(max_ratio=True), "expected a number or None"),
        (lambda: Bounds(max_increment_norm=float("inf")), "expected a finite number > 0, or None"),
        (lambda: Density(1.0), "expected a number between 0 and 1"),
        (lambda: Density(0.1, rounds=0), "expected a whole number >= 1, or None"),
        (lambda: Density(0.1, "rows"), "expected 'layers' or 'global'"),
        (lambda: Average(0), "expected a whole number >= 1, or None"),
        (lambda: Average(2.5), "expected a whole number or None"),
        (lambda: FirstOrder(steps=3, epochs=1), "give one of them"),
        (lambda: Steps(0), "Steps=0; expected a whole number >= 1"),
        (lambda: Steps(None), "Steps=None is a NoneType; expected a whole number"),
        (lambda: Epochs(0), "Epochs=0; expected a whole number >= 1"),
        (lambda: Epochs(1, batch_size=2.5), "batch_size=2.5"),
        (lambda: FirstOrder(epochs=0), "epochs=0; expected a whole number >= 1"),
        (lambda: Minimise(max_iterations=None), "max_iterations=None is a NoneType; expected a whole number"),
        (lambda: Minimise(tolerance=10**400), "expected a finite number > 0"),
        (lambda: Minimise(engine=np.ones(2)), "engine=.*; expected one of"),
        (lambda: Minimise(rule=np.ones(2)), "rule=.*; expected"),
        (lambda: Ledger(10**400), "expected a whole number from 0 to"),
        (lambda: Ledger(max_bytes=-1), "max_bytes=-1"),
        (lambda: Participation(min_replies=0), "min_replies=0; expected a whole number >= 1"),
        (lambda: Participation(node_timeout="x"), "node_timeout='x' is a str; expected a number"),
        (lambda: Participation(node_timeout=float("inf")), "expected a finite number >= 0, of seconds"),
        (lambda: Participation(choose_nodes=[1, 2]), r"choose_nodes=\[1, 2\] is a list; expected a function"),
        (lambda: Everyone(evict_after=0), "evict_after=0"),
        (lambda: Everyone(on_missing="wait"), "on_missing='wait'"),
        (lambda: Arrays(scope="all"), "scope='all'"),
        (lambda: Arrays(apply_to=3), "apply_to=3 is a int; expected a string or a sequence of a string or None"),
        (lambda: Wire(dtype="float16"), "dtype='float16'"),
        (lambda: Wire(sparse="auto"), "sparse='auto' is a str; expected True or False"),
        (lambda: Last(nonzeros=0), "nonzeros=0; expected a whole number >= 1"),
        (lambda: Trimmed(0.5), "expected a number from 0 to 0.5, exclusive"),
        (lambda: Trimmed(float("nan")), "expected a number from 0 to 0.5, exclusive"),
    ],
)
def test_option_objects_check_their_values(make, message):
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_option_objects_take_numbers_of_numpy_and_keep_those_of_python():
    pairs = [
        (Average(np.int64(5)), Average(5)),
        (Trimmed(0), Trimmed(0.0)),
        (Density(np.float64(0.1), rounds=np.int64(3)), Density(0.1, rounds=3)),
        (Bounds(np.float64(100), np.int64(10), 1), Bounds(100.0, 10.0, 1.0)),
    ]
    for given, plain in pairs:
        assert repr(given) == repr(plain)
    assert repr(FedDualAvg(weighting={np.int64(0): np.float32(2)}).weighting) == "{0: 2.0}"


@together(
    ("weighting", "message"),
    [
        ({-1: 1.0}, "there is no partition -1; expected a whole number >= 0"),
        ({"0": 1.0}, "is a str; expected a whole number"),
        ({0: 1e308, 1: 1e308}, r"weighting\[0\]=1e\+308; expected a number from 0 to 1e\+100"),
        ({0: 10**400}, "expected a number from 0 to"),
        ({0: float("nan")}, "expected a number from 0 to"),
        ({0: 0.0}, "expected at least one weight > 0"),
        ({}, "expected at least one weight > 0"),
    ],
)
def test_weights_by_partition_are_checked(weighting, message):
    with pytest.raises(ConfigurationError, match=message):
        FedDualAvg(weighting=weighting)


BETWEEN = {"client_lr": 0.02, "work": Steps(2, batch_size=None)}


@together(
    "options",
    [
        {"aggregation": "median"},
        {"output": Average()},
        {"density": 0.5},
        {"bounds": Bounds(max_examples=20.0)},
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


def test_what_is_set_between_two_runs_is_checked():
    strategy = FedDualAvg(**BETWEEN)
    for name, value, said in (
        ("work", 3, "work=3 is a int; expected a FirstOrder"),
        ("output", "average", "output='average' is a str"),
        ("server_lr", "fast", "server_lr='fast' is a str"),
    ):
        # A subclass may have meant an attribute of its own.
        with pytest.raises(ConfigurationError, match=rf"self.{name} = .*take another name.*{said}"):
            setattr(strategy, name, value)
        assert getattr(strategy, name) == BETWEEN.get(name, getattr(FedDualAvg(), name))
    strategy.participation, strategy.fraction_evaluate = Participation(min_replies=2), 0.0
    strategy.start(InProcessGrid(app_of(clients()), 4), start_arrays(), 1, timeout=7.0)
    assert run_of(strategy).mail.timeout == 7.0


def test_a_class_attribute_is_no_default():
    for name, value in (("client_lr", 0.5), ("regularizer", L1(0.1))):
        with pytest.raises(ConfigurationError, match=f"class Mine has {name} = .*, which changes no default; write"):
            type("Mine", (FedDualAvg,), {name: value})()


def by_hand(strategy, rounds=3):
    """The rounds that a server with a loop of its own plays."""
    grid, arrays = InProcessGrid(app_of(clients()), 4), start_arrays()
    with flower.identity(grid.run_id):
        for number in range(1, rounds + 1):
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
    return flat(arrays)


@together("make", [DualFL, lambda: FedDAGT(client_lr=0.02), lambda: FedDualAvg(client_lr=0.02)])
def test_rounds_by_hand_are_those_of_start_also_after_options_were_set_and_unpickled(make):
    expected = by_hand(make())
    again = make()
    again.participation = type(again.participation)()
    for strategy in (pickle.loads(pickle.dumps(make())), again, again):
        np.testing.assert_array_equal(by_hand(strategy), expected)


@together(
    ("make", "option", "value", "message"),
    [
        (lambda: FedNewton(regularizer=L1(0.1)), "output", Average(), "certifies its last point"),
        (lambda: FedNewton(regularizer=L1(0.1)), "wire", Wire("float32"), "would be that of rounded sums"),
        (lambda: FedDualAvg(client_lr=0.02), "output", "shadow", r"work=Steps\(\.\.\.\)"),
        (lambda: MultistepReFedDAGT(), "stages", 5, "stages=5 is a int"),
        (lambda: FedDualAvg(client_lr=0.02), "density", "x", "density='x' is a str"),
        (lambda: FedDualAvg(client_lr=0.02), "min_train_nodes", "a", "min_train_nodes='a' is a str"),
    ],
)
def test_what_a_constructor_refuses_is_refused_when_it_is_set(make, option, value, message):
    strategy = make()

    def set_and_run():
        # Where the value alone is wrong, at the assignment; where it does not go with others, at the start.
        setattr(strategy, option, value)
        run(strategy, clients(), 2)

    with pytest.raises(ConfigurationError, match=message):
        set_and_run()


def test_a_default_that_follows_from_others_follows_when_it_is_set_to_none():
    strategy = DualFL(nu=0.5, smoothness=1.0)
    strategy.nu, strategy.rho = None, None
    run(strategy, clients(), 1)
    assert (strategy.nu, strategy.rho) == (0.01, 0.01)


def test_who_waits_for_everybody_is_said_by_the_method():
    class Late(CompositeStrategy, MemoryOptions, EveryoneOptions, algorithm=DualAcceleration):
        """Options in the wrong order: those of CompositeStrategy count."""

    for make in (Late, lambda: FedDualAvg(participation=Everyone()), lambda: DualFL(participation=Participation())):
        with pytest.raises(ConfigurationError, match=r"participation=.* expected (an Everyone|a Participation)"):
            make()


def test_a_density_of_all_arrays_leaves_the_arrays_as_they_were():
    strategy = FedDualAvg(client_lr=0.02, density=Density(0.5, scope="global", rounds=2))
    run(strategy, clients(), 2)
    assert run_of(strategy).plan.scope == "joint"
    strategy.density = None
    run(strategy, clients(), 2)
    assert run_of(strategy).plan.scope == "each"


def test_a_docstring_without_indentation_is_completed_like_any_other():
    """Python 3.13 takes the indentation away."""

    @dataclass(repr=False, eq=False)
    class Own(FedDualAvg):
        __doc__ = "Own.\n\nParameters\n----------\nmine : float, default 1.0\n    Mine.\n"
        mine: float = 1.0

    names = [name for names in parameter_entries(Own.__doc__) for name in names]
    assert names[0] == "mine"
    assert {"client_lr", "density", "fraction_train"} <= set(names)
    assert "\nclient_lr : " in Own.__doc__
