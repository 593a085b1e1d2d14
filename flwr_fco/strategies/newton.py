"""Proximal Newton: few rounds, exact answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from flwr_fco.algorithms.contract.choices import POSITIVE
from flwr_fco.algorithms.newton import ProximalNewton
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.convergence import Exact
from flwr_fco.server.options import EveryoneOptions
from flwr_fco.server.strategy import CompositeStrategy


@dataclass(repr=False, eq=False, kw_only=True)
class FedNewton(
    EveryoneOptions,
    CompositeStrategy,
    algorithm=ProximalNewton,
    limit=Exact("the solution, in about a dozen rounds"),
    source="Lee and others 2014, on a working set",
    sends="gradient, Hessian block",
    traffic="1 / 1 and the block",
):
    """Federated proximal Newton: the pooled solution to a certified duality gap, in about a dozen rounds.

    Minimises sum_m p_m F_m(w) + psi(w) for losses with a second derivative and psi an l1 norm, elastic net, l2 term,
    box, group lasso or sparse group lasso, none, or these by ``PerParameter``. Each round the clients evaluate loss,
    gradient and a block of the Hessian at the server's point; the server sums them, and takes the step of the method
    on the pooled data. All clients take part in every round, and remember nothing.

    Each round's metrics hold ``objective`` and ``duality-gap``, a bound on how far the model is above the optimum that
    holds for the data of all clients; the run ends when it is at most `tolerance`. Without a known conjugate, as for
    coefficients that psi leaves alone, there is ``residual`` instead: the norm of a proximal gradient step, which is 0
    at the solution but bounds nothing.

    What a client sends are derivatives and, in the first round, the means of its columns, at the precision of its data:
    sums over its rows, which single rows can be found from if there are few.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap, or residual, at which the run ends.
    hessian : {"block", "none"}, default "block"
        ``"none"``: clients send no second derivatives; accelerated proximal gradient steps with restarts take the
        place of Newton steps, with the same certificate, in some hundred rounds.
    on_refusal : {"gradient", "stop"}, default "gradient"
        What follows where a client's owner allows no Hessian blocks of enough columns (``Disclosure(hessian_share=)``).
        The working set is first cut down to what all clients allow, and its coordinates take turns. Then
        ``"gradient"``: all clients are asked for gradients only, from the best point on; ``"stop"``: the run ends with
        that point. The log says so once; ``result.left_out`` names who has kept a block back; each round's metrics hold
        ``columns-left``, what is allowed, and ``working-set``, the columns of the next block.

    References
    ----------
    Lee, Sun, Saunders: Proximal Newton-type methods for minimizing composite functions (SIAM J. Optim. 2014). Massias,
    Gramfort, Salmon: Celer, a fast solver for the lasso with dual extrapolation (ICML 2018). Ndiaye, Fercoq, Gramfort,
    Salmon: Gap safe screening rules for sparsity enforcing penalties (JMLR 2017).

    Examples
    --------
    >>> import numpy as np
    >>> from flwr_fco import L1, LeastSquares, client_app, simulate
    >>> features = np.random.default_rng(0).standard_normal((2, 40, 5))
    >>> load = lambda context: LeastSquares(features[context.node_config["partition-id"]], np.arange(40.0))
    >>> start = {"coefficients": np.zeros(5), "intercept": np.zeros(1)}
    >>> strategy = FedNewton(regularizer=L1(0.5), fraction_evaluate=0.0)
    >>> result = simulate(strategy, client_app(load), num_nodes=2, num_rounds=20, initial_arrays=start, progress=False)
    >>> len(result.train_metrics_clientapp) <= 5, result.rows()[-1]["train/duality-gap"] <= 1e-8
    (True, True)
    """

    tolerance: float = field(default=1e-8, metadata=POSITIVE)
    hessian: Literal["block", "none"] = "block"
    on_refusal: Literal["gradient", "stop"] = "gradient"

    def __check__(self) -> None:
        super().__check__()
        name = type(self).__name__
        if self.output != "last":
            raise ConfigurationError(
                f"output={self.output!r}: {name} certifies its last point, which is sparse by psi; leave it out"
            )
        if self.wire.dtype == "float32":
            raise ConfigurationError(
                f"wire={self.wire!r}: the duality gap of {name} would be that of rounded sums; leave it out"
            )
