"""`make run`: three strategies on the same data, compared with scikit-learn; then through Flower.

It first runs in this process and shows a table and a picture within seconds. Then, if Ray is installed, its own
SuperLink runs the root Flower App for fewer rounds, and the model must be bit-identical to that of this process. All
files are written below one directory (``.run`` in the clone). No process is left running at the end, even after an
error, Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import sklearn
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.utils.fixes import parse_version

from flwr_fco.datasets import PartitionedClassification
from flwr_fco.errors import ConfigurationError, FlwrFcoError
from flwr_fco.models import load_npz, read_text, write_file
from flwr_fco.simulation import simulate
from main_job import client_app
from main_job.run_config import checked_config
from main_job.task import Task
from tools.local_superlink import flower_run, local_superlink

#: The strategies compared: FedDualAvg as in pyproject.toml; the baseline with its best rates among client rates .1, .2,
#: .3, 1 and server rates 1 to 10 (at FedDualAvg's own rates it ends 43 % above scikit-learn); FedNewton, which has no
#: rates, needs all nodes in every round, and ends by itself.
RUNS: tuple[dict[str, str | float], ...] = (
    {"strategy": "FedDualAvg"},
    {"strategy": "FedAvgSubgradient", "client-lr": 0.3, "server-lr": 3.0},
    {"strategy": "FedNewton", "clients-per-round": 0},
)
_PICTURES = (".png", ".svg", ".pdf")
#: How the curves of these runs look.
_LOOKS = (
    {"label": "FedDualAvg", "color": "#0072b2"},
    {"label": "FedAvg, subgradients", "color": "#7f7f7f"},
    {"label": "FedNewton", "color": "#0072b2", "linestyle": "dotted"},
)


class Row(NamedTuple):
    """A row of the table."""

    name: str
    scores: Mapping[str, float]
    f1: float
    seconds: float
    rounds: int | None = None


def read_task(root: Path, overrides: Mapping[str, str | float]) -> Task:
    """Return the root app's task from its pyproject.toml, with overrides."""
    file = root / "pyproject.toml"
    if not file.is_file():
        raise ConfigurationError(f"{file} does not exist; run this in the root of the repository, or give --root")
    try:
        config = {**tomllib.loads(read_text(file))["tool"]["flwr"]["app"]["config"], **overrides}
    except (tomllib.TOMLDecodeError, RecursionError, LookupError, TypeError) as error:
        raise ConfigurationError(
            f"{file} is not the root app's: {error!r}; expected a table [tool.flwr.app.config]. Give the root of the "
            "repository by --root"
        ) from error
    return Task(checked_config(config))


def train(task: Task) -> Result:
    """Return the result of a run in this process, by the root app's own clients."""
    return simulate(
        task.strategy(),
        client_app.app,
        num_nodes=task.num_nodes,
        num_rounds=task.config["num-server-rounds"],
        initial_arrays=task.initial_arrays(),
        evaluate_fn=task.evaluate,
        run_config=task.config,
    )


def model_of(result: Result) -> dict[str, NDArray[Any]]:
    """Return the arrays of a result."""
    return {name: array.numpy() for name, array in result.arrays.items()}


def centralised(task: Task) -> dict[str, NDArray[Any]]:
    """Return scikit-learn's model of all nodes' examples in one place.

    Raises
    ------
    ConfigurationError
        If the run config describes no classification with an l1 norm.
    """
    strength = task.config["strength"]
    if not isinstance(task.data, PartitionedClassification) or task.config["regularizer"] != "L1" or not strength:
        raise ConfigurationError("the comparison is of classifications: set such a problem, L1 and a strength > 0")
    examples = task.data.train
    # psi beside the mean loss is 1/C beside the sum. Before 1.8, scikit-learn wants the mixture by name.
    older = parse_version(sklearn.__version__) < parse_version("1.8")
    options = {"C": 1.0 / (len(examples.targets) * strength), "l1_ratio": 1.0, "solver": "saga", "random_state": 0}
    options |= {"tol": 1e-6, "max_iter": 100_000, **({"penalty": "elasticnet"} if older else {})}
    model = LogisticRegression(**options).fit(*examples)
    layout = task.clients[0].layout
    return layout.unflatten(np.concatenate([model.coef_.T.ravel(), model.intercept_]))


