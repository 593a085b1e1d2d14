"""Seeded data sets and methods to split them over clients."""

from flwr_fco.datasets.base import FederatedDataset, Samples, dirichlet_partition, iid_partition, label_partition
from flwr_fco.datasets.bundled import PartitionedClassification, breast_cancer, digits
from flwr_fco.datasets.images import PartitionedImages, cifar10, femnist, mnist, read_idx
from flwr_fco.datasets.shards import memmap
from flwr_fco.datasets.synthetic import EqualRegression, SyntheticRegression, Variant, ZipfDocuments, lasso, low_rank

__all__ = [
    "EqualRegression",
    "FederatedDataset",
    "PartitionedClassification",
    "PartitionedImages",
    "Samples",
    "SyntheticRegression",
    "Variant",
    "ZipfDocuments",
    "breast_cancer",
    "cifar10",
    "digits",
    "dirichlet_partition",
    "femnist",
    "iid_partition",
    "label_partition",
    "lasso",
    "low_rank",
    "memmap",
    "mnist",
    "read_idx",
]
