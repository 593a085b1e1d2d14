"""Studies of several sites from data that Python packages ship, as they are given to R: ``python studies.py FOLDER``.

A study is a frame with its site, its outcome (``y``, or ``time`` and ``event``), for counts the ``exposure``, and
features. It is written to ``FOLDER/KIND-NAME.csv``, and ``Rscript studies.R FOLDER`` writes what R says of each to
``r.json``, which is in the repository; the data are not.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from lifelines.datasets import load_kidney_transplant, load_lung, load_rossi
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sksurv.datasets import load_aids, load_flchain, load_gbsg2, load_veterans_lung_cancer, load_whas500
from statsmodels.datasets import anes96, fair, grunfeld, randhie


def of_classes():
    """Fair's survey by occupation, votes of 1996 by education, and tumours by a measure as if it were a site."""
    rows = fair.load_pandas().data.rename(columns={"occupation": "site"})
    columns = ["site", "y", "rate_marriage", "age", "yrs_married", "religious"]
    yield "affairs", rows.assign(y=rows["affairs"] > 0)[columns]
    rows = anes96.load_pandas().data.rename(columns={"educ": "site", "vote": "y"})
    yield "votes", rows[["site", "y", "TVnews", "selfLR", "age", "income", "PID"]]
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    columns = ["mean texture", "mean smoothness", "mean symmetry", "texture error"]
    yield "tumours", X[columns].assign(site=pd.qcut(X["mean fractal dimension"], 4, labels=False), y=y)


def of_squares():
    """Eleven firms, diabetics by age, and wines by their grape."""
    rows = grunfeld.load_pandas().data.rename(columns={"firm": "site", "invest": "y"})
    yield "firms", rows[["site", "y", "value", "capital"]]
    X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    yield "diabetics", X.assign(site=np.digitize(X["age"], [40, 50, 60]), y=y)
    X, site = load_wine(return_X_y=True, as_frame=True)
    yield "wines", X[["malic_acid", "ash", "magnesium", "hue", "proline"]].assign(site=site, y=X["alcohol"])


def of_times():
    """Eight studies of survival times, by institution, year, or kind of patient."""
    lung = load_lung()[["inst", "time", "status", "age", "sex", "ph.ecog"]].dropna()
    yield "lung", lung.rename(columns={"inst": "site", "status": "event"})
    rossi = load_rossi().rename(columns={"wexp": "site", "week": "time", "arrest": "event"})
    yield "rossi", rossi[["site", "time", "event", "fin", "age", "race", "mar", "paro", "prio"]]
    kidney = load_kidney_transplant().rename(columns={"death": "event"})
    yield "kidney", kidney[["time", "event", "age"]].assign(site=1 + kidney["white_male"] + 2 * kidney["black_male"])
    loaders = {
        "breast": (load_gbsg2, "tgrade", ["age", "tsize", "pnodes", "progrec", "estrec"]),
        "hearts": (load_whas500, "mitype", ["age", "bmi", "hr", "sysbp"]),
        "chains": (load_flchain, "sample.yr", ["age", "kappa", "lambda"]),
        "veterans": (load_veterans_lung_cancer, "Celltype", ["Age_in_years", "Karnofsky_score"]),
        "aids": (load_aids, "raceth", ["age", "cd4", "priorzdv"]),
    }
    for name, (load, site, columns) in loaders.items():
        X, y = load()
        event, time = y.dtype.names
        rows = X[columns].astype(float).assign(site=X[site].astype(str), time=y[time], event=y[event])
        # Those of a race or a year with hardly an event are no site.
        yield name, rows[rows.groupby("site")["event"].transform("sum") >= 10]


def of_counts():
    """Doctors' visits of 6,000 people by their plan, and relapses per year by the tumour's grade."""
    rows = randhie.load_pandas().data.iloc[:6000]
    counts = rows.rename(columns={"mdvis": "y", "physlm": "site"})[["y", "lncoins", "disea", "hlthf", "hlthp"]]
    yield "visits", counts.assign(site=pd.qcut(rows["fmde"], 3, labels=False, duplicates="drop"), exposure=1.0)
    X, y = load_gbsg2()
    rows = X[["age", "tsize", "pnodes"]].assign(site=X["tgrade"].astype(str), y=y["cens"], exposure=y["time"] / 365.25)
    yield "relapses", rows.assign(pnodes=np.log(rows["pnodes"]))


def of_paths():
    """Squares and classes with ten folds of rows."""
    X, y = load_diabetes(return_X_y=True, as_frame=True)
    yield "diabetics", X.assign(y=y, site=np.arange(len(y)) % 5, fold=np.arange(len(y)) % 10)
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X = (X - X.mean()).iloc[:, :10] / X.std().iloc[:10]
    yield "tumours", X.assign(y=y, site=np.arange(len(y)) % 5, fold=np.arange(len(y)) % 10)


KINDS = {"classes": of_classes, "squares": of_squares, "times": of_times, "counts": of_counts, "path": of_paths}


def studies(kind):
    """Return the frames of a kind by their names, with numbers for truth, and sites in order."""
    found = {}
    for name, rows in KINDS[kind]():
        made = rows.reset_index(drop=True)
        found[name] = made.assign(**{c: made[c].astype(float) for c in made if made[c].dtype == bool})
    return found


if __name__ == "__main__":
    for kind in KINDS:
        for name, rows in studies(kind).items():
            rows.to_csv(Path(sys.argv[1]) / f"{kind}-{name}.csv", index=False, float_format="%.17g")
