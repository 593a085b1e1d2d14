"""What a user puts into the root app's run config."""

import tomllib
from pathlib import Path

from fuzz.budget import VALUES, WORDS, fuzzed
from hypothesis import given
from hypothesis import strategies as st

from flwr_fco.errors import FlwrFcoError
from main_job.run_config import KEYS, checked_config
from main_job.task import Task

PYPROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
CONFIG = PYPROJECT["tool"]["flwr"]["app"]["config"]


@fuzzed(0.02)
@given(st.dictionaries(st.one_of(st.sampled_from(sorted(KEYS)), WORDS), VALUES, max_size=4))
def test_run_configs(values):
    try:
        config = checked_config({**CONFIG, **values})
    except FlwrFcoError:
        return
    assert config["num-server-rounds"] >= 1
    if config["num-nodes"] > 20:
        return
    try:
        Task(config).strategy()
    except FlwrFcoError:
        return
