"""Write the tables of docs/benchmarks/robustness.md, and draw images/robustness.png.

    python benchmarks/pages/make_robustness.py

Ten of 64 clients lie in every round. FedDualAvg under each rule of aggregation, beside Flower's own robust strategies
on FedAvg clients that take subgradient steps, on LASSO I and on scikit-learn's digits. It takes some nine minutes of
one core; with `--draw` it only draws the tables of the page.
"""

import logging
import sys
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian, FedTrimmedAvg, Krum
from matplotlib.figure import Figure
from writing import DOCS, between, federate, markers, partition, replaced, row_of, save, table_of

from flwr_fco.client_apps import client_app
from flwr_fco.core.computing import random_generator
from flwr_fco.datasets import digits, lasso
from flwr_fco.engines import FirstOrder
from flwr_fco.models import write_file
from flwr_fco.objectives.base import Objective
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedDualAvg, Steps, Trimmed
from reproduction.pooled import centralized_solution, support_scores

PAGE = DOCS / "benchmarks" / "robustness.md"
CLIENTS = 64
LIARS = 10
STEPS = 5
BATCH = 16
RULES = ("mean", "trimmed", "median", "geometric-median")
FLOWERS = {"FedAvg": FedAvg, "FedTrimmedAvg": FedTrimmedAvg, "FedMedian": FedMedian, "Krum": Krum}
LIES = ("none", "sign flip", "scale", "label flip", "collusion")
#: Strength of the l1 norm, learning rate of the clients, rounds.
PROBLEMS = {"LASSO I": (0.2, 0.001, 200), "digits": (2e-3, 0.5, 200)}
#: What counts as non-zero in a support, as in Yuan, Zaheer, Reddi (2021): subgradient steps end at no exact zero.
NONZERO = 1e-2


class Score(NamedTuple):
    """What a run comes to: the share of the way from Phi(0) to the minimum, and how well the support is found."""

    decrease: float
    f1: float

    def __str__(self) -> str:
        return f"{self.decrease:.2f}, {self.f1:.2f}" if self.decrease > -1.0 else "lost"


class Problem(NamedTuple):
    """The clients' objectives, what liars make of theirs, and the honest clients' solution."""

    honest: list[Objective]
    flipped: dict[int, Objective]
    strength: float
    truth: np.ndarray
    start: float
    lowest: float

    def value(self, w: np.ndarray) -> float:
        """Return Phi, of all clients' own data."""
        with np.errstate(all="ignore"):
            loss = np.mean([client.value(w) for client in self.honest])
            return float(loss + L1(self.strength).bind(self.honest[0].layout).value(w))

    def score(self, w: np.ndarray) -> Score:
        """Return how good a model is."""
        value = self.value(w)
        coefficients = self.honest[0].layout.unflatten(w)["coefficients"]
        if not np.isfinite(value):
            return Score(-np.inf, 0.0)
        f1 = support_scores(coefficients, self.truth, NONZERO).f1
        return Score((self.start - value) / (self.start - self.lowest), f1)


def lied(lie: str, moved: np.ndarray) -> np.ndarray:
    """Return what a liar says instead of where it has moved."""
    if lie == "sign flip":
        return -5.0 * moved
    if lie == "scale":
        return 100.0 * moved
    if lie == "collusion":  # all in the same direction, three times as far as they have moved
        direction = np.random.default_rng(0).standard_normal(moved.size)
        return (3.0 * np.linalg.norm(moved) / np.linalg.norm(direction)) * direction
    return moved


def lies(m: int) -> bool:
    """Whether a client is one of the ten, which are spread over the partitions."""
    return m % 6 == 5 and m < 6 * LIARS


@cache
def load(name: str) -> Problem:
    """Return a problem with its solution."""
    strength = PROBLEMS[name][0]
    data = lasso() if name == "LASSO I" else digits(CLIENTS, alpha=None)
    honest = data.objectives()
    flipped = {}
    for m in filter(lies, range(CLIENTS)):
        own = data.client(m)
        wrong = -own.targets if name == "LASSO I" else 9 - own.targets
        flipped[m] = data.build_objective(own._replace(targets=wrong))
    layout = honest[0].layout
    solution = centralized_solution(honest, L1(strength), np.ones(CLIENTS), tol=1e-6)
    pooled = layout.unflatten(solution)["coefficients"]
    truth = data.coefficients if name == "LASSO I" else np.where(np.abs(pooled) > NONZERO, pooled, 0.0)
    problem = Problem(honest, flipped, strength, truth, 0.0, 0.0)
    return problem._replace(start=problem.value(np.zeros(layout.size)), lowest=problem.value(solution))


