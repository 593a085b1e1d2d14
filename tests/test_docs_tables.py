"""docs/tutorials/tables.md: its blocks run one after the other, and print what the page shows; its recipes work."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from fresh import run_file

PAGE = (Path(__file__).parents[1] / "docs" / "tutorials" / "tables.md").read_text(encoding="utf-8")
STORY, RECIPES = PAGE.split("## Recipes")
BLOCKS = [re.findall(r"```python\n(.*?)```", part, flags=re.DOTALL) for part in (STORY, RECIPES)]


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    pytest.importorskip("pandas", reason="pip install pandas")
    folder = tmp_path_factory.mktemp("tables")
    # The blocks write into the folder that they run in.
    code = f"import os\n\nos.chdir({str(folder)!r})\n" + "\n".join(BLOCKS[0])
    (folder / "mine.py").write_text(code, encoding="utf-8")
    done = run_file(folder / "mine.py")
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(lines=done.stdout.splitlines(), folder=folder)


def test_from_files_to_a_table_as_the_page_shows_it(printed):
    shown = re.search(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)[1].splitlines()
    assert printed.lines[: len(shown)] == shown
    assert printed.lines[len(shown)] == "True"
    assert re.fullmatch("[0-9a-f]{64}", printed.lines[-1])
    assert (printed.folder / "table.csv").read_text().startswith("feature,coefficient,estimate,odds ratio")


def test_the_recipe_fills_in_missing_values():
    pandas = pytest.importorskip("pandas", reason="pip install pandas")
    table = pandas.DataFrame({"age": [60.0, np.nan, 52.0], "bmi": [27.0, 25.0, 30.0], "crp": [1.0, 2.0, 3.0]})
    table["smoker"] = "no"
    names = {"table": table}
    exec(BLOCKS[1][0], names)
    features = np.asarray(names["features"], dtype=np.float64)
    assert features.shape == (3, 3)
    assert list(names["features"].columns)[:2] == ["age", "bmi"]
    assert features[1, 0] == 56.0
