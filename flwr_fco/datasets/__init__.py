"""Seeded data sets and the ways to split them over clients."""

from flwr_fco.datasets.base import FederatedDataset, Samples
from flwr_fco.datasets.bundled import PartitionedClassification, breast_cancer, digits
from flwr_fco.datasets.graph import SparseGraphProblem, StreamingObjective, sparse_linear_graph, sparse_logistic_graph
from flwr_fco.datasets.partition import dirichlet_partition, iid_partition
from flwr_fco.datasets.synthetic import SyntheticRegression, lasso, low_rank

__all__ = [
    "FederatedDataset",
    "PartitionedClassification",
    "Samples",
    "SparseGraphProblem",
    "StreamingObjective",
    "SyntheticRegression",
    "breast_cancer",
    "digits",
    "dirichlet_partition",
    "iid_partition",
    "lasso",
    "low_rank",
    "sparse_linear_graph",
    "sparse_logistic_graph",
]
