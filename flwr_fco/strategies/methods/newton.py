"""Proximal Newton: few rounds, exact answers."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract import Algorithm
from flwr_fco.algorithms.contract.choices import Everyone, Strengths
from flwr_fco.algorithms.newton import ProximalNewton, newton_method
from flwr_fco.core.validation import POSITIVE
from flwr_fco.errors import ConfigurationError
from flwr_fco.strategies.options import strategy
from flwr_fco.strategies.strategy import CompositeStrategy, run_of


@strategy
class FedNewton(CompositeStrategy):
    """Federated proximal Newton: the pooled solution to a certified duality gap, in about a dozen rounds.

    Minimises sum_m p_m F_m(w) + psi(w) for losses with a second derivative and psi an l1 norm, elastic net, l2 term,
    box, group lasso or sparse group lasso, none, or these by ``PerParameter``. Each round the clients evaluate loss,
    gradient and a block of the Hessian at the server's point; the server sums them, and takes the step of the method
    on the pooled data. All clients take part in every round, and remember nothing.

    Each round's metrics hold ``objective`` and ``duality-gap``, a bound on how far the model is above the optimum that
    holds for the data of all clients; the run ends when it is at most `tolerance`. Without a known conjugate, and where
    psi leaves coefficients alone, such as a confounder's (an intercept may be left alone), there is ``residual``
    instead: the norm of a proximal gradient step, which is 0 at the solution but bounds nothing.

    :func:`~flwr_fco.strategies.proved_zero` says which coefficients every optimum of the pooled problem has at zero.

    What a client sends are derivatives and, in the first round, the means of its columns and the largest of their mean
    squares, at the precision of its data: sums over its rows, which single rows can be found from if there are few.

    Parameters
    ----------
    tolerance : float, default 1e-8
        Duality gap, or residual, at which the run ends.
    hessian : {"block", "none"}, default "block"
        ``"none"``: clients send no second derivatives. Accelerated proximal gradient steps with restarts take the place
        of Newton steps, with the same certificate, in some hundred rounds; with an l2 term alone (``L2Squared``)
        steps of L-BFGS, in some tens.
    strengths : Strengths, optional
        Solve for a path of strengths of the regularizer, and its cross-validation, in the rounds of the hardest of
        them; the strength of `regularizer` is ignored. :func:`flwr_fco.fit_path` returns all models of it.

    References
    ----------
    Lee, Sun, Saunders: Proximal Newton-type methods for minimizing composite functions (SIAM J. Optim. 2014). Massias,
    Gramfort, Salmon: Celer, a fast solver for the lasso with dual extrapolation (ICML 2018). Ndiaye, Fercoq, Gramfort,
    Salmon: Gap safe screening rules for sparsity enforcing penalties (JMLR 2017).
    BibTeX: lee2014proximal, massias2018celer, ndiaye2017gap, in docs/reference/notation.md.

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

    algorithm = ProximalNewton
    participation: Everyone = field(default=Everyone())
    tolerance: float = field(default=1e-8, metadata=POSITIVE)
    hessian: Literal["block", "none"] = "block"
    strengths: Strengths | None = None

    def _kind(self) -> type[Algorithm]:
        kind = super()._kind()
        return newton_method(self) if kind is ProximalNewton else kind

    def _check(self) -> None:
        super()._check()
        name = type(self).__name__
        if self.strengths is not None:
            if not hasattr(self.regularizer, "strength"):
                raise ConfigurationError(
                    f"regularizer={self.regularizer!r} has no strength to be chosen; take one that has, such as "
                    "L1(1.0), or leave strengths out"
                )
            if self.hessian == "none" or self.certificate_every is not None:
                raise ConfigurationError(
                    f"strengths={self.strengths!r} with hessian={self.hessian!r}, certificate_every="
                    f"{self.certificate_every!r}; a path needs the Hessian's blocks, and each of its problems has a "
                    "duality gap already; leave both out, or take StrengthPath, which runs one strength after the other"
                )
        if self.output != "last":
            raise ConfigurationError(
                f"output={self.output!r}: {name} certifies its last point, which is sparse by psi; leave it out"
            )
        if self.wire.dtype == "float32":
            raise ConfigurationError(
                f"wire={self.wire!r}: the duality gap of {name} would be that of rounded sums; leave it out"
            )


def proved_zero(strategy: FedNewton) -> dict[str, NDArray[np.bool_]]:
    """Return which coefficients are zero in every optimum of the pooled problem, by name of array: gap safe rules.

    A coefficient is, if at the dual point of some round, whose gap is G,
    ``|slope_j| + sqrt(2 c G) s_j < threshold_j``: c is the losses' largest second derivative in a prediction (twice the
    scale of squares, 1/4 logistic, 1/2 multinomial), s_j bounds the root mean square of column j, about its mean if
    there is an intercept that psi leaves alone, about its mean at each client if these have intercepts of their own,
    and threshold_j is psi's l1 strength. A duality gap of 0 would prove
    all but those on the boundary. It holds as far as the clients' sums are right, as the gap does.

    Nothing is proved without a duality gap, for a psi that is no sum over coordinates, with ``hessian="none"``, and of
    a path of strengths.

    Parameters
    ----------
    strategy : FedNewton
        After a run, or within one.

    Returns
    -------
    dict of str to ndarray of bool
        A mask for each array; empty before the first round.

    References
    ----------
    Ndiaye, Fercoq, Gramfort, Salmon: Gap safe screening rules for sparsity enforcing penalties (JMLR 2017).

    Examples
    --------
    >>> proved_zero(FedNewton())
    {}
    """
    if strategy.state is None:
        return {}
    layout = run_of(strategy).problem.layout
    proved = getattr(strategy.state, "proved", np.zeros(layout.size))
    return {name: np.asarray(own > 0.0) for name, own in layout.views(proved).items()}
