"""The result of a run: Flower's result with a summary and a table of all rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result as FlowerResult

from flwr_fco.errors import installed

__all__ = ["Number", "Result", "frame_of", "part_of", "traffic_of"]

Number = int | float


@dataclass(repr=False)
class Result(FlowerResult):
    """Flower's result of a run; printing it shows the model and the last round.

    Rows and tables have one line for each round. Averaged training metrics are named ``train/...``, federated
    evaluation metrics ``evaluate/...``, and metrics of ``evaluate_fn`` ``server/...``; metrics from callbacks keep the
    names that the callbacks chose.

    Parameters
    ----------
    arrays, train_metrics_clientapp, evaluate_metrics_clientapp, evaluate_metrics_serverapp
        As in Flower's result.
    callback_metrics : dict of int to dict of str to number
        Metrics that the callbacks' ``on_round_end`` returned, by round.
    left_out : list of LeftOut
        Round, node, partition and reason of every reply that was left out, in training, evaluation and questions.

    Examples
    --------
    >>> from flwr.app import Array, ArrayRecord
    >>> result = Result(arrays=ArrayRecord({"coefficients": Array(np.array([0.0, 2.0]))}))
    >>> result.train_metrics_clientapp[1] = MetricRecord({"density": 0.5})
    >>> result
    Result after round 1
      arrays: coefficients float64[2], 1 not zero
      train: density 0.5
    All rounds: .table()
    """

    callback_metrics: dict[int, dict[str, Number]] = field(default_factory=dict)
    left_out: list[Any] = field(default_factory=list)

    def rows(self) -> list[dict[str, Number]]:
        """Return one mapping of names to numbers per round, in order; missing metrics are left out.

        Examples
        --------
        >>> Result(train_metrics_clientapp={1: MetricRecord({"skipped": 0})}).rows()
        [{'round': 1, 'train/skipped': 0}]
        """
        rounds = sorted({*self.callback_metrics}.union(*self.histories.values()))
        return [{"round": number} | self.numbers(number) | {"round": number} for number in rounds]

    def numbers(self, server_round: int) -> dict[str, Number]:
        """Return the numbers of a round, as in its row; lists are left out.

        Examples
        --------
        >>> Result(train_metrics_clientapp={1: MetricRecord({"loss": 0.5, "histogram": [1, 2]})}).numbers(1)
        {'train/loss': 0.5}
        """
        found: dict[str, Number] = {}
        for prefix, history in self.histories.items():
            own: Mapping[str, Any] = history.get(server_round, {})
            found |= {f"{prefix}/{name}": value for name, value in own.items() if isinstance(value, Number)}
        return found | self.callback_metrics.get(server_round, {})

    def table(self) -> Any:
        """Return all rounds as a pandas ``DataFrame``, which has ``to_csv`` and the like; missing values are NaN.

        Raises
        ------
        ConfigurationError
            If pandas is not installed; :meth:`rows` needs nothing.

        Examples
        --------
        >>> result = Result(train_metrics_clientapp={1: MetricRecord({"skipped": 0}), 2: MetricRecord({"skipped": 1})})
        >>> [int(number) for number in result.table()["train/skipped"]]
        [0, 1]
        """
        return frame_of(self.rows())

    @property
    def histories(self) -> dict[str, dict[int, MetricRecord]]:
        """The metrics of rounds, by what begins their names in tables."""
        train, evaluate = self.train_metrics_clientapp, self.evaluate_metrics_clientapp
        return {"train": train, "evaluate": evaluate, "server": self.evaluate_metrics_serverapp}

    def __repr__(self) -> str:
        histories = dict[str, Mapping[int, Any]](self.histories) | {"callbacks": self.callback_metrics}
        last = max([number for history in histories.values() for number in history], default=0)
        lines = [f"Result after round {last}"]
        few = list(self.arrays.items())[:8]
        shown = [f"{name} {own.dtype}{list(own.shape)}, {np.count_nonzero(own.numpy())} not zero" for name, own in few]
        shown += [f"and {len(self.arrays) - len(few)} more"] * (len(self.arrays) > len(few))
        lines += [f"  {text}"] if (text := part_of(self)) else []
        lines.append("  arrays: " + "; ".join(shown))
        for title, history in histories.items():
            if history:
                number = max(history)
                when = "" if number == last else f" (round {number})"
                pairs = history[number].items()
                metrics = ", ".join(f"{k} {own:.6g}" if isinstance(own, float) else f"{k} {own}" for k, own in pairs)
                lines.append(f"  {title}{when}: {metrics}")
        if traffic := traffic_of(self):
            lines.append(f"  messages of training: {traffic}")
        return "\n".join([*lines, "All rounds: .table()"])

    __str__ = __repr__


def frame_of(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a pandas ``DataFrame``; missing values are NaN.

    Raises
    ------
    ConfigurationError
        If pandas is not installed.

    Examples
    --------
    >>> list(frame_of([{"round": 1, "loss": 0.5}, {"round": 2}]).columns)
    ['round', 'loss']
    """
    return installed("pandas", "a table needs pandas: pip install pandas. Without it there are rows").DataFrame(rows)


