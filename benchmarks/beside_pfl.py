"""A round beside pfl's simulation (Apple's pfl-research): CPU and wall milliseconds of alternating runs, medians.

    pip install pfl torch
    python benchmarks/beside_pfl.py           (three minutes; --quick: one)

LASSO dataset I as in benchmarks/engines.py: 64 clients with 128 rows of 1,024 features, 10 of them a round, 13 steps of
batch 10 each, evaluation off. pfl runs its FederatedAveraging on a PyTorchModel, with the l1 norm in the loss, beside
FedAvgSubgradient; and dual averaging, the steps in our compiled loop, beside FedDualAvg. What is not the same: the
PyTorchModel computes in float32, not float64, and takes the rows in their order; pfl passes differences of models on in
float32, adds them without looking at them, and draws its clients in another way. So objectives are alike, not equal.
"""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version

import numpy as np
from engines import measured
from shared import BATCH, NODES, OPTIONS, SAMPLE, STRENGTH, federate, options_of, start_arrays

try:
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
except ImportError:
    print("skipped: benchmarks/beside_pfl.py needs pfl and PyTorch (pip install pfl torch)")
    sys.exit(0)

from flwr_fco.datasets import lasso
from flwr_fco.kernels.dual_averaging import NOTHING, dual_averaging
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import L1
from flwr_fco.strategies import FedAvgSubgradient, FedDualAvg

OBJECTIVES = lasso().objectives()
LOSSES = [objective.compiled for objective in OBJECTIVES]
PSI = L1(STRENGTH).bind(OBJECTIVES[0].layout)
RETRIEVAL = Euclidean().bind(OBJECTIVES[0].layout).compiled(PSI)
CLIENTS = [
    Dataset([torch.tensor(part).float() for part in (f.features, f.targets)], m) for m, f in enumerate(OBJECTIVES)
]
#: Steps of a client in a round, and a rate at which the subgradient does not diverge.
ROUNDS = 100
STEPS = 13
RATE = 1e-4
RNG = np.random.default_rng(0)


class Model(torch.nn.Module):
    """Coefficients and an intercept; or their dual, whose steps are not PyTorch's."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.point = torch.nn.Parameter(torch.zeros(1025, dtype=dtype))

    def loss(self, features, targets):
        residual = features @ self.point[:-1] + self.point[-1] - targets
        return residual.square().mean() + STRENGTH * self.point[:-1].abs().sum()

    def metrics(self, *data):
        # pfl evaluates in the first round, whatever it is asked.
        return {"nothing": Weighted(0.0, 1)}


class DualAveraging(FederatedAveraging):
    def train_one_user(self, initial_model_state, model, user_dataset, central_context):
        elapsed = RATE * STEPS * central_context.current_central_iteration
        order = RNG.permutation(len(user_dataset))
        dual = model.variable_map["point"].detach().numpy()
        dual_averaging(
            LOSSES[user_dataset.user_id],
            order,
            len(order),
            BATCH,
            False,
            tuple(RETRIEVAL),
            elapsed,
            RATE,
            0.0,
            NOTHING,
            dual,
        )
        return model.get_model_difference(initial_model_state), Metrics()


def with_pfl(algorithm: FederatedAveraging, dtype: torch.dtype, rounds: int) -> np.ndarray:
    """Return the model after rounds of pfl's, or its dual."""
    data = FederatedDataset(CLIENTS.__getitem__, get_user_sampler("minimize_reuse", list(range(NODES))))
    model = Model(dtype)
    work = NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE)
    central = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0))
    params = NNAlgorithmParams(rounds, rounds + 1, SAMPLE, 0)
    backend = SimulatedBackend(data, data)
    algorithm.run(params, backend, central, work, send_metrics_to_platform=False)
    return model.point.detach().numpy().astype(float)


def ours(kind: type, rounds: int) -> np.ndarray:
    arrays = federate(kind(**{**OPTIONS, "client_lr": RATE}), OBJECTIVES, rounds, start_arrays(1024)).arrays
    return np.append(arrays["coefficients"].numpy(), arrays["intercept"].numpy())


def main() -> None:
    turns = 1 if options_of(__doc__).quick else 7
    cases = {
        "FedDualAvg, in process": lambda n: ours(FedDualAvg, n),
        "pfl, the same in our loop": lambda n: PSI.prox(with_pfl(DualAveraging(), torch.float64, n), RATE * STEPS * n),
        "FedAvgSubgradient, in process": lambda n: ours(FedAvgSubgradient, n),
        "pfl, the same by PyTorch": lambda n: with_pfl(FederatedAveraging(), torch.float32, n),
    }
    print("Python", platform.python_version(), *(f"{name} {version(name)}" for name in ("pfl", "torch", "flwr")))
    for name, (cpu, wall) in measured(cases, ROUNDS, turns).items():
        point = cases[name](ROUNDS)
        value = np.mean([f.value(point) for f in OBJECTIVES]) + PSI.value(point)
        print(f"{name:30} {cpu:6.2f} ms of CPU, {wall:6.2f} wall a round; objective after {ROUNDS} {value:.2f}")


if __name__ == "__main__":
    main()
