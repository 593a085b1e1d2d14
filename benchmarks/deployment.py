"""Seconds, bytes and CPU of a round in a real deployment: SuperLink, SuperNodes, TLS, authentication, on this machine.

    python benchmarks/deployment.py                       Flower's FedAvg and FedDualAvg by turns (five minutes)
    python benchmarks/deployment.py --size 1000000 --strategies FedDualAvg FedDAGT FeDualEx DualFL
                                                          the table of docs/tutorials/deployment.md
    python benchmarks/deployment.py --exact               breast cancer at 4 sites, from `flwr run` to a certified gap
    python benchmarks/deployment.py --quick               two rounds of FedDualAvg at one node

FedAvg's client is bare: NumPy and Flower, a gradient step on the same rows. Every message is a new process on a
SuperNode; its CPU is that of all processes that the SuperNode has started, divided by the messages. Each turn is a run
of its own in the same deployment. Seconds are between the ends of two rounds, the first one aside.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from newton import LONG, TOLERANCE, breast_cancer, solved
from shared import cpu_seconds, middles, options_of, print_head, print_row

from flwr_fco.models import read_text, write_file, write_npz
from tools.deployment import CONNECTION, LocalDeployment
from tools.local_superlink import descendants

APP = {
    "pyproject.toml": read_text(Path(__file__).with_name("deployment_app.toml")),
    "timed/__init__.py": "",
    "timed/bare.py": """
import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict, Message
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def train(message, context):
    size = int(context.run_config["size"])
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    features = rng.standard_normal((20, size))
    targets = features[:, 0]
    record = message.content["arrays"]
    w = record["coefficients"].numpy()
    for _ in range(5):
        w = w - 1e-7 * features.T @ (features @ w - targets)
    content = {"arrays": ArrayRecord({"coefficients": Array(w)}), "metrics": MetricRecord({"num-examples": 20})}
    return Message(RecordDict(content), reply_to=message)
""",
    "timed/ours.py": """
import numpy as np
from flwr_fco.client_apps import client_app
from flwr_fco.objectives import LeastSquares

def load(context):
    size = int(context.run_config["size"])
    rng = np.random.default_rng(int(context.node_config["partition-id"]))
    features = rng.standard_normal((20, size))
    return LeastSquares(features, features[:, 0], intercept=False, l2=0.1)

app = client_app(load)
""",
    "timed/lasso.py": """
from pathlib import Path
import numpy as np
from flwr_fco.client_apps import client_app
from flwr_fco.models import read_npz
from flwr_fco.objectives import Logistic

def load(context):
    site = read_npz(Path(context.run_config["sites"]) / f"{context.node_config['partition-id']}.npz")
    return Logistic(site["features"], site["labels"])

app = client_app(load)
""",
    "timed/server.py": """
import json, time
import numpy as np
from pathlib import Path
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
import flwr_fco.strategies as ours
from flwr_fco.models import write_file
from flwr_fco.regularizers import L1, Zero

app = ServerApp()

@app.main()
def main(grid, context):
    config, times = context.run_config, []
    nodes = len(list(grid.get_node_ids()))
    common = {"fraction_evaluate": 0.0, "min_train_nodes": nodes, "min_available_nodes": nodes}
    name, start = config["strategy"], {"coefficients": np.zeros(int(config["size"]))}
    if name == "FedAvg":
        strategy = FedAvg(**common)
    elif config["hessian"]:
        how = {"hessian": config["hessian"], "tolerance": float(config["tolerance"])}
        strategy = ours.FedNewton(regularizer=L1(float(config["strength"])), **how, **common)
        start["intercept"] = np.zeros(1)
    else:
        cls = getattr(ours, name)
        options = {"regularizer": Zero()} if "regularizer" in cls.algorithm.refuses else {}
        work = {"client_lr": 1e-7, "nu": 0.1}
        known = {field: value for field, value in work.items() if field in cls.__dataclass_fields__}
        if issubclass(cls, ours.StepStrategy):
            known["work"] = ours.Steps(5, batch_size=None)
        strategy = cls(**options, **known, **common)
    record = ArrayRecord({name: Array(array) for name, array in start.items()})
    result = strategy.start(grid, record, int(config["rounds"]), evaluate_fn=lambda *_: times.append(time.time()))
    rows = [dict(metrics) for _, metrics in sorted(result.train_metrics_clientapp.items())]
    write_file(Path(config["out"]), json.dumps({"times": times, "rows": rows}))
