"""A subclass may use every name that is not Flower's, an option's, or one of the five that a user reads."""

import inspect
from dataclasses import fields

import numpy as np
from flwr.serverapp.strategy import FedAvg
from problems import clients, flat, run
from signatures import READ
from together import together

from flwr_fco.algorithms import Algorithm
from flwr_fco.server.run import Run
from flwr_fco.strategies import FedDAGT, FedDualAvg, Steps


def free_names(kind):
    """Return the names of ours that a subclass might want for itself: those of a run and of an algorithm."""
    taken = {*dir(FedAvg()), *READ, *(option.name for option in fields(kind)), "_fco"}
    ours = {name for cls in (Run, Algorithm, *kind.__mro__) for name in dir(cls)}
    ours |= set(vars(kind()._fco)) | {"weight", "step", "client", "server", "round", "model", "data"}
    return sorted(name for name in ours - taken if not name.startswith(("__", "_abc")))


@together("kind", [FedDualAvg, FedDAGT])
def test_a_subclass_may_use_every_other_name(kind):
    names = free_names(kind)
    assert {"plan", "aggregate", "mail", "retrieve", "problem", "prepare"} <= set(names)
    mine = type("Mine", (kind,), dict.fromkeys(names, "mine"))
    options = {"client_lr": 0.05, "work": Steps(2, batch_size=None), "fraction_evaluate": 0.0}
    strategy = mine(**options)
    for name in names:
        setattr(strategy, name, "mine")
    found, expected = run(strategy, clients(), 4), run(kind(**options), clients(), 4)
    np.testing.assert_array_equal(flat(found.arrays), flat(expected.arrays))
    assert inspect.getattr_static(strategy, "plan") == "mine"
