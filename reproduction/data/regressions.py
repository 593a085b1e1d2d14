"""The regressions of Yuan, Zaheer and Reddi (2021, B.2.1 and B.3.1): sparse coefficients, matrices of low rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fco.datasets import FederatedDataset, Samples
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import LeastSquares, TraceRegression
from reproduction.data.samples import check_sizes, check_whole, stream

Variant = Literal["I", "II", "III", "IV"]

_NUM_FEATURES = 1024
_ORDER = 32
#: Number of non-zero coefficients (or rank), clients and examples per client.
_LASSO = {"I": (512, 64, 128), "II": (64, 64, 128), "III": (8, 64, 128), "IV": (512, 256, 32)}
_LOW_RANK = {"I": (16, 64, 128), "II": (4, 64, 128), "III": (1, 64, 128), "IV": (16, 256, 32)}

# Purpose of a stream of random numbers: the first number of its key.
_TRUTH = 0
_CLIENT = 1
_HELD_OUT = 2
_OWN_TRUTH = 3


@dataclass(frozen=True, eq=False)
class SyntheticRegression(FederatedDataset):
    """A linear model observed by clients whose features have different means.

    Client m draws a mean mu_m ~ N(0, spread^2 I) once, then x = mu_m + N(0, I) and
    y = <x, coefficients + u_m> + intercept + N(0, 1). The u_m ~ N(0, disagreement^2 I) are 0 in the paper.

    Parameters
    ----------
    coefficients : ndarray of float64, shape (d,) or (rows, columns)
        The true coefficients. A vector gives `LeastSquares` objectives, a matrix `TraceRegression`.
    num_clients : int
        Number of clients.
    examples_per_client : int
        Number of examples of each client.
    seed : int, default 0
        Seed of the problem.
    spread : float, default 1.0
        Scale of the differences between the clients' feature means; 0 gives all clients the same distribution.
    disagreement : float, default 0.0
        Scale of the differences between the clients' own coefficients, on the non-zero coefficients only.

    Attributes
    ----------
    intercept : float
        The true intercept, drawn from N(0, 1) with the seed.

    Raises
    ------
    ConfigurationError
        If a number is out of range.

    Examples
    --------
    >>> import numpy as np
    >>> data = SyntheticRegression(np.array([1.0, 0.0, 0.0]), num_clients=4, examples_per_client=20)
    >>> data.client(2).features.shape
    (20, 3)
    >>> data.objective(2, scale=0.5).layout
    Layout(coefficients[3]*, intercept[1]; size 4, * regularized)
    """

    coefficients: NDArray[np.float64]
    num_clients: int
    examples_per_client: int
    seed: int = 0
    spread: float = 1.0
    disagreement: float = 0.0
    intercept: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", np.asarray(self.coefficients, dtype=np.float64))
        if self.coefficients.ndim not in (1, 2) or self.coefficients.size == 0:
            raise ConfigurationError(
                f"coefficients have shape {self.coefficients.shape}; expected a vector or a matrix that is not empty"
            )
        check_whole(self, "num_clients", "examples_per_client")
        check_sizes(self, "spread", "disagreement")
        object.__setattr__(self, "intercept", float(stream(self.seed, _TRUTH).normal()))

    def client(self, index: int) -> Samples:
        self._check_index(index)
        rng = stream(self.seed, _CLIENT, index)
        mean = self.spread * rng.normal(size=self.coefficients.shape)
        return self._draw(index, mean, self.examples_per_client, rng)

    def held_out(self, index: int, num_examples: int | None = None) -> Samples:
        """Return additional examples from a client's distribution, for validation.

        Parameters
        ----------
        index : int
            0 .. num_clients - 1.
        num_examples : int, optional
            By default the client's number of training examples.

        Raises
        ------
        ConfigurationError
            If there is no client with this index.
        """
        self._check_index(index)
        mean = self.spread * stream(self.seed, _CLIENT, index).normal(size=self.coefficients.shape)
        count = self.examples_per_client if num_examples is None else num_examples
        return self._draw(index, mean, count, stream(self.seed, _HELD_OUT, index))

    def build_objective(self, examples: Samples, **options: Any) -> LeastSquares | TraceRegression:
        """Return `LeastSquares` for vectors, `TraceRegression` for matrices."""
        make = LeastSquares if self.coefficients.ndim == 1 else TraceRegression
        return make(examples.features, examples.targets, **options)

    def _draw(self, index: int, mean: NDArray[np.float64], count: int, rng: np.random.Generator) -> Samples:
        features = mean + rng.normal(size=(count, *mean.shape))
        signal = features.reshape(count, -1) @ self._coefficients_of(index)
        return Samples(features, signal + self.intercept + rng.normal(size=count))

    def _coefficients_of(self, index: int) -> NDArray[np.float64]:
        """Return a client's own coefficients, as a vector."""
        truth = self.coefficients.reshape(-1)
        if self.disagreement == 0.0:
            return truth
        effect = self.disagreement * stream(self.seed, _OWN_TRUTH, index).normal(size=truth.size)
        return np.where(truth != 0.0, truth + effect, 0.0)


@dataclass(frozen=True, eq=False)
class EqualRegression(SyntheticRegression):
    """The same regression with the first client's examples on every client: the homogeneous setting of the theory.

    Parameters
    ----------
    coefficients, num_clients, examples_per_client, seed, spread, disagreement
        As for :class:`SyntheticRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> data = EqualRegression(np.array([1.0, 0.0]), num_clients=3, examples_per_client=5)
    >>> np.array_equal(data.client(0).features, data.client(2).features)
    True
    """

    def client(self, index: int) -> Samples:
        """Return the training examples of the first client, whatever the index."""
        self._check_index(index)
        return super().client(0)


def lasso_data(variant: Variant = "I", seed: int = 0) -> SyntheticRegression:
    """Return a data set of the federated lasso: 1,024 features, the first few true coefficients 1, all others 0.

    Examples
    --------
    >>> data = lasso_data("III")
    >>> data.num_clients, data.client(5).features.shape, int(data.coefficients.sum())
    (64, (128, 1024), 8)
    """
    ones, num_clients, examples = _LASSO[variant]
    return SyntheticRegression((np.arange(_NUM_FEATURES) < ones).astype(np.float64), num_clients, examples, seed)


def low_rank_data(variant: Variant = "I", seed: int = 0) -> SyntheticRegression:
    """Return a data set of federated low-rank matrix estimation: the 32 x 32 truth is diagonal with r ones.

    Examples
    --------
    >>> data = low_rank_data("II")
    >>> data.num_clients, data.client(5).features.shape, int(data.coefficients.trace())
    (64, (128, 32, 32), 4)
    """
    rank, num_clients, examples = _LOW_RANK[variant]
    coefficients = np.diag((np.arange(_ORDER) < rank).astype(np.float64))
    return SyntheticRegression(coefficients, num_clients, examples, seed)
