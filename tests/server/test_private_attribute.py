"""A subclass may use every name that is not Flower's, an option's, or one of the five that a user reads."""

import copy
import inspect
import pickle
from dataclasses import fields

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg
from problems import clients, flat, run
from signatures import READ
from together import together

from flwr_fco.algorithms import Algorithm
from flwr_fco.errors import ConfigurationError
from flwr_fco.server.run import Run
from flwr_fco.strategies import FedDAGT, FedDualAvg, Steps, run_of


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


OPTIONS = {"client_lr": 0.05, "work": Steps(2, batch_size=None)}


def test_a_strategy_has_one_run_at_a_time_and_another_one_after_an_error():
    strategy, copied = FedDualAvg(**OPTIONS), []

    def again(*_):
        copied.append(run(copy.copy(strategy), clients(), 1))
        run(strategy, clients(), 1)

    with pytest.raises(ConfigurationError, match=r"is in a run that has not ended: .*copy.copy\(strategy\)"):
        run(strategy, clients(), 2, callbacks=[again])
    assert len(copied) == 1
    found, expected = run(strategy, clients(), 2), run(FedDualAvg(**OPTIONS), clients(), 2)
    np.testing.assert_array_equal(flat(found.arrays), flat(expected.arrays))


@together("copied", [copy.copy, copy.deepcopy, lambda strategy: pickle.loads(pickle.dumps(strategy))])
def test_a_copy_has_a_run_of_its_own(copied):
    """Also after a run, whose nodes it does not take along."""
    strategy = FedDualAvg(**OPTIONS)
    run(strategy, clients(), 2)
    before, other = strategy.state, copied(strategy)
    assert run_of(other).strategy is other
    run(other, clients(), 3)
    assert strategy.state is before
    assert (before.round, other.state.round) == (2, 3)


def test_there_is_no_model_before_there_is_a_start_point():
    with pytest.raises(ConfigurationError, match=r"no model before `prepare\(initial_arrays\)` or `start`"):
        run_of(FedDualAvg()).primal_arrays()
