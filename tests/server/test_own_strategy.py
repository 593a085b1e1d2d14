"""A strategy of one's own: the page's, and that of the page of earlier releases through its adapter."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from problems import clients, flat, run

from flwr_fco.regularizers import L1
from flwr_fco.testing import check_strategy

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "own-strategy.md"


def module_of(name, source):
    module = types.ModuleType(name)
    sys.modules[name] = module  # dataclasses look their module up
    exec(compile(source, name, "exec"), module.__dict__)
    return module


@pytest.fixture(scope="module")
def present():
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL).group(1)
    return module_of("present_own_strategy", source).MedianDualAvg


@pytest.fixture(scope="module")
def old():
    with pytest.warns(DeprecationWarning, match="MedianDualAvg has init_state"):
        return module_of("old_own_strategy", (HERE / "old_own_strategy.py").read_text(encoding="utf-8")).MedianDualAvg


@pytest.mark.parametrize("output", ["last", "average"])
def test_the_old_contract_gives_the_bits_of_the_present_one(present, old, output):
    options = {"regularizer": L1(0.1), "client_lr": 0.02, "local_steps": 3, "output": output, "server_lr": 0.7}
    results = [run(cls(**options), clients(), 5) for cls in (present, old)]
    assert flat(results[0].arrays).tobytes() == flat(results[1].arrays).tobytes()
    assert np.any(flat(results[0].arrays))


def test_both_keep_the_contract(present, old):
    check_strategy(present)
    check_strategy(old)
