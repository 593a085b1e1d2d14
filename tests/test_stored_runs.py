"""Runs of every method and option whose results are stored: a change that means to keep results keeps these.

    python tests/test_stored_runs.py FILE     run all of them and store what they give

Compared are models, to 1e-11 of their largest entry with the same exact zeros, and which replies were left out.
"""

import json
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from adversarial_clients import in_messages
from problems import app_of, foreign_app, numpy_of, simulated

from flwr_fco import strategies
from flwr_fco.mirror_maps import PNorm
from flwr_fco.objectives import LeastSquares, Logistic, MultinomialLogistic
from flwr_fco.privacy import GaussianDP
from flwr_fco.regularizers import L1, L1Ball, Nuclear
from flwr_fco.strategies import DualFL, Epochs, FedDAGT, FedDR, FedDualAvg, FedMid, Scaffold, Steps, Wire

STORED = Path(__file__).parent / "stored_runs"
NODES, D, SPARSE_D = 8, 12, 400
ROWS = (20, 30, 25, 40, 16, 33, 28, 22)


def tables():
    """Regressions of unequal sizes with four coefficients."""
    rng = np.random.default_rng(0)
    truth = np.where(np.arange(D) < 4, rng.normal(size=D), 0.0)
    found = []
    for rows in ROWS:
        features = rng.normal(size=(rows, D))
        found.append((features, features @ truth + 0.1 * rng.normal(size=rows)))
    return found


def sparse_tables():
    """Regressions on rows with four entries of 400."""
    rng = np.random.default_rng(1)
    found = []
    for rows in ROWS:
        columns = np.concatenate([np.sort(rng.choice(SPARSE_D, 4, replace=False)) for _ in range(rows)])
        shape = (rows, SPARSE_D)
        features = sp.csr_array((rng.random(4 * rows), columns, np.arange(0, 4 * rows + 1, 4)), shape=shape)
        found.append((features, features.sum(axis=1) + 0.1 * rng.normal(size=rows)))
    return found


TABLES = tables()
OBJECTIVES = {
    "dense": [LeastSquares(x, y) for x, y in TABLES],
    "logistic": [Logistic(x, (y > 0).astype(int)) for x, y in TABLES],
    "classes": [MultinomialLogistic(x, np.argmax(x[:, :3], axis=1)) for x, _ in TABLES],
    "sparse": [LeastSquares(x, y) for x, y in sparse_tables()],
}


def start_of(width=D, outputs=(), dtype=np.float64, value=0.0):
    """Arrays to start from."""
    return {"coefficients": np.full((width, *outputs), value, dtype), "intercept": np.full(outputs or 1, value, dtype)}


def passing(message, context, run):
    """A mod that changes nothing: with it, real messages travel."""
    return run(message, context)


def losing(when):
    """Return a mod that loses replies after the client has computed them: those where ``when(round, partition)``."""

    def mod(message, context, run):
        reply = run(message, context)
        where = int(message.metadata.group_id), int(context.node_config["partition-id"])
        if message.metadata.message_type == "train" and when(*where):
            raise RuntimeError("lost")
        return reply

    return mod


lossy = losing(lambda number, partition: (7 * number + 3 * partition) % 5 == 0)
gone = losing(lambda number, partition: partition == 3 and number >= 4)


def flaky():
    """Lose some replies once each: the client that is asked again has computed already."""
    seen = set()

    def first(*where):
        new = sum(where) % 4 == 0 and where not in seen
        seen.add(where)
        return new

    return losing(first)


def in_turn(number, ids):
    return ids[number % 3 : number % 3 + 3]


def nan_of_one(number, arrays, metrics):
    arrays["increment"][0] = np.nan


def regression(arrays, message, context):
    """What a FedAvg client gives: four steps of gradient descent."""
    features, targets = TABLES[context.node_config["partition-id"]]
    weights, intercept = arrays["coefficients"], arrays["intercept"]
    for _ in range(4):
        residual = features @ weights + intercept - targets
        weights = weights - 0.05 * (2 * features.T @ residual / len(targets))
        intercept = intercept - 0.05 * 2 * residual.mean()
    return {"coefficients": weights, "intercept": intercept}


def run(strategy, data="dense", *, app=None, mod=None, start=None):
    """Twelve rounds with eight clients."""
    app = app or app_of(OBJECTIVES[data], [mod] if mod else [])
    start = start or start_of(SPARSE_D if data == "sparse" else D, (3,) if data == "classes" else ())
    return simulated(strategy, app, 12, num_nodes=NODES, initial_arrays=start, raise_errors=mod in (None, passing))


