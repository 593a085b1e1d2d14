"""Collect what `flwr-fco reproduce` wrote into docs/reproduction: a page of verdicts a paper, the figures beside it.

    flwr-fco reproduce all --out results
    python docs/collect_reproduction.py results

Takes every experiment that has a folder in `results` and names the others. `--commit` says on which commit they were
run, where all were run on one.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from flwr_fco.experiments import EXPERIMENTS, load_definition

HERE = Path(__file__).parent / "reproduction"


class Page(NamedTuple):
    """A page of docs/reproduction and the experiments on it.

    Parameters
    ----------
    file, title : str
    prefix : str
        Of its experiments' names; or all of them, with spaces between.
    data : str
        What they were run on.
    """

    file: str
    title: str
    prefix: str
    data: str


PAGES = (
    Page(
        "fco.md",
        "'Federated Composite Optimization', reproduced",
        "fco-",
        "with the real MNIST and the one-slice fMRI file. [rates.md](rates.md) has the sweeps that the rates come "
        "from. Figure 15 is in [networks.md](networks.md)",
    ),
    Page(
        "gradient-tracking.md",
        "'Gradient Tracking for High Dimensional Federated Optimization', reproduced",
        "gt-",
        "on synthetic data that are drawn as the runs go. [tracking-rates.md](tracking-rates.md) has the sweeps that "
        "the constants of both figures come from",
    ),
    Page(
        "saddle.md",
        "'Local Composite Saddle Point Optimization', reproduced",
        "spp-",
        "with the real MNIST and a subset of CIFAR-10. [saddle-rates.md](saddle-rates.md) has the sweeps that the "
        "rates come from. The closed forms of the proximal maps and gaps of A.1 and A.2 are checked by "
        "`tests/regularizers` and `tests/pooled/test_saddle.py`, theorems 3 and 4 step by step by "
        "`tests/pooled/test_sequential.py`. The attack's penalty is concave for the player who maximises, "
        "- lambda ||delta||_1, where A.3 prints a plus. Figure 8 is in [networks.md](networks.md)",
    ),
    Page(
        "dualfl.md",
        "'DualFL', reproduced",
        "dualfl-",
        "with parts of the real MNIST and CIFAR-10 (each heading says how large), scikit-learn's digits and breast "
        "cancer data and synthetic ones. [dualfl-rates.md](dualfl-rates.md) has the grids that the settings come from, "
        "[local minimisations](../local-minimisation.md) the seconds of each engine. A pass is a gradient or a product "
        "with the Hessian over all of a client's examples, the mean of the clients; seconds are wall time without the "
        "evaluation. Every energy error is against a pooled solution whose gradient has norm 1e-12 or less (of support "
        "vector machines: a duality gap)",
    ),
    Page(
        "networks.md",
        "The papers' networks, which their theory does not cover",
        "fco-fig15 spp-fig8",
        "with parts of the real MNIST and CIFAR-10, and PyTorch. The theory of both papers is about convex (and "
        "convex-concave) functions: what follows was seen, and nothing more is claimed",
    ),
)
#: Of the table of a page's head.
COLUMNS = ("holds", "does not hold", "tie", "outside", "ours, holds", "ours, does not hold", "ours, tie")
#: Pictures above this size in bytes are stored with 256 colours.
LARGE = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--commit", default="", help="of all runs: the pages name it")
    options = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    for page in PAGES:
        names = [name for name in EXPERIMENTS if page_of(name) is page]
        done = [name for name in names if _is_full_run(options.results / name)]
        if done:
            lines = [
                *_summary(page, done, options.results, options.commit),
                *(line for name in done for line in _details(name, options.results)),
            ]
            missing = [name for name in names if name not in done]
            if missing:
                lines += ["", f"Not in this run: {', '.join(missing)}."]
            (HERE / page.file).write_text("\n".join(lines) + "\n", encoding="utf-8")


def _is_full_run(folder: Path) -> bool:
    """Whether a folder holds an experiment as it is defined: a quick one, or other settings, are no page's business."""
    file = folder / "experiment.json"
    held = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return (folder / "verdicts.json").is_file() and not held.get("quick") and not held.get("set")


