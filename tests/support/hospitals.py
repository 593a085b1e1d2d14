"""Tables of some hospitals: honest ones that differ as hospitals do, and ways in which those of one can be wrong."""

from functools import cache

import numpy as np
import pandas as pd
from scipy import stats

from flwr_fco.tables import Codebook, Column

_YES = Column(levels=[0, 1])
#: Outcomes of the three kinds of models, as a codebook has them.
OUTCOMES = {
    "classes": {"died": _YES},
    "times": {"time": Column(unit="days", range=(0.0, 3650.0)), "event": _YES},
    "numbers": {"score": Column()},
}


def codebook(kind: str, columns: dict, **options) -> Codebook:
    """Return a codebook with the outcome of a kind of model."""
    return Codebook(columns, OUTCOMES[kind], **options)


# --- honest ones ------------------------------------------------------------------------------------------------------

HONEST = {
    "age": Column(range=(-100.0, 200.0)),
    "crp": Column(transform="log", range=(1e-6, 1e6)),
    "bmi": Column(),
    "smoker": _YES,
    "rare": _YES,
    "ward": Column(levels=[0, 1, 2, 3]),
}


def honest(seed: int, kind: str) -> dict[str, pd.DataFrame]:
    """Return 3 to 12 sites that differ as much as `tables.description` says is usual, with 50 to 1000 rows each."""
    rng = np.random.default_rng(seed)
    effects = rng.normal(0.0, 0.3, 6) * (rng.random(6) < 0.7)
    baseline = rng.normal(-1.0, 0.5)
    wards = np.log(rng.dirichlet(np.full(4, 3.0)))
    sites = {}
    for m in range(rng.integers(3, 13)):
        n = int(np.exp(rng.uniform(np.log(50), np.log(1000))))
        x = rng.standard_normal((n, 3)) * np.exp(rng.normal(0.0, 0.25, 3)) + rng.normal(0.0, 0.3, 3)
        smoker = rng.random(n) < 1.0 / (1.0 + np.exp(1.0 - rng.normal(0.0, 0.8)))
        rare = rng.random(n) < 1.0 / (1.0 + np.exp(3.5 - rng.normal(0.0, 0.8)))
        odds = np.exp(wards + rng.normal(0.0, 0.5, 4))
        ward = rng.choice(4, n, p=odds / odds.sum())
        scaled = np.column_stack([x, (smoker - 0.27) / 0.45, (rare - 0.03) / 0.17, (ward - 1.5) / 1.1])
        scores = scaled @ (effects + rng.normal(0.0, 0.2, 6))
        table = {"age": (60.0 + 10.0 * x[:, 0]).round(), "crp": np.exp(x[:, 1]), "bmi": 27.0 + 4.0 * x[:, 2]}
        table |= {"smoker": smoker.astype(int), "rare": rare.astype(int), "ward": ward}
        probability = 1.0 / (1.0 + np.exp(-scores - baseline - rng.normal(0.0, 0.8)))
        ends = rng.exponential(365.0, n) / np.exp(scores)
        lost = rng.exponential(500.0 * np.exp(rng.normal(0.0, 0.5)), n)
        table |= {"died": (rng.random(n) < probability).astype(int)}
        table |= {"time": np.minimum(np.ceil(np.minimum(ends, lost)), 3650.0), "event": (ends <= lost).astype(int)}
        table |= {"score": scores + 2.0 * rng.standard_normal(n) + rng.normal(0.0, 0.6)}
        sites[f"site {m}"] = pd.DataFrame(table)
    return sites


# --- ways to be wrong -------------------------------------------------------------------------------------------------

STUDY = {
    "age": Column(unit="years", range=(18.0, 110.0)),
    "sex": _YES,
    "bmi": Column(range=(10.0, 80.0)),
    "creatinine": Column(unit="mg/dl", range=(0.1, 20.0)),
    "glucose": Column(unit="mmol/l", range=(1.0, 40.0)),
    "temperature": Column(unit="C", range=(33.0, 43.0)),
    "smoker": _YES,
    "stage": Column(type="integer", range=(1.0, 4.0)),
    "marker": Column(),
}
NAMES = list(STUDY)
#: The hospital whose table is wrong.
WRONG = "Bergen"


