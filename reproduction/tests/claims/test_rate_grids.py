"""The constants that the rate pages print in bold lie inside their grids, or at an edge that is known with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[3] / "docs" / "reproduction"
BOUND = "the method allows no smaller value"
DIVERGES = "all methods diverge at every larger client rate of the paper's grid, whose pairs have no rows"
CONVEX = "the next smaller smoothness is below the convexity; where the two are equal C-FedDA is Fast-FedDA"
FLAT = "the score is the same to four digits from a tenth of the value on: the balls bound what a larger step does"
FLAT_END = "the rungs end there, and the score is the same to four digits from a third of the value on"
FLAT_PAIRS = "the twelve pairs end there, and three times or a third of the value has the same score to three digits"
WORK = "more steps would be more local work than the exact minimisations are"
LIMIT = "the rungs end there; three times the client rate with about the same product is worse by less than a hundredth"
INSIDE = "a few pairs of a larger table of this page, inside of whose grid the value is"
#: The edges that are known: the reason, and the methods.
KNOWN = {
    "dualfl-rates.md": {
        ("logistic-cifar10", "smallest rho 0"): (BOUND, "DualFL"),
        ("logistic-cifar10", "largest local-steps 100"): (WORK, "FedAvg; FedCM; FedDualAvg"),
        ("logistic-cifar10", "largest local-steps 30"): (WORK, "FedSAM"),
        ("logistic-cifar10", "smallest probability 0.01"): (WORK, "Scaffnew"),
        ("logistic-cifar10, 10,000 images", "largest local-steps 100"): (WORK, "FedDualAvg"),
        ("logistic-cifar10, 10,000 images", "smallest probability 0.01"): (WORK, "Scaffnew"),
        ("logistic-mnist", "smallest rho 0"): (BOUND, "DualFL"),
        ("logistic-mnist", "largest local-steps 30"): (WORK, "FedSAM"),
        ("logistic-mnist, 60,000 images", "largest local-steps 100"): (WORK, "FedDualAvg"),
    },
    "rates.md": {
        ("lasso-I, 500 rounds", "largest client 0.001"): (DIVERGES, "FedDualAvgOSP"),
        ("lasso-II, 500 rounds", "largest client 0.001"): (DIVERGES, "FedDualAvgOSP"),
        ("lasso-III, 500 rounds", "largest client 0.001"): (DIVERGES, "FedDualAvgOSP"),
        ("lasso-III, 500 rounds", "smallest client 1e-06"): (LIMIT, "FedAvgSubgradient; FedMid; FedMidOSP"),
        ("low-rank-I, 200 rounds", "largest client 0.001"): (DIVERGES, "FedDualAvgOSP"),
        ("low-rank-II, 200 rounds", "largest client 0.001"): (DIVERGES, "FedDualAvg; FedDualAvgOSP"),
        ("low-rank-III, 200 rounds", "largest client 0.001"): (DIVERGES, "FedDualAvgOSP"),
        ("low-rank-IV, 500 rounds", "smallest client 0.0003"): (INSIDE, "FedAvgSubgradient; FedMid; FedMidOSP"),
        ("low-rank-IV, 500 rounds", "largest server 10"): (INSIDE, "FedAvgSubgradient; FedMid; FedMidOSP"),
    },
    "saddle-rates.md": {
        ("bilinear-nuclear, K = 1, 10 clients, 100 rounds", "largest client 30000"): (FLAT, "FeDualEx, average"),
        ("bilinear-nuclear, K = 1, 100 clients, 100 rounds", "largest client 60000"): (FLAT_END, "FeDualEx, average"),
        ("bilinear-nuclear, K = 10, 10 clients, 20 rounds", "largest client 60000"): (FLAT, "FeDualEx, average"),
        ("bilinear-nuclear, K = 10, 100 clients, 20 rounds", "largest client 2000"): (FLAT_PAIRS, "FedDualAvg"),
        ("bilinear-nuclear, K = 10, 100 clients, 20 rounds", "smallest client 6000"): (FLAT_PAIRS, "FeDualEx, average"),
    },
    "tracking-rates.md": {
        ("sparse-linear-graph, gt-fig1", "smallest smoothness 1"): (CONVEX, "C-FedDA, M x batch"),
        ("sparse-logistic-graph, gt-fig2", "smallest smoothness 1"): (CONVEX, "C-FedDA; C-FedDA, M x batch and rounds"),
        ("sparse-logistic-graph, gt-fig2", "smallest smoothness 0.6"): (CONVEX, "C-FedDA, M x batch"),
    },
}


def tables(page: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the heading and the cells of each table, numbered where a heading comes twice."""
    seen: dict[str, int] = {}
    for section in page.split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        seen[heading] = seen.get(heading, 0) + 1
        lines = [line for line in section.splitlines() if re.match(r"\| (?!-)", line)]
        rows = [[cell.strip() for cell in line[1:-1].split(" | ")] for line in lines]
        yield heading if seen[heading] == 1 else f"{heading} ({seen[heading]})", rows


