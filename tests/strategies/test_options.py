"""Options and arguments: visible, documented, typed, positional as in FedAvg; an error names what is right.

And a strategy of one's own: the page's keeps the contract.
"""

import copy
import inspect
import pickle
import re
import sys
import types
from dataclasses import dataclass, fields, replace
from pathlib import Path
from pydoc import plain, render_doc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg
from problems import D, app_of, clients, flat, refused, run, simulated, start_arrays

import flwr_fco as fco
from flwr_fco.algorithms import Algorithm, DualAveraging, Moved
from flwr_fco.algorithms.contract import method_of, methods, options_of
from flwr_fco.errors import ClientError, ConfigurationError, NothingTrainedError, UnknownOptionError
from flwr_fco.regularizers import L1, Zero
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import STRATEGIES, DualFL, FedDualAvg, FedNewton, Last, Stage, Steps, Strengths, strategy
from flwr_fco.tables import FederatedLasso, FederatedLogisticRegression
from flwr_fco.testing import check_strategy
from flwr_fco.work import FirstOrder

UNMODIFIED = {"client": "unmodified"}


def documented(cls):
    """Return the names in the sections of parameters of the docstrings of a class and its bases."""
    section = re.compile(r"\nParameters\n-{10}\n(.*?)(?:\n[A-Z]\w+\n-{3,}|\Z)", re.DOTALL)
    texts = [text for kind in cls.__mro__ for text in section.findall(inspect.cleandoc(kind.__doc__ or ""))]
    lines = re.findall(r"^([\w, ]+) : ", "\n".join(texts), re.MULTILINE)
    return {name for line in lines for name in line.split(", ")}


@pytest.mark.parametrize("cls", STRATEGIES.values())
def test_arguments_are_those_of_fedavg_first_typed_and_documented(cls):
    arguments = inspect.signature(cls).parameters
    positional = [name for name, own in arguments.items() if own.kind is own.POSITIONAL_OR_KEYWORD]
    assert positional == list(inspect.signature(FedAvg).parameters)
    assert set(arguments) <= documented(cls)
    shown = plain(render_doc(cls)).split("Method resolution order")[0]
    for name, own in arguments.items():
        assert own.kind in (own.POSITIONAL_OR_KEYWORD, own.KEYWORD_ONLY), "no hidden **options"
        assert own.empty not in (own.annotation, own.default)
        assert re.search(rf"\b{name}: ", shown), name
        assert not isinstance(own.default, (str, int, float)) or f"= {own.default!r}" in shown


UNKNOWN = [
    (FedDualAvg, {"clientlr": 1}, "clientlr=1: FedDualAvg has no such option; did you mean client_lr?"),
    (fco.Short, {"gowth": 0.3}, "gowth=0.3: Short has no such option; did you mean growth?"),
    (fco.callbacks.Checkpoint, {"evry": 3}, "evry=3: Checkpoint has no such option; did you mean every?"),
    (FederatedLasso, {"alpah": 1.0}, "alpah=1.0: FederatedLasso has no such option; did you mean alpha?"),
    (FederatedLogisticRegression, {"alpha": 1.0}, "alpha=1.0: FederatedLogisticRegression has no such option"),
    (FedDualAvg, {"local_steps": 5}, "write work=Steps(...) or work=Epochs(...)"),
    *((FedDualAvg, {name: 1}, to) for name, to in (("l1_ratio", "ElasticNet(...)"), ("rate", "write client_lr="))),
    (DualFL, {"local_steps": 5}, "elsewhere it is work=Steps(...) or work=Epochs(...), and this method has none"),
    (fco.Linear, {"fit_intercept": False}, "fit_intercept=False: Linear has no such option; did you mean intercept?"),
    (fco.FedDR, {"client_lr": 0.1}, "client_lr=0.1: FedDR has no such option"),
    (fco.FedMid, {"xyz": None}, "xyz=None: FedMid has no such option; help() of the class lists those it has"),
    # Those of Flower's strategies have other names here.
    (FedDualAvg, {"fraction_fit": 0.5}, "write fraction_train="),
    (FedDualAvg, {"proximal_mu": 0.5}, 'write client="unmodified", '),
    *((FedDualAvg, {name: 1}, "`start`") for name in ("initial_parameters", "rounds")),
]


