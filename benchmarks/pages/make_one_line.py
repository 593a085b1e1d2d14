"""Write the table under the one-line diff of README.md: what `density=` and short messages do to a network on MNIST.

    python benchmarks/pages/make_one_line.py FOLDER    three seeds, three minutes of a core; FOLDER holds mnist/

A network of two convolutions and 44,426 weights, five clients with 400 images each, 24 rounds of one epoch with SGD;
benchmarks/density.py has data, network and training, and other networks. Needs PyTorch.
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import torch
from density import Task, fed_avg, fed_dual_avg, mask_of
from writing import DOCS, markers, replaced, table_of, write_file

from flwr_fco.strategies import Short, Wire

ROUNDS = 24
DENSITY = 0.1
SEEDS = (0, 1, 2)
PAGE = DOCS.parent / "README.md"


def row(folder: Path, seed: int) -> list[tuple[float, float, float]]:
    """Return accuracy, share of weights that are not 0 and share of FedAvg's bytes of each way, for a seed."""
    task = Task("mnist small", "sgd", seed, folder)
    dense = fed_avg(task, ROUNDS)
    cuts = (dense * mask_of(task, dense, DENSITY, how) for how in ("global", "layers"))
    found = [(task.accuracy(dense), 1.0, 1.0), (max(map(task.accuracy, cuts)), DENSITY, 1.0)]
    for wire in (Wire(), Short()):
        w = fed_dual_avg(task, ROUNDS, DENSITY, wire=wire)
        share = float(np.mean(w[task.pruned] != 0.0))
        found.append((task.accuracy(w), share, task.bytes / (8.0 * ROUNDS * w.size)))
    return found


def main() -> None:
    torch.set_num_threads(1)
    means = np.mean([row(Path(sys.argv[1]), seed) for seed in SEEDS], axis=0)
    names = (
        "FedAvg",
        "FedAvg, pruned afterwards",
        "this line",
        "this line, and [short messages](docs/how-to/short-messages.md)",
    )
    rows = [
        [name, f"{accuracy:.3f}", f"{100 * share:.0f} %", "as FedAvg" if part > 0.99 else f"1/{1 / part:.1f}"]
        for name, (accuracy, share, part) in zip(names, means, strict=True)
    ]
    text = table_of(("MNIST, 5 clients, 24 rounds", "accuracy", "weights that are not 0", "bytes, both ways"), rows)
    page = PAGE.read_text(encoding="utf-8")
    write_file(PAGE, replaced(page, markers("one line", "make_one_line.py"), text))


if __name__ == "__main__":
    main()
