"""What one liar of ten can do to each family of strategies; the table of docs/benchmarks/robustness.md.

python tests/liar_table.py             all families, 200 rounds each: some three minutes of one core
python tests/liar_table.py FedDAGT     these only; the page stays as it is
"""

import sys
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from lies_of_one import LIAR, make, regressions, run
from problems import flat

from flwr_fco.callbacks import EarlyStopping
from flwr_fco.errors import ConfigurationError
from flwr_fco.pooled import centralized_solution
from flwr_fco.regularizers import Zero
from flwr_fco.simulation import InProcessGrid

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "robustness.md"
ROUNDS, OBJECTIVES = 200, regressions()
#: Name of the row, strategy, options.
FAMILIES = (
    ("FedDualAvg, mean", "FedDualAvg", {}),
    ("FedDualAvg, median", "FedDualAvg", {"aggregation": "median"}),
    ("FedDualAvg, geometric-median", "FedDualAvg", {"aggregation": "geometric-median"}),
    ("FedDAGT", "FedDAGT", {}),
    ("Scaffold", "Scaffold", {}),
    ("FedDR", "FedDR", {}),
    ("DualFL", "DualFL", {"nu": 0.5, "smoothness": 1.0}),
    ("DFedDAGT", "DFedDAGT", {}),
    ("FedNewton", "FedNewton", {}),
)
LIES = ("none", "lie once", "lie always", "replay", "metric", "certificate")


class Lenient(InProcessGrid):
    """A client that raises is one that does not answer."""

    def __init__(self, app, number):
        super().__init__(app, number, raise_errors=False)


def said(lie, kind, number, vectors, numbers, kept):
    """Change what the liar says, in place; raise where it says nothing."""
    if kind == "train" and number > 0 and lie in ("lie once", "lie always", "replay"):
        if lie == "lie once" and number > 20:
            raise RuntimeError("it has nothing more to say")
        for name, value in vectors.items():
            if lie == "replay":
                vectors[name] = kept.setdefault((name, value.shape), value)
            elif lie == "lie always" or number == 20:
                vectors[name] = (-900.0 if lie == "lie once" else -1.0) * value
    if lie == "metric" and kind == "evaluate" and number == 3:
        numbers["loss"] = -30.0
    if lie == "certificate" and "linear" in numbers:
        numbers["linear"] = -1e9
    if lie == "certificate" and "terms" in vectors:
        vectors["terms"] = np.where(np.arange(8) == 1, -1e9, vectors["terms"])


def lying(lie):
    """Return a mod with which the liar lies."""
    kept = {}

    def mod(message, context, call_next):
        reply = call_next(message, context)
        if context.node_config["partition-id"] != LIAR or not reply.has_content() or lie == "none":
            return reply
        content = reply.content.copy()
        vectors = {name: array.numpy() for name, array in content.get("arrays", {}).items()}
        numbers, group = dict(content.get("metrics", {})), message.metadata.group_id
        said(lie, message.metadata.message_type.split(".")[0], int(group or 0), vectors, numbers, kept)
        if "arrays" in content:
            content["arrays"] = ArrayRecord({name: Array(np.asarray(value)) for name, value in vectors.items()})
        if "metrics" in content:
            content["metrics"] = MetricRecord(numbers)
        reply.content = content
        return reply

    return mod


def error(name, options, lie):
    """Return the error of a run with a liar: of the model that is handed out, or picked, or certified."""
    strategy, callbacks = make(name, **options), []
    if lie == "metric":
        strategy.fraction_evaluate = 1.0
        callbacks = [EarlyStopping(validation="evaluate/loss", patience=10)]
    if lie == "certificate":
        strategy.certificate_every = None if name == "FedNewton" else 5
        callbacks = [] if name == "FedNewton" else [EarlyStopping(tol=1e-9, certificate="train/certificate")]
    objectives, psi = OBJECTIVES, getattr(strategy, "regularizer", Zero())
    try:
        result = run(strategy, objectives, ROUNDS, mods=[lying(lie)], grid=Lenient, callbacks=callbacks)
    except ConfigurationError as ended:  # a run that ends is what the table shows
        return type(ended).__name__
    arrays = callbacks[0].best_arrays if lie == "metric" else result.arrays
    best = centralized_solution(objectives, psi, tol=1e-12)
    return f"{np.abs(flat(arrays) - best).max():.0e}"


def main():
    """Write the table, or print some of its rows."""
    names = sys.argv[1:]
    lines = ["| strategy | " + " | ".join(LIES) + " |", "|---" * (len(LIES) + 1) + "|"]
    for row, name, options in FAMILIES:
        if names and name not in names:
            continue
        lines.append(f"| {row} | " + " | ".join(error(name, options, lie) for lie in LIES) + " |")
        print(lines[-1], flush=True)
    if not names:
        begin, end = "<!-- one liar: begin (python tests/liar_table.py) -->", "<!-- one liar: end -->"
        before, rest = PAGE.read_text(encoding="utf-8").split(begin)
        text = "\n".join(lines)
        PAGE.write_text(f"{before}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")


if __name__ == "__main__":
    main()
