"""How strategies hold up under faults and liars: the tables of docs/benchmarks/faults.md and robustness.md.

python benchmarks/faults.py            every strategy under faults, 200 rounds each: some four minutes of one core
python benchmarks/faults.py FedDAGT    these only; the page stays as it is
python benchmarks/faults.py rivals     those of reproduction/rivals; the table of docs/reproduction/rivals.md
python benchmarks/faults.py liar       one liar of ten in every round, or two that collude: some two minutes of one
                                       core; `liar rivals` too
python benchmarks/faults.py --quick    one strategy, 40 rounds
"""

import sys
import warnings
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord

from flwr_fco.core.computing import quiet, single_threaded_blas
from flwr_fco.models import read_text, write_file
from flwr_fco.strategies import STRATEGIES, Trimmed

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS.parent / "tests" / "support"))

from fault_bars import KINDS, REMEMBER, ROUNDS, app_of, hold_the_bar, make, problem_of  # noqa: E402
from faults import FaultyGrid, altered  # noqa: E402

PAGE = DOCS / "benchmarks" / "faults.md"
RIVALS_PAGE = DOCS / "reproduction" / "rivals.md"


def table(names, rounds=ROUNDS):
    """Return the table in Markdown, and how many cells hold."""
    lines = ["| strategy | " + " | ".join(KINDS) + " | largest imbalance |", "|---" * (len(KINDS) + 2) + "|"]
    held = 0
    for name in names:
        cells = []
        worst = 0.0
        for kind in KINDS:
            try:
                error, without, imbalanced, _ = hold_the_bar(name, kind, rounds)
            except AssertionError as failure:
                cells.append(f"does not hold: {failure}")
                continue
            held = held + 1
            worst = max(worst, imbalanced)
            remembers = kind == "one altered reply" and name in REMEMBER
            numbers = dict.fromkeys((f"{error:.1e}", f"{without:.1e}"))
            cells.append(", ".join(numbers) + (" (remembers)" if remembers else ""))
        lines.append(f"| `{name}` | " + " | ".join(cells) + f" | {worst:.0e} |")
        print(lines[-1], flush=True)
    return "\n".join(lines), held


# --- one liar in every round ------------------------------------------------------------------------------------------


def persistent(kind):
    """Return a fault that lies in the same way in every round, from round 1 on."""
    kept = {}

    def fault(delivery):
        number = delivery.message.metadata.group_id
        partition = delivery.context.node_config["partition-id"]

        def change(arrays, metrics):
            if number == "0":
                return
            for name, value in arrays.items():
                if value.dtype.kind != "f" or value.size == 0:
                    continue
                if kind == "replay":
                    arrays[name] = kept.setdefault((partition, name), value) if int(number) >= 10 else value
                elif kind in ("sign flip", "10 times"):
                    arrays[name] = value * (-1.0 if kind == "sign flip" else 10.0)
                else:
                    # The same direction in every round; two that collude have the same one.
                    seed = 7 if kind == "collusion" else partition
                    direction = np.random.default_rng(seed).standard_normal(value.size)
                    length = float(np.linalg.norm(value)) / float(np.linalg.norm(direction))
                    arrays[name] = (3.0 if kind == "collusion" else 1.0) * length * direction

        return [altered(delivery.message, delivery.deliver(), change)]

    fault.__name__ = kind
    return fault


LIES = ("none", "sign flip", "10 times", "replay", "random direction", "collusion")
ROBUST = {"mean": "mean", "trimmed": Trimmed(), "median": "median", "geometric-median": "geometric-median"}
#: The page shows one method of each kind of server step, two of them with robust centres.
UNDER_LIARS = ("DFedDAGT", "DualFL", "FeDualEx", "FedDAGT", "FedDR", "FedDualAvg", "FedMid", "LocalSGD", "Scaffold")
WITH_CENTRES = ("FedDualAvg", "FeDualEx")
OTHER_PAGE = DOCS / "benchmarks" / "robustness.md"


def under_a_liar(name, kind, aggregation):
    """Return the error after 200 rounds of ten clients of whom one lies, or two that collude; a word where it ends."""
    problem = problem_of(name, 10)
    layout = problem.objectives[0].layout
    liars = [] if kind == "none" else [4, 7] if kind == "collusion" else [4]
    grid = FaultyGrid(app_of(problem.objectives), 10, {persistent(kind): 1.0}, partitions=liars)
    strategy = make(name, aggregation=ROBUST[aggregation])
    start = ArrayRecord({n: Array(a) for n, a in layout.unflatten(np.zeros(layout.size)).items()})
    try:
        with grid.identity(), quiet(50), single_threaded_blas():
            result = strategy.start(grid, start, ROUNDS)
    except Exception as error:  # a run that ends is what the table shows
        return type(error).__name__
    w = layout.flatten({key: array.numpy() for key, array in result.arrays.items()})
    assert np.isfinite(w).all(), f"{name}, {kind}, {aggregation}"
    return f"{np.abs(w - problem.optimum).max():.0e}"


def liars(names):
    """Return the table of persistent liars in Markdown."""
    lines = ["| strategy | aggregation | " + " | ".join(LIES) + " |", "|---" * (len(LIES) + 2) + "|"]
    for name in names:
        for aggregation in ROBUST:
            if aggregation != "mean" and name not in WITH_CENTRES:
                continue
            cells = [under_a_liar(name, kind, aggregation) for kind in LIES]
            lines.append(f"| `{name}` | {aggregation} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    return "\n".join(lines)


def written(page, kind, command, text):
    """Put a table between its markers on a page."""
    begin = f"<!-- {kind}: begin ({command}) -->"
    end = f"<!-- {kind}: end -->"
    before, rest = read_text(page).split(begin)
    write_file(page, f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}")


def main():
    # Of models that are not of all clients, some for each run: who is left out is what is measured.
    warnings.simplefilter("ignore", UserWarning)
    quick = sys.argv[1:] == ["--quick"]
    words = ["FedDualAvg"] if quick else sys.argv[1:]
    liar = words[:1] == ["liar"]
    names = words[liar:]
    pages = (None, None)
    if not names:
        # FedNewton is done before the altered reply, and each number of its own is checked.
        names = [name for name in STRATEGIES if name != "FedNewton"]
        pages = (PAGE, OTHER_PAGE)
        names = UNDER_LIARS if liar else names
    elif names == ["rivals"]:
        from reproduction.rivals import RIVALS

        names = list(RIVALS)
        pages = (RIVALS_PAGE, RIVALS_PAGE)
    if liar:
        kind = "liars"
        command = "python benchmarks/faults.py liar"
        text = liars(names)
    else:
        kind, command, (text, held) = "bars", "python benchmarks/faults.py", table(names, 40 if quick else ROUNDS)
        text += f"\n\n{held} of {len(names) * len(KINDS)} hold."
    if pages[liar] is not None:
        written(pages[liar], kind, command, text)


if __name__ == "__main__":
    main()
