"""The meta-analysis: published numbers, and what must hold of any."""

import numpy as np
import pytest
from scipy import stats

from flwr_fco.tables.estimates import between

#: Thirteen trials of a vaccine against tuberculosis (Colditz and others, JAMA 1994): cases and others, treated and not.
BCG = np.array(
    [
        *([4, 119, 11, 128], [6, 300, 29, 274], [3, 228, 11, 209], [62, 13536, 248, 12619], [33, 5036, 47, 5761]),
        *([180, 1361, 372, 1079], [8, 2537, 10, 619], [505, 87886, 499, 87892], [29, 7470, 45, 7232]),
        *([17, 1699, 65, 1600], [186, 50448, 141, 27197], [5, 2493, 3, 2338], [27, 16886, 29, 17825]),
    ],
    dtype=float,
)


def test_the_numbers_of_a_published_meta_analysis():
    """As metafor documents them (Viechtbauer 2010): Q 152.233, I2 92.12 %, log risk ratio -.7141, error .1787."""
    a, b, c, d = BCG.T
    ratio = np.log(a / (a + b)) - np.log(c / (c + d))
    error = np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))
    found = between(ratio[:, None], error[:, None])
    assert found["Q"][0] == pytest.approx(152.233, abs=1e-3)
    assert found["I2"][0] == pytest.approx(0.9212, abs=5e-5)
    assert found["fixed"][0] == pytest.approx(-0.4303, abs=5e-5)
    assert found["fixed error"][0] == pytest.approx(0.0405, abs=5e-5)
    assert (found["DerSimonian-Laird"][0], found["DerSimonian-Laird error"][0]) == pytest.approx(
        (-0.7141, 0.1787), abs=5e-5
    )
    # Hartung and Knapp's formula, by hand, with the published variance between trials.
    weights = 1 / (error**2 + 0.3088)
    mean = sum(weights * ratio) / sum(weights)
    by_hand = (sum(w * (y - mean) ** 2 for w, y in zip(weights, ratio, strict=True)) / 12 / sum(weights)) ** 0.5
    assert found["Hartung-Knapp error"][0] == pytest.approx(by_hand, abs=2e-5)
    assert found["p of Q"][0] == pytest.approx(stats.chi2.sf(152.233, 12), rel=1e-3)


def test_errors_that_vary_have_welchs_test():
    rng = np.random.default_rng(1)
    groups = [rng.normal(scale=1.0 + m, size=5 + 2 * m) for m in range(5)]
    values, errors, degrees = (
        np.array([[of(own)] for own in groups]) for of in (np.mean, stats.sem, lambda own: len(own) - 1.0)
    )
    theirs = stats.f_oneway(*groups, equal_var=False)
    assert between(values, errors, degrees)["p of Q"][0] == pytest.approx(theirs.pvalue, rel=1e-9)


def test_means_are_those_of_statsmodels():
    meta = pytest.importorskip("statsmodels.stats.meta_analysis", reason="pip install '.[oracles]'")
    a, b, c, d = BCG.T
    ratio = np.log(a / (a + b)) - np.log(c / (c + d))
    error = np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))
    found = between(ratio[:, None], error[:, None])
    theirs = meta.combine_effects(ratio, error**2, method_re="dl")
    ours = {
        "Q": theirs.q,
        "I2": theirs.i2,
        "fixed": theirs.mean_effect_fe,
        "fixed error": theirs.sd_eff_w_fe,
        "DerSimonian-Laird": theirs.mean_effect_re,
        "DerSimonian-Laird error": theirs.sd_eff_w_re,
        "Hartung-Knapp error": theirs.sd_eff_w_re_hksj,
    }
    for name, value in ours.items():
        assert found[name][0] == pytest.approx(value, rel=1e-10), name


def test_equal_estimates_do_not_differ():
    found = between(np.ones((3, 1)), np.array([[1.0], [2.0], [3.0]]))
    assert (found["Q"][0], found["I2"][0], found["p of Q"][0], found["DerSimonian-Laird"][0]) == (0.0, 0.0, 1.0, 1.0)
    assert found["DerSimonian-Laird error"][0] == found["fixed error"][0]
