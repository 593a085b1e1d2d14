"""The pages of a reproduction: findings and short tables for readers, the details behind them, an index."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from flwr_fco.models import write_file
from reproduction.claims.definition import EXPERIMENTS, Definition, load_definition
from reproduction.claims.reproduction import Verdict, median, verdict_table
from reproduction.claims.stored import AWAITS, Stored, read_again
from reproduction.pictures.report import table_of
from reproduction.templates import render

#: The verdicts that are counted, of rows that are the paper's in everything.
COLUMNS = ("holds", "does not hold", "tie", "outside", AWAITS)
#: Rows that are counted apart: how many of them hold.
_APART = ("differs", "ours")
_DIFFERS = "reading / scale / data"
_KEY = (
    "A claim *holds* with every seed or *does not*; a *tie* is a comparison that neither side wins with every seed, or "
    "by less than its noise; *outside* is what cannot be tested here; what *awaits a run* was defined anew after its "
    "last run. These columns count the rows that test the paper's sentence as it stands. A row that *differs* tests it "
    "with one of several *readings* of the text, off the paper's *grid* of constants, at a smaller *scale* or on other "
    "*data*. Rows of *ours* ask what the paper does not. Measured: median [smallest, largest] over the seeds."
)


def write_pages(stored: Mapping[str, Stored], folder: Path, picture: str, rates: str | None = None) -> list[Path]:
    """Write the stored results of experiments as Markdown.

    Parameters
    ----------
    stored : mapping of str to Stored
        By experiment.
    folder : Path
        Gets ``README.md``, a page for each paper, and in ``details`` a page for each experiment.
    picture : str
        Path of an experiment's picture, relative to `folder`, with ``{}`` for its name.
    rates : str, optional
        Path of the pages of rates, relative to `folder`, with a trailing slash; without it, no links to them.

    Returns
    -------
    list of Path
        The files written.
    """
    content = tomllib.loads((resources.files(__package__) / "pages.toml").read_text(encoding="utf-8"))
    definitions = {name: load_definition(name) for name in EXPERIMENTS if name in stored}
    verdicts = {name: read_again(definition, stored[name]) for name, definition in definitions.items()}
    written = {}
    rows = []
    for page in content["pages"]:
        names = [name for name in definitions if _page_of(name, content["pages"]) is page]
        first = [name for name in names if name == page.get("first")]
        names = list(dict.fromkeys([*first, *names]))
        if not names:
            continue
        mine = {name: (definitions[name], verdicts[name]) for name in names}
        seconds = _seconds(stored, names)
        written[page["file"]] = _paper_page(page, mine, verdicts, stored, picture, rates)
        for name, (definition, found) in mine.items():
            written[f"details/{name}.md"] = _detail_page(page, definition, found, stored[name], picture)
        counts = _counts([own for name in names for own in verdicts[name]])
        rows.append([f"[{page['paper']}]({page['file']})", str(len(names)), *counts, f"{seconds / 60:.0f}"])
    homes = {name: _page_of(name, content["pages"])["file"] for name in definitions}
    # How the package's own results were made is not true of a user's.
    made = content["made"] if rates is not None else ""
    mended = (content["before"], content["changes"]) if rates is not None else ("", [])
    written["README.md"] = _index(content["surprises"], rows, verdicts, homes, made, *mended)
    (folder / "details").mkdir(parents=True, exist_ok=True)
    for name, text in written.items():
        write_file(folder / name, text)
    return [folder / name for name in written]


def _seconds(stored: Mapping[str, Stored], names: Iterable[str]) -> float:
    """Return the cost of experiments in CPU seconds."""
    return float(sum(stored[name]["cpu-seconds"] for name in names))


def _page_of(name: str, pages: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the page of an experiment: the last one whose prefixes fit."""
    return [page for page in pages if name.startswith(tuple(page["prefixes"]))][-1]


def _paper_page(
    page: Mapping[str, Any],
    own: Mapping[str, tuple[Definition, Sequence[Verdict]]],
    verdicts: Mapping[str, Sequence[Verdict]],
    stored: Mapping[str, Stored],
    picture: str,
    rates: str | None,
) -> str:
    rows = [
        [f"[{name}](#{name})", definition.title, str(len(definition.seeds)), *_counts(found)]
        for name, (definition, found) in own.items()
    ]
    return render(
        "paper.md",
        page=page,
        own=own,
        picture=picture,
        rates=rates,
        key=_KEY,
        findings=findings(page["findings"], verdicts, dict.fromkeys(own, "")),
        table=table_of(("experiment", "what", "seeds", *COLUMNS, *_APART), rows),
        short_table=short_table,
        code=page.get("code", "") if rates is not None else "",
        differences=table_of(("the paper", "its authors' code", "here"), page.get("differences", [])),
        drawn={name for name in own if stored[name]["claims"]},
    )


