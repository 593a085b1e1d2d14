"""docs/contribute/architecture.md names the files that its round is in."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "contribute" / "architecture.md").read_text(encoding="utf-8")


def test_the_round_on_the_page_is_in_the_files_that_it_names():
    lines = re.findall(r"^ *(\w+) .* (\S+\.py)$", PAGE, flags=re.MULTILINE)
    assert len(lines) >= 25
    for name, file in lines:
        source = (ROOT / "flwr_fco" / file).read_text(encoding="utf-8")
        assert re.search(rf"^ *(def|class) {name}\b", source, flags=re.MULTILINE), (name, file)
