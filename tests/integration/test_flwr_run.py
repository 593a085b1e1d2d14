"""Through Flower itself: a SuperLink of our own, `flwr run`, Ray. The same numbers as in this process."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from flwr_fco.errors import FlwrFcoError
from flwr_fco.models import load_npz
from main_job.compare import model_of, read_task, train
from tools.local_superlink import _processes, descendants, flower_run, local_superlink

pytestmark = [pytest.mark.flower, pytest.mark.slow]


@pytest.fixture(scope="module")
def superlink(tmp_path_factory, paths):
    # SuperLink, ServerApp and Ray's workers must find the package, installed or not.
    # One worker: each would compile the kernels that the app has brought along.
    one = {"RAY_OVERRIDE_RESOURCES": '{"CPU": 1}'}
    with local_superlink(tmp_path_factory.mktemp("flwr"), {"PYTHONPATH": paths, **one}) as ready:
        yield ready


def test_the_root_app_gives_the_same_bits_as_the_run_in_this_process(superlink, clone, tmp_path):
    overrides = {"num-server-rounds": 3, "num-nodes": 4, "seed": 11, "evaluate-every": 3}
    rounds = []
    flower_run(
        clone,
        superlink,
        {**overrides, "output-dir": str(tmp_path / "runs")},
        num_nodes=4,
        log=tmp_path / "log",
        on_round=lambda number, total: rounds.append((number, total)),
    )
    assert rounds == [(1, 3), (2, 3), (3, 3)]
    (folder,) = (tmp_path / "runs").iterdir()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    here = train(read_task(clone, overrides))
    for name, array in load_npz(folder / "model.npz").items():
        np.testing.assert_array_equal(array, model_of(here)[name])
    found = {line["round"]: line["server/objective"] for line in lines if "server/objective" in line}
    assert found == {3: here.evaluate_metrics_serverapp[3]["objective"]}
    assert [line["round"] for line in lines] == [1, 2, 3]


# In the default run `checked_config` says the same in this process.
@pytest.mark.nightly
def test_a_run_that_fails_is_an_error_with_flowers_own_words(superlink, clone, tmp_path):
    with pytest.raises(FlwrFcoError, match=r"strategy='FedNova'; expected a string, one of"):
        flower_run(clone, superlink, {"strategy": "FedNova"}, num_nodes=2, log=tmp_path / "log")


@pytest.mark.parametrize(
    ("number", "code", "moment", "least"),
    [
        # flwr run, SuperLink, SuperExec, simulation, Ray
        pytest.param(signal.SIGTERM, 128 + signal.SIGTERM, "[ROUND 3/", 6, marks=pytest.mark.nightly),
        # flwr run and SuperLink, before either has started anything: Ray need not start twice for the other signal.
        (signal.SIGINT, 130, "", 2),
    ],
    ids=["SIGTERM in the middle", "SIGINT while Flower starts"],
)
def test_make_run_leaves_no_process_when_it_is_stopped(tmp_path, request, number, code, moment, least):
    # Without what it computes before Flower starts.
    program = "from main_job import compare; compare.compare = print; raise SystemExit(compare.main())"
    arguments = [sys.executable, "-c", program, "--num-server-rounds", "3", "--directory", str(tmp_path)]
    root = request.config.rootpath
    log = tmp_path / "FedDualAvg.log"
    job = subprocess.Popen(arguments, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, stdout=subprocess.DEVNULL)
    # No deadline: on a machine that does other work too, Flower and Ray take minutes to start. A job that cannot, ends.
    while True:
        assert job.poll() is None
        before = set(descendants(job.pid))
        if len(before) >= least and (not moment or (log.exists() and moment in log.read_text())):
            break
        time.sleep(0.1)
    job.send_signal(number)
    assert job.wait() == code
    # A killed process takes a moment to go; one that was forgotten stays.
    for _ in range(300):
        left = {pid for pid, (_, zombie) in _processes().items() if not zombie} & before
        if not left:
            break
        time.sleep(0.1)
    assert left == set()
