"""A strategy of one's own: the page's keeps the contract."""

import re
import sys
import types
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from problems import clients, run

from flwr_fco.algorithms import Algorithm, DualAveraging, Moved
from flwr_fco.algorithms.contract import method_of, methods, options_of
from flwr_fco.errors import ClientError, ConfigurationError, NothingTrainedError
from flwr_fco.strategies import DualFL, FedDAGT, FedDualAvg, Last, Steps
from flwr_fco.testing import check_strategy

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "own-strategy.md"


def test_the_pages_own_loop_keeps_the_contract_and_its_option_the_range():
    source = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[1]
    module = sys.modules["own_strategy"] = types.ModuleType("own_strategy")  # dataclasses look their module up
    exec(compile(source, "own_strategy", "exec"), module.__dict__)
    check_strategy(lambda **options: module.FedClipped(longest=1e5, **options))
    with pytest.raises(ConfigurationError, match=r"longest=0\.0; expected a number > 0 and < 1e6"):
        module.FedClipped(longest=0.0)
    strategy = module.FedClipped(longest=1e-3, client_lr=0.1, work=Steps(5))
    run(strategy, clients(), 1)
    assert 0.0 < np.linalg.norm(strategy.state.dual) <= 5 * 0.1 * 1e-3


def half(**own):
    """Return the functions and class variables of a method that takes dual averaging's steps."""
    return {"local": lambda self, client, downlink, memory: client.dual_steps(downlink.vectors["dual"]), **own}


@pytest.mark.parametrize(
    ("base", "own", "said"),
    [
        # Clients find a method by its name, so a change without one would never run.
        *((DualAveraging, {part: object()}, rf"changes .*{part}.*give yours a `name`") for part in ("local", "sparse")),
        (Algorithm, half(name="forgetful", memory=("own",)), "whose clients remember vectors names them, and has it"),
        (Algorithm, half(name="misspelt", discloses={"held_out": "loss"}), "expected 'derivatives' or 'losses'"),
        (DualAveraging, {"reads": "median"}, "reads='median'; expected 'mean', 'sums', 'everyone' or 'rows'"),
        (DualAveraging, {"refuses": {"client_lr": "why"}}, "of mirror_map, regularizer, server_lr"),
    ],
)
def test_a_class_that_is_no_method_is_refused_where_it_is_defined(base, own, said):
    with pytest.raises(ConfigurationError, match=said):
        type("Wrong", (base,), own)
    assert not {"forgetful", "misspelt"} & methods().keys()


def test_a_name_is_of_one_class_which_may_be_defined_again():
    for _ in range(2):
        last = type("First", (Algorithm,), half(name="defined-twice"))
    with pytest.raises(ConfigurationError, match=r"a method called 'defined-twice' exists already, .*First"):
        type("Second", (Algorithm,), half(name="defined-twice"))
    assert methods()["defined-twice"] is last


@dataclass(frozen=True, kw_only=True)
class Bounded(DualAveraging):
    """Dual averaging with a number of its own, which has no default."""

    name = "bounded-here"
    longest: float


def test_a_client_makes_the_method_from_what_the_plan_tells():
    made = Bounded(longest=2.0, client_prox=False, output=Last(3))
    reported = options_of(made)
    assert reported == {"longest": 2.0, "client_prox": False, "client": "composite"}
    assert method_of("bounded-here", reported) == replace(made, output="last")
    # A subclass on the server has options that its clients' class has not.
    assert method_of("dual_averaging", reported) == DualAveraging(client_prox=False)


@pytest.mark.parametrize(
    "found",
    [
        lambda point: {"increment": point},
        lambda point: (point, Moved(0.1, 1)),
        lambda point: ({"increment": point}, 0.1),
        lambda point: ({"increment": point.tolist()}, Moved(0.1, 1)),
    ],
    ids=["no work", "no name", "a number", "a list"],
)
def test_what_a_client_sends_is_arrays_by_name_and_what_it_did(found):
    own = {"name": "sends-oddly", "local": lambda self, client, down, memory: found(down.vectors["dual"])}
    kind = type("Odd", (FedDualAvg,), {"algorithm": type("Half", (DualAveraging,), own)})
    with pytest.raises(ClientError, match=r"Half.local returned .*expected a dict of arrays by name, and a Moved"):
        run(kind(), clients(), 1)


@pytest.mark.parametrize("mods", [[], [lambda *given: given[2](*given[:2])]], ids=["in process", "in messages"])
@pytest.mark.parametrize("strategy", [FedDualAvg, FedDAGT, DualFL])
def test_a_method_that_forgot_its_shapes_ends_after_two_rounds(mods, strategy):
    def local(self, client, downlink, memory):
        sent, moved = strategy.algorithm.local(self, client, downlink, memory)
        return {**sent, "curvature": np.ones(3)}, moved

    own = {"name": f"forgetful-{strategy.__name__}", "local": local}
    made = type("Own", (strategy,), {"algorithm": type("Forgetful", (strategy.algorithm,), own)})()
    said = r"the arrays are \['curvature', 'increment'\], expected \['increment'\]"
    with pytest.raises(NothingTrainedError, match=said):
        run(made, clients(), 30, mods=mods)
    assert max(made.result.train_metrics_clientapp) <= 2