def part_of(result: Result) -> str:
    """Return in words what the last step of a run lacks, replies or all rounds after it; else an empty text.

    Examples
    --------
    >>> from flwr_fco.strategies.replies import LeftOut
    >>> counts = {1: MetricRecord({"num-replies": 3, "num-left-out": 1})}
    >>> lost = [LeftOut(1, 7, None, "no reply"), LeftOut(2, 8, None, "NaN")]
    >>> part_of(Result(train_metrics_clientapp=counts, left_out=lost))
    'data: of 3 of 4 clients; without node 7: no reply'
    >>> part_of(Result(train_metrics_clientapp=counts | {2: MetricRecord({"skipped": 1})}, left_out=lost))
    'data: of 3 of 4 clients, up to round 1, as all later ones are skipped; without node 7: no reply'
    >>> rounds = {1: MetricRecord({"skipped": 0}), 2: MetricRecord({"skipped": 1})}
    >>> part_of(Result(train_metrics_clientapp=rounds, left_out=lost))
    'data: up to round 1, as all later ones are skipped: node 8: NaN'
    """
    rounds: Mapping[int, Any] = result.train_metrics_clientapp
    last, end = max((n for n, own in rounds.items() if not own.get("skipped")), default=0), max(rounds, default=0)
    count, lost = (rounds[last].get(name, 0) if last else 0 for name in ("num-replies", "num-left-out"))
    parts = [f"of {count} of {count + lost} clients"] if lost else []
    parts += [f"up to round {last}, as all later ones are skipped"] if 0 < last < end else []
    # Whom the model lacks; if nobody, why the last round is skipped.
    rows = [row for row in result.left_out if row.kind == "train" and row.round == (last if lost else end)][:5]
    names = [f"node {row.node_id}" if row.partition_id is None else f"partition {row.partition_id}" for row in rows]
    who = "; ".join(f"{name}: {row.reason}" for name, row in zip(names, rows, strict=True))
    why = f"{'; without' if lost else ':'} {who}" if who else ""
    return f"data: {', '.join(parts)}{why}" if parts else ""


def traffic_of(result: Result) -> str:
    """Return the bytes of a run's short messages beside those of FedAvg's; empty of other runs.

    Examples
    --------
    >>> bytes_ = {"bytes-down": 1_000, "bytes-up": 1_000, "bytes-fedavg": 18_000}
    >>> traffic_of(Result(train_metrics_clientapp={1: MetricRecord(bytes_)}))
    '0.001 MB down, 0.001 MB up; of FedAvg 0.018 MB, 9.0 times as many'
    """
    rounds: Any = result.train_metrics_clientapp.values()
    down, up, theirs = (sum(own.get(f"bytes-{name}", 0) for own in rounds) / 1e6 for name in ("down", "up", "fedavg"))
    if not theirs or not down + up:
        return ""
    return f"{down:.4g} MB down, {up:.4g} MB up; of FedAvg {theirs:.4g} MB, {theirs / (down + up):.1f} times as many"
