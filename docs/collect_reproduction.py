"""Write the pages of docs/reproduction from what full runs have found.

    python -m reproduction reproduce all --out results
    python docs/collect_reproduction.py results   # takes the results and figures of every experiment that was run
    python docs/collect_reproduction.py           # writes the pages again, of the stored results

`docs/reproduction/results.json` has the values that every claim was decided by; experiments that are not among the new
results keep theirs.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from PIL import Image

from flwr_fco.models import write_file
from reproduction.claims.definition import EXPERIMENTS, load_definition
from reproduction.claims.pages import write_pages
from reproduction.claims.stored import RESULTS, nothing_yet, read_folders, seen_again

HERE = Path(__file__).parent / "reproduction"
#: Pictures above this size in bytes are stored with 256 colours.
LARGE = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="?")
    options = parser.parse_args()
    known = json.loads((HERE / RESULTS).read_text(encoding="utf-8"))
    read = read_folders(options.results) if options.results is not None else {}
    found = {name: seen_again(own, known.get(name)) for name, own in read.items()}
    for name in found:
        _copy_picture(options.results / name / "figure.png", HERE / f"{name}.png")
    stored = {name: own for name in EXPERIMENTS if (own := found.get(name, known.get(name))) is not None}
    # A long run that nobody has made yet has its page all the same.
    stored |= {name: nothing_yet() for name in EXPERIMENTS if name not in stored and load_definition(name).long}
    write_file(HERE / RESULTS, json.dumps(stored, indent=1) + "\n")
    write_pages(stored, HERE, "{}.png", rates="")


def _copy_picture(source: Path, target: Path) -> None:
    if source.stat().st_size <= LARGE:
        shutil.copyfile(source, target)
        return
    with Image.open(source) as picture:
        # Colours that cover the whole range: the usual choice, the most frequent ones, makes two curves look the same.
        picture.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(target, optimize=True)


if __name__ == "__main__":
    main()
