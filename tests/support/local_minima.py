"""Local problems whose minimisers are stored, by losses, weights, ridges and intercepts."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from flwr_fco import objectives


def problems() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield the name of each problem, its loss, and its linear and quadratic terms."""
    rng = np.random.default_rng(3)
    kinds = (
        ("Logistic", 200, 30),
        ("LeastSquares", 200, 30),
        ("LeastSquares", 20, 50),
        ("Poisson", 200, 10),
        ("MultinomialLogistic", 200, 20),
        ("Huber", 200, 10),
    )
    for kind, n, d in kinds:
        for variant, l2, rows in (
            ("plain", 0.0, {}),
            ("ridge", 0.1, {}),
            ("weights", 0.0, {"sample_weight": rng.uniform(0.5, 2.0, n)}),
        ):
            for intercept in (True, False):
                features = 0.5 * rng.normal(size=(n, d))
                targets = {
                    "Logistic": rng.integers(0, 2, n),
                    "LeastSquares": rng.normal(size=n),
                    "Poisson": rng.poisson(1.5, n),
                    "MultinomialLogistic": np.arange(n) % 4,
                    "Huber": 2.0 * rng.normal(size=n),
                }[kind]
                loss = getattr(objectives, kind)(features, targets, l2=l2, intercept=intercept, **rows)
                size = loss.layout.size
                terms = {"center": 0.1 * rng.normal(size=size), "shift": 0.05 * rng.normal(size=size), "penalty": 0.2}
                yield f"{kind} {n} x {d}, {variant}{', intercept' if intercept else ''}", loss, terms
