"""Intervals of simulated federations: how often they cover the truth, and how often Q rejects what is true.

    python benchmarks/intervals.py           500 federations of each setting, 1,000 of rare outcomes and of clusters;
                                             about 45 minutes of one core; writes benchmarks/intervals.json
    python benchmarks/intervals.py --quick   one of each, without bars: some seconds
    python benchmarks/intervals.py --only Cox    settings that begin so; the others stay as they are stored

A federation is a fit with ``intervals=True`` on five sites whose rows differ in location. Federation i of a setting is
drawn from the seed (setting, i), so that each can be drawn again. The bars are of 95 % intervals: of squares within two
standard errors (of 500 federations) of .95; logistic with 20 events a column at least .92 of coefficients that are not
0, and .93 to .98 of those that are, Cox likewise; Hartung and Knapp's at least .93 where sites differ; Q rejects .03 to
.07 at the level .05 where they do not. Of rare outcomes in unequal sites .935 to .965, and .035 to .065 of tests that
reject what is true. What covers less, without a bar: one effect for sites that differ, one intercept of them all, and
robust errors of some hundred clusters, which are those of R's coxph.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import expit
from shared import options_of, print_row

from flwr_fco.models import write_file
from flwr_fco.tables import FederatedCoxRegression, FederatedLasso, FederatedLogisticRegression

SITES = 5
FEDERATIONS = 500
RARE_ONES = 1000
QUICK = 1
LEVEL = 0.05
STORED = Path(__file__).with_suffix(".json")
#: Two standard errors of the share of 500 federations whose interval covers.
AROUND = 2.0 * (0.95 * 0.05 / FEDERATIONS) ** 0.5
LINEAR = (0.95 - AROUND, 0.95 + AROUND)
NULL = (0.93, 0.98)
ACTIVE = (0.92, 1.0)
RARE = {"not 0": (0.935, 0.965), "0": (0.935, 0.965), "type I": (0.035, 0.065), "Rao rejects": (0.03, 0.07)}


def features(rng: np.random.Generator, rows: int, columns: int) -> list[Any]:
    return [rng.normal(0.3 * rng.normal(size=columns), 1.0, size=(rows // SITES, columns)) for _ in range(SITES)]


def sparse(rng: np.random.Generator, columns: int, active: int) -> Any:
    truth = np.zeros(columns)
    truth[rng.choice(columns, active, replace=False)] = rng.choice([-1.0, 1.0], active) * rng.uniform(0.3, 1.0, active)
    return truth


def covered(rows: list[dict[str, float]], truth: Any, kind: str = "") -> Any:
    lower, upper = (np.array([row[f"{kind}{end}"] for row in rows]) for end in ("lower", "upper"))
    return (lower <= truth) & (truth <= upper)


def split(rows: list[dict[str, float]], truth: Any) -> dict[str, float]:
    inside = covered(rows, truth)
    return {"not 0": inside[truth != 0.0].mean(), "0": inside[truth == 0.0].mean()}


def targets(rng: np.random.Generator, parts: list[Any], truth: Any) -> list[Any]:
    return [X @ truth + rng.normal(size=len(X)) for X in parts]


def squares(rows: int, columns: int, model: Any, rng: np.random.Generator) -> dict[str, float]:
    parts = features(rng, rows, columns)
    truth = sparse(rng, columns, 8)
    return split(model.fit(parts, targets(rng, parts, truth), intervals=True).summary().rows, truth)


def enough(draw: Callable[..., list[Any]], rarer: Callable[[Any], float], rng: np.random.Generator, rows: int) -> Any:
    """Return the truth, features and targets of at least so many rows that there are 20 events for each of 10 columns.

    At most 5 rows more a site than that takes.
    """
    truth = sparse(rng, 10, 4)
    while True:
        parts = features(rng, rows, 10)
        drawn = draw(rng, parts, truth)
        if rarer(np.concatenate(drawn)) >= 200:
            return truth, parts, drawn
        rows += 25


def classes(rng: np.random.Generator, parts: list[Any], truth: Any) -> list[Any]:
    return [(rng.random(len(X)) < 1.0 / (1.0 + np.exp(1.0 - X @ truth))).astype(float) for X in parts]


def logistic(rng: np.random.Generator) -> dict[str, float]:
    truth, parts, labels = enough(classes, lambda own: min(own.sum(), own.size - own.sum()), rng, 500)
    model = FederatedLogisticRegression(0.05, l1_ratio=1.0)
    return split(model.fit(parts, labels, intervals=True).summary().rows, truth)


def different(rng: np.random.Generator) -> dict[str, float]:
    """Log odds that differ between sites with a deviation of .3, around .5."""
    parts = features(rng, 500, 2)
    labels = [classes(rng, [X], 0.5 + 0.3 * rng.normal(size=2))[0] for X in parts]
    rows = FederatedLogisticRegression(0.05, l1_ratio=1.0).fit(parts, labels, intervals=True).summary().rows
    one = covered(rows, 0.5)
    rejects = np.array([row["p of Q"] for row in rows]) < LEVEL
    return {
        "one effect": one.mean(),
        "one effect where Q does not reject": one[~rejects].mean() if not rejects.all() else np.nan,
        "Hartung-Knapp": covered(rows, 0.5, "Hartung-Knapp ").mean(),
        "Q rejects": rejects.mean(),
    }


def same_squares(rng: np.random.Generator) -> dict[str, float]:
    parts, truth = features(rng, 500, 10), sparse(rng, 10, 4)
    rows = FederatedLasso(0.1).fit(parts, targets(rng, parts, truth), intervals=True).summary().rows
    return {"Q rejects": np.mean([row["p of Q"] < LEVEL for row in rows])}


def same_classes(rng: np.random.Generator) -> dict[str, float]:
    """Some 70 of the rarer class a site, of the 50 that 10 columns need."""
    parts, truth = features(rng, 1250, 10), sparse(rng, 10, 4)
    rows = FederatedLogisticRegression(0.05, l1_ratio=1.0).fit(parts, classes(rng, parts, truth), intervals=True)
    reported = [row["p of Q"] for row in rows.summary().rows]
    return {} if np.isnan(reported).any() else {"Q rejects": np.mean(np.array(reported) < LEVEL)}


def times(rng: np.random.Generator, parts: list[Any], truth: Any) -> list[Any]:
    """Times and events, with a baseline of each site; some third of the rows is censored."""
    scales, shapes = rng.uniform(0.5, 5.0, len(parts)), rng.uniform(0.7, 1.5, len(parts))
    found = []
    for X, scale, shape in zip(parts, scales, shapes, strict=True):
        ends = scale * (rng.exponential(size=len(X)) * np.exp(-X @ truth)) ** (1.0 / shape)
        stops = scale * rng.exponential(2.0, len(X))
        found.append(np.column_stack([np.minimum(ends, stops), ends <= stops]))
    return found


def cox(rng: np.random.Generator) -> dict[str, float]:
    truth, parts, y = enough(times, lambda own: own[:, 1].sum(), rng, 250)
    return split(FederatedCoxRegression(0.05).fit(parts, y, intervals=True).summary().rows, truth)


def rare(baselines: str, site_intercepts: Any, rng: np.random.Generator) -> dict[str, float]:
    """Six unequal sites, eight columns, 5 % events; baselines are the same, differ by .8, or follow a column's mean."""
    sizes = (600, 1500, 300, 2500, 900, 200)
    truth = np.array([0.5, -0.4, 0.3, 0.6, 0.0, 0.0, 0.0, 0.0])
    columns = 8
    shift = 0.5 * rng.standard_normal((len(sizes), columns))
    levels = {"same": np.zeros(6), "differ": 0.8 * rng.standard_normal(6), "linked": 1.2 * shift[:, 4]}[baselines]
    parts, scores = [], []
    for m, rows in enumerate(sizes):
        X = 0.7 * rng.standard_normal((rows, columns)) + 0.5 * rng.standard_normal((rows, 1))
        X[:, 3], X[:, 7] = rng.random(rows) < 0.1 + 0.1 * (m % 4), rng.random(rows) < 0.3
        X[:, [0, 1, 2, 4, 5, 6]] += shift[m, [0, 1, 2, 4, 5, 6]]
        X[:, 1] *= 1.0 + 0.3 * m
        parts.append(X)
        scores.append(X @ truth + levels[m])
    level = brentq(lambda b: np.mean(expit(np.concatenate(scores) + b)) - 0.05, -15.0, 5.0)
    labels = [(rng.random(own.size) < expit(own + level)).astype(int) for own in scores]
    model = FederatedLogisticRegression(1e8, site_intercepts=site_intercepts).fit(parts, labels, intervals=True)
    rows = model.summary().rows
    null = truth == 0.0
    p, q, test = (np.array([row[name] for row in rows])[null] < LEVEL for name in ("p", "q", "p of Rao"))
    return {**split(rows, truth), "type I": p.mean(), "a false q": float(q.any()), "Rao rejects": test.mean()}


