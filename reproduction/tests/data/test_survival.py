"""Survival times of other packages: at their sites, complete, and absent with a word."""

import sys
from types import ModuleType

import numpy as np
import pytest

from flwr_fco.errors import ConfigurationError, NotInstalledError
from flwr_fco.objectives import CoxRegression
from reproduction.data.survival import survival
from reproduction.problems.named import load_task

pandas = pytest.importorskip("pandas", reason="pip install pandas")


@pytest.fixture
def stand_in(monkeypatch):
    """Frames of the same form, in the place of the packages."""
    rng, n = np.random.default_rng(0), 60
    numbers = dict.fromkeys(("age", "sex", "ph.ecog", "ph.karno", "pat.karno", "meal.cal", "wt.loss"))
    lung = pandas.DataFrame({name: rng.normal(size=n) for name in numbers} | {"time": rng.exponential(size=n)})
    lung["inst"], lung["status"] = np.repeat([2.0, 11.0, 1.0], 20), rng.integers(0, 2, n)
    lung.loc[[0, 25], ["wt.loss", "inst"]] = np.nan
    gbsg = pandas.DataFrame({name: rng.normal(size=n) for name in ("age", "tsize", "pnodes", "progrec", "estrec")})
    gbsg["horTh"], gbsg["menostat"], gbsg["tgrade"] = ["yes", "no"] * 30, ["Pre", "Post"] * 30, ["I", "III"] * 30
    gbsg["time"], gbsg["cens"] = rng.exponential(size=n), rng.integers(0, 2, n)
    chain = pandas.DataFrame({name: rng.normal(size=n) for name in ("age", "creatinine", "kappa", "lambda")})
    chain["chapter"], chain["flc.grp"], chain["sample.yr"] = None, "3", "1997"
    chain["mgus"], chain["sex"] = ["yes", "no"] * 30, ["M", "F"] * 30
    chain.loc[:9, "creatinine"] = np.nan
    targets = np.array([(True, 3.0)] * 10 + [(False, 2.0)] * 50, dtype=[("death", "?"), ("futime", "f8")])
    made = {"lifelines": {"load_lung": lung, "load_gbsg2": gbsg}, "sksurv": {"load_flchain": (chain, targets)}}
    for package, frames in made.items():
        module = ModuleType(f"{package}.datasets")
        for name, frame in frames.items():
            setattr(module, name, lambda frame=frame: frame)
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return lung


def test_lung_is_at_its_institutions_in_their_order_and_complete(stand_in):
    data = survival("lung")
    assert [data.client(m).targets.shape for m in range(3)] == [(20, 2), (19, 2), (19, 2)]
    whole = stand_in.dropna()
    for site, institution in ((2, 11.0), (1, 2.0), (0, 1.0)):
        rows = whole[whole["inst"] == institution]
        np.testing.assert_allclose(data.client(site).features[:, 0], rows["age"] / 10)
    np.testing.assert_array_equal(data.client(0).targets, rows[["time", "status"]])
    objective = data.objective(0)
    assert isinstance(objective, CoxRegression)
    assert objective.feature_names == tuple(data.names)
    assert objective.num_events == rows["status"].sum()
    with pytest.raises(ConfigurationError, match=r"no client 3; expected 0 \.\. 2"):
        data.client(3)


@pytest.mark.parametrize(("variant", "rows", "width"), [("lung", 58, 7), ("gbsg2", 60, 8), ("flchain", 50, 8)])
def test_rows_without_sites_are_split(variant, rows, width, stand_in):
    data = survival(variant, num_clients=4, seed=1)
    assert sorted(np.concatenate(data.partition).tolist()) == list(range(rows))
    assert data.features.shape == (rows, width) == (rows, len(data.names))
    assert np.isfinite(data.features).all()
    assert set(np.unique(data.targets[:, 1])) <= {0.0, 1.0}
    if variant != "lung":
        with pytest.raises(ConfigurationError, match=rf"num_clients=0 of {variant}, whose rows name no sites"):
            survival(variant)
    if variant == "flchain":
        # The deaths are in rows without a creatinine.
        assert data.targets[:, 1].sum() == 0


def test_a_named_problem_is_this_data_with_a_cox_regression(stand_in):
    task = load_task("lung", 7, {"strength": 0.2})
    assert [type(client) for client in task.clients] == [CoxRegression] * 3
    found = task.scores(np.zeros(7))
    assert found["non-zeros"] == 0.0
    assert found["objective"] == pytest.approx(task.mean(client.value(np.zeros(7)) for client in task.clients))


@pytest.mark.parametrize(
    ("variant", "package"), [("lung", "lifelines"), ("gbsg2", "lifelines"), ("flchain", "scikit-survival")]
)
def test_without_the_package_an_error_says_what_to_install(variant, package, monkeypatch):
    for name in ("lifelines", "lifelines.datasets", "sksurv", "sksurv.datasets"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NotInstalledError, match=f"come with {package}: pip install {package}"):
        survival(variant)


def test_the_data_themselves():
    """167 complete rows at 17 institutions, 120 of them deaths."""
    pytest.importorskip("lifelines", reason="pip install lifelines")
    data = survival("lung")
    assert (data.num_clients, len(data.features), data.targets[:, 1].sum()) == (17, 167, 120)
    assert [len(rows) for rows in data.partition][:3] == [28, 4, 12]
    other = survival("gbsg2", 8)
    assert (len(other.features), other.targets[:, 1].sum()) == (686, 299)


def test_the_free_light_chains_themselves():
    pytest.importorskip("sksurv", reason="pip install scikit-survival")
    data = survival("flchain", 8)
    assert (len(data.features), data.targets[:, 1].sum()) == (6524, 1962)