def page_of(name: str) -> Page | None:
    """Return the page of an experiment: the last one whose prefixes fit."""
    fitting = [page for page in PAGES if name.startswith(tuple(page.prefix.split()))]
    return fitting[-1] if fitting else None


def _summary(page: Page, done: list[str], results: Path, commit: str) -> list[str]:
    """Return the head of a page: how it was run, a row for each experiment."""
    rows = []
    total = 0.0
    sums = dict.fromkeys(COLUMNS, 0)
    for name in done:
        verdicts = json.loads((results / name / "verdicts.json").read_text(encoding="utf-8"))
        counts = _counts(verdicts)
        for column, count in counts.items():
            sums[column] += count
        runs = [json.loads(file.read_text(encoding="utf-8")) for file in (results / name / "runs").glob("*.json")]
        seconds = sum(run["seconds"] for run in runs)
        total += seconds
        definition = load_definition(name)
        title = definition.title.replace("|", "\\|")
        rows.append(
            f"| [{name}](#{name}) | {title} | {len(definition.seeds)} | "
            + " | ".join(str(count or "") for count in counts.values())
            + f" | {seconds:.0f} |"
        )
    rows.append("| all | | | " + " | ".join(map(str, sums.values())) + f" | {total:.0f} |")
    # Of one experiment `--out` is its own folder.
    wanted = [f'"{p}*" --out results' if p.endswith("-") else f"{p} --out results/{p}" for p in page.prefix.split()]
    commands = ", ".join(f"`flwr-fco reproduce {arguments}`" for arguments in wanted)
    python, numpy = platform.python_version(), version("numpy")
    went = f", in one go on commit {commit}" if commit else ""
    return [
        f"# {page.title}",
        "",
        "Written by `docs/collect_reproduction.py` from the folders of a full run; nothing here is typed by hand.",
        "",
        f"Command: {commands} (`make reproduce`: all), {page.data}. One "
        f"process, one BLAS thread, Python {python}, NumPy {numpy}: {total / 60:.0f} minutes of runs in all{went}. "
        "These are wall times of a machine in use; the metrics do not depend on them. The settings are in "
        "`flwr_fco/experiments/definitions`.",
        "",
        "Verdicts: a claim *holds* with every seed or *does not*; a *tie* is a comparison that neither side wins with "
        "every seed; *outside* is what cannot be tested here, with the reason. *Ours* are rows of sentences that are "
        "not the paper's. A claim that two figures repeat about the same runs is counted "
        "once. A run that diverged passes no rule. Where the table says that the limit is ours, the paper has a word "
        "in the place of a number.",
        "",
        f"| experiment | what | seeds | {' | '.join(COLUMNS)} | seconds of the runs |",
        "|---" * (4 + len(COLUMNS)) + "|",
        *rows,
    ]


def _counts(verdicts: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many claims have which verdict; one that repeats another is not counted."""
    found = dict.fromkeys(COLUMNS, 0)
    for verdict in verdicts:
        if not verdict["repeats"]:
            found[f"ours, {verdict['verdict']}" if verdict["ours"] else verdict["verdict"]] += 1
    return found


def _details(name: str, results: Path) -> list[str]:
    """Return the section of an experiment, having copied its figure."""
    head, *rest = (results / name / "verdicts.md").read_text(encoding="utf-8").splitlines()
    _copy_picture(results / name / "figure.png", HERE / f"{name}.png")
    title = head.removeprefix(f"# {name}: ")
    return ["", f"## {name}", "", f"**{title}**", *rest, "", f"![{name}]({name}.png)"]


def _copy_picture(source: Path, target: Path) -> None:
    if source.stat().st_size <= LARGE:
        shutil.copyfile(source, target)
        return
    with Image.open(source) as picture:
        # Colours that cover the whole range: the usual choice, the most frequent ones, makes two curves look the same.
        picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


if __name__ == "__main__":
    main()
