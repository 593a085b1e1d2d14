"""Client apps: the client half of every algorithm, as pure functions, and the ClientApp that runs them."""

from flwr_fco.client_apps.app import client_app
from flwr_fco.client_apps.descent_ascent import descent_ascent
from flwr_fco.client_apps.dual_averaging import dual_averaging
from flwr_fco.client_apps.dual_extrapolation import dual_extrapolation
from flwr_fco.client_apps.extra_step import extra_step
from flwr_fco.client_apps.fast_dual_averaging import fast_dual_averaging
from flwr_fco.client_apps.gradient_tracking import gradient_tracking, tracked_dual_averaging
from flwr_fco.client_apps.local import find_solver, local_solver
from flwr_fco.client_apps.mirror_descent import mirror_descent
from flwr_fco.client_apps.mirror_prox import mirror_prox
from flwr_fco.client_apps.subgradient import subgradient

__all__ = [
    "client_app",
    "descent_ascent",
    "dual_averaging",
    "dual_extrapolation",
    "extra_step",
    "fast_dual_averaging",
    "find_solver",
    "gradient_tracking",
    "local_solver",
    "mirror_descent",
    "mirror_prox",
    "subgradient",
    "tracked_dual_averaging",
]