@pytest.mark.parametrize(("cls", "option", "text"), UNKNOWN)
def test_an_option_that_does_not_exist_is_refused_with_the_nearest_one(cls, option, text):
    for kind in (UnknownOptionError, ConfigurationError, TypeError):
        refused(re.escape(text), cls, kind=kind, **option)


def test_a_forgotten_decorator_of_a_strategy_or_a_method_is_named():
    class Longer(DualAveraging):
        longer: float = 2.0

    class Bare(FedDualAvg):
        longer: float = 3.0

    @strategy
    class FedLonger(FedDualAvg):
        algorithm = Longer
        longer: float = 3.0
        folder: "ForTypeCheckers | None" = None  # noqa: F821

    refused("Bare has no such option: it declares one, but lacks a decorator", Bare, kind=TypeError, longer=1.0)
    refused(r"Longer declares longer but is no dataclass, .* put @dataclass", run, FedLonger(), clients(), 1)


REFUSED = [
    (FedDualAvg, {"fraction_train": 1.5}, "fraction_train=1.5; expected a number from 0 to 1"),
    (FedDualAvg, {"seed": True}, "seed=True is a bool; expected a whole number"),
    (FedDualAvg, {"regularizer": L1}, r"regularizer=L1 is a class; expected a Regularizer, such as L1\(\.\.\.\)"),
    (FedDualAvg, {"regularizer": "l1"}, r"expected a Regularizer; write regularizer=L1\(0\.1\)"),
    (FedDualAvg, {"work": 3}, r"work=3 is an int; expected a FirstOrder; write work=Steps\(3\) or work=Epochs\(3\)"),
    (FedDualAvg, {"work": fco.Epochs}, r"work=Epochs is a function; call it: Epochs\(...\)"),
    (FedDualAvg, {"seed": 2**32}, "seed=4294967296"),
    *((FedDualAvg, {"arrayrecord_key": key}, "needs this key, arrayrecord_key and") for key in ("fco-plan", "config")),
    (FedDualAvg, {"output": "shadow"}, r"work=Steps\(\.\.\.\)"),
    (FedDualAvg, {"weighted_by_key": "patients", "certificate_every": 1}, "weighted by examples, and not by"),
    (FedDualAvg, {"density": 1.0}, "density=1.0; expected .* to keep all of them leave it out"),
    (FedDualAvg, {"server_momentum": 1.0}, "server_momentum"),
    (fco.Bounds, {"max_ratio": 0.5}, r"Bounds.max_ratio=0.5; expected a finite number >= 1, or None"),
    (fco.Bounds, {"max_share": 0.0}, "Bounds.max_share=0.0; expected a number > 0 and <= 1, or None"),
    (fco.Bounds, {"max_increment_norm": float("inf")}, "expected a finite number > 0, or None"),
    (FirstOrder, {"steps": 3, "epochs": 1}, "give one of them"),
    (fco.Ledger, {"max_bytes": 10**400}, "expected a whole number from 0 to"),
    (fco.Trimmed, {"share": 0.5}, "expected a number from 0 to 0.5, exclusive"),
    (fco.GaussianDP, {}, "without clip, delta, noise_multiplier or target_epsilon"),
    # --- gradient tracking
    (fco.ReFedDAGT, {"mirror_map": fco.DiagonalMetric(np.ones(D))}, "PNorm"),
    (fco.ReFedDAGT, {"mirror_map": fco.PNorm(3.0, radius=1.0)}, "without center and radius"),
    (fco.DReFedDAGT, {"regularizer": fco.Box(-1.0, 1.0)}, "around a reference point.* Take FedDAGT"),
    (Stage, {"rounds": 0}, r"Stage\.rounds=0; expected a whole number >= 1"),
    (fco.DReFedDAGT, {"mixing": "ring", "stages": [(3, None)]}, "expected a sequence of a Stage"),
    (fco.DFedDAGT, {"mixing": object()}, r"is an object; expected a Topology .*topology.from_graph\(graph\)"),
    # --- local minimisations
    *((DualFL, own, "rho") for own in ({"rho": 1.0}, {"nu": 1.0, "smoothness": 1.0})),
    (DualFL, {"nu": 0.0}, "nu"),
    (DualFL, {"fraction_train": 0.5}, "every client"),
    (DualFL, {"regularizer": L1(0.1)}, r"no place for psi, because .*FedDR"),
    (DualFL, {"mirror_map": fco.PNorm(3.0)}, "Euclidean"),
    (DualFL, {"work": Steps(3)}, "expected a Minimise"),
    # --- Newton steps and paths
    (FedNewton, {"aggregation": "median"}, "FedNewton needs the mean"),
    (FedNewton, {"mirror_map": fco.PNorm(3.0)}, "FedNewton takes steps in the metric of the Hessian"),
    (FedNewton, {"output": fco.Last(3)}, "FedNewton certifies its last point"),
    (FedNewton, {"wire": fco.Wire("float32")}, "the duality gap of FedNewton would be that of rounded sums"),
    (FedNewton, {"fraction_train": 0.5}, "FedNewton needs every client"),
    (FedNewton, {"regularizer": fco.L1Ball(1.0), "strengths": Strengths()}, "has no strength to be chosen"),
    (FedNewton, {"regularizer": L1(1.0), "hessian": "none", "strengths": Strengths()}, "a path needs blocks"),
    (Strengths, {"folds": 1}, "Strengths.folds=1"),
    (Strengths, {"values": [1.0, np.nan]}, "Strengths.values="),
    # --- saddle points
    *((kind, {"output": "ergodic", "work": fco.Epochs(1)}, r"work=Steps") for kind in (fco.FeDualEx, fco.FedMiP)),
    # --- unmodified clients, and short messages
    (FedDualAvg, {**UNMODIFIED, "density": 0.1, "work": Steps(3)}, "each of them says how fast"),
    (FedDualAvg, {**UNMODIFIED, "density": 0.1, "regularizer": L1(1.0)}, "is a psi of its own, beside which"),
    (FedDualAvg, {**UNMODIFIED, "regularizer": L1(0.3), "client_lr": 0.05}, "how fast the weight of psi grows"),
    (FedDualAvg, {"density": fco.Density(0.1, "global"), "regularizer": fco.PerParameter({"*": Zero()})}, "single arr"),
    (FedDualAvg, {"density": 0.1, "mirror_map": fco.SimplexEntropy()}, "cannot be combined"),
    (FedDualAvg, {"wire": fco.Short()}, "wire=.*with density= alone"),
    (fco.FedAvgSubgradient, {"wire": fco.Short()}, "with density= alone"),
    (FedDualAvg, {"density": 0.2, "wire": fco.Short(), "output": "shadow", "work": Steps(2)}, "wire=.*without output="),
]