def fed_avg_client(choose: Callable[[Context], Objective], psi: L1, lie: str, client_lr: float) -> ClientApp:
    """Return a FedAvg client: steps along subgradients of F_m + psi, and a lie about where it has got to."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        objective, m = choose(context), partition(context)
        arrays, config = message.content["arrays"], message.content["config"]
        start = objective.layout.flatten({name: array.numpy() for name, array in arrays.items()})
        bound = psi.bind(objective.layout)
        point = start.copy()
        rng = random_generator(0, int(config["server-round"]), m)
        for batch in objective.batches(rng, FirstOrder(steps=STEPS, batch_size=BATCH)):
            point -= client_lr * (objective.gradient(point, batch) + bound.subgradient(point))
        if lies(m):
            point = start + lied(lie, point - start)
        moved = ArrayRecord({n: Array(a) for n, a in objective.layout.unflatten(point).items()})
        metrics = MetricRecord({"num-examples": objective.num_examples})
        return Message(content=RecordDict({"arrays": moved, "metrics": metrics}), reply_to=message)

    return app


def lying_mod(lie: str) -> Callable[..., Message]:
    """Return a mod that replaces a liar's increment."""

    def mod(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
        reply = call_next(message, context)
        if message.metadata.message_type == "train" and lies(partition(context)):
            content = reply.content.copy()
            increment = content["arrays"]["increment"].numpy()
            content["arrays"] = ArrayRecord({"increment": Array(lied(lie, increment))})
            reply.content = content
        return reply

    return mod


def run(name: str, method: str, lie: str) -> Score:
    """Return how good the model of a method is at the end."""
    problem, (_, client_lr, rounds) = load(name), PROBLEMS[name]
    psi = L1(problem.strength)
    layout = problem.honest[0].layout

    def choose(context: Context) -> Objective:
        m = partition(context)
        return problem.flipped[m] if lie == "label flip" and lies(m) else problem.honest[m]

    if method in RULES:
        strategy: FedAvg = FedDualAvg(
            fraction_evaluate=0.0,
            regularizer=psi,
            client_lr=client_lr,
            work=Steps(STEPS, batch_size=BATCH),
            weighting="uniform",
            aggregation=Trimmed(0.2) if method == "trimmed" else method,
            on_divergence="warn",
        )
        app = client_app(choose, mods=[lying_mod(lie)])
    else:
        known = {"FedTrimmedAvg": {"beta": 0.2}, "Krum": {"num_malicious_nodes": LIARS}}.get(method, {})
        strategy = FLOWERS[method](fraction_evaluate=0.0, **known)
        app = fed_avg_client(choose, psi, lie, client_lr)
    with np.errstate(all="ignore"):
        start = layout.unflatten(np.zeros(layout.size))
        result = federate(strategy, app, rounds, start, nodes=CLIENTS, raise_errors=False)
        return problem.score(layout.flatten({n: a.numpy() for n, a in result.arrays.items()}))


def measure(name: str) -> str:
    """Return a problem's table."""
    rows: list[list[object]] = []
    for method in (*RULES, *FLOWERS):
        label = f"FedDualAvg, {method}" if method in RULES else method
        row = [run(name, method, lie) for lie in LIES]
        rows.append([label, *row])
        print(row_of(rows[-1]), flush=True)
    return table_of([name, *LIES], rows)


def draw(tables: list[str]) -> None:
    """Draw the shares of the tables as heat maps."""
    figure = Figure(figsize=(8.2, 3.8), layout="constrained")
    panels = figure.subplots(1, len(tables), sharey=True)
    for axes, table in zip(panels, tables, strict=True):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        reported = [[cell.split(",")[0] for cell in row[1:]] for row in rows]
        shares = np.array([[0.0 if text == "lost" else float(text) for text in row] for row in reported])
        axes.imshow(shares.clip(0.0, 1.0), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
        for (i, j), share in np.ndenumerate(shares):
            color = "white" if share > 0.6 else "black"
            axes.text(j, i, reported[i][j], ha="center", va="center", fontsize=9.5, color=color)
        axes.axhline(len(RULES) - 0.5, color="white", linewidth=3)
        axes.set_title(head[0], fontsize=11)
        axes.set_xlabel("what ten of 64 clients send")
        axes.set_xticks(range(len(LIES)), [lie.replace(" ", "\n") for lie in LIES])
        axes.set_yticks(range(len(rows)), [row[0] for row in rows])
        axes.tick_params(length=0)
    panels[0].set_ylabel("rule of aggregation")
    title = "The geometric median withstands the most lies, the mean the fewest"
    save(figure, "robustness.png", title, colours=64)


def main() -> None:
    """Run everything and write the tables, unless they are only to be drawn; draw them."""
    page = PAGE.read_text(encoding="utf-8")
    marks = markers("measured", "make_robustness.py")
    if "--draw" not in sys.argv:
        logging.disable(logging.WARNING)
        page = replaced(page, marks, "\n\n".join(map(measure, PROBLEMS)))
        write_file(PAGE, page)
    draw(between(page, marks).split("\n\n"))


if __name__ == "__main__":
    main()
