"""Pictures that no test looks at closely are drawn with fewer dots."""

import pytest

from reproduction.pictures import report


@pytest.fixture(autouse=True)
def coarse_pictures(request, monkeypatch):
    if "pictures" not in request.path.parts:
        monkeypatch.setattr(report, "_DOTS", 100)
