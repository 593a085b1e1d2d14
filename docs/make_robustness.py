"""Draw docs/images/robustness.png and print the table of docs/robustness.md. Run: python docs/make_robustness.py.

Ten of 64 clients lie in every round. FedDualAvg under each rule of aggregation, beside Flower's own robust strategies
on FedAvg clients that take subgradient steps, on LASSO I and on scikit-learn's digits.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Krum
from matplotlib.figure import Figure

from flwr_fco import _flower
from flwr_fco.client_apps import client_app
from flwr_fco.datasets import digits, lasso
from flwr_fco.objectives.base import Objective
from flwr_fco.pooled import support_scores
from flwr_fco.randomness import random_generator
from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import FedDualAvg
from flwr_fco.work import FirstOrder

CLIENTS, LIARS, STEPS, BATCH = 64, 10, 5, 16
RULES = ("mean", "trimmed", "median", "geometric-median")
FLOWERS = {"FedAvg": FedAvg, "FedTrimmedAvg": FedTrimmedAvg, "FedMedian": FedMedian, "Krum": Krum}
LIES = ("none", "sign flip", "scale", "label flip", "collusion")
PROBLEMS = {"LASSO I": (0.2, 0.002, 40), "digits": (2e-3, 0.5, 40)}  # strength, client_lr, rounds


def lied(lie: str, moved: np.ndarray) -> np.ndarray:
    """Return what a liar says instead of where it has moved."""
    if lie == "sign flip":
        return -5.0 * moved
    if lie == "scale":
        return 100.0 * moved
    if lie == "collusion":  # all in the same direction, as long as an honest increment
        direction = np.random.default_rng(0).standard_normal(moved.size)
        return (3.0 * np.linalg.norm(moved) / np.linalg.norm(direction)) * direction
    return moved


def is_liar(context: Context) -> bool:
    """Whether a client is one of the ten, which are spread over the partitions."""
    return int(context.node_config["partition-id"]) % 6 == 5 and int(context.node_config["partition-id"]) < 6 * LIARS


@cache
def load_data(name: str) -> tuple[list[Objective], list[Objective], np.ndarray | None]:
    """Return the clients' objectives, those with flipped labels, and the true coefficients where there are any."""
    if name == "LASSO I":
        data = lasso("I")
        honest = data.objectives()
        flipped = [
            data.build_objective(data.client(m)._replace(targets=-data.client(m).targets)) for m in range(CLIENTS)
        ]
        return honest, flipped, data.coefficients
    images = digits(CLIENTS, alpha=None)
    honest = images.objectives()
    flipped = [
        images.build_objective(images.client(m)._replace(targets=9 - images.client(m).targets)) for m in range(CLIENTS)
    ]
    return honest, flipped, None


def fed_avg_client(choose: Callable[[Context], Objective], psi: L1, lie: str, client_lr: float) -> ClientApp:
    """Return a FedAvg client: steps along subgradients of F_m + psi, and a lie about where it has got to."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective = choose(context)
        arrays, config = message.content["arrays"], message.content["config"]
        start = objective.layout.flatten({name: array.numpy() for name, array in arrays.items()})
        bound, point = psi.bind(objective.layout), start.copy()
        rng = random_generator(0, int(config["server-round"]), int(context.node_config["partition-id"]))
        for batch in objective.batches(rng, FirstOrder(steps=STEPS, batch_size=BATCH)):
            gradient = objective.gradient(point, batch) + bound.subgradient(point)
            point -= client_lr * gradient
        if is_liar(context):
            point = start + lied(lie, point - start)
        content = RecordDict(
            {
                "arrays": ArrayRecord({n: Array(a) for n, a in objective.layout.unflatten(point).items()}),
                "metrics": MetricRecord({"num-examples": objective.num_examples}),
            }
        )
        return Message(content=content, reply_to=message)

    return app


def lying_mod(lie: str) -> Callable[..., Message]:
    """Return a mod that replaces a liar's increment."""

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type == "train" and is_liar(context) and lie not in ("none", "label flip"):
            content = reply.content.copy()
            increment = content["arrays"]["increment"].numpy()
            content["arrays"] = ArrayRecord({"increment": Array(lied(lie, increment))})
            reply.content = content
        return reply

    return mod


