"""Client apps: the client half of every algorithm, as pure functions, and the ClientApp that runs them."""

from flwr_fco.client_apps.app import client_app
from flwr_fco.client_apps.dual_averaging import dual_averaging
from flwr_fco.client_apps.fast_dual_averaging import fast_dual_averaging
from flwr_fco.client_apps.gradient_tracking import gradient_tracking, tracked_dual_averaging
from flwr_fco.client_apps.local import find_solver, local_solver
from flwr_fco.client_apps.mirror_descent import mirror_descent
from flwr_fco.client_apps.subgradient import subgradient

__all__ = [
    "client_app",
    "dual_averaging",
    "fast_dual_averaging",
    "find_solver",
    "gradient_tracking",
    "local_solver",
    "mirror_descent",
    "subgradient",
    "tracked_dual_averaging",
]
