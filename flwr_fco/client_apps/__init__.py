"""Client apps: the client half of every algorithm, as pure functions, and the ClientApp that runs them."""

from flwr_fco.client_apps.app import client_app
from flwr_fco.client_apps.solvers.dual_averaging.dual_averaging import dual_averaging
from flwr_fco.client_apps.solvers.dual_averaging.fast_dual_averaging import fast_dual_averaging
from flwr_fco.client_apps.solvers.gradient_tracking.gradient_tracking import gradient_tracking
from flwr_fco.client_apps.solvers.local_minimisation.dual_fl import dual_fl
from flwr_fco.client_apps.solvers.local_minimisation.local_minimization import local_minimization
from flwr_fco.client_apps.solvers.local_minimisation.primal_dual import apda_inexact, five_gcs
from flwr_fco.client_apps.solvers.local_minimisation.scaffnew import scaffnew
from flwr_fco.client_apps.solvers.local_minimisation.splitting import fed_dr, fed_dyn, fed_pd
from flwr_fco.client_apps.solvers.on_graphs.tracked_dual_averaging import tracked_dual_averaging
from flwr_fco.client_apps.solvers.primal_averaging.primal_steps import (
    client_momentum,
    mirror_descent,
    sharpness_aware,
    subgradient,
)
from flwr_fco.client_apps.solvers.saddle_points.dual_extrapolation import dual_extrapolation
from flwr_fco.client_apps.solvers.saddle_points.primal_steps import descent_ascent, extra_step, mirror_prox
from flwr_fco.client_apps.solvers.table import find_solver, local_solver

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
