"""scikit-learn estimators: a run's result as a fitted estimator, and federated estimators that train in one process.

``FederatedLasso(alpha=0.1).fit([X_1, X_2], [y_1, y_2])`` trains with two clients, each with its own rows, through
:func:`flwr_fco.simulation.simulate`; ``fit(X, y)`` splits the rows, so these estimators work wherever scikit-learn's do
(pipelines, grid searches), and ``fit(X, y, groups=client_of_each_row)`` assigns each row to a client. Those of squares
and classes pass scikit-learn's ``check_estimator``. Data frame columns are aligned by name across clients, in the first
client's order, which ``predict`` expects. The objective functions are scikit-learn's, and so are the solutions::

    FederatedLasso,
    FederatedElasticNet           1/(2n) ||y - Xw - b||^2 + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2)
    FederatedLogisticRegression   1/n sum_i loss_i + 1/(C n) (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2)
    FederatedPoissonRegression    1/(2n) deviance + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2)
    FederatedCoxRegression        -1/n log partial likelihood + alpha (l1_ratio ||w||_1 + (1 - l1_ratio)/2 ||w||^2)

The clients evaluate loss, gradient and a block of the Hessian (:class:`flwr_fco.strategies.FedNewton`): about a dozen
rounds to a certified duality gap, however the data are distributed, after two questions: what their tables are, and how
many rows they have and their loss at 0. No array holds the rows of all clients, and none has a row and a column for
each feature. In a deployment ``model.client_app(load)`` is a site's ClientApp, and ``model.fit(grid, features=...)``
the ServerApp's part.
"""

from flwr_fco.tables import estimators
from flwr_fco.tables.codebook import Codebook, Column
from flwr_fco.tables.description import Description, Finding
from flwr_fco.tables.estimators import *  # noqa: F403
from flwr_fco.tables.intervals import Intervals
from flwr_fco.tables.reports import Curves, Quality, Summary, Tested

__all__ = ["Codebook", "Column", "Curves", "Description", "Finding", "Intervals", "Quality", "Summary", "Tested"]
__all__ += estimators.__all__