def show(rows: Sequence[Row], console: Console) -> None:
    """Print the table; the last row is the reference."""
    best = rows[-1].scores["objective"]
    table = Table(title="The same data", title_justify="left")
    table.add_column("")
    for title in ("objective", "above scikit-learn", "accuracy", "density", "support F1", "rounds", "seconds"):
        table.add_column(title, justify="right")
    for row in rows:
        objective = row.scores["objective"]
        above = f"{round(objective / best - 1, 6) + 0.0:.2%}"
        shares = (f"{share:.3f}" for share in (row.scores["accuracy"], row.scores["density"], row.f1))
        rounds = "" if row.rounds is None else f"{row.rounds}"
        table.add_row(row.name, f"{objective:.4f}", above, *shares, rounds, f"{row.seconds:.1f}")
    console.print(table)


def draw(runs: Mapping[str, Mapping[int, Mapping[str, Any]]], reference: Mapping[str, float], path: Path) -> None:
    """Plot density and accuracy against rounds.

    Parameters
    ----------
    runs : mapping of str to mapping of int to mapping
        The metrics of every round, by name.
    reference : mapping of str to float
        The scores of the centralised solution, drawn as dashed lines.
    path : Path
        The PNG.
    """
    # Not at the top: matplotlib is an extra, and only pictures need it.
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    # Two panels of this size can be read on a telephone.
    figure = Figure(figsize=(5.2, 3.3), layout="constrained")
    panels = figure.subplots(1, 2)
    titles = {"density": "coefficients that are not 0", "accuracy": "test accuracy"}
    looks: dict[str, dict[str, Any]] = dict(zip(runs, _LOOKS, strict=False))
    longest = max(map(len, runs.values()))
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        for name, rounds in runs.items():
            shown = [metrics[key] for metrics in rounds.values()]
            width = 1.0 if key == "accuracy" else 1.8
            axes.plot(list(rounds), shown, linewidth=width, **looks[name])
            if key == "density" and len(rounds) == longest:
                end = (list(rounds)[-1], shown[-1])
                place = {"textcoords": "offset points", "ha": "right"}
                axes.annotate(f"{shown[-1]:.0%}", end, (0, 4), **place)
        axes.axhline(reference[key], color="black", linestyle="dashed", linewidth=1.2, label="scikit-learn, pooled")
        axes.set_ylim(*((0, 1.05) if key == "density" else (0.85, 1)))
        axes.set_yticks((0, 0.25, 0.5, 0.75, 1) if key == "density" else (0.85, 0.9, 0.95, 1))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("round")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    # Below both panels: inside of one it would lie on the first rounds.
    lines, names = panels[1].get_legend_handles_labels()
    figure.legend(lines, names, fontsize=9, loc="outside lower center", ncols=2, frameon=False)
    last = [list(rounds.values())[-1] for rounds in runs.values()]
    if len(last) > 1 and last[0]["density"] < last[1]["density"] and last[0]["accuracy"] >= last[1]["accuracy"]:
        kept = [f"{100 * metrics['density']:.0f} %" for metrics in last]
        title = f"As accurate with {kept[0]} of the coefficients, not {kept[1]}"
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, lambda file: figure.savefig(file, dpi=200, format=path.suffix[1:]))


def compare(root: Path, overrides: Mapping[str, str | float], picture: Path, console: Console) -> list[Row]:
    """Run the strategies in this process, print the table and draw the picture; return the rows.

    Parameters
    ----------
    root : Path
        The clone.
    overrides : mapping of str to str or float
        Run config of all runs.
    picture : Path
        The PNG.
    console : rich.console.Console
        Where progress and table go.
    """
    task = read_task(root, overrides)
    with console.status("scikit-learn is solving the pooled problem"):
        began = time.monotonic()
        solution = centralised(task)
        reference = Row("scikit-learn, centralised", task.scores(solution), 1.0, time.monotonic() - began)
    with console.status("Numba compiles what the strategies need"):
        for own in RUNS:
            train(read_task(root, {**own, **overrides, "num-server-rounds": 1}))
    rows = list[Row]()
    histories = {}
    for own in RUNS:
        task = read_task(root, {**own, **overrides})
        name = task.config["strategy"]
        began = time.monotonic()
        with console.status(f"{name}: {task.config['num-server-rounds']} rounds in this process"):
            result = train(task)
        seconds = time.monotonic() - began
        model = model_of(result)
        f1 = float(f1_score(*((each["coefficients"].ravel() != 0.0) for each in (solution, model))))
        rows.append(Row(name, task.scores(model), f1, seconds, len(result.train_metrics_clientapp)))
        histories[name] = result.evaluate_metrics_serverapp
    rows.append(reference)
    show(rows, console)
    draw(histories, reference.scores, picture)
    console.print(f"Picture: {picture}")
    return rows


