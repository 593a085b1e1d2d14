"""Rounds to the pooled solution, of several strategies over a small grid each: the table of the README.

    python examples/exact-logistic/compare.py    (about a minute; --all prints every row of the grids)

A pass is a gradient or a product with the Hessian, over all of a hospital's patients; the mean of the hospitals, summed
over the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from exact_logistic import task

from flwr_fco.client_apps import client_app
from flwr_fco.engines import Minimise, minimise
from flwr_fco.simulation import simulate
from flwr_fco.strategies import CompositeStrategy, DualFL, FedDR, LocalSGD, Scaffold, Steps

ROUNDS = 150


def strategies(l2: float) -> Iterator[tuple[str, Callable[[], CompositeStrategy]]]:
    """Yield what is compared: a title, and what makes the strategy."""
    exact: dict[str, Any] = {"work": Minimise(tolerance=1e-11), "fraction_evaluate": 0.0}
    for rho in (0.0, 0.01, 0.05, 0.1, 0.2, 0.3):
        yield f"DualFL(nu={l2:g}, rho={rho:g})", partial(DualFL, nu=l2, rho=rho, **exact)
    lengths = (1.0, 2.0, 3.0, 5.0, 10.0) if l2 < 1.0 else (0.3, 0.5, 0.7, 1.0)
    for step, relaxation in itertools.product(lengths, (1.0, 1.5, 1.9, 1.95)):
        title = f"FedDR(step={step:g}, relaxation={relaxation:g})"
        yield title, partial(FedDR, step=step, relaxation=relaxation, **exact)
    grids = {Scaffold: ((0.05, 0.1, 0.2, 0.3), (3, 5, 10, 20)), LocalSGD: ((0.1, 0.2), (5, 20))}
    for kind, grid in grids.items():
        for rate, count in itertools.product(*grid):
            steps = Steps(count, batch_size=None)
            title = f"{kind.__name__}(client_lr={rate:g}, work=Steps({count}))"
            yield title, partial(kind, client_lr=rate, work=steps, fraction_evaluate=0.0)


def rounds_and_passes(strategy: CompositeStrategy, l2: float) -> tuple[list[int], float, float]:
    """Return the rounds to 1e-2, 1e-4 and 1e-8 (0: never), the passes to 1e-8, and the last distance."""
    solution = minimise(task.load_pooled(l2), Minimise(tolerance=1e-13)).point
    first = [0, 0, 0]
    passes = 0.0
    distance = np.inf

    def near(number: int, arrays: Any, metrics: Any) -> bool:
        nonlocal passes, distance
        distance = float(np.abs(arrays["coefficients"].numpy() - solution).max())
        passes += metrics.get("gradient-evaluations", metrics.get("local-steps", 0))
        passes += metrics.get("hessian-products", 0)
        for place, level in enumerate((1e-2, 1e-4, 1e-8)):
            if distance <= level and not first[place]:
                first[place] = number
        return distance <= 1e-8 or not distance <= 1e3

    client = client_app(lambda context: task.load_client(int(context.node_config["partition-id"]), l2))
    simulate(
        strategy,
        client,
        num_nodes=len(task.PATIENTS),
        num_rounds=ROUNDS,
        initial_arrays=task.initial_model(),
        callbacks=[near],
        progress=False,
    )
    return first, passes, distance


def main() -> None:
    """Print a table for each weight of the l2 term."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="print every row of the grids, not the best of each")
    everything = parser.parse_args().all
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    for l2 in (0.1, 1.0):
        best: dict[str, tuple[Any, ...]] = {}
        for title, make in strategies(l2):
            first, passes, distance = rounds_and_passes(make(), l2)
            name = title if everything else title.partition("(")[0]
            row = (first[2] or ROUNDS + 1, distance, title, first, passes)
            best[name] = min(best.get(name, row), row, key=lambda own: own[:2])
        print(f"\nl2 = {l2:g}: {'all' if everything else 'the best'} of each strategy's grid\n")
        print("| strategy | rounds to 1e-2 | to 1e-4 | to 1e-8 | passes a hospital |\n|---|---|---|---|---|")
        for _, _, title, first, passes in sorted(best.values()):
            cells = " | ".join(str(number) if number else "never" for number in first)
            print(f"| `{title}` | {cells} | {f'{passes:,.0f}' if first[2] else ''} |", flush=True)


if __name__ == "__main__":
    main()
