"""The pages of docs/reproduction, one a paper, written from the stored results: ``python -m reproduction.pages``."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd

import reproduction.figures  # noqa: F401
from flwr_fco.errors import ConfigurationError
from reproduction.figure import DESCRIBED, HERE, find_figure
from reproduction.reproduce import table_of
from reproduction.running import Record
from reproduction.verdicts import AWAITS, decide, median, read_results, stored_values, write_results

DOCS = HERE.parent / "docs" / "reproduction"
#: The pages: file, paper, prefix of its figures, name in ``rates.csv``.
PAPERS = (
    ("fco.md", "Yuan, Zaheer, Reddi 2021", "fco-", "composite"),
    ("gradient-tracking.md", "Liang, Peng, Zhang", "gt-", "tracking"),
    ("saddle.md", "Bai, Bullins 2024", "spp-", "saddle"),
    ("dualfl.md", "Park, Xu 2023", "dualfl-", "dualfl"),
)
#: The verdicts that are counted, of rows that are the paper's in everything; then rows that are counted apart.
COLUMNS = ("holds", "does not hold", "tie", "outside", AWAITS)
_HEAD = (*COLUMNS, "differs", "ours", "minutes")
KEY = (
    "A claim *holds* with every seed or *does not*; a *tie* is a comparison that neither side wins with every seed, or "
    "by less than its noise; *outside* is what cannot be tested here; what *awaits a run* was changed after its last "
    "run. These columns count the rows that test the paper's sentence as it stands. A row that *differs* tests it "
    "with one of several *readings* of the text, off the paper's *grid* of constants, at a smaller *scale* or on other "
    "*data*. Rows of *ours* ask what the paper does not. Measured: median [smallest, largest] over the seeds, and "
    "where the note says so over kernels of BLAS. Of `reproduction/`, `claims.csv` has the rules that decide, "
    "`results.jsonl` all values and `figures/` the runs."
)


def all_rows(stored: Mapping[str, Record] | None = None) -> pd.DataFrame:
    """Return the rows of all claims with their verdicts by the stored values."""
    known = read_results() if stored is None else stored
    figures = [find_figure(name) for name in DESCRIBED]
    return pd.concat([decide(own, stored_values(own, known)) for own in figures], ignore_index=True)


def write_pages(folder: Path = DOCS) -> None:
    """Write ``README.md`` and a page for each paper from the stored results.

    Raises
    ------
    ConfigurationError
        If a sentence of a page rests on a verdict that is another one now.
    """
    stored = read_results()
    rows = all_rows(stored)
    minutes = {name: own["cpu-seconds"] / 60 for name, own in stored.items()}
    homes = {name: file for file, _, prefix, _ in PAPERS for name in DESCRIBED if name.startswith(prefix)}

    def rendered(template: str, page: str, **own: Any) -> str:
        def say(text: str, *rests: str) -> str:
            return _say(rows, {name: "" if home == page else home for name, home in homes.items()}, text, rests)

        source = (HERE / "templates" / template).read_text(encoding="utf-8")
        environment = jinja2.Environment(undefined=jinja2.StrictUndefined, autoescape=False)
        return environment.from_string(source).render(say=say, key=KEY, **own).rstrip() + "\n"

    summary = []
    for file, paper, prefix, name in PAPERS:
        own = rows[rows.figure.str.startswith(prefix)]
        cost = {figure: found for figure, found in minutes.items() if figure.startswith(prefix)}
        lines = [[f"[{figure}](#{figure})", *_counts(own[own.figure == figure], cost[figure])] for figure in cost]
        summary.append([f"[{paper}]({file})", *_counts(own, sum(cost.values()))])
        parts = {"summary": table_of(("figure", *_HEAD), lines).rstrip(), "rates": _best_rates(name)}
        text = rendered(file, file, figures="\n".join(map(_figure, own.figure.unique(), _split(own))), **parts)
        (folder / file).write_text(text, encoding="utf-8")
    summary.append(["all", *_counts(rows, sum(minutes.values()))])
    text = rendered("README.md", "", summary=table_of(("paper", *_HEAD), summary).rstrip())
    (folder / "README.md").write_text(text, encoding="utf-8")


def _split(rows: pd.DataFrame) -> list[pd.DataFrame]:
    return [found for _, found in rows.groupby("figure", sort=False)]


def _say(rows: pd.DataFrame, homes: Mapping[str, str], text: str, rests: Iterable[str]) -> str:
    """Return a sentence with the medians that it rests on, of claims ``"FIGURE: CLAIM = VERDICT"``, and links."""
    by_name = {f"{row.figure}: {row.claim}": row for row in rows.itertuples()}
    medians = []
    names = dict[str, None]()
    for rest in rests:
        claim, _, verdict = rest.rpartition(" = ")
        row: Any = by_name[claim]
        if row.verdict != verdict:
            raise ConfigurationError(f"{claim}: {row.verdict}; a page says {text!r}, which rests on {verdict!r}")
        medians.append(median(row.values))
        names[row.figure] = None
    return f"{text.format(*medians)} ({', '.join(f'[{name}]({homes[name]}#{name})' for name in names)})"


def _counts(rows: pd.DataFrame, minutes: float) -> list[str]:
    """Return the number of the paper's claims by verdict, how many of those that differ and of ours hold, the cost."""
    own = rows[rows.repeats == ""]
    plain = own[(own.ours == "") & (own.differs == "")]
    apart = (own[(own.ours == "") & (own.differs != "")], own[own.ours != ""])
    counts = [str((plain.verdict == column).sum() or "") for column in COLUMNS]
    holding = [f"{(part.verdict == 'holds').sum()} of {len(part)}" if len(part) else "" for part in apart]
    return [*counts, *holding, f"{minutes:.0f}"]