L = {"regularizer": L1(0.05), "client_lr": 0.02, "fraction_evaluate": 0.0}
SPARSE = {"regularizer": L1(0.001), "client_lr": 0.5, "fraction_evaluate": 0.0}
STEPS = {"work": Steps(3, batch_size=8)}
EPOCH = {"work": Epochs(1, batch_size=8)}
NO = {"fraction_evaluate": 0.0}
OF_FLOWER = {**NO, "client": "unmodified"}
FIXED = {"regularizer": L1(0.05), "client_lr": 0.05, "work": Steps(4)}
IN_FLOAT32 = start_of(dtype=np.float32)
UNMODIFIED = foreign_app(regression, metrics=lambda _, c: {"num-examples": ROWS[c.node_config["partition-id"]]})
NOISE = {"clip": 1.0, "delta": 1e-3, "noise_multiplier": 0.5, "noise_seed": 7}
PRIVATE = {**L, "weighting": "uniform", "normalize_local_work": False, "fraction_train": 0.5}
PRIVATE |= {"work": Steps(2, batch_size=8)}

CASES = {
    "dualavg": lambda: run(FedDualAvg(**L, **EPOCH)),
    "dualavg_full_batches": lambda: run(FedDualAvg(**L, work=Steps(3, batch_size=None))),
    "dualavg_sampled": lambda: run(FedDualAvg(**L, fraction_train=0.5, work=Epochs(2, batch_size=8), seed=3)),
    "dualavg_evaluated": lambda: run(FedDualAvg(**{**L, "fraction_evaluate": 0.5}, **EPOCH)),
    "dualavg_uniform": lambda: run(FedDualAvg(**L, weighting="uniform")),
    "dualavg_schedule": lambda: run(FedDualAvg(**{**L, "client_lr": lambda number: 0.05 / number}, server_lr=2.0)),
    "dualavg_pnorm": lambda: run(FedDualAvg(**L, mirror_map=PNorm(4.0))),
    "dualavg_shadow": lambda: run(FedDualAvg(**L, **STEPS, output="shadow")),
    "dualavg_average": lambda: run(FedDualAvg(**L, output=strategies.Average())),
    "dualavg_momentum": lambda: run(FedDualAvg(**L, server_momentum=0.5)),
    "dualavg_median": lambda: run(FedDualAvg(**L, aggregation="median")),
    "dualavg_trimmed": lambda: run(FedDualAvg(**L, aggregation=strategies.Trimmed(0.2))),
    "dualavg_geometric_median": lambda: run(FedDualAvg(**L, aggregation="geometric-median")),
    "dualavg_float32_wire": lambda: run(FedDualAvg(**L, wire=Wire("float32"))),
    "dualavg_auto_rates": lambda: run(FedDualAvg(**{**L, "client_lr": "auto"}, server_lr="auto")),
    "dualavg_certificates": lambda: run(FedDualAvg(**L, certificate_every=4)),
    "dualavg_sparse": lambda: run(FedDualAvg(**SPARSE), "sparse"),
    "dualavg_sparse_messages": lambda: run(FedDualAvg(**SPARSE), "sparse", mod=passing),
    "dualavg_dense_vectors": lambda: run(FedDualAvg(**SPARSE, wire=Wire(sparse=False)), "sparse"),
    "dualavg_float32_model": lambda: run(FedDualAvg(**L), start=IN_FLOAT32),
    "dualavg_auto_wire": lambda: run(FedDualAvg(**L, wire=Wire("auto")), start=IN_FLOAT32),
    "dualavg_from_ones": lambda: run(FedDualAvg(**L), start=start_of(value=1.0)),
    "dualavg_logistic": lambda: run(FedDualAvg(**L, **EPOCH), "logistic"),
    "dualavg_l1_ball": lambda: run(FedDualAvg(**{**L, "regularizer": L1Ball(1.0)})),
    "dualavg_nuclear": lambda: run(FedDualAvg(**{**L, "regularizer": Nuclear(0.05)}), "classes"),
    "dualavg_chosen_nodes": lambda: run(FedDualAvg(**L, participation=strategies.Participation(choose_nodes=in_turn))),
    "dualavg_nan_of_one": lambda: run(FedDualAvg(**L), mod=in_messages(nan_of_one, 2)),
    "dualavg_density": lambda: run(FedDualAvg(client_lr=0.02, **NO, density=strategies.Density(0.4, rounds=6))),
    "osp": lambda: run(strategies.FedDualAvgOSP(**L)),
    "mid": lambda: run(FedMid(**L, **EPOCH)),
    "mid_osp": lambda: run(strategies.FedMidOSP(**L)),
    "mid_sparse": lambda: run(FedMid(**SPARSE), "sparse"),
    "local_sgd": lambda: run(strategies.LocalSGD(client_lr=0.02, **NO)),
    "subgradient": lambda: run(strategies.FedAvgSubgradient(**L)),
    "dual_extrapolation": lambda: run(strategies.FeDualEx(**L, **STEPS)),
    "dual_extrapolation_ergodic": lambda: run(strategies.FeDualEx(**L, **STEPS, output="ergodic")),
    "mirror_prox": lambda: run(strategies.FedMiP(**L, **STEPS)),
    "tracking": lambda: run(FedDAGT(**L, **STEPS)),
    "tracking_epochs": lambda: run(FedDAGT(**L, **EPOCH)),
    "tracking_sampled": lambda: run(FedDAGT(**L, **STEPS, fraction_train=0.5)),
    "tracking_sampled_messages": lambda: run(FedDAGT(**L, **STEPS, fraction_train=0.5), mod=passing),
    "tracking_from_zero": lambda: run(FedDAGT(**L, tracker_start="zero")),
    "tracking_auto_rate": lambda: run(FedDAGT(**{**L, "client_lr": "auto"}, work=Steps(2, batch_size=None))),
    "tracking_sparse": lambda: run(FedDAGT(**{**SPARSE, "client_lr": 0.05}, **EPOCH), "sparse"),
    "tracking_sparse_messages": lambda: run(FedDAGT(**{**SPARSE, "client_lr": 0.05}, **EPOCH), "sparse", mod=passing),
    "tracking_float32_wire": lambda: run(FedDAGT(**L, wire=Wire("float32"))),
    "tracking_lossy": lambda: run(FedDAGT(**L), mod=lossy),
    "tracking_one_gone": lambda: run(FedDAGT(**L), mod=gone),
    "scaffold": lambda: run(Scaffold(**L, **STEPS, fraction_train=0.5)),
    "scaffold_lossy": lambda: run(Scaffold(**L, fraction_train=0.5), mod=lossy),
    "restricted": lambda: run(strategies.ReFedDAGT(**L, **STEPS, mirror_map=PNorm(4.0))),
    "multistep": lambda: run(strategies.MultistepReFedDAGT(**L, **STEPS, mirror_map=PNorm(4.0))),
    "dual_fl": lambda: run(DualFL(**NO, nu=0.1, rho=0.05)),
    "dual_fl_auto": lambda: run(DualFL(**NO, nu="auto", rho="auto", alpha=0.01)),
    "dual_fl_linear": lambda: run(DualFL(**NO, nu=0.1, rho=0.05, schedule="linear")),
    "dual_fl_asked_again": lambda: run(DualFL(**NO, nu=0.1, rho=0.05), mod=flaky()),
    "douglas_rachford": lambda: run(FedDR(regularizer=L1(0.05), **NO, fraction_train=0.5)),
    "douglas_rachford_lossy": lambda: run(FedDR(regularizer=L1(0.05), **NO, fraction_train=0.5), mod=lossy),
    "graph": lambda: run(strategies.DFedDA(**L, mixing="ring")),
    "graph_tracking": lambda: run(strategies.DFedDAGT(**L, mixing="ring")),
    "unmodified_steps": lambda: run(FedDualAvg(**OF_FLOWER, **FIXED), app=UNMODIFIED),
    "unmodified_density": lambda: run(FedDualAvg(**OF_FLOWER, density=0.4), app=UNMODIFIED),
    "private_banded": lambda: run(FedDualAvg(**PRIVATE, privacy=GaussianDP(**NOISE))),
    "private_independent": lambda: run(FedDualAvg(**PRIVATE, privacy=GaussianDP(**NOISE, noise="independent"))),
}


def left_out(result):
    """Round and partition of each reply that did not count."""
    return [[reply.round, reply.partition_id] for reply in result.left_out]


@pytest.fixture(scope="module")
def stored():
    with np.load(STORED / "models.npz") as models:
        return dict(models), json.loads((STORED / "left_out.json").read_text())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", CASES)
def test_run_gives_its_stored_model(case, stored, caplog):
    caplog.set_level(logging.CRITICAL, logger="flwr")
    models, lost = stored
    result = CASES[case]()
    for name, found in numpy_of(result.arrays).items():
        expected = models[f"{case}/{name}"]
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=0.0, atol=1e-11 * np.abs(expected).max(initial=1e-300))
        np.testing.assert_array_equal(found == 0.0, expected == 0.0)
    assert left_out(result) == lost[case]


if __name__ == "__main__":
    results = {case: play() for case, play in CASES.items()}
    folder = Path(sys.argv[1])
    models = {f"{case}/{name}": a for case, result in results.items() for name, a in numpy_of(result.arrays).items()}
    np.savez_compressed(folder / "models.npz", **models)
    (folder / "left_out.json").write_text(json.dumps({case: left_out(r) for case, r in results.items()}) + "\n")
