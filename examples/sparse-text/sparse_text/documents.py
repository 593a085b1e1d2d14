"""A stand-in for real documents: words by Zipf's law, two classes, nothing is downloaded."""

from functools import cache

import numpy as np
from scipy.sparse import csr_array

#: Words in a document; words that the label depends on; ranks from which on words are rare.
NUM_WORDS = 150
INFORMATIVE = 300
RARE = 1000
#: A word of a rank is drawn with probability ~ (rank + offset)^-exponent: Mandelbrot's form of Zipf's law.
OFFSET = 3.7
EXPONENT = 1.05


def generator(*key: int) -> np.random.Generator:
    """Return the generator for one purpose, independent of all others."""
    return np.random.default_rng(np.random.SeedSequence(0, spawn_key=key))


@cache
def language(num_features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the cumulative probability of each rank, its column, and the true coefficients of the columns."""
    weights = (np.arange(num_features) + OFFSET) ** -EXPONENT
    columns = generator(0).permutation(num_features).astype(np.int32)
    truth = np.zeros(num_features)
    truth[columns[50 : 50 + INFORMATIVE]] = 12.0 * generator(1).choice([-1.0, 1.0], INFORMATIVE)
    return np.cumsum(weights / weights.sum()), columns, truth


def draw(owners: np.ndarray, num_features: int, *key: int) -> tuple[csr_array, np.ndarray]:
    """Return TF-IDF features of unit length and labels, a document for each owner: a third of its rare words are own.

    Parameters
    ----------
    owners : ndarray of int
        The node of each document.
    num_features : int
        Size of the vocabulary.
    *key : int
        Of the generator.
    """
    (probabilities, columns, truth), rng, count = language(num_features), generator(*key), owners.size
    ranks = np.minimum(np.searchsorted(probabilities, rng.random((count, NUM_WORDS)), side="right"), num_features - 1)
    # A node's own words are other nodes' words with their ranks rotated, so all share the frequent ones.
    own = (ranks >= RARE) & (np.arange(NUM_WORDS) % 3 == 0)
    ranks = np.where(own, RARE + (ranks - RARE + owners[:, None] * 7919) % (num_features - RARE), ranks)
    indices = np.repeat(np.arange(count), NUM_WORDS), ranks.ravel()
    counts = csr_array((np.ones(ranks.size), indices), shape=(count, num_features))
    counts.sum_duplicates()
    # The share of documents with a word is about its probability times the document length, at most 1.
    share = -np.expm1(-NUM_WORDS * probabilities[0] * ((counts.indices + OFFSET) / OFFSET) ** -EXPONENT)
    numbers = (1.0 + np.log(counts.data)) * (1.0 - np.log(share))
    numbers /= np.repeat(np.sqrt(np.add.reduceat(numbers**2, counts.indptr[:-1])), np.diff(counts.indptr))
    features = csr_array((numbers, columns[counts.indices], counts.indptr), shape=(count, num_features))
    return features, (rng.random(count) < 1.0 / (1.0 + np.exp(-(features @ truth)))).astype(np.int64)
