"""A deployment with TLS and authentication: bits of one process, who may run code, processes that are killed.

Nodes are killed at a random moment, which is printed: of their work, of the server's or of the wait between them.
"""

import os
import random
import re
import shutil
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from problems import nightly

pytestmark = pytest.mark.slow
#: Its Control API has a port of its own, on loopback.
LOWEST = version("flwr") == "1.22.0"

STRANGER = str(Path(__file__).parents[1] / "stranger")


def starts_nothing(deployment, home):
    """Try all that somebody could who has the SuperNodes' address and the CA's certificate."""
    home.mkdir()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "x"\n\n[superlink.x]\naddress = "{deployment.address}"\n'
        f'root-certificates = "{deployment.home / "ca.crt"}"\n'
    )
    deployment.make_key(7, register=False)
    key = str(deployment.home / "node-7.pub")
    for arguments in (("run", STRANGER), ("list",), ("supernode", "register", key)):
        done = deployment.flwr_at(home, [*arguments, "x"])
        assert done.returncode != 0, arguments
        assert "403" in done.stdout + done.stderr or "SuperNodes" in done.stdout + done.stderr, done
    assert "stranger" not in deployment.flwr("list", "local").stdout


@pytest.mark.flower
@pytest.mark.parametrize("strategy", ["FedDAGT", *nightly("FedDualAvg", "Short")])
def test_the_bits_are_those_of_simulate_and_strangers_stay_out(strategy, deployments, here, tmp_path):
    """In the default run with memories and a round 0, of which the other's messages are a part."""
    deployment = deployments(2)
    deployment.make_ca("other-ca")
    deployment.start_stranger(2, register=False, ca="ca.crt")
    deployment.start_stranger(3, register=True, ca="other-ca.crt")
    if not LOWEST:
        starts_nothing(deployment, tmp_path / "stranger")
    arrays, rows, left_out = deployment.run(strategy, strategy=strategy, rounds=1)
    expected, expected_rows = here(strategy, 1, 2)
    np.testing.assert_equal(arrays, expected)
    assert [row["train/num-replies"] for row in rows] == [row["train/num-replies"] for row in expected_rows] == [2]
    assert left_out == os.listdir(deployment.ran) == []
    if strategy != "FedDAGT" and not LOWEST:
        # The operator, on the SuperLink's machine, runs what the stranger could not.
        assert deployment.flwr("run", STRANGER, "local", "--stream").returncode == 0
        assert (deployment.ran / "errors").read_text() == "0 of 2 "
        assert {name.partition("-")[0] for name in os.listdir(deployment.ran)} == {"clientapp", "serverapp", "errors"}


@pytest.mark.flower
@pytest.mark.skipif(LOWEST, reason="it has no trusted entities")
@pytest.mark.nightly
def test_sites_with_trusted_entities_run_no_app_that_nobody_has_signed(deployments):
    """Even of a user of the SuperLink's machine: his ServerApp runs there, and his ClientApp nowhere."""
    deployment = deployments(2, started=False)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(deployment.home / "reviewer")], check=True)
    key = (deployment.home / "reviewer.pub").read_text().split()
    trusted = deployment.home / "trusted.yaml"
    trusted.write_text(f"fpk_reviewer: '{key[0]} {key[1]}'\n")
    deployment.trusted = str(trusted)
    deployment.start_all()
    deployment.wait_for_nodes()
    assert deployment.flwr("run", STRANGER, "local", "--stream").returncode == 0
    assert (deployment.ran / "errors").read_text().startswith("2 of 2 ")
    assert not [name for name in os.listdir(deployment.ran) if name.startswith("clientapp")]
    assert "could not be verified" in deployment.log("node-0") + deployment.log("node-1")


# It waits a minute for the keys of killed nodes to be free. In the default run test_killed_runs.py resumes with new
# nodes on a grid that says no more than Flower's, and test_deploy.py starts a node until it is taken.
@pytest.mark.flower
@pytest.mark.nightly
def test_a_killed_superlink_is_resumed_from_the_checkpoint(deployments, here):
    deployment = deployments(2)
    saved = str(deployment.home / "saved.npz")
    deployment.begin("first", strategy="FedDAGT", rounds=4, checkpoint=saved, resume=True)
    deployment.wait_for_round("first", 3)
    deployment.kill("superlink", "first", "node-0", "node-1")
    deployment.start_superlink()
    for i in range(2):
        deployment.start_node(i, again=True)
    arrays, rows, _ = deployment.run("second", strategy="FedDAGT", rounds=4, checkpoint=saved, resume=True)
    assert "[ROUND 1/4]" not in deployment.log("second")
    np.testing.assert_equal(arrays, here("FedDAGT", 4, 2)[0])
    assert [row["round"] for row in rows] == [1, 2, 3, 4]


