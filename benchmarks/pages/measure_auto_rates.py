"""Measure what rates that are left to theory cost, on every named problem: the table of docs/benchmarks/rates.md.

    python benchmarks/pages/measure_auto_rates.py table.json                 # some minutes; goes on where stopped
    python benchmarks/pages/measure_auto_rates.py table.json --problems lasso-I digits    # the others: from the file

A problem is run with `client-lr=auto` and server rate 1, and with client rates of 1/4, 1/2, 1, 2, ... 64 times what was
chosen. The best rate is the one with the lowest score after 30 rounds (haxby and adversarial-network-cifar10: 10); how
many rounds does auto take to that score? A score is the objective, for saddle points the duality gap or the loss under
attack, over a graph the optimality gap.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import time
from logging import ERROR, getLogger
from pathlib import Path
from typing import Any

from writing import DOCS, markers, replaced, table_of

from flwr_fco.errors import FlwrFcoError
from flwr_fco.models import write_file
from reproduction.problems.named import PROBLEMS
from reproduction.running import RunResult, run
from reproduction.settings import RunSettings

PAGE = DOCS / "benchmarks" / "rates.md"
#: Rounds of the runs at fixed rates; those at rates from theory have four times as many.
ROUNDS = 30
PATIENCE = 4
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
#: Problems with other methods, scores, or fewer rounds because they take long.
METHODS = {"sparse-linear-graph": "DFedDAGT", "sparse-logistic-graph": "DFedDAGT"}
SADDLE = ("bilinear-", "adversarial-")
OPTIONS: dict[str, dict[str, Any]] = {
    # Smaller than the named problem, for the time it takes.
    "adversarial-mnist": {"num-clients": 10, "num-examples": 1000},
    "adversarial-cifar10": {"num-clients": 10, "num-examples": 1000},
    "adversarial-network-cifar10": {"num-clients": 10, "num-examples": 1000},
    "mnist-l1-ball": {"num-examples": 6000, "local-epochs": 1},
    "mnist-l2-ball": {"num-examples": 6000, "local-epochs": 1},
    "two-layers-mnist": {"num-examples": 6000, "local-epochs": 1},
    "two-layers-digits": {"local-epochs": 1},
    "logistic-mnist": {"num-examples": 2000},
    "logistic-cifar10": {"num-examples": 1000},
    "synthetic-brain": {"num-voxels": 5000},
    "bilinear-l1": {"num-clients": 4},
    "bilinear-nuclear": {"num-clients": 4, "start": "projected"},
}
SHORT = ("haxby", "adversarial-network-cifar10")


def measure(name: str) -> dict[str, Any]:
    """Return the row of a problem."""
    strategy = METHODS.get(name, "FeDualEx" if name.startswith(SADDLE) else "FedDualAvg")
    rounds = 10 if name in SHORT else ROUNDS
    shared = {**OPTIONS.get(name, {}), "objective-every": 1, "structure-every": 1}
    began = time.process_time()

    def scores(client_lr: float | str, server_lr: float | str, length: int) -> tuple[list[float], RunResult]:
        own = {**shared, "client-lr": client_lr, "server-lr": server_lr, "num-rounds": length}
        result = run(RunSettings.of(name, strategy, own))
        found = [score for score in map(_score, result.history) if score is not None]
        return found + [math.inf] * (length + 1 - len(found)), result

    row: dict[str, Any] = {"problem": name, "strategy": strategy, "rounds": rounds}
    try:
        auto, result = scores("auto", 1.0, PATIENCE * rounds)
    except FlwrFcoError as error:
        return {**row, "error": str(error)}
    chosen = re.match(r"client-lr=([^:]+): (.*?), L = ", result.chosen[0])
    assert chosen is not None
    row["options"] = ", ".join(f"{key}={value}" for key, value in OPTIONS.get(name, {}).items())
    row["auto"], row["formula"] = float(chosen[1]), chosen[2]
    ends = {factor: scores(factor * row["auto"], 1.0, rounds)[0][-1] for factor in FACTORS}
    row["best"] = min(ends, key=lambda factor: ends[factor])
    row["score"] = ends[row["best"]]
    row["taken"] = _first_below(auto, row["score"])
    try:
        row["both"] = _first_below(scores("auto", "auto", PATIENCE * rounds)[0], row["score"])
    except FlwrFcoError:
        row["both"] = None
    row["seconds"] = round(time.process_time() - began, 1)
    return row


def _score(line: dict[str, float]) -> float | None:
    return next((line[name] for name in ("objective", "gap", "training-loss") if name in line), None)


def _first_below(scores: list[float], level: float) -> int:
    """Return the first round with at most a score, 0 if there is none."""
    return next((number for number, score in enumerate(scores) if score <= level * (1.0 + 1e-9)), 0)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    head = ("problem", "chosen", "best, times that", "rounds: best", "auto", "both auto")
    return table_of(head, map(_cells, rows))


def _cells(row: dict[str, Any]) -> list[object]:
    if len(row) == 1:
        return [row["problem"], "not measured | | | |"]
    if "error" in row:
        return [row["problem"], "none: a loss with kinks | | | |"]
    limit = PATIENCE * row["rounds"]
    both = row["both"]
    taken = row["taken"] or f"> {limit}"
    server = "no rule" if both is None else (both or f"> {limit}")
    problem = f"{row['problem']} ({row['options']})" if row["options"] else row["problem"]
    return [problem, f"{row['auto']:.3g}", f"{row['best']:g}", row["rounds"], taken, server]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", type=Path, help="a JSON file: rows that it has are not measured again")
    parser.add_argument("--problems", nargs="+", choices=list(PROBLEMS), default=list(PROBLEMS))
    options = parser.parse_args()
    # Some of the rates are meant to be too large.
    getLogger("flwr").setLevel(ERROR)
    rows = json.loads(options.rows.read_text(encoding="utf-8")) if options.rows.exists() else {}
    for name in options.problems:
        if name not in rows:
            rows[name] = measure(name)
            print(rows[name], flush=True)
            write_file(options.rows, json.dumps(rows, indent=1) + "\n")
    found = table([rows.get(name, {"problem": name}) for name in PROBLEMS])
    marks = markers("auto", "measure_auto_rates.py table.json")
    write_file(PAGE, replaced(PAGE.read_text(encoding="utf-8"), marks, found))


if __name__ == "__main__":
    main()
