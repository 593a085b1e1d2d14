"""Collect what `flwr-fco reproduce` wrote into docs/reproduction: the verdicts on one page, the figures beside it.

    python docs/collect_reproduction.py results --note "how it was run, and how long it took" [--paper gt]

Takes every experiment of the paper that has a folder in `results` and leaves the others out.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from flwr_fco.experiments import EXPERIMENTS, load_definition

HERE = Path(__file__).parent / "reproduction"
#: Page and title by the first part of the experiments' names.
PAPERS = {
    "fco": ("fco.md", "'Federated Composite Optimization', reproduced"),
    "gt": ("gradient-tracking.md", "'Gradient Tracking for High Dimensional Federated Optimization', reproduced"),
}


def copy_picture(source: Path, target: Path) -> None:
    """Copy a PNG; one above 100 kB with 256 colours, far apart, which is enough for curves."""
    if source.stat().st_size <= 100_000:
        shutil.copyfile(source, target)
        return
    from PIL import Image

    with Image.open(source) as picture:
        picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--note", required=True)
    parser.add_argument("--paper", choices=PAPERS, default="fco")
    options = parser.parse_args()
    HERE.mkdir(exist_ok=True)
    page, title = PAPERS[options.paper]
    own = [name for name in EXPERIMENTS if name.partition("-")[0] == options.paper]
    done = [name for name in own if (options.results / name / "verdicts.json").is_file()]
    missing = [name for name in own if name not in done]
    lines = [
        f"# {title}",
        "",
        "Written by `docs/collect_reproduction.py` from the folders of a full run; nothing here is typed by hand.",
        "",
        options.note,
        "",
        "| experiment | what | claims that hold | seconds of the runs |",
        "|---|---|---|---|",
    ]
    for name in done:
        folder = options.results / name
        verdicts = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
        held = sum(verdict["holds"] for verdict in verdicts)
        runs = [json.loads(file.read_text(encoding="utf-8")) for file in (folder / "runs").glob("*.json")]
        seconds = sum(run["seconds"] for run in runs)
        what = load_definition(name).title.replace("|", "\\|")
        lines.append(f"| [{name}](#{name}) | {what} | {held} of {len(verdicts)} | {seconds:.0f} |")
    if missing:
        lines += ["", f"Not in this run: {', '.join(missing)}."]
    for name in done:
        folder = options.results / name
        head, *rest = (folder / "verdicts.md").read_text(encoding="utf-8").splitlines()
        copy_picture(folder / "figure.png", HERE / f"{name}.png")
        lines += [
            "",
            f"## {name}",
            "",
            f"**{head.removeprefix('# ' + name + ': ')}**",
            *rest,
            "",
            f"![{name}]({name}.png)",
        ]
    (HERE / page).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
