"""The strategies that are tried."""

from flwr_fco.regularizers import L1, Zero
from flwr_fco.strategies import DualFL, Everyone, FedDAGT, FedDualAvg, Short, Steps


def build(name, nodes):
    """Return a strategy that waits for its nodes."""
    common = {"min_train_nodes": nodes, "min_available_nodes": nodes, "fraction_evaluate": 0.0, "seed": 3}
    steps = {"client_lr": 0.05, "work": Steps(3, batch_size=4)}
    if name == "DualFL":
        return DualFL(nu=0.5, smoothness=1.0, regularizer=Zero(), participation=Everyone(evict_after=10), **common)
    if name == "Short":
        return FedDualAvg(density=0.5, wire=Short(), **steps, **common)
    cls = {"FedDualAvg": FedDualAvg, "FedDAGT": FedDAGT}[name]
    return cls(regularizer=L1(0.05), **steps, **common)
