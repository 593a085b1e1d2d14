"""What the package does on a GPU: the same models as on the CPU, and what a step and a round cost there.

    python benchmarks/gpu.py            a line a check, BAD where it fails; on a GPU (three minutes)
    python benchmarks/gpu.py --quick    small networks; so it does where there is no GPU, on the CPU

Proximal maps beside the NumPy ones; a `TorchObjective` and a training loop of one's own beside the CPU, also where the
model moves inside the loop; how often a vector of the model's size crosses between device and NumPy in a round; what a
step costs beside SGD's. Needs PyTorch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import torch
    from torch.overrides import TorchFunctionMode
except ImportError:
    print("skipped: benchmarks/gpu.py needs PyTorch (pip install torch)")
    sys.exit(0)
from flwr.app import ArrayRecord, Context, Message
from shared import federate, options_of, partition
from torch import nn
from torch.nn import functional

from flwr_fco import client_app
from flwr_fco import regularizers as psis
from flwr_fco.strategies import Bounds, FedDAGT, FedDualAvg, FedMid, FeDualEx, Steps
from flwr_fco.torch import ClientApp, DualAveraging, TorchObjective, local_training, tensor_prox

NODES = 4
ROWS = 200
BATCH = 25
RATE = 0.05
CPU = torch.device("cpu")
GPU = torch.device("cuda" if torch.cuda.is_available() else "cpu")
#: Largest times of a step on a GPU, in those of forward, backward and SGD.
BARS = {"DualAveraging L1": 3.0, "DualAveraging HardSparsity": 3.0, "TorchObjective L1": 3.0}
INPUTS = torch.randn(NODES, ROWS, 64, generator=torch.Generator().manual_seed(0))
LABELS = (INPUTS[..., :8].sum(-1) > 0).long()


class Crossings(TorchFunctionMode):  # type: ignore[misc,unused-ignore]
    """Counts the tensors of at least so many elements that go to NumPy or come from it."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least = least
        self.count = 0

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        """Count a call."""
        if function in (torch.Tensor.numpy, torch.tensor, torch.from_numpy, torch.as_tensor):
            vector = given[0]
            size = vector.numel() if isinstance(vector, torch.Tensor) else np.size(vector)
            self.count += size >= self.least
        return function(*given, **(named or {}))


def network(device: torch.device = CPU) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 2)).to(device)


def loss(model: nn.Module, batch: Any) -> Any:
    return functional.cross_entropy(model(batch[0]), batch[1])


def objectives(device: torch.device) -> Any:
    """Return clients without a training loop, whose models are on a device."""

    def load(context: Context) -> TorchObjective:
        rows = INPUTS[partition(context)], LABELS[partition(context)]
        return TorchObjective(network(device), loss, rows)

    return client_app(load)


def loops(device: torch.device, moves: bool) -> Any:
    """Return clients with a training loop; the model moves to the device inside it, or before."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = network(CPU if moves else device)
        with local_training(message, context, model, momentum=0.9) as training:
            model.to(device)
            inputs, labels = INPUTS[partition(context)].to(device), LABELS[partition(context)].to(device)
            for first in range(0, ROWS, BATCH):
                rows = slice(first, first + BATCH)
                training.optimizer.zero_grad()
                loss(model, (inputs[rows], labels[rows])).backward()
                training.optimizer.step()
        return training.reply({"num-examples": ROWS})

    return app


def trained(kind: Any, app: Any, rounds: int = 8, steps: int = 8, **options: Any) -> np.ndarray[Any, Any]:
    given = {"regularizer": psis.L1(5e-3), "client_lr": RATE, "work": Steps(steps, batch_size=BATCH), **options}
    start = ArrayRecord(network().state_dict())
    result = federate(kind(**given, fraction_evaluate=0.0), app, rounds, start, nodes=NODES)
    return np.concatenate([array.numpy().ravel() for name, array in result.arrays.items() if "num" not in name])


def check(name: str, measure: Callable[..., tuple[bool, str]], *given: Any, **options: Any) -> None:
    began = time.perf_counter()
    good, text = measure(*given, **options)
    print(f"{'ok ' if good else 'BAD'} {name}: {text}  [{time.perf_counter() - began:.1f} s]", flush=True)


def maps() -> tuple[bool, str]:
    v = torch.randn(64, 48, dtype=torch.float64)
    groups = np.repeat(np.arange(64), 48).reshape(64, 48)
    worst = 0.0, ""
    cases = psis.L1(0.3), psis.ElasticNet(0.3), psis.Box(-0.2, 0.3), psis.L2(0.3), psis.GroupLasso(0.5, groups=groups)
    for psi in (*cases, psis.HardSparsity(density=0.1), psis.NofM(), psis.Nuclear(2.0), psis.SpectralBall(3.0)):
        found = tensor_prox(psi, v.to(GPU))(v.to(GPU), 0.7)
        error = float(np.abs(found.cpu().numpy() - psi.prox(v.numpy(), 0.7)).max())
        worst = max(worst, (error, type(psi).__name__))
    return worst[0] < 1e-11, f"largest difference from NumPy {worst[0]:.1e} ({worst[1]})"


def two_of_four() -> tuple[bool, str]:
    """Compare a product with PyTorch's semi-structured form of a matrix to the dense one, in half precision."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(256, 256)) / 16.0
    inputs = rng.normal(size=(256, 256))
    dense = torch.tensor(psis.NofM(2, 4).prox(weights, 1.0), dtype=torch.float16, device=GPU)
    right = torch.tensor(inputs, dtype=torch.float16, device=GPU)
    error = float((torch.sparse.to_sparse_semi_structured(dense) @ right - dense @ right).abs().max())
    return error < 1e-2, f"largest difference from the dense product {error:.1e}"