@pytest.mark.parametrize(("make", "options", "said"), REFUSED)
def test_what_is_wrong_or_does_not_go_together_is_named(make, options, said):
    refused(said, make, **options)


TYPED = [fco.Arrays, fco.Average, fco.Bounds, fco.Everyone, fco.Last, fco.Ledger, fco.Minimise, fco.Participation]
TYPED += [fco.Reference, fco.Short, Strengths, fco.Trimmed, fco.Wire, FirstOrder, *STRATEGIES.values()]
#: Options that are any text.
TEXTS = {"weighted_by_key", "arrayrecord_key", "configrecord_key", "apply_to", "pass_through"}


@pytest.mark.parametrize("kind", TYPED)
def test_an_option_of_another_type_or_that_is_no_choice_is_named(kind):
    for name in inspect.signature(kind).parameters:
        for value in (object(), np.nan, -1.0, *([] if name in TEXTS else ["no choice"])):
            refused(rf"{name}=.*expected", kind, **{name: value})


def test_whole_numbers_and_numpy_scalars_are_numbers():
    work = fco.Epochs(1, batch_size=np.int32(7))
    strategy = FedDualAvg(client_lr=1, server_lr=np.float32(0.5), seed=np.int64(3), work=work)
    assert (strategy.client_lr, strategy.server_lr, strategy.seed, strategy.work) == (1.0, 0.5, 3, fco.Epochs(1, 7))
    assert type(strategy.client_lr) is float
    assert type(strategy.seed) is int
    # As a loop over an array of settings, or a function of NumPy's, has them.
    strategy = FedDualAvg(weighting=np.str_("uniform"), client_lr=np.str_("auto"), server_lr=np.array(0.5))
    assert (strategy.weighting, strategy.client_lr, strategy.server_lr) == ("uniform", "auto", 0.5)
    assert type(strategy.weighting) is str
    run(FedDualAvg(client_lr=lambda n: np.asarray(0.02)), clients(), 1)