""",
}


def write_apps(folder: Path) -> None:
    """Write the app three times: with the bare client, with ours, and with that of a lasso."""
    for client in ("bare", "ours", "lasso"):
        for name, text in APP.items():
            path = folder / client / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, text.replace("CLIENT", client).lstrip())


def run(deployment: LocalDeployment, app: str, **config: Any) -> tuple[dict[str, Any], float]:
    """Run an app; return what it has written, and the seconds from `flwr run` until then."""
    out = deployment.home / "out.json"
    out.unlink(missing_ok=True)
    text = " ".join(f"{key}={json.dumps(value)}" for key, value in {**config, "out": str(out)}.items())
    began = time.monotonic()
    done = deployment.flwr("run", str(deployment.home / app), CONNECTION, "-c", text)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    while not (out.exists() and out.read_text(encoding="utf-8").endswith("}")):
        if time.monotonic() > began + 60.0 * config["rounds"]:
            raise SystemExit(f"{config['strategy']}: no end\n{deployment.log('superlink')[-3000:]}")
        time.sleep(0.5)
    return json.loads(out.read_text(encoding="utf-8")), time.monotonic() - began


def node_seconds(nodes: list[int]) -> float:
    """Return the CPU seconds of SuperNodes and of all that they have started."""
    return cpu_seconds({own for root in nodes for own in (root, *descendants(root))})


def measure(deployment: LocalDeployment, strategy: str, rounds: int, size: int) -> dict[str, float]:
    """Run a strategy; return seconds a round, bytes a round and CPU a message."""
    nodes = [pid for name in deployment.names if name.startswith("node-") and (pid := deployment.pid(name)) is not None]
    before = node_seconds(nodes)
    app = "bare" if strategy == "FedAvg" else "ours"
    reported, _ = run(deployment, app, strategy=strategy, rounds=rounds, size=size)
    time.sleep(5.0)
    rows, times = reported["rows"], reported["times"]
    # Before the first round ours asks each node which partition it has.
    messages = rounds + (strategy != "FedAvg")
    return {
        "seconds": statistics.median(end - begin for begin, end in itertools.pairwise(times[1:])),
        "cpu": (node_seconds(nodes) - before) / (messages * len(nodes)),
        "down": statistics.median(row.get("bytes-down", 0) for row in rows),
        "up": statistics.median(row.get("bytes-up", 0) for row in rows),
    }


def exact(deployment: LocalDeployment) -> None:
    """Print the seconds to an exact lasso of breast cancer at 4 sites, and a gradient method's, extrapolated."""
    problem = list(breast_cancer())[1]
    for i, site in enumerate(problem.sites):
        write_npz(deployment.home / f"{i}.npz", {"features": site.features, "labels": site.labels})
    config = {"sites": str(deployment.home), "strength": repr(problem.strength), "tolerance": repr(TOLERANCE)}
    config |= {"strategy": "FedNewton", "size": 30}
    reported, seconds = run(deployment, "lasso", hessian="block", rounds=30, **config)
    row = reported["rows"][-1]
    print(
        f"{problem.name}: FedNewton is at a gap of {row['duality-gap']:.1e} after {len(reported['rows'])} rounds, "
        f"{seconds:.0f} s after `flwr run`"
    )
    rounds = 8
    times = run(deployment, "lasso", hessian="none", rounds=8, **config)[0]["times"]
    a_round = statistics.median(end - begin for begin, end in itertools.pairwise(times[1:]))
    whole = solved(problem, LONG, hessian="none")[0]["rounds"]
    print(
        f"hessian='none': {a_round:.1f} s a round (median of {rounds}), and {whole:g} rounds to that gap in process: "
        f"{whole * a_round / 60.0:.0f} minutes, extrapolated"
    )


def main() -> None:
    counts = {"turns": 3, "rounds": 6, "size": 1_000, "nodes": 2}
    given = options_of(
        __doc__,
        "two rounds of FedDualAvg at one node",
        strategies={"nargs": "+", "default": ["FedDualAvg"], "help": "beside Flower's FedAvg"},
        exact={"action": "store_true", "help": "a lasso to a duality gap of 1e-8, at 4 sites"},
        **{name: {"type": int, "default": count} for name, count in counts.items()},
    )
    if given.exact:
        given.nodes = 4
    if given.quick:
        given.turns, given.rounds, given.nodes = 1, 2, 1
    # Of four nodes on one machine the polls themselves would be its work.
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.5" if given.exact else "0.05"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    names = [*([] if given.quick else ["FedAvg"]), *given.strategies]
    with tempfile.TemporaryDirectory() as folder:
        deployment = LocalDeployment.create(Path(folder) / "home", given.nodes)
        write_apps(deployment.home)
        try:
            deployment.start_superlink()
            for i in range(given.nodes):
                deployment.make_key(i)
                deployment.start_node(i)
            deployment.wait_for_nodes()
            if given.exact:
                exact(deployment)
                return
            found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            for _ in range(given.turns):
                for name in names:
                    found[name].append(measure(deployment, name, given.rounds, given.size))
                    print(name, found[name][-1], flush=True)
        finally:
            for name in reversed(deployment.names):
                deployment.stop(name)
    print_head("strategy", "seconds a round", "CPU seconds a message", "bytes down a client", "bytes up a client")
    median = {name: middles(rows) for name, rows in found.items()}
    for name, own in median.items():
        sizes = (f"{own[key] / given.nodes:,.0f}" if own[key] else "" for key in ("down", "up"))
        print_row(name, f"{own['seconds']:.2f}", f"{own['cpu']:.2f}", *sizes)
    for name in () if given.quick else given.strategies:
        ratio = median[name]["cpu"] / median["FedAvg"]["cpu"]
        print(f"CPU of a message of {name}: {ratio:.2f} times that of the bare client")


if __name__ == "__main__":
    main()