def same(kind: Any, here: Any, there: Any, **options: Any) -> tuple[bool, str]:
    cpu, gpu = trained(kind, here, **options), trained(kind, there, **options)
    error = float(np.abs(gpu - cpu).max() / np.abs(cpu).max())
    zeros = float(np.mean(gpu == 0.0)), float(np.mean(cpu == 0.0))
    return error < 2e-2, f"relative difference from the CPU {error:.1e}, zeros {zeros[0]:.3f} and {zeros[1]:.3f}"


def crossings() -> tuple[bool, str]:
    counts = []
    for steps in (2, 8):
        with Crossings(8_000) as mode:
            trained(FedDualAvg, objectives(GPU), rounds=2, steps=steps)
        counts.append(mode.count / (2 * NODES))
    return counts[0] == counts[1], f"{counts[0]:.2f} and {counts[1]:.2f} a client and round of 2 and of 8 steps"


def milliseconds(step: Callable[[], Any], times: int) -> float:
    for _ in range(3):
        step()
    if GPU.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(times):
        step()
    if GPU.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - began) / times * 1e3


def steps(width: int, times: int) -> tuple[bool, str]:
    layers = (nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    model = nn.Sequential(*layers).to(GPU)
    inputs = torch.randn(64, width)
    labels = torch.zeros(64, dtype=torch.long)
    batch = inputs.to(GPU), labels.to(GPU)

    def with_step(optimizer: Any) -> float:
        def step() -> None:
            optimizer.zero_grad()
            loss(model, batch).backward()
            optimizer.step()

        return milliseconds(step, times)

    cost = {"SGD": with_step(torch.optim.SGD(model.parameters(), lr=1e-4))}
    for psi in (psis.L1(1e-6), psis.HardSparsity(density=0.1)):
        name = f"DualAveraging {type(psi).__name__}"
        cost[name] = with_step(DualAveraging(model.named_parameters(), lr=1e-4, regularizer=psi))
    objective = TorchObjective(model, loss, (inputs, labels))
    place = objective.place(psis.L1(1e-6).bind(objective.layout))
    assert place is not None
    dual = place.put(np.zeros(objective.layout.size))
    primal = place.gradient(dual)

    def local_step() -> None:
        place.retrieve(dual, 1.0, primal)
        objective.add_gradient(primal, None, -1e-4, dual)

    cost["TorchObjective L1"] = milliseconds(local_step, times)
    bad = [name for name, bar in BARS.items() if GPU.type == "cuda" and cost[name] > bar * cost["SGD"]]
    text = f"{objective.layout.size:,} weights, ms: " + ", ".join(f"{name} {ms:.2f}" for name, ms in cost.items())
    return not bad, text + (f"; above {BARS}" if bad else "")


def main() -> None:
    quick = options_of(__doc__, "small networks").quick or GPU.type == "cpu"
    torch.set_num_threads(1)
    device = torch.cuda.get_device_name() if GPU.type == "cuda" else "no GPU here: small networks, on the CPU"
    print(f"PyTorch {torch.__version__}, {device}")
    check("proximal maps", maps)
    name = "2 of 4 as PyTorch's semi-structured form"
    if GPU.type == "cuda":
        check(name, two_of_four)
    else:
        print(f"--  {name}: needs a GPU")
    for kind in (FedDualAvg,) if quick else (FedDualAvg, FedDAGT, FedMid, FeDualEx):
        check(f"TorchObjective, {kind.__name__}", same, kind, objectives(CPU), objectives(GPU))
    for moves in (False, True):
        name = f"own loop, the model moves {'inside' if moves else 'before'}"
        check(name, same, FedDualAvg, loops(CPU, False), loops(GPU, moves), bounds=Bounds(own_loops=True))
    check("crossings between device and NumPy", crossings)
    check("a step", steps, *((256, 3) if quick else (2048, 20)))


if __name__ == "__main__":
    main()
