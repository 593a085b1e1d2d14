"""What one liar of ten can do to each family of strategies; the table of docs/benchmarks/robustness.md.

python tests/liar_table.py             all families, 200 rounds each: some three minutes of one core
python tests/liar_table.py FedDAGT     these only; the page stays as it is
python tests/liar_table.py soak 11 12  all strategies under all rules at these seeds, 100 rounds: some eight minutes
"""

import sys
from pathlib import Path

import numpy as np
from fault_bars import ROBUST, saddles, written
from flwr.app import Array, ArrayRecord, MetricRecord
from lies_of_one import LIAR, make, regressions, run
from problems import SADDLE

from flwr_fco.callbacks import EarlyStopping
from flwr_fco.errors import ConfigurationError
from flwr_fco.regularizers import Zero
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import STRATEGIES, method_of
from reproduction.pooled import centralized_solution, saddle_point

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks" / "robustness.md"
ROUNDS = 200
#: An error that no cell of the soak may exceed: the coefficients are at most 2.5 or so.
LARGEST = 5.0
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


def problem(name, seed):
    """Return the clients' objectives, and where they start."""
    objectives = saddles(10, seed) if name in SADDLE else regressions(seed=seed)
    layout = objectives[0].layout
    return objectives, ArrayRecord({n: Array(a) for n, a in layout.unflatten(np.zeros(layout.size)).items()})


def error(name, options, lie, seed=3, rounds=ROUNDS):
    """Return the error of a run with a liar: of the model that is handed out, or picked, or certified."""
    strategy, callbacks = make(name, **options), []
    if lie == "metric":
        strategy.fraction_evaluate = 1.0
        callbacks = [EarlyStopping(validation="evaluate/loss", patience=10)]
    if lie == "certificate":
        strategy.certificate_every = None if name == "FedNewton" else 5
        callbacks = [] if name == "FedNewton" else [EarlyStopping(tol=1e-9, certificate="train/certificate")]
    objectives, start = problem(name, seed)
    options = {"mods": [lying(lie)], "grid": Lenient, "callbacks": callbacks, "start": start}
    try:
        result = run(strategy, objectives, rounds, **options)
    except ConfigurationError as ended:  # a run that ends is what the table shows
        return type(ended).__name__
    arrays = callbacks[0].best_arrays if lie == "metric" else result.arrays
    psi = getattr(strategy, "regularizer", Zero())
    best = saddle_point(objectives) if name in SADDLE else centralized_solution(objectives, psi, tol=1e-12)
    found = objectives[0].layout.flatten({key: array.numpy() for key, array in arrays.items()})
    return float(np.abs(found - best).max())


def said_of(error):
    """Return a cell of the table."""
    return error if isinstance(error, str) else f"{error:.0e}"


def soak(seeds, names):
    """Run all strategies under all rules at these seeds; print the cells that are above ten times the honest error."""
    fallen = cells = 0
    for name in names or STRATEGIES:
        for rule, aggregation in ROBUST.items():
            if rule != "mean" and method_of(STRATEGIES[name]).algorithm.reads != "mean":
                continue
            for seed in seeds:
                errors = {lie: error(name, {"aggregation": aggregation}, lie, seed, ROUNDS // 2) for lie in LIES}
                cells += len(errors)
                fallen += sum(isinstance(each, str) or each > LARGEST for each in errors.values())
                far = [isinstance(each, str) or each > 10.0 * errors["none"] for each in errors.values()]
                texts = [f"{lie} {said_of(each)}" for (lie, each), yes in zip(errors.items(), far, strict=True) if yes]
                print(f"{name}, {rule}, seed {seed}: none {said_of(errors['none'])}; {', '.join(texts)}", flush=True)
    print(f"{cells - fallen} of {cells} cells are at most {LARGEST:g}, twice the largest coefficient")
    return fallen


def main():
    """Write the table, or print some of its rows; or soak."""
    names = sys.argv[1:]
    if names[:1] == ["soak"]:
        seeds = [int(word) for word in names[1:] if word.isdecimal()]
        sys.exit(bool(soak(seeds, [word for word in names[1:] if not word.isdecimal()])))
    lines = ["| strategy | " + " | ".join(LIES) + " |", "|---" * (len(LIES) + 1) + "|"]
    for row, name, options in FAMILIES:
        if names and name not in names:
            continue
        cells = [said_of(error(name, options, lie)) for lie in LIES]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    if not names:
        written(PAGE, "one liar", "python tests/liar_table.py", "\n".join(lines))


if __name__ == "__main__":
    main()