# --- a table of five hospitals ------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[3] / "examples" / "hospital-lasso"
SERVER = """
import json
import numpy as np
from flwr.serverapp import ServerApp
from hospital_lasso.task import new_model

app = ServerApp()

@app.main()
def main(grid, context):
    model = new_model().set_params(cv=None, alpha=1.0)
    described = model.describe(grid)
    model.fit(grid, intervals=True)
    said = json.dumps({"rows": [str(described), str(model.summary())], "left_out": []})
    np.savez(str(context.run_config["out"]), reported=said, coef=model.coef_, covariance=model.covariance_)
"""


@pytest.mark.flower
@pytest.mark.nightly
def test_a_table_over_a_super_link_is_the_table_of_one_process(deployments, example):
    task = example(EXAMPLE.name).task
    deployment = deployments(5)
    app = deployment.home / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("data", "__pycache__"))
    (app / "hospital_lasso" / "server_app.py").write_text(SERVER, encoding="utf-8")
    about = (app / "pyproject.toml").read_text(encoding="utf-8")
    # Flower would install the requirements for each message.
    about = re.sub(r"dependencies = \[.*?\n\]", "dependencies = []", about, flags=re.DOTALL)
    about = re.sub(r"(fab-format-version|flwr-version-target) = .*\n", "", about)
    about += 'out = ""\nnodes = 5\n'
    (app / "pyproject.toml").write_text(about, encoding="utf-8")
    arrays, (described, summary), _ = deployment.run("tables")
    here = task.new_model().set_params(cv=None, alpha=1.0)
    here.fit({site: task.rows_of(m) for m, site in enumerate(task.CODEBOOK.sites)}, intervals=True)
    np.testing.assert_allclose(arrays["coef"], here.coef_, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(arrays["covariance"], here.covariance_, rtol=1e-9)
    assert described.splitlines()[1].split() == [*task.CODEBOOK.sites, "all"]
    assert "442 rows, of 5 sites" in summary
    assert "Fir: bmi has a mean of 32.6" in described


# --- minutes each ----------------------------------------------------------------------------------------------------


@pytest.mark.deployment
@pytest.mark.parametrize(
    ("strategy", "nodes"), [("FedDualAvg", [1]), ("FedDAGT", [1, 2]), ("DualFL", [1]), ("DualFL", [1, 2])]
)
def test_killed_nodes_come_back_in_the_midst_of_a_run(strategy, nodes, deployments, here):
    deployment = deployments()
    rounds = 12 if strategy == "DualFL" else 8
    # A message that dies with its process is answered by nobody where the node is back in time.
    deployment.begin("run", strategy=strategy, rounds=rounds, timeout=150.0)
    deployment.wait_for_round("run", 3)
    # Any moment of it or of the next.
    print(f"{(seconds := random.uniform(0.0, 8.0)):.2f} s after the beginning of round 3")
    time.sleep(seconds)
    deployment.kill(*(f"node-{i}" for i in nodes))
    for i in nodes:
        deployment.start_node(i, again=True)
    arrays, rows, left_out = deployment.ended("run")
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    assert rows[-1]["train/num-replies"] == 3
    # One of two may be back before anybody misses it, and who is asked again may answer then.
    assert {row[2] for row in left_out} <= set(nodes)
    assert left_out or strategy == "DualFL"
    assert all(np.isfinite(array).all() for array in arrays.values())
    if strategy == "DualFL":
        # It needs everyone: a round without somebody is skipped, and those that count are those of the whole run.
        np.testing.assert_equal(arrays, here(strategy, sum(not row["train/skipped"] for row in rows))[0])


@pytest.mark.deployment
def test_bad_answers_are_left_out_as_they_are_in_one_process(deployments, here):
    arrays, rows, left_out = deployments().run("faults", strategy="FedDAGT", rounds=10, faults=0.2)
    expected, expected_rows = here("FedDAGT", 10, faults=0.2)
    np.testing.assert_equal(arrays, expected)
    assert left_out
    assert [row["train/num-replies"] for row in rows] == [row["train/num-replies"] for row in expected_rows]
