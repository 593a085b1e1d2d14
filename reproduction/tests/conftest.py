"""Where the real data are; pictures that no test looks at closely are drawn with fewer dots."""

import os
from pathlib import Path

import pytest

from reproduction.pictures import report


@pytest.fixture(autouse=True)
def coarse_pictures(request, monkeypatch):
    if "pictures" not in request.path.parts:
        monkeypatch.setattr(report, "_DOTS", 100)


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
