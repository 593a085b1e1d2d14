"""Time of the proximal maps, beside pyproximal, plain NumPy and np.copyto.

    python benchmarks/prox.py            sizes 1e3, 1e5, 1e7 and matrices up to 1000 x 1000 (a few minutes)
    python benchmarks/prox.py --quick    small sizes (seconds)

One thread, kernels warmed up, medians. Vectors are float64 unless the row says float32; `out` is allocated beforehand
where an implementation takes one. Compare ratios: 'x copy' is the time over that of np.copyto of the same array.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from shared import options_of
from threadpoolctl import threadpool_limits

from flwr_fco.regularizers import (
    L1,
    L2,
    Box,
    ElasticNet,
    GroupLasso,
    HardSparsity,
    L1Ball,
    L2Ball,
    L2Squared,
    NonNegative,
    Nuclear,
    NuclearBall,
    Regularizer,
    Simplex,
    SpectralBall,
)

try:
    import pyproximal
except ImportError:
    pyproximal = None

Call = Callable[[], Any]


def median_time(call: Call, budget: float) -> float:
    """Return the median time of a call in seconds: at least 5 calls, then what the budget allows (at most 200)."""
    call()
    times: list[float] = []
    started = time.perf_counter()
    while len(times) < 5 or (len(times) < 200 and time.perf_counter() - started < budget):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def soft_numpy(v, threshold):
    return np.sign(v) * np.maximum(np.abs(v) - threshold, 0.0)


def simplex_numpy(v, radius):
    ordered = np.sort(v)[::-1]
    excess = np.cumsum(ordered) - radius
    last = np.flatnonzero(ordered * np.arange(1, v.size + 1) > excess)[-1]
    return np.maximum(v - excess[last] / (last + 1), 0.0)


def ball_numpy(v, radius):
    return np.sign(v) * simplex_numpy(np.abs(v), radius)


def singular_numpy(v, threshold):
    left, values, right = np.linalg.svd(v, full_matrices=False)
    return (left * np.maximum(values - threshold, 0.0)) @ right


def theirs(name: str, *arguments: Any, **options: Any) -> Callable[[Any], Any]:
    """Return what makes pyproximal's operator, which need not be installed."""
    return lambda package: getattr(package, name)(*arguments, **options)


def foreign(make: Callable[[Any], Any], v) -> Call | None:
    """Return a call of pyproximal's operator on the vector, None without pyproximal."""
    return None if pyproximal is None else partial(make(pyproximal).prox, v.reshape(-1), 1.0)


