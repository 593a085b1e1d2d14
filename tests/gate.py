"""The gate of a change that must keep all bits: hashes of what every strategy computes, in each way that it runs.

    PYTHONPATH=.:tests python tests/gate.py record FILE   before the change
    python tests/gate.py check FILE      after it: says what differs, and ends with 1 if anything does
    python tests/gate.py check FILE --only FedDAGT     some of it

Six rounds of each strategy, in process, over messages and in two worker processes, with the groups of options that
change what is computed; dense, sparse and PyTorch objectives. Recorded are hashes of the model, of every field of the
state, of the ledger's vectors and of the bytes that crossed. A file is of one machine: other processors round
differently.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fitting import fitting
from flwr.app import Context, Message
from flwr.clientapp.typing import ClientAppCallable
from problems import CONSTANTS, SADDLE, app_of, clients, start_arrays
from scipy.sparse import csr_array

from flwr_fco import topology
from flwr_fco.mirror_maps import PNorm
from flwr_fco.objectives import BilinearSaddle, Logistic
from flwr_fco.regularizers import L1, Zero
from flwr_fco.simulation import simulate
from flwr_fco.strategies import Average, Epochs, Minimise, Stage, Steps, Wire, method_of
from flwr_fco.work import FirstOrder
from reproduction.rivals import STRATEGIES
from reproduction.rivals.fast_fed_da import ModelStage

ROUNDS = 6
#: Constants without which a method does not begin.
MORE = {
    "ReFedDAGT": {"radius_squared": 0.5, "mirror_map": PNorm(3.0)},
    "DReFedDAGT": {"radius_squared": 0.5},
    "MultistepReFedDAGT": {
        "stages": [Stage(2), Stage(2), Stage(2)],
        "radius_squared": 0.5,
        "mirror_map": PNorm(3.0),
    },
    "MCFedDA": {"stages": [ModelStage(3, 1.0), ModelStage(3, 0.5)], "anchor_weight": 0.5},
}
GRAPHS = ("DFedDA", "DFedDAGT", "DFedMid", "DReFedDAGT", "DScaffold")
Case = tuple[str, dict[str, Any], str]


def saddles() -> list[Any]:
    """Four bilinear games."""
    found = []
    for m in range(4):
        rng = np.random.default_rng(m)
        found.append(BilinearSaddle(rng.uniform(-1, 1, (4, 5)), rng.uniform(-1, 1, 4), noise=0.1))
    return found


def sparse_clients() -> list[Any]:
    """Four clients of a logistic model of 40 features, of which each has a few."""
    found = []
    for m in range(4):
        rng = np.random.default_rng(m)
        features = rng.standard_normal((20, 40)) * (rng.random((20, 40)) < 0.1)
        labels = (rng.random(20) < 0.5).astype(int)
        labels[:2] = 0, 1
        found.append(Logistic(csr_array(features), labels))
    return found


def torch_clients() -> list[Any]:
    """Four clients of a small network; none without PyTorch."""
    try:
        import torch
    except ImportError:
        return []
    from flwr_fco.torch import TorchObjective

    found = []
    for m in range(4):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
        rng = np.random.default_rng(m)
        x = torch.tensor(rng.standard_normal((16, 6)), dtype=torch.float32)
        y = torch.tensor(rng.integers(0, 2, 16))
        found.append(
            TorchObjective(model, lambda net, batch: torch.nn.functional.cross_entropy(net(batch[0]), batch[1]), (x, y))
        )
    return found


def plain_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod that does nothing, and makes a grid use messages."""
    return call_next(message, context)


def cases() -> Iterator[tuple[str, str, dict[str, Any], str, str]]:
    """Yield a name, a strategy, its options, its data and the way it runs."""
    for name in STRATEGIES:
        for way in ("in-process", "messages", "processes"):
            yield f"{name} {way}", name, {}, "dense", way
        yield f"{name} epochs", name, {"work": Epochs(1, batch_size=5)}, "dense", "in-process"
        yield f"{name} half", name, {"fraction_train": 0.5}, "dense", "in-process"
        yield f"{name} half messages", name, {"fraction_train": 0.5}, "dense", "messages"
        yield f"{name} uniform", name, {"weighting": "uniform"}, "dense", "in-process"
        yield f"{name} average", name, {"output": Average()}, "dense", "in-process"
        yield f"{name} ergodic", name, {"output": "ergodic"}, "dense", "in-process"
        yield f"{name} shadow", name, {"output": "shadow"}, "dense", "in-process"
        yield f"{name} float32", name, {"wire": Wire(dtype="float32")}, "dense", "messages"
        yield f"{name} p-norm", name, {"mirror_map": PNorm(3.0), "regularizer": Zero()}, "dense", "in-process"
        yield f"{name} reset", name, {"client_state": "reset"}, "dense", "in-process"
        yield f"{name} zero", name, {"tracker_start": "zero"}, "dense", "in-process"
        yield f"{name} momentum", name, {"server_momentum": 0.5}, "dense", "in-process"
        yield f"{name} schedule", name, {"client_lr": _schedule}, "dense", "in-process"
        yield f"{name} auto", name, {"client_lr": "auto"}, "dense", "in-process"
        yield f"{name} osp", name, {"client_prox": False}, "dense", "in-process"
        if name not in SADDLE:
            yield f"{name} sparse", name, {"work": Epochs(1, batch_size=5)}, "sparse", "in-process"
            yield f"{name} sparse messages", name, {"fraction_train": 0.5}, "sparse", "messages"
            yield f"{name} torch", name, {}, "torch", "in-process"
            yield f"{name} torch epochs", name, {"work": Epochs(1, batch_size=5)}, "torch", "messages"