def run(name: str, method: str, lie: str) -> tuple[float, np.ndarray]:
    """Return the honest clients' objective at the end, relative to that at the start, and the coefficients."""
    strength, client_lr, rounds = PROBLEMS[name]
    honest, flipped, _ = load_data(name)
    psi = L1(strength)

    def choose(context: Context) -> Objective:
        m = int(context.node_config["partition-id"])
        return flipped[m] if lie == "label flip" and is_liar(context) else honest[m]

    layout = honest[0].layout
    start = ArrayRecord({n: Array(a) for n, a in layout.unflatten(np.zeros(layout.size)).items()})
    if method in RULES:
        strategy: FedAvg = FedDualAvg(
            fraction_evaluate=0.0,
            regularizer=psi,
            client_lr=client_lr,
            local_steps=STEPS,
            batch_size=BATCH,
            aggregation=method,
            trim=0.2,
        )
        app = client_app(choose, mods=[lying_mod(lie)])
    else:
        options = {"FedTrimmedAvg": {"beta": 0.2}, "Krum": {"num_malicious_nodes": LIARS}}.get(method, {})
        strategy = FLOWERS[method](fraction_evaluate=0.0, **options)
        app = fed_avg_client(choose, psi, lie, client_lr)
    grid = InProcessGrid(app, CLIENTS)
    with _flower.identity(grid.run_id), np.errstate(all="ignore"):
        result = strategy.start(grid, start, rounds)
    point = layout.flatten({n: a.numpy() for n, a in result.arrays.items()})
    bound = psi.bind(layout)

    def objective(w: np.ndarray) -> float:
        with np.errstate(all="ignore"):
            return float(np.mean([client.value(w) for client in honest]) + bound.value(w))

    return objective(point) / objective(np.zeros(layout.size)), result.arrays["coefficients"].numpy()


def table(name: str) -> tuple[list[str], dict[str, list[float]]]:
    """Return the lines of a problem's table, and each method's objectives."""
    logging.disable(logging.WARNING)
    truth = load_data(name)[2]
    if truth is None:
        truth = run(name, "mean", "none")[1]
    lines = [f"| {name} | " + " | ".join(LIES) + " |", "|" + "---|" * (len(LIES) + 1)]
    heights: dict[str, list[float]] = {}
    for method in (*RULES, *FLOWERS):
        label = f"FedDualAvg, {method}" if method in RULES else method
        cells, heights[label] = [], []
        for lie in LIES:
            value, coefficients = run(name, method, lie)
            f1 = support_scores(coefficients.reshape(truth.shape), truth).f1 if np.isfinite(value) else 0.0
            cells.append(f"{value:.3g}, {f1:.2f}" if value < 1e3 else "lost")
            heights[label].append(min(value, 10.0) if np.isfinite(value) else 10.0)
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    return lines, heights


def main() -> None:
    """Run everything, print the tables, draw the picture."""
    figure = Figure(figsize=(10.0, 4.0), layout="constrained")
    axes = figure.subplots(1, len(PROBLEMS))
    with ProcessPoolExecutor(len(PROBLEMS)) as pool:
        results = list(pool.map(table, PROBLEMS))
    for axis, name, (lines, heights) in zip(axes, PROBLEMS, results, strict=True):
        print("\n" + "\n".join(lines))
        for label, values in heights.items():
            axis.plot(range(len(LIES)), values, marker="o", ls="-" if "FedDualAvg" in label else ":", label=label)
        axis.set(title=name, yscale="log", ylabel="objective / objective at 0 (10: or more)")
        axis.set_xticks(range(len(LIES)), LIES, rotation=20)
    axes[-1].legend(fontsize=7)
    figure.savefig(Path(__file__).parent / "images" / "robustness.png", dpi=120)


if __name__ == "__main__":
    main()
