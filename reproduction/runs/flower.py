"""Run named problems through Flower: ``flwr run`` on an app written for the run.

The app's module only imports :data:`server_app` and :data:`client_app` from here, so the SuperLink gets the path on
which this package lies.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flwr_fco.client_apps import client_app as make_client_app
from flwr_fco.errors import ConfigurationError
from flwr_fco.models import json_object, write_file
from flwr_fco.strategies import run_of
from reproduction.problems.baselines import BASELINES
from reproduction.problems.loaders import data_directory
from reproduction.problems.named import find_problem
from reproduction.runs.recorder import Recorder
from reproduction.runs.run import RunResult, partition_of
from reproduction.runs.run_folder import RunFolder, RunStatus, read_run
from reproduction.runs.settings import RunSettings
from tools.local_superlink import flower_run, local_superlink

_RECORD = "record"
_APPS = """\
from reproduction.runs.flower import client_app, server_app

# Flower reads this file without running it and looks for assignments.
client = client_app
server = server_app
"""


def run_with_flower(
    settings: RunSettings, folder: Path, *, on_round: Callable[[int], None] = lambda number: None, resume: bool = False
) -> RunResult:
    """Run a problem with ``flwr run``, on a SuperLink that is started for it and stopped afterwards.

    Parameters
    ----------
    settings : RunSettings
    folder : Path
        Flower's files and logs go to ``flower`` in it.
    on_round : callable, optional
        Called with the number of each round when it starts.
    resume : bool, default False
        Continue the run in `folder` where it was stopped or killed, or start it if there is none.

    Returns
    -------
    RunResult
        The same numbers as :func:`reproduction.runs.run.run` gives.

    Raises
    ------
    ConfigurationError
        For a baseline, because it has no federation.
    FlwrFcoError
        If the SuperLink does not start or the run fails.
    """
    if settings.strategy in BASELINES:
        raise ConfigurationError(
            f"strategy={settings.strategy!r} has no federation; expected a strategy with engine='flower'"
        )
    settings = _with_absolute_path(settings)
    place = (folder / "flower").resolve()
    code = place / "app" / "flwr_fco_run"
    code.mkdir(parents=True, exist_ok=True)
    # In the app, not on the command line: Flower's parser of overrides trips over quotes in a value. A JSON string is
    # a TOML string.
    template = (resources.files(__package__ or "") / "flower_app.toml").read_text(encoding="utf-8")
    content = template.replace('"{settings}"', json.dumps(json.dumps(settings.to_config())))
    write_file(place / "app" / "pyproject.toml", content)
    write_file(place / "app" / "README.md", "A run of flwr-fco.\n")
    write_file(code / "__init__.py", "")
    write_file(code / "apps.py", _APPS)
    record = place / _RECORD
    if not resume:
        shutil.rmtree(record, ignore_errors=True)
    num_nodes = settings.load().dataset.num_clients
    own = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    with local_superlink(place / "home", {"PYTHONPATH": own}) as environment:
        flower_run(
            place / "app",
            environment,
            {"folder": str(record), "resume": resume},
            num_nodes=num_nodes,
            log=place / "run.log",
            on_round=lambda number, total: on_round(number),
        )
    found = read_run(record)
    status = found.status or RunStatus()
    left_out = [SimpleNamespace(**row) for row in found.left_out]
    return RunResult(
        settings, found.metrics, found.arrays, status.diverged, status.seconds, left_out, chosen=status.chosen
    )


def _with_absolute_path(settings: RunSettings) -> RunSettings:
    """Return the settings with an absolute path of the problem's files or downloads."""
    options = settings.problem_options
    path, files = str(options.get("path", "")), find_problem(settings.problem).files
    if files and not options.get("fetch", False) and options.get("source", "files") == "files":
        path = str(data_directory(files, path))
    if not path:
        return settings
    return replace(settings, problem_options={**options, "path": str(Path(path).resolve())})


server_app = ServerApp()


@server_app.main()
def _serve(grid: Grid, context: Context) -> None:
    """Train, evaluate on the server, write the record."""
    settings = _settings(context)
    resume = bool(context.run_config["resume"])
    folder = RunFolder(Path(str(context.run_config["folder"])), settings.to_config(), resume=resume)
    recorder = Recorder(settings.load(), settings)
    began = time.perf_counter()
    state = folder.path / "state.npz"
    model = recorder.start(grid, folder, checkpoint=state, resume=resume)
    seconds = round(time.perf_counter() - began, 3)
    done = run_of(recorder.strategy).number
    folder.checkpoint(RunStatus(done, True, recorder.diverged, seconds, recorder.chosen), model)
    state.unlink()
    Path(f"{state}.lock").unlink()


def _settings(context: Context) -> RunSettings:
    return RunSettings.from_config(json_object(str(context.run_config["settings"])))


client_app = make_client_app(lambda context: _settings(context).load().dataset.objective(partition_of(context)))
