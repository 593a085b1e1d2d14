"""How often intervals cover: the stored shares of benchmarks/coverage.py are within their bars, and come again."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from representatives import nightly

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def coverage():
    # Under another name, as there is a package of this one.
    spec = importlib.util.spec_from_file_location("coverage_of_intervals", BENCHMARKS / "coverage.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(BENCHMARKS))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(BENCHMARKS))
    return module


def test_every_setting_has_stored_shares_within_its_bars(coverage):
    stored = json.loads(coverage.STORED.read_text(encoding="utf-8"))
    assert list(stored) == list(coverage.SETTINGS)
    for name, (_, bars) in coverage.SETTINGS.items():
        for share, (low, high) in bars.items():
            assert low <= stored[name][share][0] <= high, (name, share)
        if bars is coverage.RARE:
            assert stored[name]["federations"] == 1000
    # What the default is there for.
    common = stored["rare, baselines differ, site_intercepts='common'"]
    assert common["not 0"][0] < 0.8
    assert common["type I"][0] > 0.2


@pytest.mark.parametrize("baselines", ["differ", *nightly("same", "linked")])
def test_rare_outcomes_in_unequal_sites_are_covered(coverage, baselines):
    """Of 40 federations with 8 coefficients each, within four standard errors."""
    count = 40 if baselines != "differ" else 6
    found = [coverage.rare(baselines, None, np.random.default_rng((99, i))) for i in range(count)]
    for share in ("not 0", "0"):
        values = np.array([own[share] for own in found])
        assert values.mean() > 0.95 - 4.0 * (0.95 * 0.05 / (4 * count)) ** 0.5
