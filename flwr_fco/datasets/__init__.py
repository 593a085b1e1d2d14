"""Seeded data sets and methods to split them over clients."""

from flwr_fco.datasets.base import FederatedDataset, Samples
from flwr_fco.datasets.bundled import PartitionedClassification, breast_cancer, digits
from flwr_fco.datasets.cifar import cifar10
from flwr_fco.datasets.fmri import BrainScans, SyntheticBrain, load_haxby, normalize_sessions
from flwr_fco.datasets.graph import SparseGraphProblem, StreamingObjective, sparse_linear_graph, sparse_logistic_graph
from flwr_fco.datasets.mnist import PartitionedImages, femnist, mnist, read_idx
from flwr_fco.datasets.partition import dirichlet_partition, iid_partition, label_partition
from flwr_fco.datasets.saddle import (
    AdversarialImages,
    SyntheticSaddle,
    low_rank_bilinear,
    matrix_games,
    quadratic_saddles,
    sparse_bilinear,
)
from flwr_fco.datasets.shards import memmap
from flwr_fco.datasets.synthetic import EqualRegression, SyntheticRegression, Variant, lasso, low_rank
from flwr_fco.datasets.text import HashedPosts, ZipfDocuments, newsgroups

__all__ = [
    "AdversarialImages",
    "BrainScans",
    "EqualRegression",
    "FederatedDataset",
    "HashedPosts",
    "PartitionedClassification",
    "PartitionedImages",
    "Samples",
    "SparseGraphProblem",
    "StreamingObjective",
    "SyntheticBrain",
    "SyntheticRegression",
    "SyntheticSaddle",
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
    "load_haxby",
    "low_rank",
    "low_rank_bilinear",
    "matrix_games",
    "memmap",
    "mnist",
    "newsgroups",
    "normalize_sessions",
    "quadratic_saddles",
    "read_idx",
    "sparse_bilinear",
    "sparse_linear_graph",
    "sparse_logistic_graph",
]