@cache
def study() -> dict[str, pd.DataFrame]:
    """Return the tables of four hospitals with nothing wrong, which explain both outcomes: leave them as they are."""
    rng = np.random.default_rng(3)
    sites = {}
    for name, n in {"Oslo": 400, WRONG: 300, "Tromso": 500, "Molde": 350}.items():
        table = pd.DataFrame({"age": rng.normal(62.0, 11.0, n).round().clip(18.0, 110.0), "sex": rng.integers(0, 2, n)})
        table["bmi"] = rng.normal(27.0, 4.0, n).round(1)
        table["creatinine"] = np.exp(rng.normal(-0.1, 0.35, n)).round(2)
        table["glucose"] = rng.normal(6.2, 1.4, n).round(1)
        table["temperature"] = rng.normal(36.9, 0.6, n).round(1)
        table["smoker"] = (rng.random(n) < 0.3).astype(int)
        table["stage"] = rng.integers(1, 5, n)
        table["marker"] = rng.standard_normal(n)
        scores = 0.05 * (table["age"] - 62.0) + 0.5 * (table["sex"] - 0.5) + 0.05 * (table["bmi"] - 27.0)
        scores += 0.8 * np.log(table["creatinine"]) + 0.2 * (table["glucose"] - 6.0)
        scores += 0.3 * (table["temperature"] - 37.0) + 0.6 * table["smoker"] + 0.4 * (table["stage"] - 2.0) - 1.2
        ends = rng.exponential(365.0, n) / np.exp(scores + 1.2)
        lost = rng.exponential(500.0, n)
        died = (rng.random(n) < 1.0 / (1.0 + np.exp(-scores))).astype(int)
        times = np.ceil(np.minimum(ends, lost)).clip(1.0, 3650.0)
        sites[name] = table.assign(died=died, time=times, event=(ends <= lost).astype(int))
    return sites


def _changed(column, change):
    return lambda table: table.assign(**{column: change(table[column])})


def _some(column, entry, every):
    return lambda table: table.assign(**{column: table[column].where(np.arange(len(table)) % every > 0, entry)})


def _standardised(table):
    return table.assign(**{name: (table[name] - table[name].mean()) / table[name].std() for name in NAMES})


def _shuffled(table):
    order = np.random.default_rng(0).permutation(len(table))
    return table.assign(**{name: table[name].to_numpy()[order] for name in ("died", "time", "event")})


def _of_outcome(change):
    return lambda table: table.assign(died=change(table["died"]), event=change(table["event"]))


#: What becomes of one hospital's table. Some ways are about one kind of outcome only: these are with its name.
WAYS = {
    "a column renamed": lambda table: table.rename(columns={"bmi": "BMI"}),
    "arrays in another order": lambda table: table[NAMES[::-1]].to_numpy(),
    "two names swapped": lambda table: table.rename(columns={"bmi": "glucose", "glucose": "bmi"}),
    "creatinine in umol/l": _changed("creatinine", lambda own: own * 88.4),
    "glucose in mg/dl": _changed("glucose", lambda own: own * 18.0),
    "temperature in F": _changed("temperature", lambda own: own * 1.8 + 32.0),
    "age in months": _changed("age", lambda own: own * 12.0),
    "bmi of pounds": _changed("bmi", lambda own: own * 2.2),
    "sex coded 1 and 2": _changed("sex", lambda own: own + 1),
    "sex reversed": _changed("sex", lambda own: 1 - own),
    "outcome reversed": _of_outcome(lambda own: 1 - own),
    "outcome coded 1 and 2": _of_outcome(lambda own: own + 1),
    "outcome coded -1 and 1": _of_outcome(lambda own: 2 * own - 1),
    "missing bmi as 999": _some("bmi", 999.0, 10),
    "missing smoker as -9": _some("smoker", -9, 10),
    "missing glucose as 0": _some("glucose", 0.0, 5),
    "smoker all 0": _changed("smoker", lambda own: 0 * own),
    "bmi all the mean": _changed("bmi", lambda own: 0.0 * own + 27.0),
    "every row twice": lambda table: pd.concat([table, table], ignore_index=True),
    "outcomes of other rows": _shuffled,
    "the file of Oslo": lambda table: study()["Oslo"],
    "standardised at the site": _standardised,
    "logarithm of creatinine": _changed("creatinine", np.log),
    "stage from 0": _changed("stage", lambda own: own - 1),
    "stage by the alphabet": _changed("stage", lambda own: own.map({1: 3, 2: 1, 3: 4, 4: 2})),
    "bmi without its comma": _changed("bmi", lambda own: own * 10.0),
    "an age of 6200": _some("age", 6200.0, 10**6),
    "times in months": _changed("time", lambda own: own / 30.4),
    "events only": {"classes": lambda own: own[own["died"] == 1], "times": lambda own: own[own["event"] == 1]},
    "a column made of the outcome": {
        "classes": lambda table: table.assign(marker=table["died"] * 1.0),
        "times": lambda table: table.assign(marker=stats.zscore(-np.log(table["time"]))),
    },
    "ages as texts": _changed("age", lambda own: own.astype(str)),
    "a missing age": _some("age", np.nan, 10**6),
    "an infinite creatinine": _some("creatinine", np.inf, 10**6),
    "times below 0": _changed("time", lambda own: own.where(own > 20.0, -1.0)),
    # Nothing is wrong with these two, as columns are taken by name.
    "columns in another order": lambda table: table[table.columns[::-1]],
    "one more column": lambda table: table.assign(id=np.arange(len(table))),
}
FINE = {"columns in another order", "one more column"}
#: Of classes, times are not looked at.
ABOUT_TIMES = {"times in months", "times below 0"}


def wrong(way: str, kind: str) -> dict[str, pd.DataFrame]:
    """Return the hospitals with the table of one of them wrong."""
    change = WAYS[way]
    return study() | {WRONG: (change[kind] if isinstance(change, dict) else change)(study()[WRONG])}
