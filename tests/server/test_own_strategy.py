"""A strategy of one's own: the page's keeps the contract."""

import re
import sys
import types
from pathlib import Path

from flwr_fco.testing import check_strategy

PAGE = Path(__file__).parents[2] / "docs" / "own-strategy.md"


def test_the_pages_strategy_keeps_the_contract():
    source = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL).group(1)
    module = sys.modules["own_strategy"] = types.ModuleType("own_strategy")  # dataclasses look their module up
    exec(compile(source, "own_strategy", "exec"), module.__dict__)
    check_strategy(module.FedTracking)
