"""Where the real data are."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def real_data():
    """Return a function (name of the data set) -> its directory; skips where it is absent."""

    def find(name):
        beside = Path(__file__).resolve().parents[3] / "shared" / "data"
        directory = Path(os.environ.get("FLWR_FCO_DATA", beside)) / name
        if not directory.is_dir():
            pytest.skip(f"{directory} is absent; set FLWR_FCO_DATA to the directory that holds {name}/")
        return directory

    return find
