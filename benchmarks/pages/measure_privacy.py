"""The numbers of docs/benchmarks/privacy.md: LASSO, each client in one of 256 rounds, three noises at one epsilon.

``python benchmarks/pages/measure_privacy.py`` takes some minutes of one core.
"""

import argparse
import statistics

import numpy as np
from writing import federate, partition, row_of, table_of

from flwr_fco import L1, FedDualAvg, GaussianDP, LeastSquares
from flwr_fco.strategies import Steps

SIZE = 512
NONZERO = 16
ROUNDS = 256
PER_ROUND = 20
EXAMPLES = 10
DELTA = 1e-4
KINDS = {
    "no noise": {"noise": "banded", "noise_multiplier": 0.0},
    "banded": {"noise": "banded"},
    "independent, the same blocks": {"noise": "banded", "bands": 1},
    "independent, Poisson sampling": {"noise": "independent"},
}


def run(seed: int, kind: str, epsilon: float, clip: float, strength: float, client_lr: float) -> tuple[float, float]:
    """Return F1 of the support and density."""
    truth = np.zeros(SIZE)
    rng = np.random.default_rng([seed, 0])
    truth[rng.choice(SIZE, NONZERO, replace=False)] = rng.choice([-1.0, 1.0], NONZERO)

    def load(context):
        own = np.random.default_rng([seed, 1, partition(context)])
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
    result = federate(strategy, load, ROUNDS, {"coefficients": np.zeros(SIZE)}, nodes=ROUNDS * PER_ROUND)
    found = result.arrays["coefficients"].numpy() != 0.0
    wanted = truth != 0.0
    return 2.0 * np.sum(found & wanted) / max(1, found.sum() + wanted.sum()), float(found.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2.0, 8.0])
    parser.add_argument("--clip", type=float, default=10.0, help="of a gradient")
    parser.add_argument("--strength", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.4])
    parser.add_argument("--client-lr", type=float, default=0.05)
    given = parser.parse_args()
    print(table_of(["epsilon", "noise", "strength", "F1 of the support", "density"], []))
    for epsilon in given.epsilon:
        for kind in KINDS:
            tried = []
            for strength in given.strength:
                rows = [run(seed, kind, epsilon, given.clip, strength, given.client_lr) for seed in range(given.seeds)]
                tried.append((strength, *zip(*rows, strict=True)))
            strength, *found = max(tried, key=lambda own: statistics.median(own[1]))
            spans = [
                f"{statistics.median(own):{how}} ({min(own):{how}} to {max(own):{how}})"
                for own, how in zip(found, (".2f", ".1%"), strict=True)
            ]
            print(row_of([f"{epsilon:g}", kind, f"{strength:g}", *spans]), flush=True)


if __name__ == "__main__":
    main()
