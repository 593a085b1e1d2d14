"""Where the real data are: FLWR_FCO_DATA, or ../shared/data beside the project."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def real_data():
    """Return a function (name of the data set) -> its directory; skips where it is absent."""

    def find(name):
        directory = Path(os.environ.get("FLWR_FCO_DATA", ROOT.parent / "shared" / "data")) / name
        if not directory.is_dir():
            pytest.skip(f"{directory} is absent; set FLWR_FCO_DATA to the directory that holds {name}/")
        return directory

    return find
