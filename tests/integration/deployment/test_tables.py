"""A table of five hospitals over a SuperLink: described by a codebook, fitted with intervals, as in one process."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.nightly]

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
    said = {"rows": [str(described), str(model.summary())], "left_out": []}
    with open(str(context.run_config["out"]), "wb") as file:
        np.savez(file, reported=np.array(json.dumps(said)), coef=model.coef_, covariance=model.covariance_)
"""


@pytest.fixture
def task(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    from hospital_lasso import task

    return task


def test_a_table_over_a_super_link_is_the_table_of_one_process(deployments, task):
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
    print(described, summary, sep="\n")
