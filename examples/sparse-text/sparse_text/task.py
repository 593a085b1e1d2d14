"""The documents on each node and the model."""

import csv
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from flwr_fco.objectives import Logistic
from sparse_text.documents import draw

#: Columns of the features: the same number on every node.
NUM_FEATURES = 2**20
#: Documents of a node.
NUM_DOCUMENTS = 200


def features_of(texts: Sequence[str]) -> csr_matrix:
    """Return the features of texts: words and pairs of words, each hashed to a column, so nodes need no vocabulary."""
    return HashingVectorizer(n_features=NUM_FEATURES, ngram_range=(1, 2), alternate_sign=False).transform(texts)


def load_client(partition_id: int) -> Logistic:
    """Return the loss on a node's share of the synthetic documents."""
    features, labels = draw(np.full(NUM_DOCUMENTS, partition_id), NUM_FEATURES, 3, partition_id)
    return Logistic(features, labels, intercept=False)


def load_file(path: str) -> Logistic:
    """Return the loss on the documents of a CSV with the columns ``text`` and ``label``, which is 0 or 1."""
    # Excel begins a file with a byte order mark.
    with open(path, encoding="utf-8-sig", newline="") as file:
        table = csv.DictReader(file)
        lacks = [name for name in ("text", "label") if name not in (table.fieldnames or ())]
        if lacks:
            raise ValueError(f"the file lacks the columns {lacks[:5]}; expected a line of names, with commas")
        rows = list(table)
    if not rows:
        raise ValueError(f"{path} has no documents")
    labels = [float(row["label"]) for row in rows]
    return Logistic(features_of([row["text"] for row in rows]), labels, intercept=False)


def load_test(num_partitions: int) -> Logistic:
    """Return the loss on documents that no node has, for evaluation on the server."""
    features, labels = draw(np.arange(1000) % num_partitions, NUM_FEATURES, 2)
    return Logistic(features, labels, intercept=False)


def initial_model() -> dict[str, np.ndarray]:
    """Return the start point; the names and shapes are those of `Logistic`."""
    return {"coefficients": np.zeros(NUM_FEATURES)}
