"""The table of docs/how-to/sparse.md: the problem `text` by FedDualAvg, and pooled by liblinear and SGDClassifier.

    python docs/measure_text.py            a million words, 300 rounds (half a minute)
    python docs/measure_text.py --quick    20,000 words, 30 rounds

Objective: the mean logistic loss of all clients' documents plus strength times the l1 norm. CPU seconds of training
alone. Bytes: of the pooled methods what the clients' documents take as CSR with 32-bit columns, which would have to
travel once; of FedDualAvg what its messages hold in both directions.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, SGDClassifier

from flwr_fco import FedDualAvg, pooled
from flwr_fco.client_apps import client_app
from flwr_fco.datasets.base import together
from flwr_fco.simulation import simulate, warmup
from flwr_fco.strategies import Epochs
from reproduction.problems.named import load_task


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Federated and pooled l1 on documents")
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    logging.getLogger("flwr").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    task = load_task("text", options={"num-features": 20_000, "num-clients": 20} if quick else {})
    clients, psi = task.clients, task.regularizer
    features, labels = together(task.dataset.client(index) for index in range(task.dataset.num_clients))
    test = task.dataset.test_examples()
    moved = features.data.nbytes + features.indices.nbytes + features.indptr.nbytes

    def row(name: str, w: Any, seconds: float, down: float, up: float) -> None:
        correct = float(np.mean((test.features @ w > 0.0) == (test.targets == 1)))
        objective = pooled.composite_objective(clients, None, psi, w)
        traffic = f"{down / 1e6:.0f} down, {up / 1e6:.0f} up" if down else f"{up / 1e6:.0f} up"
        print(f"| {name} | {objective:.4f} | {np.count_nonzero(w)} | {correct:.3f} | {seconds:.1f} | {traffic} |")

    print("| | objective | non-zeros | test accuracy | CPU s | MB |\n|---|---|---|---|---|---|")
    strength, count = psi.strength, labels.size
    models = {
        "liblinear, l1, pooled": LogisticRegression(
            penalty="l1", solver="liblinear", C=1.0 / (count * strength), fit_intercept=False, tol=1e-6, max_iter=1000
        ),
        "SGDClassifier, l1, 20 epochs, pooled": SGDClassifier(
            "log_loss", penalty="l1", alpha=strength, fit_intercept=False, max_iter=20, tol=None, random_state=0
        ),
        "SGDClassifier, l1, 100 epochs, pooled": SGDClassifier(
            "log_loss", penalty="l1", alpha=strength, fit_intercept=False, max_iter=100, tol=None, random_state=0
        ),
    }
    for name, model in models.items():
        start = time.process_time()
        model.fit(features, labels)
        row(name, model.coef_[0], time.process_time() - start, 0.0, moved)
    warmup()
    for rounds in (30,) if quick else (100, 300, 1000):
        strategy = FedDualAvg(
            regularizer=psi,
            client_lr=20.0,
            work=Epochs(1, batch_size=10),
            fraction_train=0.1,
            fraction_evaluate=0.0,
            seed=0,
        )
        start = time.process_time()
        result = simulate(
            strategy,
            client_app(lambda context: clients[context.node_config["partition-id"]]),
            num_nodes=len(clients),
            num_rounds=rounds,
            initial_arrays=task.initial_arrays(),
            progress=False,
        )
        seconds = time.process_time() - start
        metrics = result.train_metrics_clientapp.values()
        down, up = (sum(own[name] for own in metrics) for name in ("bytes-down", "bytes-up"))
        name = f"FedDualAvg, 10 of {len(clients)} clients, {rounds} rounds"
        row(name, result.arrays["coefficients"].numpy(), seconds, down, up)


if __name__ == "__main__":
    main()