def clustered(rng: np.random.Generator) -> dict[str, float]:
    """Cox: 200 patients of two to four rows with a weight for each patient, and ten columns; some 370 events.

    Patients differ by a positive stable frailty, with which hazards are proportional in the mean too, with coefficients
    .8 times those of a patient (Hougaard: A class of multivariate failure time distributions, Biometrika 1986).
    """
    truth = sparse(rng, 10, 4)
    parts, y, weights = [], [], []
    scales, shapes = rng.uniform(0.5, 5.0, SITES), rng.uniform(0.7, 1.5, SITES)
    for scale, shape in zip(scales, shapes, strict=True):
        patient = np.repeat(np.arange(40), rng.integers(2, 5, 40))
        X = rng.normal(0.3 * rng.normal(size=10), 0.8, (patient.size, 10)) + 0.6 * rng.normal(size=(40, 10))[patient]
        angle, level = rng.uniform(0.0, np.pi, 40), rng.exponential(size=40)
        frailty = (np.sin(0.2 * angle) / level) ** 0.25 * np.sin(0.8 * angle) / np.sin(angle) ** 1.25
        hazard = frailty[patient] * np.exp(X @ truth / 0.8)
        ends = scale * (rng.exponential(size=patient.size) / hazard) ** (1.0 / shape)
        stops = scale * rng.exponential(2.0, patient.size)
        parts.append(pd.DataFrame(X).rename(columns="x{}".format).assign(patient=patient))
        y.append(np.column_stack([np.minimum(ends, stops), ends <= stops]))
        weights.append(rng.lognormal(0.0, 0.5, 40)[patient])
    model = FederatedCoxRegression(cluster="patient").fit(parts, y, weights, intervals=True)
    return split(model.summary().rows, truth)


