"""Which rivals are tested by day, and which in `make test-nightly` only."""

import pytest

from reproduction.rivals import RIVALS

#: A client half of its own that minimises and remembers, while everybody answers; steps of its own whose weights grow;
#: primal steps that remember. The others run through what a strategy of the library stands for.
BY_DAY = ("FedPD", "FastFedDA", "Scaffnew")


def by_day(names=RIVALS):
    """Mark the names of rivals, for `pytest.mark.parametrize`, that only the nightly tests run."""
    return [name if name in BY_DAY else pytest.param(name, marks=pytest.mark.nightly) for name in names]
