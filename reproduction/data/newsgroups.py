"""The posts of 20 newsgroups, fetched by scikit-learn, as hashed words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_fco.datasets import PartitionedClassification, Samples, iid_partition
from flwr_fco.objectives import Logistic
from reproduction.data import DataNotFoundError
from reproduction.data.samples import stream


@dataclass(frozen=True, eq=False)
class HashedPosts(PartitionedClassification):
    """Posts of two classes, split over clients."""

    def build_objective(self, examples: Samples, **options: Any) -> Logistic:
        """Return :class:`flwr_fco.objectives.Logistic` on some posts, by default without an intercept."""
        return Logistic(examples.features, examples.targets, **{"intercept": False, **options})


def newsgroups(
    num_clients: int = 100, seed: int = 0, num_features: int = 2**20, *, download: bool = False
) -> HashedPosts:
    """Return the posts of 20 newsgroups with hashed words; label 1 means that a post is about computers.

    11,314 posts for training and 7,532 for testing, fetched by scikit-learn without headers, footers and quotes; each
    word and each pair of words is hashed to a column, and rows have norm 1.

    Parameters
    ----------
    num_clients : int, default 100
        Number of clients; the posts are split over them at random.
    seed : int, default 0
        Seed of the split.
    num_features : int, default 2**20
    download : bool, default False
        Whether to download the posts (14 MB) if they are not in scikit-learn's data folder.

    Raises
    ------
    DataNotFoundError
        If the posts are missing and cannot be downloaded.
    """
    from sklearn.datasets import fetch_20newsgroups
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(n_features=num_features, ngram_range=(1, 2), alternate_sign=False)
    parts = []
    for subset in ("train", "test"):
        try:
            posts = fetch_20newsgroups(
                subset=subset, remove=("headers", "footers", "quotes"), download_if_missing=download
            )
        except OSError as error:
            raise DataNotFoundError(
                f"the posts of 20 newsgroups are not there: {error}. Fetch them (14 MB): --set download=true; or take "
                "documents that need no files: --set source=zipf"
            ) from error
        about = np.array([name.startswith("comp.") for name in posts.target_names])
        parts.append(Samples(hashing.transform(posts.data), about[posts.target].astype(np.int64)))
    train, test = parts
    return HashedPosts(train, test, tuple(iid_partition(train.targets.size, num_clients, stream(seed))), 2)