def _schedule(number: int) -> float:
    return 0.05 / (1 + number)


def options_of(name: str, data: str, more: dict[str, Any]) -> dict[str, Any] | None:
    """Return the options of a case; None if the strategy does not have them."""
    from dataclasses import fields

    known = {field.name: field for field in fields(STRATEGIES[name]) if field.init}
    if not more.keys() <= known.keys() and not (more.keys() - known.keys() <= {"work"}):
        return None
    given: dict[str, Any] = {
        "regularizer": Zero() if "regularizer" in method_of(STRATEGIES[name]).algorithm.refuses else L1(0.05),
        "client_lr": 0.05,
        "work": (Steps(3, batch_size=5), Minimise()),
        "batch_size": 5,
        "fraction_evaluate": 0.0,
        "min_train_nodes": 1,
        "seed": 3,
        "on_divergence": "warn",
    }
    given |= CONSTANTS.get(name, {}) | MORE.get(name, {})
    if name in GRAPHS:
        given |= {"mixing": topology.ring(4), "weighting": "uniform"}
    if data != "dense":
        given["work"] = (Steps(3, batch_size=5), Minimise(tolerance=1e-3, max_iterations=50))
    if isinstance(more.get("work"), FirstOrder):
        more = {**more, "work": (more["work"], given["work"][1])}
    return fitting(STRATEGIES[name], given | more)


def digest(value: Any) -> str:
    """Return a hash of arrays and numbers, however they are nested."""
    seen = hashlib.sha256()

    def take(own: Any) -> None:
        if isinstance(own, dict):
            for key in sorted(own):
                seen.update(str(key).encode())
                take(own[key])
        elif isinstance(own, tuple | list):
            for each in own:
                take(each)
        else:
            array = np.asarray(own.values if hasattr(own, "indices") else own)
            seen.update(array.dtype.str.encode() + str(array.shape).encode() + np.ascontiguousarray(array).tobytes())

    take(value)
    return seen.hexdigest()[:16]


def measured(name: str, options: dict[str, Any], data: str, way: str, make: Callable[[], list[Any]]) -> dict[str, str]:
    """Run a case; an error is what it says."""
    try:
        strategy = STRATEGIES[name](**options)
        objectives = make()
        layout = objectives[0].layout
        arrays = (
            objectives[0].initial_arrays() if data == "torch" and hasattr(objectives[0], "initial_arrays") else None
        )
        start = arrays or (
            start_arrays()
            if data == "dense" and name not in SADDLE
            else layout.unflatten(np.full(layout.size, 0.1 * (name in SADDLE)))
        )
        app = app_of(objectives, [plain_mod] if way == "messages" else [])
        result = simulate(
            strategy, app, num_nodes=len(objectives), num_rounds=ROUNDS, initial_arrays=start, progress=False,
            on_interrupt="raise", **({"engine": "processes", "workers": 2} if way == "processes" else {}),
        )  # fmt: skip
    except Exception as error:
        return {"error": f"{type(error).__name__}"}
    state = strategy.state
    found = {f"state.{key}": digest(value) for key, value in state._asdict().items()}
    found["model"] = digest({key: value.numpy() for key, value in result.arrays.items()})
    if strategy.memories is not None:
        for key in sorted(strategy.memories.members):
            memory = strategy.memories.memory(key)
            found[f"ledger.{key}"] = digest({n: _dense(v) for n, v in (memory or {}).items()})
    return found


def _dense(vector: Any) -> Any:
    from flwr_fco.core.sparse import dense

    return dense(vector)


def main() -> int:
    """Record or check; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["record", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="strategies whose names hold this")
    parser.add_argument("--ways", default="", help="cases whose names hold this")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    makers = {"dense": clients, "sparse": sparse_clients, "torch": torch_clients}
    known = json.loads(chosen.file.read_text()) if chosen.what == "check" else {}
    found, differ = {}, 0
    for case, name, more, data, way in cases():
        if chosen.only and chosen.only not in name.split() and chosen.only != name:
            continue
        if chosen.ways not in case or (chosen.what == "check" and case not in known):
            continue
        options = options_of(name, data, more)
        make = saddles if name in SADDLE else makers[data]
        if options is None or (data == "torch" and not torch_clients()):
            continue
        began = time.monotonic()
        found[case] = measured(name, options, data, way, make)
        if time.monotonic() - began > 5.0:
            print(f"{case}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        if chosen.what == "check" and found[case] != known[case]:
            differ += 1
            names = sorted(
                key for key in found[case].keys() | known[case].keys() if found[case].get(key) != known[case].get(key)
            )
            print(f"{case}: {', '.join(names)} {found[case].get('error', '')}", flush=True)
    if chosen.what == "record":
        chosen.file.write_text(json.dumps(found, indent=1))
    print(f"{len(found)} cases, {differ} differ")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
