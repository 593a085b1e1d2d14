"""Client apps: the client half of every algorithm, as pure functions, and the ClientApp that runs them."""

from flwr_fco.client_apps.app import client_app
from flwr_fco.client_apps.descent_ascent import descent_ascent
from flwr_fco.client_apps.dual_averaging import dual_averaging
from flwr_fco.client_apps.dual_extrapolation import dual_extrapolation
from flwr_fco.client_apps.dual_fl import dual_fl
from flwr_fco.client_apps.extra_step import extra_step
from flwr_fco.client_apps.fast_dual_averaging import fast_dual_averaging
from flwr_fco.client_apps.gradient_tracking import gradient_tracking, tracked_dual_averaging
from flwr_fco.client_apps.local import find_solver, local_solver
from flwr_fco.client_apps.local_minimization import local_minimization
from flwr_fco.client_apps.mirror_descent import mirror_descent
from flwr_fco.client_apps.mirror_prox import mirror_prox
from flwr_fco.client_apps.primal_dual import apda_inexact, five_gcs
from flwr_fco.client_apps.primal_steps import client_momentum, sharpness_aware
from flwr_fco.client_apps.scaffnew import scaffnew
from flwr_fco.client_apps.splitting import fed_dr, fed_dyn, fed_pd
from flwr_fco.client_apps.subgradient import subgradient

__all__ = [
    "apda_inexact",
    "client_app",
    "client_momentum",
    "descent_ascent",
    "dual_averaging",
    "dual_extrapolation",
    "dual_fl",
    "extra_step",
    "fast_dual_averaging",
    "fed_dr",
    "fed_dyn",
    "fed_pd",
    "find_solver",
    "five_gcs",
    "gradient_tracking",
    "local_minimization",
    "local_solver",
    "mirror_descent",
    "mirror_prox",
    "scaffnew",
    "sharpness_aware",
    "subgradient",
    "tracked_dual_averaging",
]