def test_the_user_can_prescribe_who_takes_part():
    asked = []

    def choose(server_round, nodes):
        assert [node.partition_id for node in nodes] == [0, 1, 2, 3]
        return [nodes[3], nodes[server_round % 2]]

    def look(message, context, call_next):
        asked.append((int(message.metadata.group_id), context.node_config["partition-id"]))
        return call_next(message, context)

    run(FedDualAvg(participation=fco.Participation(choose_nodes=choose)), clients(), 3, mods=[look])
    assert {(1, 1), (1, 3), (2, 0), (2, 3), (3, 1), (3, 3)} == {row for row in asked if row[0]}


NO_CHOICES = [
    (lambda n, nodes: [nodes[0], nodes[0]], "none of them twice"),
    (lambda n, nodes: [nodes[0]._replace(node_id=77)], "expected a list of some of the nodes that it is given"),
    (lambda n, nodes: None, r"returned None in round 1; expected a list"),
    (lambda n: [], "is a function; expected a function of 2 arguments"),
]


@pytest.mark.parametrize(("choose", "prefix"), NO_CHOICES)
def test_a_wrong_choice_of_nodes_is_an_error(choose, prefix):
    refused(prefix, lambda: run(FedDualAvg(participation=fco.Participation(choose_nodes=choose)), clients(), 1))


@pytest.mark.parametrize("name", ["client_lr", "server_lr"])
def test_a_function_of_the_round_is_called_once_a_round(name):
    countdown = iter([0.05, 0.04, 0.03])
    run(fco.FedDAGT(work=Steps(2), **{name: lambda server_round: next(countdown)}), clients(), 3)
    assert list(countdown) == []


BETWEEN = {"client_lr": 0.02, "work": Steps(2, batch_size=None)}
LATER = [{"aggregation": "median"}, {"output": fco.Average()}, {"density": 0.5}, {"server_momentum": 0.5}]
LATER += [{"bounds": fco.Bounds(max_share=0.4)}, {"regularizer": L1(0.3)}]


@pytest.mark.parametrize("options", LATER)
def test_options_set_between_two_runs_act_as_if_they_were_given(options):
    strategy = FedDualAvg(**BETWEEN)
    first = flat(run(strategy, clients(), 3).arrays)
    setattr(strategy, *next(iter(options.items())))
    second = flat(run(strategy, clients(), 3).arrays)
    np.testing.assert_array_equal(second, flat(run(FedDualAvg(**BETWEEN, **options), clients(), 3).arrays))
    assert not np.array_equal(first, second)


def test_a_run_from_the_last_ones_model_is_warned_of(caplog):
    """One `start` a round would ask the same clients in each; of a path each run has another psi."""
    strategy, arrays = FedDualAvg(**BETWEEN), start_arrays()
    for psi in (own := L1(0.1), own, L1(0.2)):
        strategy.regularizer = psi
        arrays = simulated(strategy, app_of(clients()), 1, initial_arrays=arrays).arrays
    assert sum("the same draws (seed=0): give one `start` all rounds" in line for line in caplog.messages) == 1


def test_a_certificate_beside_the_entropy_needs_psi_to_be_its_simplex():
    entropy = FedDualAvg(mirror_map=fco.SimplexEntropy(), certificate_every=1)
    refused(r"give a Simplex\(radius\) as psi of coefficients", entropy.prepare, start_arrays())
    entropy.regularizer = fco.Simplex()
    assert entropy.prepare(ArrayRecord({"w": Array(np.full(3, 1.0 / 3.0))})).point.sum() == 1.0


def test_a_class_attribute_is_no_default():
    for name, value in (("client_lr", np.ones(2)), ("regularizer", L1(0.1))):
        refused(f"class Mine has {name} = .*, which changes no", type("Mine", (FedDualAvg,), {name: value}))


def by_hand(strategy, rounds=3):
    """The rounds that a server with a loop of its own plays."""
    grid, arrays = InProcessGrid(app_of(clients()), 4), start_arrays()
    with grid.identity():
        for number in range(1, rounds + 1):
            messages = strategy.configure_train(number, arrays, ConfigRecord(), grid)
            arrays, _ = strategy.aggregate_train(number, grid.send_and_receive(messages))
    return flat(arrays)


