"""Compare runs: group those that differ only in the seed, and label groups by their differences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flwr_fco.errors import ConfigurationError
from reproduction.pictures.report import Series, spans_decades
from reproduction.problems.baselines import BASELINES
from reproduction.runs.run_folder import RunRecord
from reproduction.runs.settings import RunSettings, plain

#: Metrics that are fractions, from 0 to 1.
_SHARES = ("density", "density above threshold", "precision", "recall", "f1")


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed.

    Parameters
    ----------
    label : str
        The strategy, and the settings in which the groups differ.
    method : str
        The strategy or baseline.
    names : sequence of str
        Names of the runs' folders.
    records : sequence of RunRecord
    """

    label: str
    method: str
    names: Sequence[str]
    records: Sequence[RunRecord]

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings, with the seed of the first run."""
        return self.records[0].config

    @property
    def diverged(self) -> int:
        """The round in which the first of the runs that diverged was cut; 0 if none did."""
        return min((found for record in self.records if (found := _diverged(record))), default=0)

    def series(self, metric: str) -> list[Series]:
        """Return rounds and values of a metric, one pair for each run that has it."""
        found = []
        for record in self.records:
            lines = [line for line in record.metrics if metric in line]
            if lines:
                found.append((np.array([line["round"] for line in lines]), np.array([line[metric] for line in lines])))
        return found


def compare(runs: Sequence[tuple[str, RunRecord]]) -> list[Group]:
    """Return runs grouped by their settings without the seed, with labels that tell the groups apart.

    Parameters
    ----------
    runs : sequence of (str, RunRecord)
        Names and contents of the folders.

    Returns
    -------
    list of Group
        In the order of the runs.

    Examples
    --------
    >>> records = [RunRecord({"strategy": "FedMid", "seed": s, "client-lr": lr}, [], {}) for s, lr in [(0, 1), (1, 2)]]
    >>> [group.label for group in compare([("a", records[0]), ("b", records[1])])]
    ['FedMid, client-lr=1', 'FedMid, client-lr=2']
    """
    groups: dict[str, list[tuple[str, RunRecord]]] = {}
    for name, record in runs:
        key = json.dumps({k: v for k, v in record.config.items() if k != "seed"}, sort_keys=True)
        groups.setdefault(key, []).append((name, record))
    configs = [own[0][1].config for own in groups.values()]
    keys = list({key: None for config in configs for key in config if key not in ("seed", "strategy")})
    federated = {name.replace("_", "-") for name in RunSettings.__dataclass_fields__} - {"problem"}
    telling = [key for key in keys if len({json.dumps(config.get(key)) for config in configs}) > 1]
    found = []
    for own in groups.values():
        config = own[0][1].config
        method = str(config.get("strategy", own[0][0]))
        # A baseline's configuration also has rates and rounds, which mean nothing there.
        own_keys = [key for key in telling if key in config and not (method in BASELINES and key in federated)]
        parts = [f"{key}={plain(config[key])}" for key in own_keys]
        found.append(Group(", ".join([method, *parts]), method, [name for name, _ in own], [run for _, run in own]))
    return found


def require_one_problem(groups: Sequence[Group]) -> None:
    """Raise an error if the runs are of several problems, because their curves have no common scale.

    Raises
    ------
    ConfigurationError
        With the problems' names.
    """
    problems = list({str(group.config.get("problem", "")): None for group in groups})
    if len(problems) > 1:
        raise ConfigurationError(
            f"these runs are of different problems: {', '.join(problems)}; expected one. Give those of one problem, or "
            "--overlay to draw them over each other all the same"
        )


def metric_names(groups: Sequence[Group]) -> list[str]:
    """Return the metrics that the runs report, without the round and metrics that only baselines have."""
    shown = [group for group in groups if group.method not in BASELINES] or groups
    lines = (line for group in shown for record in group.records for line in record.metrics)
    return list({key: None for line in lines for key in line if key != "round"})


def logarithmic_metrics(groups: Sequence[Group], metrics: Sequence[str]) -> set[str]:
    """Return the metrics, except fractions, whose values span decades in the runs that did not diverge."""
    sound = [group for group in groups if not group.diverged] or groups
    found = set()
    for metric in metrics:
        if metric in _SHARES or metric.endswith("accuracy"):
            continue
        values = [part for group in sound for _, part in group.series(metric)]
        if values and spans_decades(np.concatenate(values)):
            found.add(metric)
    return found


def _diverged(record: RunRecord) -> int:
    """Return the round in which a run was cut; taken from its last line if the folder does not say."""
    if record.status is not None:
        return record.status.diverged
    last = record.metrics[-1] if record.metrics else {}
    return int(last["round"]) if any(not math.isfinite(value) for value in last.values()) else 0
