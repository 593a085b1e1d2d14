"""Seconds of a client's minimisation: our engines beside SciPy's L-BFGS-B on the same function.

    python benchmarks/local_minimisation.py --data DIRECTORY    MNIST's IDX files: 7,500 images, about a minute
    python benchmarks/local_minimisation.py --quick             random features, 1,500 x 200 x 10 (some seconds)

Multinomial logistic regression with l2 = 1e-2 and no intercepts, from zeros, float64, one BLAS thread. Every engine
goes to a gradient norm of 1e-12 (as far as it gets), SciPy's to 1e-7: it stalls near 1e-8. CPU seconds, the least of
several runs in turn. Also the gradient beside the two matrix products that it needs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.optimize
from threadpoolctl import threadpool_limits

from flwr_fco.client_apps.engines import minimise
from flwr_fco.objectives import MultinomialLogistic
from flwr_fco.work import Minimise

L2 = 1e-2
ENGINES = ("newton-cg", "preconditioned-lbfgs", "lbfgs", "aogm")


def images(directory: Path | None, rows: int) -> MultinomialLogistic:
    if directory is None:
        rng = np.random.default_rng(0)
        scales = np.linspace(0.05, 1.0, 200)
        features = np.abs(rng.standard_normal((1500, 200))) * scales
        truth = rng.standard_normal((200, 10))
        labels = (features @ truth + rng.gumbel(size=(1500, 10))).argmax(axis=1)
        return MultinomialLogistic(features, labels, num_classes=10, intercept=False, l2=L2)
    from flwr_fco.datasets import mnist

    client = mnist(directory, 1, None, num_examples=rows).client(0)
    return MultinomialLogistic(
        client.features.astype(np.float64), client.targets, num_classes=10, intercept=False, l2=L2
    )


def least(functions: dict[str, Callable[[], object]], repeats: int) -> tuple[dict[str, float], dict[str, object]]:
    """Return the least CPU seconds of each, run in turn, so that a busy machine is as busy for all."""
    seconds, results = dict.fromkeys(functions, np.inf), {}
    for _ in range(repeats):
        for name, function in functions.items():
            began = time.process_time()
            results[name] = function()
            seconds[name] = min(seconds[name], time.process_time() - began)
    return seconds, results


def scipy_lbfgsb(objective: MultinomialLogistic) -> scipy.optimize.OptimizeResult:
    return scipy.optimize.minimize(
        objective.value_and_gradient,
        np.zeros(objective.layout.size),
        jac=True,
        method="L-BFGS-B",
        options={"gtol": 1e-7 / np.sqrt(objective.layout.size), "ftol": 0.0, "maxiter": 20_000, "maxfun": 20_000},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="directory of MNIST's IDX files")
    parser.add_argument("--rows", type=int, default=7500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if not options.quick and options.data is None:
        parser.error("give --data DIRECTORY, or --quick")
    objective = images(None if options.quick else options.data, options.rows)
    features, size = objective.features, objective.layout.size
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
        for engine in ENGINES:
            work = Minimise(engine, tolerance=1e-12, max_iterations=20_000)
            runs[engine] = lambda work=work: minimise(objective, work)  # type: ignore[misc]
        seconds, results = least(runs, options.repeats)
    first = seconds["SciPy L-BFGS-B, 1e-7"]
    print("| engine | CPU seconds | times as fast as SciPy to 1e-7 | gradient norm | gradients |")
    print("|---|---|---|---|---|")
    for name, found in results.items():
        scipys = isinstance(found, scipy.optimize.OptimizeResult)
        norm = float(np.linalg.norm(objective.gradient(found.x if scipys else found.point)))
        count = found.nfev if scipys else found.gradient_evaluations
        print(f"| {name} | {seconds[name]:.2f} | {first / seconds[name]:.2f} | {norm:.1e} | {count} |")


if __name__ == "__main__":
    main()