@pytest.mark.parametrize("make", [DualFL, lambda: fco.FedDAGT(client_lr=0.02), lambda: FedDualAvg(client_lr=0.02)])
def test_rounds_by_hand_are_the_same_of_a_strategy_used_again_or_unpickled(make):
    expected, again = by_hand(make()), make()
    again.participation = type(again.participation)()
    for own in (lambda: again, lambda: pickle.loads(pickle.dumps(again)), lambda: again):
        np.testing.assert_array_equal(by_hand(own()), expected)


@pytest.mark.parametrize("value", [ArrayRecord({"w": Array(np.zeros((500, 500)))}), list(range(100_000)), "x" * 10**6])
@pytest.mark.parametrize("option", ["initial_parameters", "seed", "bounds", "density", "work", "client_lr"])
def test_an_error_shows_a_large_value_in_a_line(option, value):
    refused(r"\A.{1,300}\Z", FedDualAvg, **{option: value})


@pytest.mark.parametrize("option", [option.name for option in fields(FedDualAvg) if option.init])
def test_an_option_that_is_set_during_a_run_is_an_error_at_the_assignment(option):
    strategy, before = FedDualAvg(**BETWEEN), getattr(FedDualAvg(**BETWEEN), option)
    with pytest.raises(ConfigurationError, match=f"{option}=.* was set while a run .* set options before `start`"):
        run(strategy, clients(), 5, callbacks=[lambda number, *_: number == 2 and setattr(strategy, option, before)])
    assert max(strategy.result.train_metrics_clientapp) == 2
    setattr(strategy, option, before)
    run(strategy, clients(), 1)


def test_a_strategy_has_one_run_at_a_time_and_its_copies_have_none():
    def play(own, **options):
        return flat(simulated(own, app_of(clients()), 3, **options).arrays)

    class Mine(FedDualAvg):
        def prepare(self, *given):
            # It may set options still, and another thread may call `start`.
            self.client_lr = 0.02
            refused("in a run that has not ended: .* `copy.copy", play, self)
            return super().prepare(*given)

    def during(number, *_):
        twins = copy.copy(own), pickle.loads(pickle.dumps(own)), copy.deepcopy(own)
        models.extend(play(twin) for twin in twins if number == 2)

    models = []
    play(Mine(fraction_evaluate=0.0))
    own = fco.FedDAGT(client_lr=0.02, fraction_evaluate=0.0, client_state=fco.Ledger(max_bytes=0))
    models.append(play(own, callbacks=[during]))
    assert np.ptp(models, axis=0).max() == 0.0


NO_ARGUMENTS = [
    ({"train_config": {"lr": 0.1}}, "train_config=.* is a dict; expected a ConfigRecord"),
    ({"initial_arrays": {"w": np.zeros(3)}}, "initial_arrays=.* is a dict; expected an ArrayRecord"),
    ({"initial_arrays": ArrayRecord()}, "initial arrays"),
    ({"num_rounds": -1}, "num_rounds=-1; expected"),
    ({"timeout": "long"}, "timeout='long' is a str; expected a number"),
    ({"resume": 7}, "resume=7 is an int; expected"),
    ({"grid": None}, "grid is a NoneType; expected"),
]


@pytest.mark.parametrize(("arguments", "said"), NO_ARGUMENTS)
def test_arguments_of_start_are_checked_in_words(arguments, said):
    strategy = FedDualAvg(client_lr=0.02, fraction_evaluate=0.0)
    good = {"grid": InProcessGrid(app_of(clients()), 4), "initial_arrays": start_arrays(), "num_rounds": 1}
    refused(said, strategy.start, **{**good, **arguments})
    # It is as if nothing had been begun.
    strategy.start(**good)


# --- a strategy of one's own ------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "own-strategy.md"


def test_the_pages_own_loop_keeps_the_contract_and_its_option_the_range():
    source = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[1]
    module = sys.modules["own_strategy"] = types.ModuleType("own_strategy")  # dataclasses look their module up
    exec(compile(source, "own_strategy", "exec"), module.__dict__)
    check_strategy(lambda **options: module.FedClipped(longest=1e5, **options))
    refused(r"longest=0\.0; expected a number > 0 and < 1e6", module.FedClipped, longest=0.0)
    run(strategy := module.FedClipped(longest=1e-3, client_lr=0.1, work=Steps(5)), clients(), 1)
    assert 0.0 < np.linalg.norm(strategy.state.dual) <= 5 * 0.1 * 1e-3


