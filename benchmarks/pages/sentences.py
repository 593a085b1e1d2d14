"""Print the mean number of words of a page's sentences: `python benchmarks/pages/sentences.py [PAGE ...]`.

Tables, code and headings do not count. It is a mirror, not a test.
"""

import re
import sys
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def sentences(text: str) -> list[int]:
    """Return the numbers of words of the sentences of a page in Markdown."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(\||#|!\[|:::|    ).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)|[`*\[\]]", "", text)
    blocks = re.split(r"\n\s*\n|^\s*(?:-|\d+\.) ", text, flags=re.MULTILINE)
    found = [re.split(r"(?<=[.!?])\s+(?=[A-Z(])", " ".join(block.split())) for block in blocks]
    lengths = [len(sentence.split()) for block in found for sentence in block]
    return [length for length in lengths if length > 2]


def main() -> None:
    """Print a line for each page."""
    pages = [Path(name) for name in sys.argv[1:]] or [DOCS.parent / "README.md", *DOCS.glob("*/*.md")]
    rows = [
        (sum(found) / len(found), max(found), page) for page in pages if (found := sentences(page.read_text("utf-8")))
    ]
    for mean, longest, page in sorted(rows, reverse=True):
        print(f"{mean:5.1f} words, at most {longest:3}   {page}")


if __name__ == "__main__":
    main()
