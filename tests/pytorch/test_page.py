"""The code of docs/tutorials/pytorch.md runs, and does what its comments say."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch.optim", reason="needs PyTorch: make test-torch, or pip install torch")

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "pytorch.md"


def test_the_code_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 4
    names = {"__name__": "page"}
    exec(compile("\n".join(blocks), str(PAGE), "exec"), names)
    assert float(capsys.readouterr().out) == 0.25
    model = names["unmodified"].eval()
    x = names["x"]
    y = names["y"]
    assert float((model(x.reshape(240, 12)).argmax(1) == y.reshape(240)).float().mean()) > 0.9
    # The learnt inputs are the two that matter, more than the others.
    used = (model[0].weight != 0).sum(dim=0)
    assert used[:2].min() >= used[2:].max()
