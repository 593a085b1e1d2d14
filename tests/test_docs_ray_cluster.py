"""The sizes that docs/tutorials/ray-cluster.md states are those that its block of code prints."""

import re
from pathlib import Path

from fresh import run_file

PAGE = Path(__file__).parents[1] / "docs" / "tutorials" / "ray-cluster.md"


def test_the_table_of_sizes_is_what_the_block_prints(tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    path = tmp_path / "sizes.py"
    path.write_text(block, encoding="utf-8")
    done = run_file(path)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.strip().splitlines()
    assert len(rows) == 4
    assert [row for row in text.splitlines() if row in rows] == rows