def vector_rows(n: int, v):
    """Yield (name, regularizer, NumPy's way or None, pyproximal's operator or None, target ratio or None)."""
    weights = np.abs(np.random.default_rng(1).normal(size=n))
    one_norm = float(np.abs(v).sum())
    radius = float(np.linalg.norm(v)) / 2
    scaled = 0.7 * weights
    few = n <= 100_000
    yield "l1", L1(0.7), lambda: soft_numpy(v, 0.7), theirs("L1", sigma=0.7), 1.5
    yield "l1 in a box", L1(0.7, bound=1.0), lambda: np.clip(soft_numpy(v, 0.7), -1, 1), None, 1.5
    yield "l1 weighted", L1(0.7, weights=weights), lambda: soft_numpy(v, 0.7 * weights), theirs("L1", scaled), 2.2
    yield "l2 squared", L2Squared(0.7), lambda: v / 1.7, theirs("L2", sigma=0.7), 1.5
    yield "elastic net", ElasticNet(0.7), lambda: soft_numpy(v, 0.35) / 1.35, None, 1.5
    yield "box", Box(-1.0, 0.5), lambda: np.clip(v, -1.0, 0.5), theirs("Box", -1.0, 0.5), 1.5
    yield "non-negative", NonNegative(), lambda: np.maximum(v, 0.0), theirs("Box", lower=0.0), 1.5
    yield "l2", L2(0.7), lambda: v * max(1 - 0.7 / np.linalg.norm(v), 0), theirs("Euclidean", sigma=0.7), None
    ball = theirs("EuclideanBall", 0.0, radius)
    yield "l2 ball", L2Ball(radius), lambda: v * (radius / np.linalg.norm(v)), ball, None
    for share in (0.001, 0.1, 0.5):
        name = f"l1 ball, radius {share:g} ||v||_1"
        own = share * one_norm
        yield name, L1Ball(own), partial(ball_numpy, v, own), theirs("L1Ball", n, own) if few else None, 5.0
    yield "l1 ball, v inside", L1Ball(2 * one_norm), lambda: ball_numpy(v, one_norm / 2), None, 5.0
    for own in (1.0, 0.1 * one_norm):
        name = f"simplex, radius {own:.3g}"
        other = theirs("Simplex", n, own) if few else None
        yield name, Simplex(own), partial(simplex_numpy, v, own), other, 5.0
    yield "l1 ball weighted", L1Ball(0.1 * one_norm, weights=weights), None, None, None
    yield "group lasso, groups of 10", GroupLasso(0.3, groups=np.arange(n) // 10), None, None, None
    yield "hard sparsity, 1 %", HardSparsity(max(1, n // 100)), None, theirs("L0Ball", max(1, n // 100)), None


def low_rank(m: int, n: int, rank: int):
    rng = np.random.default_rng(2)
    noise = 0.02 * rng.normal(size=(m, n))
    return noise + rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n)) / np.sqrt(m)


def matrix_rows(m: int, n: int):
    """Yield (name, matrix, regularizer, NumPy's way, pyproximal's operator)."""
    v = low_rank(m, n, 5)
    values = np.linalg.svd(v, compute_uv=False)
    middle = 0.5 * (values[4] + values[5])
    for label, threshold in {
        "rank 5": middle,
        "half the rank": np.median(values),
        "full rank, tiny step": 1e-9,
    }.items():
        numpys = partial(singular_numpy, v, threshold)
        other = theirs("Nuclear", (m, n), threshold)
        yield f"nuclear, {label}", v, Nuclear(float(threshold)), numpys, other
    radius = 0.5 * float(values.sum())
    yield "nuclear ball", v, NuclearBall(radius), None, theirs("NuclearBall", (m, n), radius)
    yield "spectral ball", v, SpectralBall(0.5 * values[0]), None, None


HEADER = (
    f"{'':34s} {'ours ms':>10s} {'x copy':>9s} {'target':>10s} {'NumPy':>9s} {'pyprox.':>9s}  (their time over ours)"
)


def measure(regularizer: Regularizer, v, numpy_way, other, target, name: str, budget: float) -> str:
    out = np.empty_like(v)
    # The copy is timed beside each row, to the same memory: pages and neighbours change within one run.
    copies = [median_time(lambda: np.copyto(out, v), budget / 4)]
    ours = median_time(lambda: regularizer.prox(v, 1.0, out), budget)
    copies.append(median_time(lambda: np.copyto(out, v), budget / 4))
    call = foreign(other, v) if other is not None else None
    plain, theirs = (None if way is None else median_time(way, budget) for way in (numpy_way, call))
    ratio = ours / min(copies)
    verdict = "" if target is None else ("ok" if ratio <= target else "OVER") + f" ({target:g})"
    numpy_text, other_text = ("       - " if each is None else f"{each / ours:8.1f}x" for each in (plain, theirs))
    slower = "" if theirs is None or theirs >= ours else f"slower than pyproximal {ours / theirs:.1f}x"
    return f"{name:34s} {1e3 * ours:10.4f} {ratio:9.2f} {verdict:>10s} {numpy_text} {other_text}  {slower}"


def main() -> None:
    quick = options_of(__doc__, "small sizes, seconds").quick
    sizes = (1_000, 100_000) if quick else (1_000, 100_000, 10_000_000)
    shapes = ((32, 32), (80, 40)) if quick else ((32, 32), (200, 200), (600, 20), (1000, 1000))
    budget = 0.002 if quick else 0.5
    print(
        f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}, "
        f"pyproximal {getattr(pyproximal, '__version__', 'not installed')}"
    )
    with threadpool_limits(1):
        for n in sizes:
            v = np.random.default_rng(0).normal(size=n)
            print(f"\nn = {n:,}\n{HEADER}")
            for name, regularizer, numpy_way, other, goal in vector_rows(n, v):
                # At 1e3 the call itself is most of the time; projections are held to their target at 1e7.
                goal = goal if goal is not None and n >= (100_000 if goal < 5 else 10_000_000) else None
                print(measure(regularizer, v, numpy_way, other, goal, name, budget), flush=True)
            single = v.astype(np.float32)
            goal = 1.5 if n >= 100_000 else None
            print(measure(L1(0.7), single, None, None, goal, "l1, float32", budget))
            radius = 0.1 * float(np.abs(v).sum())
            print(measure(L1Ball(radius), single, None, None, None, "l1 ball, float32", budget), flush=True)
        for m, n in shapes:
            print(f"\n{m} x {n}\n{HEADER}")
            for name, v, regularizer, numpy_way, other in matrix_rows(m, n):
                print(measure(regularizer, v, numpy_way, other, None, name, budget), flush=True)


if __name__ == "__main__":
    main()
