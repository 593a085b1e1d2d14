"""The tables of docs/how-to/sparse.md: Zipf's documents by FedDualAvg, and pooled by liblinear and SGDClassifier.

    python benchmarks/pages/measure_text.py            a million words, 100 to 1,000 rounds (a minute)
    python benchmarks/pages/measure_text.py --quick    20,000 words, 30 rounds
    python benchmarks/pages/measure_text.py --robust   20,000 words, 20 clients, each rule of aggregation (a minute)

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
from documents import ZipfDocuments
from scipy import sparse
from sklearn.linear_model import LogisticRegression, SGDClassifier
from writing import federate, row_of, table_of

from flwr_fco import FedDualAvg
from flwr_fco.regularizers import L1
from flwr_fco.strategies import Epochs, Trimmed
from reproduction import pooled


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Federated and pooled l1 on documents")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--robust", action="store_true")
    robust = parser.parse_args().robust
    quick = parser.parse_args().quick or robust
    logging.getLogger("flwr").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    data = ZipfDocuments(20 if quick else 100, 100, 20_000 if quick else 1_000_000)
    clients = data.objectives()
    psi = L1(1e-4)
    start = clients[0].layout.unflatten(np.zeros(clients[0].layout.size))
    parts = [data.client(index) for index in range(data.num_clients)]
    features = sparse.vstack([part.features for part in parts], format="csr")
    labels = np.concatenate([part.targets for part in parts])
    test = data.test_examples()
    moved = features.data.nbytes + features.indices.nbytes + features.indptr.nbytes

    def row(name: str, w: Any, seconds: float, down: float, up: float) -> None:
        correct = float(np.mean((test.features @ w > 0.0) == (test.targets == 1)))
        objective = pooled.composite_objective(clients, None, psi, w)
        traffic = f"{down / 1e6:.0f} down, {up / 1e6:.0f} up" if down else f"{up / 1e6:.0f} up"
        numbers = (f"{objective:.4f}", np.count_nonzero(w), f"{correct:.3f}", f"{seconds:.1f}")
        print(row_of([name, *numbers, traffic]))

    print(table_of(["", "objective", "non-zeros", "test accuracy", "CPU s", "MB"], []))
    strength, count = psi.strength, labels.size
    l1: dict[str, Any] = {"penalty": "l1", "fit_intercept": False}
    inverse = 1.0 / (count * strength)
    models: dict[str, Any] = {
        "liblinear, l1, pooled": LogisticRegression(solver="liblinear", C=inverse, tol=1e-6, max_iter=1000, **l1)
    }
    for epochs in (20, 100):
        sgd = SGDClassifier("log_loss", alpha=strength, max_iter=epochs, tol=None, random_state=0, **l1)
        models[f"SGDClassifier, l1, {epochs} epochs, pooled"] = sgd
    for name, model in list(models.items())[: 1 if robust else None]:
        began = time.process_time()
        model.fit(features, labels)
        row(name, model.coef_[0], time.process_time() - began, 0.0, moved)
    runs: list[tuple[int, Any]] = [(30, "mean")] if quick else [(rounds, "mean") for rounds in (100, 300, 1000)]
    if robust:
        runs = [(100, rule) for rule in ("mean", Trimmed(0.2), "median", "geometric-median")]
    for rounds, rule in runs:
        strategy = FedDualAvg(
            regularizer=psi,
            client_lr=20.0,
            work=Epochs(1, batch_size=10),
            fraction_train=1.0 if robust else 0.1,
            fraction_evaluate=0.0,
            aggregation=rule,
            seed=0,
        )
        # A round first, so that nothing is compiled or loaded while the clock runs.
        federate(strategy, clients, 1, start)
        began = time.process_time()
        result = federate(strategy, clients, rounds, start)
        seconds = time.process_time() - began
        metrics = result.train_metrics_clientapp.values()
        down, up = (sum(own[name] for own in metrics) for name in ("bytes-down", "bytes-up"))
        who = rule if robust else f"10 of {len(clients)} clients"
        name = f"FedDualAvg, {who}, {rounds} rounds"
        row(name, result.arrays["coefficients"].numpy(), seconds, down, up)


if __name__ == "__main__":
    main()
