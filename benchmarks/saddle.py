"""A round of FeDualEx on the saddle-point problems, beside the bare products and draws that it consists of.

    python benchmarks/saddle.py [--quick]

'grid' is a round in the in-process grid: messages, checks, generators, proximal maps, products, the server. 'bare' are
the products of the same sizes by NumPy's BLAS with the same random numbers, one after the other, and nothing else.
Bilinear l1 is the paper's: 100 clients, K = 10, 600 against 300, that is 4,000 products of a matrix with a vector and
1.8 million normal numbers. Of the adversarial objective 'bare' also gathers the minibatch's rows and draws the order of
an epoch. With nuclear norms a proximal map is a singular value decomposition of each player, which is neither a product
nor a draw: the line 'with SVD' takes them into 'bare' and is held against the bar, the line without them is for the
record. So are the adversarial lines: that objective is the experiments' own, in NumPy, and its queries take longer than
the bare products.

Times are this thread's on its core, medians over rounds that alternate: a busy machine disturbs both alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from shared import federate, options_of
from threadpoolctl import threadpool_limits

from flwr_fco.mirror_maps import Product, SimplexEntropy
from flwr_fco.objectives import Objective
from flwr_fco.regularizers import L1, Nuclear, PerParameter
from flwr_fco.strategies import Arrays, FeDualEx, Steps
from reproduction.data.saddle import SyntheticSaddle
from reproduction.data.saddle_objectives import UniversalAdversarialLogistic

BAR = 1.5


def compare(
    title: str,
    objectives: list[Objective],
    bare: Callable[[], object],
    rounds: int,
    steps: int,
    start: dict[str, np.ndarray],
    judged: bool = True,
    batch: int | None = 32,
    **options: object,
) -> None:
    """Print milliseconds of a round in the grid and of the bare work, their ratio, and whether it is within the bar."""
    grid, alone = [], []
    since = time.thread_time()

    def between(*_: object) -> None:
        nonlocal since
        grid.append(time.thread_time() - since)
        since = time.thread_time()
        bare()
        alone.append(time.thread_time() - since)
        since = time.thread_time()

    work = Steps(steps, batch_size=batch)
    strategy = FeDualEx(client_lr=1e-3, work=work, fraction_evaluate=0.0, **options)  # type: ignore[arg-type]
    bare()
    federate(strategy, objectives, rounds + 1, start, callbacks=[between])
    # The first round compiles kernels or loads them.
    ours, theirs = 1e3 * np.median(grid[1:]), 1e3 * np.median(alone[1:])
    verdict = ("yes" if ours <= BAR * theirs else "no") if judged else "-"
    print(f"{title:48s} {ours:9.1f} {theirs:9.1f} {ours / theirs:6.2f}   {verdict}")


def products(matrix: np.ndarray, x: np.ndarray, y: np.ndarray, queries: int) -> Callable[[], object]:
    """Return what makes both products and a draw of noise for each query."""
    rng = np.random.default_rng(0)
    size = x.size + y.size

    def bare() -> None:
        for _ in range(queries):
            matrix @ x
            matrix.T @ y
            rng.standard_normal(size)

    return bare


def with_decompositions(bare: Callable[[], object], x: np.ndarray, y: np.ndarray, queries: int) -> Callable[[], object]:
    """Return the bare work with the decompositions of both players' matrices for each query."""

    def both() -> None:
        bare()
        for _ in range(queries):
            for player in (x, y):
                left, values, right = np.linalg.svd(player, full_matrices=False)
                (left * values) @ right

    return both


def gathered(features: np.ndarray, batch: int, classes: int, queries: int, per_client: int) -> Callable[[], object]:
    """Return what draws an order for each client, and gathers a batch and makes both products for each query."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, len(features), batch) for _ in range(queries)]
    weights = rng.standard_normal((features.shape[1], classes))
    slopes = rng.standard_normal((batch, classes))

    def bare() -> None:
        for number, own in enumerate(rows):
            if number % per_client == 0 and batch < len(features):
                rng.permutation(len(features))
            block = features[own].astype(np.float64)
            block @ weights
            block.T @ slopes

    return bare


def main() -> None:
    """Print the table."""
    quick = options_of(__doc__, "few rounds and clients, for continuous integration").quick
    rounds, clients = (3, 4) if quick else (9, 100)
    rng = np.random.default_rng(0)
    box = PerParameter({"x": L1(0.1, bound=0.05), "y": L1(0.1, bound=0.05)})
    print(f"{clients} clients, one BLAS thread, medians of {rounds} rounds; the bar is {BAR}")
    print(f"{'milliseconds of a core per round':48s} {'grid':>9s} {'bare':>9s} {'ratio':>6s}   within the bar")
    with threadpool_limits(1, user_api="blas"):
        data = SyntheticSaddle("sparse", clients)
        bare = products(data.matrix, rng.standard_normal(600), rng.standard_normal(300), 20 * clients)
        noisy = {"batch": 1}
        compare("bilinear l1, K = 10", data.objectives(), bare, rounds, 10, data.start(), regularizer=box, **noisy)
        game = SyntheticSaddle("game", clients)
        maps = Product({"x": SimplexEntropy(), "y": SimplexEntropy()})
        compare(
            "matrix game, entropy, K = 10", game.objectives(), bare, rounds, 10, game.start(), mirror_map=maps, **noisy
        )
        few = max(2, clients // 10)
        low_rank = SyntheticSaddle("low-rank", few)
        start = low_rank.start()
        x, y = start["x"], start["y"]
        spectral = PerParameter({"x": Nuclear(0.1, bound=0.05), "y": Nuclear(0.1, bound=0.05)})
        plain = products(low_rank.matrix, x, y, 20 * few)
        for title, work in (("", plain), (" with SVD", with_decompositions(plain, x, y, 20 * few))):
            about = f"bilinear nuclear{title}, K = 10, {few} clients"
            judged = work is not plain
            compare(about, low_rank.objectives(), work, 3, 10, start, judged, regularizer=spectral, **noisy)
        images = rng.random((600, 784)).astype(np.float32)
        labels = np.arange(600) % 10
        adversarial: list[Objective] = [UniversalAdversarialLogistic(images, labels, intercept=False)] * clients
        zeros = {"coefficients": np.zeros((784, 10)), "perturbation": np.zeros(784)}
        attack = {
            "regularizer": PerParameter({"perturbation": L1(0.1, bound=0.05)}),
            "arrays": Arrays(apply_to=("coefficients", "perturbation")),
        }
        for batch in (32, 600):
            work = gathered(images, batch, 10, 10 * clients, 10)
            size = batch if batch < 600 else None
            about = f"adversarial 784 x 10, K = 5, batches of {batch}"
            compare(about, adversarial, work, rounds, 5, zeros, False, batch=size, **attack)


if __name__ == "__main__":
    main()
