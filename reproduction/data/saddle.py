"""The saddle-point problems of Bai, Bullins (ICLR 2024, section 6 and appendix A), one client at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fco.datasets import FederatedDataset, Samples
from flwr_fco.objectives import BilinearSaddle
from reproduction.data.saddle_objectives import QuadraticSaddle, UniversalAdversarialLogistic
from reproduction.data.samples import ImagesOnClients, check_sizes, check_whole, stream

Kind = Literal["sparse", "low-rank", "game", "quadratic"]

# Purpose of a stream of random numbers: the first number of its key.
_MATRIX = 0
_OFFSET = 1
_CLIENT = 2
_START = 3


@dataclass(frozen=True, eq=False)
class SyntheticSaddle(FederatedDataset):
    """A bilinear saddle-point problem or a matrix game with entries from U[-1, 1], with clients that may differ.

    A_m = A + spread E_m: entries of E_m are U[-1, 1], and clients 2i and 2i + 1 have E and -E (with an odd number of
    clients the last has 0), so that A is the clients' mean; b_m likewise. With ``spread=0`` all clients have the same A
    and b, as in the paper, and share their memory.

    Parameters
    ----------
    kind : {"sparse", "low-rank", "game", "quadratic"}
        ``"sparse"``: <A x - b, y> of vectors (A.1); the paper's regularizer is ``L1(0.1, bound=0.05)`` on both.
        ``"low-rank"``: <A X - B, Y> of 20 columns (A.2), where half of B's columns are linear combinations of the other
        half, with coefficients from U[-1, 1]; the paper's is ``Nuclear(0.1, bound=0.05)``. ``"game"``: x' P y on two
        simplices. ``"quadratic"``: <A x - b, y> + c/2 ||x||^2 - c/2 ||y||^2 of vectors, strongly convex-concave, of
        which the exact solution is known.
    num_clients : int, default 100
        M.
    rows : int, default 300
        n, the size of y; in a game the number of moves of the row player x.
    columns : int, default 600
        m, the size of x; in a game the number of moves of the column player y.
    bound : float
        D: starting points of ``"sparse"`` are drawn from U[-D, D]. The box itself belongs to the regularizer.
    noise : float
        Standard deviation of the noise in each coordinate of a query.
    spread : float
        Scale of the differences between clients.
    seed : int
    curvature : float, default 1.0
        c > 0 of ``"quadratic"``.

    Raises
    ------
    ConfigurationError
        If a number is out of range.

    Examples
    --------
    >>> data = SyntheticSaddle("sparse", num_clients=4, rows=3, columns=5, spread=0.5)
    >>> data.objective(0).layout
    Layout(x[5]*, y[3]*; size 8, * regularized)
    >>> mean = sum(data.client(index).features for index in range(4)) / 4
    >>> bool(np.allclose(mean, data.matrix))
    True
    """

    kind: Kind
    num_clients: int = 100
    rows: int = 300
    columns: int = 600
    bound: float = 0.05
    noise: float = 0.1
    spread: float = 0.0
    seed: int = 0
    curvature: float = 1.0

    def __post_init__(self) -> None:
        check_whole(self, "num_clients", "rows", "columns")
        check_sizes(self, "noise", "spread")
        check_sizes(self, "bound", "curvature", positive=True)

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """The clients' mean of A, or of a game's P, of shape (rows, columns)."""
        drawn = stream(self.seed, _MATRIX).uniform(-1.0, 1.0, (self.rows, self.columns))
        # A game's objective takes the transpose, of which it makes no copy if it is contiguous.
        return np.asfortranarray(drawn) if self.kind == "game" else drawn

    @cached_property
    def offset(self) -> NDArray[np.float64]:
        """The clients' mean of b, of shape (rows,), or of B, of shape (rows, 20); 0 for a game."""
        if self.kind == "game":
            return np.zeros(self.rows)
        rng = stream(self.seed, _OFFSET)
        if self.kind != "low-rank":
            return rng.uniform(-1.0, 1.0, self.rows)
        base = rng.uniform(-1.0, 1.0, (self.rows, 10))
        return np.hstack([base, base @ rng.uniform(-1.0, 1.0, (10, 10))])

    def client(self, index: int) -> Samples:
        """Return a client's A_m and b_m, as features and targets.

        Parameters
        ----------
        index : int
            0 .. num_clients - 1.

        Raises
        ------
        ConfigurationError
            If there is no client with this index.
        """
        self._check_index(index)
        if self.spread == 0.0 or (index == self.num_clients - 1 and index % 2 == 0):
            return Samples(self.matrix, self.offset)
        rng = stream(self.seed, _CLIENT, index // 2)
        sign = -1.0 if index % 2 else 1.0
        moved = [mean + sign * self.spread * rng.uniform(-1.0, 1.0, mean.shape) for mean in (self.matrix, self.offset)]
        return Samples(*moved)

    def build_objective(self, examples: Samples, **options: Any) -> BilinearSaddle:
        """Return the saddle function for given A and b.

        Parameters
        ----------
        examples : Samples
            A and b.
        **options
            Keyword arguments of the objective's class; the noise is the data set's by default.
        """
        given = {"noise": self.noise, **options}
        if self.kind == "game":
            return BilinearSaddle(examples.features.T, **given)
        if self.kind == "quadratic":
            curved = [self.curvature * np.eye(side) for side in (self.columns, self.rows)]
            return QuadraticSaddle(curved[0], examples.features, curved[1], offset=examples.targets, **given)
        return BilinearSaddle(examples.features, examples.targets, **given)

    def start(self, seed: int = 0) -> dict[str, NDArray[np.float64]]:
        """Return a random start for both players by name: the paper's initial arrays.

        Parameters
        ----------
        seed : int, default 0

        Returns
        -------
        dict of str to ndarray
            ``"sparse"``: from U[-D, D]. ``"low-rank"``: from U[-1, 1], which is not feasible; a Euclidean method uses
            it as a dual. ``"game"``: the uniform distributions, whatever the seed. ``"quadratic"``: from U[-1, 1].
        """
        rng = stream(self.seed, _START, seed)
        if self.kind == "game":
            return {"x": np.full(self.rows, 1.0 / self.rows), "y": np.full(self.columns, 1.0 / self.columns)}
        size = self.bound if self.kind == "sparse" else 1.0
        shapes = {"x": (self.columns, *self.offset.shape[1:]), "y": self.offset.shape}
        return {name: rng.uniform(-size, size, shape) for name, shape in shapes.items()}


@dataclass(frozen=True, eq=False)
class AdversarialImages(ImagesOnClients):
    """Classified images split over clients, for universal adversarial training (A.3).

    The paper's data: ``AdversarialImages(mnist(path, num_clients=100, alpha=None))`` has 600 images per client,
    ``AdversarialImages(cifar10(path, num_clients=100))`` has 500.

    Parameters
    ----------
    images : PartitionedClassification
        The images, for example from :func:`mnist`, :func:`cifar10` or :func:`digits`.
    intercept : bool, default True
        Whether the classifier has an intercept. The paper's classifier has none.

    Examples
    --------
    >>> from flwr_fco.datasets import digits
    >>> data = AdversarialImages(digits(num_clients=4))
    >>> data.objective(0).layout
    Layout(coefficients[64, 10]*, intercept[10], perturbation[64]*; size 714, * regularized)
    """

    intercept: bool = True

    def build_objective(self, examples: Samples, **options: Any) -> UniversalAdversarialLogistic:
        """Return the adversarial objective on some images, with all classes of the federation.

        Parameters
        ----------
        examples : Samples
        **options
            Keyword arguments of :class:`UniversalAdversarialLogistic`.
        """
        given = {"num_classes": self.images.num_classes, "intercept": self.intercept, **options}
        return UniversalAdversarialLogistic(examples.features, examples.targets, **given)
