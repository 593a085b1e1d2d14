"""The gallery's scripts run, and find what their titles say."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"


@pytest.mark.nightly
@pytest.mark.parametrize("path", sorted(GALLERY.glob("*.py")), ids=lambda path: path.stem)
def test_a_script_finds_what_its_title_says(path):
    pytest.importorskip("matplotlib")
    backend = {**os.environ, "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, env=backend)
    assert done.returncode == 0, done.stderr
