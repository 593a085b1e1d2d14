"""One strategy of each class goes through what all of them go through in `make test-nightly`."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from flwr_fco.strategies import STRATEGIES

#: A strategy, and why it is here: what runs its clients, what they remember, who takes part, what the server reads.
REPRESENTATIVES = {
    "FedDualAvg": "dual steps of clients that remember nothing; the server reads the mean",
    "FedDAGT": "dual steps with a tracker in each client's memory; sums over a sample",
    "DFedDAGT": "dual steps on a graph: the server reads every node's row, and remembers for all",
    "FedMid": "proximal steps of clients that remember nothing",
    "FeDualEx": "pairs of extragradient steps, on a saddle point",
    "FedMiP": "steps of its own, in pairs, whose primal points are averaged",
    "FedDR": "minimisations with two vectors in each client's memory; a sample",
    "DualFL": "minimisations with a shift; everybody, and nobody's answer may be missing",
    "FedNewton": "evaluations by clients that remember nothing; everybody, and the server checks what is said",
}


def nightly(*values: Any) -> list[ParameterSet]:
    """Mark values, for `pytest.mark.parametrize`, that only the nightly tests run."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]


def covered(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return as few combinations as show each value once."""
    values = [tuple(axis) for axis in axes]
    return [tuple(axis[i % len(axis)] for axis in values) for i in range(max(map(len, values)))]


def crossed(*axes: Iterable[Any]) -> list[tuple[Any, ...] | ParameterSet]:
    """Return all combinations, of which only the nightly tests run those that show no value for the first time."""
    values = [tuple(axis) for axis in axes]
    day = covered(*values)
    return [row if row in day else pytest.param(*row, marks=pytest.mark.nightly) for row in itertools.product(*values)]


def by_class(names: Iterable[str] = STRATEGIES) -> list[str | ParameterSet]:
    """Mark the names of strategies, for `pytest.mark.parametrize`, that only the nightly tests run."""
    return [name if name in REPRESENTATIVES else pytest.param(name, marks=pytest.mark.nightly) for name in names]
