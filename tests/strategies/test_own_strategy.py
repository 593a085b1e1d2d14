"""A strategy of one's own: the page's keeps the contract."""

import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from fitting import fitting
from halves import find_solver
from problems import app_of, clients, run, start_arrays
from together import together

from flwr_fco.algorithms import ClientHalf, DualAveraging, MirrorDescent, Start
from flwr_fco.algorithms.contract import halves
from flwr_fco.errors import ClientError, ConfigurationError, NothingTrainedError
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import DualFL, FedDAGT, FedDualAvg, Steps, run_of
from flwr_fco.testing import check_strategy

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "own-strategy.md"


def page(number=0):
    source = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[number]
    module = sys.modules["own_strategy"] = types.ModuleType("own_strategy")  # dataclasses look their module up
    exec(compile(source, "own_strategy", "exec"), module.__dict__)
    return module


def test_the_pages_strategy_keeps_the_contract():
    check_strategy(page().FedTracking)


def test_the_pages_own_loop_keeps_the_contract_and_its_option_the_range():
    clipped = page(1).FedClipped
    check_strategy(lambda **options: clipped(longest=1e5, **options))
    with pytest.raises(ConfigurationError, match=r"longest=0\.0; expected a number > 0 and < 1e6"):
        clipped(longest=0.0)
    strategy = clipped(longest=1e-3, client_lr=0.1, work=Steps(5))
    run(strategy, clients(), 1)
    assert 0.0 < np.linalg.norm(strategy.state.dual) <= 5 * 0.1 * 1e-3


@pytest.mark.parametrize(
    ("engine", "says", "missing"),
    [
        ("dual steps", {}, "needs begin of"),
        ("minimise", {}, "needs begin of"),
        ("primal steps", {}, "needs begin and local_step of"),
        ("gradient steps", {"begin": staticmethod(Start)}, "needs local_step of"),
        (None, {"begin": staticmethod(Start)}, "needs local of"),
    ],
)
def test_a_method_without_what_its_engine_needs_is_refused_when_it_is_defined(engine, says, missing):
    with pytest.raises(ConfigurationError, match=missing):
        type("Lacking", (ClientHalf,), {"name": "lacking", "engine": engine, **says})
    assert "lacking" not in halves()


def test_an_engine_that_is_not_there_is_named():
    type("Misspelt", (ClientHalf,), {"name": "misspelt", "engine": "dual step", "begin": staticmethod(Start)})
    with pytest.raises(ConfigurationError, match="engine='dual step'; expected one of dual steps, "):
        find_solver("misspelt")


@pytest.mark.parametrize("name", sorted(name for name in vars(ClientHalf) if name[0] != "_" and name != "name"))
def test_a_subclass_that_changes_the_client_half_needs_a_name(name):
    """Clients find their half by its name, so a change without one would never run."""
    kind = MirrorDescent if name == "local_step" else DualAveraging
    with pytest.raises(ConfigurationError, match=f"changes {name} of the method {kind.name!r}.* give yours a `name`"):
        type("Changed", (kind,), {name: object()})


def test_a_base_class_that_changes_the_client_half_needs_a_name_too():
    mixin = type("Mixin", (), {"send": staticmethod(lambda downlink, moved, memory: {})})
    with pytest.raises(ConfigurationError, match=f"changes send of the method {DualAveraging.name!r}"):
        type("Changed", (mixin, DualAveraging), {})


def test_a_name_is_of_one_class_which_may_be_defined_again():
    half = {"name": "defined-twice", "engine": "dual steps", "begin": staticmethod(Start)}
    for _ in range(2):
        last = type("First", (ClientHalf,), half)
    with pytest.raises(ConfigurationError, match=r"a method called 'defined-twice' exists already, .*First"):
        type("Second", (ClientHalf,), half)
    assert halves()["defined-twice"] is last


@together(
    ("memory", "functions"),
    [(("own",), ()), (("own",), ("fresh",)), (("own",), ("remember",)), ((), ("fresh", "remember")), ((), ("fresh",))],
)
def test_a_method_that_remembers_says_what_and_how(memory, functions):
    half = {"engine": "dual steps", "begin": staticmethod(Start), "memory": memory}
    half |= {name: staticmethod(lambda *given: {}) for name in functions}
    with pytest.raises(ConfigurationError, match="names them in `memory` and has both `fresh` and `remember`"):
        type("Forgetful", (ClientHalf,), {"name": "forgetful", **half})
    assert "forgetful" not in halves()


