"""Strategies: the server half of every method, subclasses of `flwr.serverapp.strategy.FedAvg`."""

from flwr_fco.algorithms.contract.choices import (
    Arrays,
    Average,
    Bounds,
    Density,
    Everyone,
    Last,
    Ledger,
    Participation,
    Reference,
    Strengths,
    Trimmed,
    Wire,
)
from flwr_fco.algorithms.restricted_gradient_tracking import Stage
from flwr_fco.core.validation import AT_LEAST_ONE, POSITIVE
from flwr_fco.messages.short import Short
from flwr_fco.strategies import methods
from flwr_fco.strategies.methods import *  # noqa: F403
from flwr_fco.strategies.options import Options, Rate, strategy
from flwr_fco.strategies.strategy import CompositeStrategy, MinimiseStrategy, StepStrategy, run_of
from flwr_fco.work import Epochs, Minimise, Steps

#: All strategies by name, for run configs and command lines.
STRATEGIES: dict[str, type[CompositeStrategy]] = {
    name: getattr(methods, name) for name in sorted(methods.__all__) if name != "proved_zero"
}

__all__ = ["AT_LEAST_ONE", "POSITIVE", "STRATEGIES", "Arrays", "Average", "Bounds", "CompositeStrategy", "Density"]
__all__ += ["Epochs", "Everyone", "Last", "Ledger", "Minimise", "MinimiseStrategy", "Options", "Participation", "Rate"]
__all__ += ["Reference", "Short", "Stage", "StepStrategy", "Steps", "Strengths", "Trimmed", "Wire", "run_of"]
__all__ += ["strategy"]
__all__ += methods.__all__
