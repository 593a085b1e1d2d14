"""The contract of an algorithm: both halves of a method, and what they see of a run."""

from flwr_fco.algorithms.contract.algorithm import Algorithm, Implied
from flwr_fco.algorithms.contract.client import (
    COLUMNS_LEFT,
    HESSIAN_SHARE,
    ORIGIN,
    Client,
    ClientHalf,
    Memory,
    Moved,
    Start,
    Step,
    halves,
    named,
    register,
    without_common,
    zeros_like,
)
from flwr_fco.algorithms.contract.disclosure import Disclosure
from flwr_fco.algorithms.contract.problem import Change, LossFacts, Problem, Setting, To
from flwr_fco.algorithms.contract.replies import Replies
from flwr_fco.core.layout import Vector
from flwr_fco.objectives.base import Batch
from flwr_fco.wire.protocol import Downlink, Option, Plan, Uplink
from flwr_fco.work import Evaluation, FirstOrder, Minimise, Work

__all__ = [
    "COLUMNS_LEFT",
    "HESSIAN_SHARE",
    "ORIGIN",
    "Algorithm",
    "Batch",
    "Change",
    "Client",
    "ClientHalf",
    "Disclosure",
    "Downlink",
    "Evaluation",
    "FirstOrder",
    "Implied",
    "LossFacts",
    "Memory",
    "Minimise",
    "Moved",
    "Option",
    "Plan",
    "Problem",
    "Replies",
    "Setting",
    "Start",
    "Step",
    "To",
    "Uplink",
    "Vector",
    "Work",
    "halves",
    "named",
    "register",
    "without_common",
    "zeros_like",
]
