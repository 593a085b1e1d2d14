"""The numbers of docs/benchmarks/privacy.md: LASSO, each client in one of 256 rounds, four noises at one epsilon.

``python docs/measure_privacy.py`` takes some minutes of one core.
"""

import argparse
import statistics

import numpy as np

from flwr_fco import L1, FedDualAvg, GaussianDP, LeastSquares, client_app, simulate
from flwr_fco.strategies import Steps

SIZE, NONZERO, ROUNDS, PER_ROUND, EXAMPLES = 512, 16, 256, 20, 10
DELTA = 1e-4
KINDS = {
    "no noise": {"noise": "banded", "noise_multiplier": 0.0},
    "banded": {"noise": "banded"},
    "tree": {"noise": "tree"},
    "independent, the same blocks": {"noise": "banded", "bands": 1},
    "independent, Poisson sampling": {"noise": "independent"},
}


def run(seed: int, kind: str, epsilon: float, clip: float, strength: float, client_lr: float) -> tuple[float, float]:
    """Return F1 of the support and density."""
    truth = np.zeros(SIZE)
    rng = np.random.default_rng([seed, 0])
    truth[rng.choice(SIZE, NONZERO, replace=False)] = rng.choice([-1.0, 1.0], NONZERO)

    def load(context):
        own = np.random.default_rng([seed, 1, int(context.node_config["partition-id"])])
        features = own.standard_normal((EXAMPLES, SIZE))
        return LeastSquares(features, features @ truth + 0.5 * own.standard_normal(EXAMPLES), intercept=False)

    chosen = dict(KINDS[kind])
    if "noise_multiplier" not in chosen:
        chosen["target_epsilon"] = epsilon
    strategy = FedDualAvg(
        fraction_train=1.0 / ROUNDS,
        min_train_nodes=1,
        fraction_evaluate=0.0,
        regularizer=L1(strength),
        client_lr=client_lr,
        work=Steps(1, batch_size=None),
        weighting="uniform",
        normalize_local_work=False,
        seed=seed,
        privacy=GaussianDP(clip=clip * client_lr, delta=DELTA, **chosen),
    )
    result = simulate(
        strategy,
        client_app(load),
        num_nodes=ROUNDS * PER_ROUND,
        num_rounds=ROUNDS,
        initial_arrays={"coefficients": np.zeros(SIZE)},
        progress=False,
    )
    found, wanted = result.arrays["coefficients"].numpy() != 0.0, truth != 0.0
    return 2.0 * np.sum(found & wanted) / max(1, found.sum() + wanted.sum()), float(found.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--clip", type=float, default=10.0, help="of a gradient")
    parser.add_argument("--strength", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.4])
    parser.add_argument("--client-lr", type=float, default=0.05)
    given = parser.parse_args()
    print("| epsilon | noise | strength | F1 of the support | density |")
    print("|---|---|---|---|---|")
    for epsilon in given.epsilon:
        for kind in KINDS:
            best = None
            for strength in given.strength:
                rows = [run(seed, kind, epsilon, given.clip, strength, given.client_lr) for seed in range(given.seeds)]
                score = statistics.median(f1 for f1, _ in rows)
                if best is None or score > best[0]:
                    best = score, strength, rows
            score, strength, rows = best
            f1, density = zip(*rows, strict=True)
            print(
                f"| {epsilon:g} | {kind} | {strength:g} | {score:.2f} ({min(f1):.2f} to {max(f1):.2f}) "
                f"| {statistics.median(density):.1%} ({min(density):.1%} to {max(density):.1%}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
