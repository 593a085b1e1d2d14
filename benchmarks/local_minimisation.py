"""Seconds of a client's minimisation: Newton's method beside SciPy's L-BFGS-B on the same function.

    python benchmarks/local_minimisation.py --data DIRECTORY    MNIST's IDX files: 7,500 images, about a minute
    python benchmarks/local_minimisation.py --quick             random features, 1,500 x 200 x 10 (some seconds)

Multinomial logistic regression with l2 = 1e-2 and no intercepts, from zeros, float64, one BLAS thread. Ours goes to a
gradient norm of 1e-12, SciPy's to 1e-7: it stalls near 1e-8. CPU seconds, the least of
several runs in turn. Also the gradient beside the two matrix products that it needs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize
from shared import by_turns, options_of, print_head, print_row
from threadpoolctl import threadpool_limits

from flwr_fco.engines import Minimise, Minimum, minimise
from flwr_fco.objectives import MultinomialLogistic

L2 = 1e-2
SCIPY_TOLERANCE = 1e-7


def images(directory: Path | None, rows: int) -> MultinomialLogistic:
    if directory is None:
        rng = np.random.default_rng(0)
        scales = np.linspace(0.05, 1.0, 200)
        features = np.abs(rng.standard_normal((1500, 200))) * scales
        truth = rng.standard_normal((200, 10))
        labels = (features @ truth + rng.gumbel(size=(1500, 10))).argmax(axis=1)
        return MultinomialLogistic(features, labels, num_classes=10, intercept=False, l2=L2)
    from reproduction.data.images import mnist, on_clients

    client = on_clients(mnist(directory), 1, num_examples=rows).client(0)
    return MultinomialLogistic(
        client.features.astype(np.float64), client.targets, num_classes=10, intercept=False, l2=L2
    )


def least(functions: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the least CPU seconds of each, and what it returns."""
    seconds, results = by_turns(functions, repeats)
    return {name: min(own) for name, own in seconds.items()}, results


class Enough(Exception):
    """Ends SciPy's run where it is good enough, with the point and the number of gradients."""


def scipy_lbfgsb(objective: MultinomialLogistic) -> tuple[np.ndarray, int]:
    """Return where SciPy's method first has a gradient of norm 1e-7, which its own rules cannot say, and its count."""
    count = 0

    def evaluate(w: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal count
        count += 1
        value, gradient = objective.value_and_gradient(w)
        if np.linalg.norm(gradient) <= SCIPY_TOLERANCE:
            raise Enough(w.copy())
        return value, gradient

    options = {"gtol": 0.0, "ftol": 0.0, "maxiter": 20_000, "maxfun": 20_000}
    try:
        found = scipy.optimize.minimize(
            evaluate, np.zeros(objective.layout.size), jac=True, method="L-BFGS-B", options=options
        )
    except Enough as enough:
        return enough.args[0], count
    return found.x, count


def main() -> None:
    counts = {name: {"type": int, "default": count} for name, count in (("rows", 7500), ("repeats", 3))}
    options = options_of(__doc__, data={"type": Path, "help": "directory of MNIST's IDX files"}, **counts)
    if not options.quick and options.data is None:
        raise SystemExit("give --data DIRECTORY, or --quick")
    objective = images(None if options.quick else options.data, options.rows)
    features = objective.features
    size = objective.layout.size
    w = np.random.default_rng(0).standard_normal(size) * 0.01
    matrix = w.reshape(-1, 10)
    with threadpool_limits(1):
        margins = features @ matrix
        pieces: dict[str, Callable[[], object]] = {
            "gradient": lambda: objective.gradient(w),
            "two products": lambda: (margins.T @ features, features @ matrix),
        }
        seconds, _ = least(pieces, 10)
        print(f"{features.shape[0]} x {features.shape[1]} x 10")
        print(f"gradient {1e3 * seconds['gradient']:.1f} ms, {seconds['gradient'] / seconds['two products']:.2f} times")
        print("the two BLAS products that it needs\n")
        runs: dict[str, Callable[[], object]] = {"SciPy L-BFGS-B, 1e-7": lambda: scipy_lbfgsb(objective)}
        runs["minimise, 1e-12"] = lambda: minimise(objective, Minimise(tolerance=1e-12))
        seconds, results = least(runs, 1 if options.quick else options.repeats)
    first = seconds["SciPy L-BFGS-B, 1e-7"]
    faster = "times as fast as SciPy to 1e-7"
    print_head("method", "CPU seconds", faster, "gradient norm", "gradients", "Hessian products")
    for name, found in results.items():
        if isinstance(found, Minimum):
            point, count, products = found.point, found.gradient_evaluations, found.hessian_products
        else:
            (point, count), products = found, 0
        norm = float(np.linalg.norm(objective.gradient(point)))
        print_row(name, f"{seconds[name]:.2f}", f"{first / seconds[name]:.2f}", f"{norm:.1e}", count, products)


if __name__ == "__main__":
    main()
