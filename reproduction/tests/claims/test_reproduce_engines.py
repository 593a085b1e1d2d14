"""An experiment's runs on other engines."""

import pytest

from flwr_fco.errors import ConfigurationError
from reproduction.claims.definition import load_definition
from reproduction.claims.reproduction import reproduce


@pytest.mark.parametrize(("engine", "workers"), [("flower", 1), ("in-process", 2)])
def test_an_engine_that_it_cannot_have_is_refused(engine, workers, tmp_path):
    with pytest.raises(ConfigurationError, match=f"engine='{engine}' with workers={workers}; expected"):
        reproduce(load_definition("fco-theorems").quick_version(), tmp_path, engine=engine, workers=workers)
    assert not list(tmp_path.iterdir())


# test_reservations.py starts a sweep on Ray, which are the same tasks.
@pytest.mark.flower
@pytest.mark.slow
@pytest.mark.nightly
def test_runs_on_ray_are_those_of_this_process(tmp_path):
    definition = load_definition("fco-theorems").quick_version()
    here = reproduce(definition, tmp_path / "here", engine="in-process")
    there = reproduce(definition, tmp_path / "there", engine="ray", workers=2)
    assert here.outcomes == there.outcomes
