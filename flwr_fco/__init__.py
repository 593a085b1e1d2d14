"""flwr_fco: federated composite optimisation for Flower."""

__version__ = "0.1.0"
