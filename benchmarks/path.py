"""FedNewton's path of strengths: bytes a site sends for 30 strengths and 5 folds of more features than rows.

    python benchmarks/path.py           5,000 and 20,000 features, squares and logistic: some minutes of one core
    python benchmarks/path.py --quick   200 features, 5 strengths: some seconds, without bars

Five sites have 60 to 180 rows of standardised features with 20 common factors, and 20 coefficients of .6. Each model is
solved to 1e-10 of the loss of an intercept alone.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from shared import federate, options_of, print_head, print_row, start_arrays

from flwr_fco.objectives import LeastSquares, Logistic
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedNewton, Strengths, run_of

SIZES = (60, 180, 90, 150, 120)
FACTORS = 20
RELATIVE = 1e-10
#: Megabytes up, a site, by features and loss.
BARS = {(5_000, "squares"): 12.0, (5_000, "logistic"): 120.0, (20_000, "squares"): 24.0, (20_000, "logistic"): 240.0}


def sites(features: int, loss: str) -> list[Any]:
    """Return the losses of five sites."""
    rng = np.random.default_rng(7)
    n = sum(SIZES)
    loadings = rng.standard_normal((features, FACTORS)) * (rng.random((features, FACTORS)) < 0.3)
    rows = 0.4 * rng.standard_normal((n, FACTORS)) @ loadings.T + rng.standard_normal((n, features))
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    truth = np.zeros(features)
    truth[rng.choice(features, 20, replace=False)] = rng.choice([-1, 1], 20) * 0.6
    scores = rows @ truth
    parts = np.split(np.arange(n), np.cumsum(SIZES)[:-1])
    if loss == "squares":
        targets = scores + 2.0 * rng.standard_normal(n)
        return [LeastSquares(rows[own], targets[own], scale=0.5) for own in parts]
    labels = rng.random(n) < 1.0 / (1.0 + np.exp(-scores))
    return [Logistic(rows[own], labels[own]) for own in parts]


def main() -> None:
    """Print a line a problem; an error if a bar is not met."""
    quick = options_of(__doc__, "200 features, 5 strengths and 2 folds").quick
    print_head("features", "loss", "rounds", "up, a site", "down", "largest gap", "seconds")
    missed = []
    for features, loss in [(200, "squares"), (200, "logistic")] if quick else BARS:
        tolerance = RELATIVE * (0.5 * 16.0 if loss == "squares" else math.log(2.0))
        options: dict[str, Any] = {
            "strengths": Strengths(5, 0.01, folds=2) if quick else Strengths(30, 0.01, folds=5),
            "tolerance": tolerance,
            "fraction_evaluate": 0.0,
        }
        strategy = FedNewton(regularizer=L1(1.0), **options)
        began = time.perf_counter()
        result = federate(strategy, sites(features, loss), 1_000, start_arrays(features))
        seconds = time.perf_counter() - began
        history = list(result.train_metrics_clientapp.values())
        up, down = (
            math.fsum(float(f"{each[name]}") for each in history) / len(SIZES) / 1e6
            for name in ("bytes-up", "bytes-down")
        )
        gap = f"{history[-1]['duality-gap']:.1e}"
        print_row(features, loss, len(history), f"{up:.1f} MB", f"{down:.1f} MB", gap, f"{seconds:.0f}")
        if not run_of(strategy).finished() or up > BARS.get((features, loss), math.inf):
            missed.append(f"{features} features, {loss}: {up:.1f} MB a site after {len(history)} rounds")
    if missed:
        raise SystemExit("\n".join(missed))


if __name__ == "__main__":
    main()