Setting = tuple[Callable[[np.random.Generator], dict[str, float]], dict[str, tuple[float, float]]]
SETTINGS: dict[str, Setting] = {
    "squares, 200 rows, 300 columns": (partial(squares, 200, 300, FederatedLasso(0.2)), {"not 0": LINEAR, "0": LINEAR}),
    "squares, 400 rows, 40 columns, cv": (
        partial(squares, 400, 40, FederatedLasso(cv=3)),
        {"not 0": LINEAR, "0": LINEAR},
    ),
    "logistic, 10 columns, 20 events each": (logistic, {"not 0": ACTIVE, "0": NULL}),
    "logistic, effects differ, 2 columns, 5 x 100 rows": (different, {"Hartung-Knapp": (0.93, 1.0)}),
    "squares, effects agree, 10 columns, 5 x 100 rows": (same_squares, {"Q rejects": (0.03, 0.07)}),
    "logistic, effects agree, 10 columns, 5 x 250 rows": (same_classes, {"Q rejects": (0.03, 0.07)}),
    "Cox, 10 columns, 20 events each": (cox, {"not 0": ACTIVE, "0": NULL}),
    "rare, same baselines": (partial(rare, "same", None), RARE),
    "rare, baselines differ": (partial(rare, "differ", None), RARE),
    "rare, baselines follow a column": (partial(rare, "linked", None), RARE),
    "rare, baselines differ, site_intercepts='common'": (partial(rare, "differ", "common"), {}),
    "Cox, 200 clusters with weights, 10 columns": (clustered, {}),
}


def measured(number: int, count: int) -> dict[str, Any]:
    """Return each share's mean over a setting's federations, and its standard error."""
    make = [*SETTINGS.values()][number][0]
    begin = time.perf_counter()
    reported = [make(np.random.default_rng((number, i))) for i in range(count)]
    kept = [own for own in reported if own]
    found: dict[str, Any] = {"federations": len(kept), "seconds": round(time.perf_counter() - begin, 1)}
    for name in kept[0]:
        shares = np.array([own[name] for own in kept if not np.isnan(own[name])])
        error = shares.std(ddof=1) / len(shares) ** 0.5 if len(shares) > 1 else np.nan
        found[name] = [round(float(shares.mean()), 4), round(float(error), 4)]
    return found


def main() -> int:
    only = {"default": "", "help": "settings that begin so"}
    options = options_of(__doc__, "one of each setting, without bars", only=only)
    quick, only = options.quick, options.only
    if not any(name.startswith(only) for name in SETTINGS):
        sys.exit(f"--only {only!r}: expected the beginning of one of {', '.join(map(repr, SETTINGS))}")
    results = json.loads(STORED.read_text(encoding="utf-8")) if only else {}
    failed = []
    for number, (name, (_, bars)) in enumerate(SETTINGS.items()):
        if not name.startswith(only):
            continue
        count = RARE_ONES if bars is RARE or "clusters" in name else FEDERATIONS
        found = results[name] = measured(number, QUICK if quick else count)
        shares = {key: value for key, value in found.items() if isinstance(value, list)}
        texts = [f"{key} {mean:.3f} ({error:.3f})" for key, (mean, error) in shares.items()]
        print_row(name, ", ".join(texts), found["federations"])
        failed += [f"{name}: {key}" for key, (low, high) in bars.items() if not low <= shares[key][0] <= high]
    if quick:
        return 0
    write_file(STORED, json.dumps(results, indent=2) + "\n")
    print("\n".join(["Beyond the bars:", *failed] if failed else ["All within the bars."]))
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