def trials(rows: list[list[str]]) -> Iterator[tuple[str, dict[str, float], bool]]:
    """Yield the method, the constants and whether they are the best of every trial of a table."""
    head, *body = rows
    for row in body:
        if head[0] == "client, server":
            client, server = map(float, row[0].split(", "))
            for method, score in zip(head[1:], row[1:], strict=True):
                # A grid that grows has points that the others have not.
                if not score:
                    continue
                yield method, {"client": client, "server": server}, "**" in score
        else:
            pairs = (constant.rsplit(" ", 1) for constant in row[1].split(", "))
            yield row[0], {name: float(value) for name, value in pairs}, any("**" in cell for cell in row[2:])


def edges(page: str) -> set[tuple[str, str, str]]:
    """Return (heading, method, edge) of every best constant that is the smallest or the largest of its grid."""
    found = set()
    for heading, rows in tables(page):
        grids: dict[tuple[str, str], set[float]] = {}
        best = []
        for method, constants, bold in trials(rows):
            for name, value in constants.items():
                grids.setdefault((method, name), set()).add(value)
            best += [(method, constants)] * bold
        for method, constants in best:
            for name, value in constants.items():
                grid = grids[method, name]
                at_edge = {"only": len(grid) == 1, "smallest": value == min(grid), "largest": value == max(grid)}
                if side := next((side for side, true in at_edge.items() if true), ""):
                    found.add((heading, method, f"{side} {name} {value:g}"))
    return found


def test_every_page_of_rates_is_checked():
    assert {page.name for page in PAGES.glob("*rates.md")} == set(KNOWN)


@pytest.mark.parametrize("name", KNOWN)
def test_best_constants_are_inside_their_grids_or_at_a_known_edge(name):
    known = {
        (heading, method, edge)
        for (heading, edge), (_, methods) in KNOWN[name].items()
        for method in methods.split("; ")
    }
    found = edges((PAGES / name).read_text(encoding="utf-8"))
    assert not found - known, "best constants at an edge of their grid: widen the grid, or say why not in KNOWN"
    assert not known - found, "no longer at an edge: remove from KNOWN"


@pytest.mark.parametrize("name", KNOWN)
def test_every_method_of_a_table_has_a_best_constant(name):
    for _, rows in tables((PAGES / name).read_text(encoding="utf-8")):
        found = list(trials(rows))
        assert {method for method, _, _ in found} == {method for method, _, bold in found if bold}


def test_an_edge_is_found_and_the_inside_is_not():
    page = "\n## p\n\n| method | settings | error |\n|---|---|---|\n"
    page += "".join(f"| A | step {step}, lag 2 | {error} |\n" for step, error in ((1, "3"), (3, "**2**"), (10, "4")))
    assert edges(page) == {("p", "A", "only lag 2")}
    assert edges(page.replace("**2**", "2").replace("| 4 |", "| **1** |")) == {
        ("p", "A", "only lag 2"),
        ("p", "A", "largest step 10"),
    }
    pairs = (
        "\n## q\n\n| client, server | B |\n|---|---|\n| 1, 1 | 2 |\n| 1, 0.3 | **1** |\n| 1, 0.1 | 3 |\n| 3, 1 | 4 |\n"
    )
    assert edges(pairs) == {("q", "B", "smallest client 1")}
