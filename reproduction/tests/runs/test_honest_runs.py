"""The default bounds on what clients say are no bounds for honest ones: no run of the papers loses a reply by them."""

from dataclasses import replace

import pytest

from flwr_fco.errors import NotInstalledError
from reproduction.claims.definition import EXPERIMENTS, load_definition
from reproduction.data import DataNotFoundError
from reproduction.problems.baselines import BASELINES
from reproduction.runs.run import run

#: Whose data or models alone take seconds, and the further cases of two of the first paper's problems.
LARGE = {"fco-fig13", "fco-fig14", "fco-fig15", "spp-fig6", "spp-fig7", "spp-fig8", "dualfl-mnist60000"}
LARGE |= {f"fco-fig{number}" for number in range(6, 12)}
PROBLEMS = {name: load_definition(name).quick_version().problem for name in EXPERIMENTS}
#: One experiment of each problem is enough for every day.
FIRST = {problem: name for name, problem in reversed(PROBLEMS.items())}
EVERY_DAY = set(FIRST.values()) - LARGE
NAMES = [pytest.param(name, marks=() if name in EVERY_DAY else pytest.mark.slow) for name in EXPERIMENTS]


def hold_nothing_against_anybody(settings):
    try:
        result = run(settings)
    except (DataNotFoundError, NotInstalledError) as missing:
        pytest.skip(str(missing))
    assert list(result.left_out) == []


def federated(definition):
    return [line for line in definition.runs if line.strategy not in BASELINES]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_left_out_in_the_first_rounds_of_an_experiment(name):
    """The first rounds: from then on the largest median of an earlier round counts, which only grows."""
    definition = load_definition(name).quick_version()
    # One of each method: rates make no reply longer per unit of time.
    for line in {line.strategy: line for line in federated(definition)}.values():
        own = definition.run_settings(line, definition.seeds[0])
        hold_nothing_against_anybody(replace(own, num_rounds=min(own.num_rounds, 2 * own.stretch)))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_nothing_is_left_out_in_an_experiment(name):
    definition = load_definition(name).quick_version()
    for line in federated(definition):
        hold_nothing_against_anybody(definition.run_settings(line, definition.seeds[0]))