def through_flower(
    root: Path, directory: Path, overrides: Mapping[str, str | float], num_rounds: int, console: Console
) -> None:
    """Run the first strategy through Flower and compare its model with the model of this process.

    Parameters
    ----------
    root : Path
        The clone.
    directory : Path
        Where logs, run folders and Flower's files go.
    overrides : mapping of str to str or float
        Run config.
    num_rounds : int
    console : rich.console.Console

    Raises
    ------
    FlwrFcoError
        If the run fails, or the models differ.
    """
    overrides = {**RUNS[0], **overrides, "num-server-rounds": num_rounds}
    task = read_task(root, overrides)
    results = directory / "runs"
    name = task.config["strategy"]
    before = set(results.glob("*"))
    began = time.monotonic()
    console.print(f"{name} through Flower: a SuperLink of its own, logs in {directory}")
    with local_superlink(directory / "flwr") as environment, console.status("Flower is starting") as status:
        flower_run(
            root,
            environment,
            {**overrides, "output-dir": str(results)},
            num_nodes=task.num_nodes,
            log=directory / f"{name}.log",
            on_round=lambda number, total: status.update(f"round {number} of {total}"),
        )
    (folder,) = set(results.glob("*")) - before
    theirs = load_npz(folder / "model.npz")
    ours = model_of(train(task))
    differing = [name for name, array in ours.items() if array.tobytes() != theirs[name].tobytes()]
    if differing:
        raise FlwrFcoError(f"after {num_rounds} rounds {', '.join(differing)} differ from those of this process")
    console.print(f"The same bits after {num_rounds} rounds ({time.monotonic() - began:.0f} s): {folder}")


def _terminated(number: int, frame: FrameType | None) -> None:
    """Turn SIGTERM into an exception, so that the SuperLink is stopped on exit."""
    raise SystemExit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison from the command line.

    Parameters
    ----------
    arguments : sequence of str, optional
        By default the process's arguments.
    """
    parser = argparse.ArgumentParser(prog="python -m main_job.compare", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(), help="the clone (default: the present directory)")
    parser.add_argument("--directory", type=Path, help="where everything is written (default: .run in the clone)")
    parser.add_argument("--picture", type=Path, help="PNG, SVG or PDF (default: main-job.png in that directory)")
    parser.add_argument("--num-server-rounds", type=int, help="rounds in this process (default: pyproject.toml's)")
    parser.add_argument(
        "--flower-rounds", type=int, default=10, help="rounds through Flower, which needs Ray; 0: none (default: 10)"
    )
    options = parser.parse_args(arguments)
    if options.picture is not None and options.picture.suffix.lower() not in _PICTURES:
        parser.error(f"--picture {options.picture}: expected a name that ends in {', '.join(_PICTURES)}")
    root = options.root.resolve()
    directory = (options.directory or root / ".run").resolve()
    overrides: dict[str, Any] = {}
    if options.num_server_rounds is not None:
        overrides["num-server-rounds"] = options.num_server_rounds
    # A shell starts background jobs with Ctrl-C ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120, soft_wrap=True)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        compare(root, overrides, options.picture or directory / "main-job.png", console)
        if options.flower_rounds and find_spec("ray") is None:
            console.print("Flower's simulation needs Ray: `make install`, then `make run` repeats this through Flower")
        elif options.flower_rounds:
            through_flower(root, directory, overrides, options.flower_rounds, console)
    except (FlwrFcoError, OSError) as error:
        print(f"make run: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("make run: interrupted; the SuperLink was ended", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
