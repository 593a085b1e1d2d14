"""Every exported strategy keeps the contract and converges to what it says."""

import numpy as np
import pytest
from converging import LIMITS, converges
from problems import nightly

from flwr_fco.algorithms import DualAveraging, SubgradientSteps
from flwr_fco.algorithms.dual_averaging import DualState
from flwr_fco.messages.protocol import Downlink
from flwr_fco.regularizers import L1
from flwr_fco.strategies import STRATEGIES, FedDualAvg
from flwr_fco.testing import check_strategy

#: Settings of another strategy, without a line of code of their own: at night.
SETTINGS = ("FedDA", "FedDualAvgOSP", "FedMidOSP")


@pytest.mark.parametrize("name", [*(name for name in STRATEGIES if name not in SETTINGS), *nightly(*SETTINGS)])
def test_contract(name):
    check_strategy(STRATEGIES[name], tolerance=None)
    converges(STRATEGIES[name], LIMITS[name])


def in_place(self, problem, state, replies):
    after = DualAveraging.aggregate(self, problem, state, replies)
    state.dual[...] = after.dual
    return after._replace(dual=state.dual)


def in_float32(self, problem, primal):
    return DualState(primal.astype(np.float32))


def far_away(self, problem, state, replies):
    after = DualAveraging.aggregate(self, problem, state, replies)
    return after._replace(dual=1e200 * after.dual)


def from_the_dual(self, problem, state, to):
    return Downlink(problem.plan, {"primal": state.dual}, problem.client_lr)


def sends(loop, *more):
    return lambda self, client, downlink, memory: getattr(client, loop)(downlink.vectors["dual"], *more)


OF_SUBGRADIENTS = {"sparse": False, "local": SubgradientSteps.local, "downlink": from_the_dual}


BROKEN = {
    "never moves": ({"aggregate": lambda self, problem, state, _: state._replace(round=state.round + 1)}, "seed"),
    "returns the dual": ({"retrieve": lambda self, problem, state: state.dual}, "come to the solution"),
    "clients without psi's proximal map": ({"name": "wrong", **OF_SUBGRADIENTS}, "come to the solution"),
    "moves all columns": ({"name": "wide", "local": sends("dual_steps", 0.1)}, "does `local` move other columns"),
    "proximal steps": ({"name": "near", "local": sends("proximal_steps")}, "moves coordinates without features"),
    "changes the state": ({"aggregate": in_place}, r"state\.dual in place"),
    "a state in float32": ({"init": in_float32}, "ended with an error: .*state.dual as float32.*; expected float64"),
    "diverges": ({"aggregate": far_away}, "ended with an error: .*diverge"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_the_check_finds_a_broken_strategy(fault):
    broken, message = BROKEN[fault]
    wrong = type("Wrong", (FedDualAvg,), {"algorithm": type("Broken", (DualAveraging,), broken)})
    with pytest.raises(AssertionError, match=message):
        check_strategy(lambda **options: wrong(**{"regularizer": L1(0.3), **options}))
