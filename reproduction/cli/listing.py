"""The command ``list``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from flwr_fco.errors import ConfigurationError
from reproduction.cli import shell
from reproduction.data import DataNotFoundError
from tools import terminal

#: Title of the problems in the list.
_PROBLEMS = "Problems: run NAME, with --set OPTION=VALUE"


def list_everything(
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, help="Load every problem with this seed and say how large it is.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write it to this Markdown file too.")] = None,
    quiet: shell.Quiet = False,
) -> None:
    """List strategies, baselines, regularizers, objectives, problems and experiments.

    Examples
    --------
    `python -m reproduction list`

    `python -m reproduction list --seed 3 --out list.md`
    """
    parts = _everything()
    if seed is not None:
        parts[_PROBLEMS] = _with_sizes(parts[_PROBLEMS], seed, quiet)
    shown = terminal.console()
    for title, entries in parts.items():
        table = terminal.make_table(title, (), show_header=False, box=None, padding=(0, 2, 0, 0))
        table.add_column(no_wrap=True, style="cyan")
        table.add_column(overflow="fold")
        for name, text in entries.items():
            table.add_row(name, text)
        shown.print(table)
        shown.print()
    if out is not None:
        from reproduction.pictures.report import markdown_table

        tables = [
            f"## {title}\n\n{markdown_table([{'name': name, 'what': text} for name, text in entries.items()])}\n"
            for title, entries in parts.items()
        ]
        shell.write(out, "\n".join(tables))


def _everything() -> dict[str, dict[str, str]]:
    """Return all that can be listed: a mapping of title to name to a one-line description."""
    from flwr_fco import objectives, regularizers
    from reproduction.claims.definition import EXPERIMENTS, load_definition
    from reproduction.problems.baselines import BASELINES
    from reproduction.problems.loaders import REGULARIZERS
    from reproduction.problems.named import PROBLEMS
    from reproduction.rivals import STRATEGIES

    def documented(module: Any, base: type) -> dict[str, str]:
        found = {name: getattr(module, name) for name in module.__all__}
        return {
            name: _first_line(kind)
            for name, kind in found.items()
            if isinstance(kind, type) and issubclass(kind, base) and kind is not base
        }

    others = documented(regularizers, regularizers.Regularizer)
    return {
        "Strategies: run --strategy NAME": {name: _first_line(kind) for name, kind in STRATEGIES.items()},
        "Baselines: run --strategy NAME": BASELINES,
        _PROBLEMS: {
            name: f"{problem.description} [{', '.join(problem.options())}]" for name, problem in PROBLEMS.items()
        },
        "Regularizers of the problems that have the option: run --set regularizer=NAME": {
            name: others.pop(name) for name in REGULARIZERS
        },
        "Experiments: reproduce NAME": {name: load_definition(name).title for name in EXPERIMENTS},
        "Other regularizers, in Python alone: flwr_fco.regularizers": others,
        "Objectives, in Python alone: flwr_fco.objectives": documented(objectives, objectives.Objective),
    }


def _with_sizes(problems: dict[str, str], seed: int, quiet: bool) -> dict[str, str]:
    """Return the problems' lines with the sizes of their data for a seed."""
    from reproduction.problems.named import load_task

    found = {}
    with shell.progress(len(problems), f"loading with seed {seed}", quiet) as advance:
        for number, (name, text) in enumerate(problems.items(), start=1):
            try:
                task = load_task(name, seed)
                sizes = [client.num_examples for client in task.clients]
                size = (
                    f"{len(sizes)} clients with {min(sizes)} to {max(sizes)} examples, "
                    f"{sum(sizes)} in all, {task.layout.size} parameters"
                )
            except DataNotFoundError:
                size = "its files are not here"
            except ConfigurationError as error:
                size = str(error)
            found[name] = f"{text}; seed {seed}: {size}"
            advance(number)
    return found


def _first_line(kind: type) -> str:
    """Return the first line of a docstring without its markup."""
    line = (kind.__doc__ or "").strip().splitlines()[0]
    return re.sub(r":[a-z]+:`~?(?:[\w.]*\.)?(\w+)`", r"\1", line).replace("`", "")