def half(**own):
    """Return the functions and class variables of a method that takes dual averaging's steps."""
    return {"local": lambda self, client, downlink, memory: client.dual_steps(downlink.vectors["dual"]), **own}


NO_METHODS = [
    # Clients find a method by its name, so a change without one would never run.
    *((DualAveraging, {part: object()}, rf"changes .*{part}.*give yours a `name`") for part in ("local", "sparse")),
    (Algorithm, half(name="forgetful", memory=("own",)), "whose clients remember vectors names them, and has it"),
    (DualAveraging, {"reads": "median"}, "reads='median'; expected 'mean', 'sums', 'everyone' or 'rows'"),
]


@pytest.mark.parametrize(("base", "own", "said"), NO_METHODS)
def test_a_class_that_is_no_method_is_refused_where_it_is_defined(base, own, said):
    refused(said, type, "Wrong", (base,), own)
    assert "forgetful" not in methods()


def test_a_name_is_of_one_class_which_may_be_defined_again():
    for _ in range(2):
        last = type("First", (Algorithm,), half(name="defined-twice"))
    refused("method called 'defined-twice' exists.*First", type, "Second", (Algorithm,), half(name="defined-twice"))
    assert methods()["defined-twice"] is last


@dataclass(frozen=True, kw_only=True)
class Bounded(DualAveraging):
    """Dual averaging with a number of its own, which has no default."""

    name = "bounded-here"
    longest: float


def test_a_client_makes_the_method_from_what_the_plan_tells():
    made = Bounded(longest=2.0, client_prox=False, output=Last(3))
    reported = options_of(made)
    assert reported == {"longest": 2.0, "client_prox": False}
    assert method_of("bounded-here", reported) == replace(made, output="last")
    # A subclass on the server has options that its clients' class has not.
    assert method_of("dual_averaging", reported) == DualAveraging(client_prox=False)


ODD = {
    "no work": lambda point: {"increment": point},
    "no name": lambda point: (point, Moved(0.1, 1)),
    "a number": lambda point: ({"increment": point}, 0.1),
    "a list": lambda point: ({"increment": point.tolist()}, Moved(0.1, 1)),
}


@pytest.mark.parametrize("found", ODD.values(), ids=ODD)
def test_what_a_client_sends_is_arrays_by_name_and_what_it_did(found):
    own = {"name": "sends-oddly", "local": lambda self, client, down, memory: found(down.vectors["dual"])}
    kind = type("Odd", (FedDualAvg,), {"algorithm": type("Half", (DualAveraging,), own)})
    refused("Half.local returned .*a dict of arrays by name, and a Moved", run, kind(), clients(), 1, kind=ClientError)


def test_what_the_server_half_returns_has_its_type():
    """A strategy of a method with memories does without the option of a ledger."""
    wrong = {"init": ((0.0, 0), r"\(0.0, 0\); expected a NamedTuple"), "downlink": ({}, "{}; expected a Downlink")}
    wrong["remember"] = (None, "None; expected arrays by name: own")
    for name, (found, said) in wrong.items():
        own = {"name": f"{name}-oddly", name: lambda self, *_, found=found: found}
        kind = type("Odd", (fco.strategies.StepStrategy,), {"algorithm": type("Half", (fco.FedDAGT.algorithm,), own)})
        refused(rf"Half.{name} returned {said}", run, kind(), clients(), 1, kind=(ConfigurationError, ClientError))


@pytest.mark.parametrize("mods", [[], [lambda *given: given[2](*given[:2])]], ids=["in process", "in messages"])
@pytest.mark.parametrize("base", [FedDualAvg, fco.FedDAGT, DualFL])
def test_a_method_that_forgot_its_shapes_ends_after_two_rounds(mods, base):
    def local(self, client, downlink, memory):
        sent, moved = base.algorithm.local(self, client, downlink, memory)
        return {**sent, "curvature": np.ones(3)}, moved

    own = {"name": f"forgetful-{base.__name__}", "local": local}
    made = type("Own", (base,), {"algorithm": type("Forgetful", (base.algorithm,), own)})()
    said = r"the arrays are \['curvature', 'increment'\], expected \['increment'\]"
    refused(said, run, made, clients(), 30, kind=NothingTrainedError, mods=mods)
    assert max(made.result.train_metrics_clientapp) <= 2