def _figure(name: str, rows: pd.DataFrame) -> str:
    """Return the part of a page about a figure: each sentence, then what was measured for it."""
    own = find_figure(name)
    text = [f"## {name}\n", f"{own.title}. {own.about}\n"]
    if any(row.verdict != AWAITS for row in rows.itertuples()):
        text.append(f"![{own.title}]({name}.png)\n")
    for (sentence, ours), found in rows.groupby(["sentence", "ours"], sort=False):
        text.append(f"{'Ours: ' if ours else '> '}{sentence}\n")
        text += [_row(row) for row in found.itertuples()]
        text.append("")
    return "\n".join(text)


def _row(row: Any) -> str:
    """Return the line of a claim."""
    verdict = f"**{row.verdict}**" if row.verdict == "does not hold" else row.verdict
    differs = f" ({row.differs})" if row.differs and not row.ours else ""
    why = row.outside or (f"as {row.repeats}" if row.repeats else row.note.partition(". ")[0])
    reason = f". {why.rstrip('.')}" if why else ""
    return f"- {row.claim}: {verdict}{differs}{'; ' if row.measured else ''}{row.measured}{reason}."


def _best_rates(paper: str) -> str:
    """Return the best constants of each method in each part of a search."""
    frame = pd.read_csv(HERE / "rates.csv", keep_default_na=False)
    own = frame[(frame.paper == paper) & frame.best.str.startswith("best")]
    lines = []
    for section, rows in own.groupby("section", sort=False):
        cells = (f"{row.method} {row.constants.replace('=', ' ').replace('; ', ', ')}" for row in rows.itertuples())
        pairs = "client-lr" in rows.constants.iloc[0] and "server-lr" in rows.constants.iloc[0]
        text = "; ".join(cells)
        lines.append(f"- {section}: {text.replace('client-lr ', '').replace('server-lr ', '') if pairs else text}.")
    return "\n".join(lines)


def store_results(new: Mapping[str, Record], results: Path) -> None:
    """Store the results of full runs and their pictures, and write the pages."""
    write_results(new, DESCRIBED)
    for name in new:
        shutil.copyfile(results / name / "figure.png", DOCS / f"{name}.png")
    write_pages()


if __name__ == "__main__":
    write_pages()
