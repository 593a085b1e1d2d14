"""Strategies: the server half of every method, subclasses of `flwr.serverapp.strategy.FedAvg`."""

from flwr_fco.algorithms.contract import choices
from flwr_fco.algorithms.contract.choices import *  # noqa: F403
from flwr_fco.algorithms.restricted_gradient_tracking import Stage
from flwr_fco.core.validation import AT_LEAST_ONE, POSITIVE
from flwr_fco.messages.short import Short
from flwr_fco.strategies import methods
from flwr_fco.strategies.methods import *  # noqa: F403
from flwr_fco.strategies.options import Options, Rate, strategy
from flwr_fco.strategies.strategy import CompositeStrategy, MinimiseStrategy, StepStrategy, run_of
from flwr_fco.work import Epochs, Minimise, Steps

#: All strategies by name, for run configs and command lines.
_NAMES = sorted({*methods.__all__} - {"proved_zero"})
STRATEGIES: dict[str, type[CompositeStrategy]] = {name: getattr(methods, name) for name in _NAMES}

__all__ = ["AT_LEAST_ONE", "POSITIVE", "STRATEGIES", "CompositeStrategy", "Epochs", "Minimise", "MinimiseStrategy"]
__all__ += ["Options", "Rate", "Short", "Stage", "StepStrategy", "Steps", "run_of", "strategy"]
__all__ += choices.__all__
__all__ += methods.__all__
