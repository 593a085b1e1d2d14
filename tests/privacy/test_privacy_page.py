"""The code of docs/privacy.md runs as it stands."""

import re
from pathlib import Path

import pytest
from fresh import run_file

pytest.importorskip("dp_accounting")
PAGE = Path(__file__).parents[2] / "docs" / "privacy.md"


def test_the_code_of_the_page_keeps_its_promise(tmp_path):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(code, encoding="utf-8")
    done = run_file(tmp_path / "mine.py")
    epsilon, delta, density = map(float, re.findall(r"[\d.e-]*\d", done.stdout.splitlines()[-1]))
    assert epsilon <= 4.0
    assert delta == 1e-3
    assert density < 1.0