@pytest.mark.parametrize("holds", [{"gradient": "derivatives", "held_out": "loss"}, ("loss",), {"held_out": ["loss"]}])
def test_what_a_vector_holds_is_of_a_known_kind(holds):
    """Misspelt, it would be compared by its length, or kept back by nobody."""
    half = {"begin": staticmethod(Start), "holds": holds}
    with pytest.raises(ConfigurationError, match=r"holds=.*'loss'.*expected 'derivatives' or 'losses'"):
        type("Misspelt", (ClientHalf,), {"name": "holds-what", **half})
    assert "holds-what" not in halves()


@together(
    ("says", "expected"),
    [
        ({"reads": "median"}, "reads='median'; expected 'mean', 'sums', 'everyone' or 'rows'"),
        ({"refuses": ["regularizer"]}, "expected reasons by option"),
        ({"refuses": {"client_lr": "why"}}, "of mirror_map, regularizer, server_lr"),
    ],
)
def test_what_an_algorithm_says_of_its_server_half_is_checked(says, expected):
    with pytest.raises(ConfigurationError, match=expected):
        type("Odd", (DualAveraging,), says)


def test_an_option_that_the_strategy_lacks_is_named():
    @dataclass(frozen=True, kw_only=True)
    class Fast(DualAveraging):
        speed: float

    with pytest.raises(ConfigurationError, match="Fast needs the option 'speed', which Slow does not have"):
        run(type("Slow", (FedDualAvg,), {"algorithm": Fast})(), clients(), 1)


@together(
    ("start", "said"),
    [
        (lambda point: {"point": point}, "returned a dict; expected a Start"),
        (lambda point: Start(point.tolist()), r"returned a Start\(list\)"),
        (lambda point: Start(point.astype(np.float32)), r"returned a Start\(ndarray\)"),
        (lambda point: Start(point[None]), r"returned a Start\(ndarray\)"),
    ],
)
def test_where_a_client_begins_is_a_start_of_float64(start, said):
    half = {"name": "begins-oddly", "begin": staticmethod(lambda downlink, memory: start(downlink.vectors["dual"]))}
    kind = type("Odd", (FedDualAvg,), {"algorithm": type("Half", (DualAveraging,), half)})
    with pytest.raises(ClientError, match=said):
        run(kind(), clients(), 1)


def test_the_run_is_of_a_strategy_that_has_one():
    with pytest.raises(ConfigurationError, match=r"FedDualAvg has not begun a run; call `prepare\(initial_arrays\)`"):
        run_of(FedDualAvg())


class ByMessages(InProcessGrid):
    """A hook of its own: everything travels in messages."""

    direct = None


@pytest.mark.parametrize("grid", [InProcessGrid, ByMessages])
@pytest.mark.parametrize("strategy", [FedDualAvg, FedDAGT, DualFL])
def test_a_method_that_forgot_its_shapes_ends_after_two_rounds(grid, strategy):
    kind = strategy.algorithm

    def send(client, downlink, memory, moved):
        return {**kind.send(client, downlink, memory, moved), "curvature": np.ones(3)}

    forgetful = type("Forgetful", (kind,), {"name": f"forgetful-{kind.name}", "send": staticmethod(send)})
    options = fitting(strategy, {"client_lr": 0.02, "fraction_evaluate": 0.0})
    own = type("Own", (strategy,), {"algorithm": forgetful})(**options)
    said = r"the arrays are \['curvature', 'increment'\], expected \['increment'\]"
    with pytest.raises(NothingTrainedError, match=said):
        own.start(grid(app_of(clients()), 4), start_arrays(), num_rounds=30)
    assert max(own.result.train_metrics_clientapp) <= 2


def test_one_client_that_names_its_vectors_otherwise_ends_no_run(caplog):
    """A sample of one may be a liar."""
    grid = InProcessGrid(app_of(clients(), mods=[renaming]), 4)
    own = FedDualAvg(client_lr=0.02, fraction_train=0.25, min_train_nodes=1, fraction_evaluate=0.0)
    with caplog.at_level("WARNING"), pytest.raises(NothingTrainedError):
        own.start(grid, start_arrays(), num_rounds=2)
    assert len([record for record in caplog.records if "left out" in record.message]) == 2


def renaming(message, context, call_next):
    """Answer with the right vectors under other names."""
    reply = call_next(message, context)
    for record in reply.content.array_records.values():
        for name in list(record):
            record[f"{name}-of-mine"] = record.pop(name)
    return reply