def short_table(verdicts: Sequence[Verdict]) -> str:
    """Return each claim with what was measured, its verdict, what differs and a short reason, as a Markdown table.

    Parameters
    ----------
    verdicts : sequence of Verdict

    Returns
    -------
    str
    """
    whys = (f"as {own.repeats}" if own.repeats else _first_sentence(own.note) for own in verdicts)
    rows = [(own.name, own.measured, own.words, own.differing, why) for own, why in zip(verdicts, whys, strict=True)]
    return table_of(("claim", "measured", "verdict", _DIFFERS, "why"), rows)


def _first_sentence(text: str) -> str:
    head, dot, rest = text.partition(". ")
    return head + (dot.strip() if rest else "")


def _detail_page(
    page: Mapping[str, Any], definition: Definition, found: Sequence[Verdict], stored: Stored, picture: str
) -> str:
    head, _, tables = verdict_table(definition, found).partition("\n\n")
    text = render(
        "details.md",
        name=definition.name,
        head=head,
        tables=tables,
        more=stored["tables"],
        minutes=stored["cpu-seconds"] / 60,
        machines=len(stored.get("machines", [""])),
        drawn=bool(stored["claims"]),
        file=page["file"],
        picture=picture,
        key=_KEY,
    )
    return text.rstrip() + "\n"


def findings(
    wanted: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Sequence[Verdict]], homes: Mapping[str, str]
) -> list[str]:
    """Return the sentences whose claims have the required verdicts, with the medians.

    Parameters
    ----------
    wanted : sequence of mapping
        ``text`` and ``rests-on``.
    verdicts : mapping of str to sequence of Verdict
        By experiment.
    homes : mapping of str to str
        The page of each experiment.

    Returns
    -------
    list of str
    """
    by_claim = {f"{name}: {own.name}": own for name, found in verdicts.items() for own in found}
    texts = []
    for finding in wanted:
        rests = [line.rpartition(" = ") for line in finding["rests-on"]]
        found = [by_claim.get(claim) for claim, _, _ in rests]
        if all(own is not None and own.verdict == word for own, (_, _, word) in zip(found, rests, strict=True)):
            text = finding["text"].format(*(median(own.values) for own in found if own is not None))
            names = dict.fromkeys(claim.partition(": ")[0] for claim, _, _ in rests)
            texts.append(f"{text} ({', '.join(f'[{name}]({homes[name]}#{name})' for name in names)})")
    return texts


def _index(
    surprises: Sequence[Mapping[str, Any]],
    rows: Sequence[Sequence[str]],
    verdicts: Mapping[str, Sequence[Verdict]],
    homes: Mapping[str, str],
    made: str,
    before: str,
    changes: Sequence[Mapping[str, str]],
) -> str:
    minutes = sum(int(row[-1]) for row in rows)
    every = [own for found in verdicts.values() for own in found]
    total = ["all", str(len(homes)), *_counts(every), str(minutes)]
    return render(
        "index.md",
        table=table_of(("paper", "experiments", *COLUMNS, *_APART, "minutes"), [*rows, total]),
        key=_KEY,
        findings=findings(surprises, verdicts, homes),
        cost=f"{minutes / 60:.1f} hours" if minutes >= 60 else f"{minutes} min",
        made=made,
        waiting=sum(own.verdict == AWAITS for own in every),
        total=len(every),
        before=before,
        changes=_changes(changes, verdicts, homes) if changes else "",
    )


def _changes(
    changes: Sequence[Mapping[str, Any]], verdicts: Mapping[str, Sequence[Verdict]], homes: Mapping[str, str]
) -> str:
    """Return what was mended after a reading of the pages: before, and the rows as they are now."""
    by_claim = {f"{name}: {own.name}": own for name, found in verdicts.items() for own in found}
    rows = []
    for number, change in enumerate(changes, 1):
        now = [
            f"[{claim}]({homes[name]}#{name}): {_label(by_claim[claim])}"
            for claim in change["rows"]
            if (name := claim.partition(": ")[0]) in homes and claim in by_claim
        ]
        rows.append((str(number), change["was"], change["now"] + (" " if now else "") + "; ".join(now)))
    return table_of(("", "it said", "now"), rows)


def _label(own: Verdict) -> str:
    """Return a verdict with what it is a verdict on."""
    return ", ".join(filter(None, (own.verdict, "ours" if own.ours else " and ".join(own.differs))))


def _counts(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the number of the paper's claims by verdict, and how many of the rows that differ and of ours hold.

    Repeated claims do not count.
    """
    counted = [own for own in verdicts if not own.repeats]
    papers = [own.verdict for own in counted if not own.ours and not own.differs]
    apart = [[own for own in counted if own.differs and not own.ours], [own for own in counted if own.ours]]
    return [*(str(papers.count(column) or "") for column in COLUMNS), *map(_holding, apart)]


def _holding(verdicts: Sequence[Verdict]) -> str:
    """Return how many of some rows hold, of those that are decided, and how many await a run."""
    awaiting = sum(own.verdict == AWAITS for own in verdicts)
    text = f"{sum(own.holds for own in verdicts)} of {len(verdicts) - awaiting}" if len(verdicts) > awaiting else ""
    return ", ".join(filter(None, (text, f"{awaiting} await" if awaiting else "")))
