"""The recorder of a run: it evaluates on the server, keeps a line of metrics per round and ends diverged runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.callbacks import Checkpoint
from flwr_fco.errors import ConfigurationError
from flwr_fco.models import parse_json
from flwr_fco.objectives import Vector
from flwr_fco.regularizers import Regularizer
from flwr_fco.strategies import Arrays, CompositeStrategy, Epochs, Stage, Steps, run_of
from reproduction.problems.mirror_maps import named_map
from reproduction.problems.tasks import Task
from reproduction.runs.methods import is_private, make_stages, make_strategy, needs_everyone
from reproduction.runs.plateau import Plateau
from reproduction.runs.run_folder import RunFolder
from reproduction.runs.settings import RunSettings
from reproduction.runs.theorem_stages import theorem_stages

#: A coefficient of this size means that the run has diverged: no problem here has a solution near it.
DIVERGED = 1e6


#: The strategy's own metrics that a round of a graph problem reports.
_GRAPH_METRICS = ("consensus-error", "tracker-norm")


class Recorder:
    """Evaluates on the server and keeps a line for each round; ends a run that has diverged.

    A run has diverged when a coefficient exceeds :data:`DIVERGED`, when an update overflowed, or when no reply was
    finite (the strategy skips such a round and would skip all later ones).

    Parameters
    ----------
    task : Task
    settings : RunSettings

    Attributes
    ----------
    sink : callable, optional
        Called with each line.
    on_round : callable, optional
        Called after each round with its number.
    strategy : CompositeStrategy
        Built for the settings; its rates follow the plateau rule if there is one.

    Examples
    --------
    >>> settings = RunSettings.of("lasso-small", "FedDualAvg", {"num-rounds": 3})
    >>> Recorder(settings.load(), settings).history
    []
    """

    def __init__(self, task: Task, settings: RunSettings) -> None:
        self.task, self.settings = task, settings
        self.sink: Callable[[Mapping[str, float]], None] | None = None
        self.on_round: Callable[[int], None] | None = None
        self.history: list[dict[str, float]] = []
        self.diverged = 0
        self._plateau, self._stage = Plateau(settings.plateau_patience) if settings.plateau else None, 0
        self.strategy = build_strategy(settings, task.dataset.num_clients, task.regularizer, self._plateau)
        self._require_watched_node()
        self._cpu_began = time.process_time()
        self._costs = {"gradient-evaluations": 0.0, "hessian-products": 0.0, "passes": 0.0}
        self._cpu_evaluating = 0.0
        self._unwritten: dict[str, float] | None = None
        self._resumed = 0

    @property
    def left_out(self) -> Sequence[Any]:
        """Which replies did not count so far, and why; empty for a private run."""
        result = self.strategy.result
        return [] if result is None else result.left_out

    @property
    def chosen(self) -> Sequence[str]:
        """The values chosen for automatic settings so far, and why."""
        run = run_of(self.strategy)
        return [f"{key.replace('_', '-')}={run.chosen[key]:.4g}: {why}" for key, why in run.reasons.items()]

    @property
    def _watched(self) -> str:
        """The metric of the plateau rule, as named in a line of the history."""
        settings = self.settings
        return settings.plateau if settings.plateau_node < 0 else f"{settings.plateau}-node-{settings.plateau_node}"

    def _require_watched_node(self) -> None:
        settings, own = self.settings, self.task.over_nodes and getattr(self.strategy, "mixing", None) is not None
        nodes = self.task.dataset.num_clients if own else 0
        if settings.plateau_node >= nodes and (nodes or settings.plateau_node >= 0):
            none = f"-1, because {settings.strategy} has no nodes' models on {settings.problem}"
            expected = f"a node from 0 to {nodes - 1}" if nodes else none
            raise ConfigurationError(f"plateau-node={settings.plateau_node}; expected {expected}")

    def start(
        self, grid: Grid, folder: RunFolder, *, checkpoint: Path, resume: bool = False
    ) -> dict[str, NDArray[Any]]:
        """Run the strategy on a Flower grid, write to a folder and return the model.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        folder : RunFolder
            Folder without lines, or with the lines of the resumed run.
        checkpoint : Path
            File in which the run is saved every round.
        resume : bool, default False
            Continue the run that is saved there, if there is one.
        """
        folder.begin()
        self.sink = folder.add
        self._cpu_began = time.process_time()
        result = self.strategy.start(
            grid,
            ArrayRecord({name: Array(array) for name, array in self.task.initial_arrays().items()}),
            self.settings.exchanges,
            evaluate_fn=self.evaluate,
            callbacks=[self, Checkpoint(checkpoint, 1)],
            resume=checkpoint if resume and checkpoint.exists() else None,
        )
        model = {name: array.numpy() for name, array in result.arrays.items()}
        folder.save_model(model)
        folder.save_left_out(self.left_out)
        return model

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the settings and the lines recorded so far, as JSON."""
        told = [self.settings.to_config(), self.history, self.diverged, self._costs]
        return {"record": np.array(json.dumps(told))}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the output of :meth:`to_arrays`, and write its lines.

        Raises
        ------
        ConfigurationError
            If the settings differ, except for a larger number of rounds.
        """
        config, history, self.diverged, self._costs = parse_json(str(arrays["record"]))
        own = parse_json(json.dumps(self.settings.to_config()))
        others = sorted(key for key in {*own, *config} - {"num-rounds"} if own.get(key) != config.get(key))
        if others:
            raise ConfigurationError(
                f"the run was saved with other settings: {', '.join(others)}; resume with those, or give another folder"
            )
        self._resumed, every = run_of(self.strategy).number, self.settings.plateau_every
        for line in history:
            self.history.append(line)
            if self._due(int(line["round"]) // self.settings.stretch, every):
                # The plateau rule sees the lines as it did then.
                self._observe(int(line["round"]))
            if self.sink is not None:
                self.sink(line)

    def evaluate(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Return the round's scores and keep its line; Flower's ``evaluate_fn``."""
        settings = self.settings
        w = self.task.layout.flatten({name: array.numpy() for name, array in arrays.items()})
        if not np.abs(w).max(initial=0.0) <= DIVERGED:
            self.diverged = self.diverged or server_round * settings.stretch
        full = (self._due(server_round, settings.objective_every) or self.is_last(server_round)) and not self.diverged
        watched = self._plateau is not None and self._due(server_round, settings.plateau_every)
        if not (full or watched or self._due(server_round, settings.structure_every) or self.diverged):
            return None
        began = time.process_time()
        with np.errstate(over="ignore", invalid="ignore"):
            scores = self._scores(w, server_round, full)
        self._cpu_evaluating += time.process_time() - began
        private = run_of(self.strategy).privacy
        if private is not None:
            scores |= {"epsilon": private.epsilon(), "delta": private.privacy.delta}
        line = {"round": float(server_round * settings.stretch), **scores}
        self.history.append(line)
        self._unwritten = line
        # The cost of a round is known after its evaluation, in `record`, which is not called for the start point.
        if not self.task.costs or server_round == 0:
            self._write()
        if watched:
            self._observe(int(line["round"]))
        return MetricRecord(dict(scores))

    def is_last(self, server_round: int) -> bool:
        """Return whether no round follows: all are done, or the strategy needs no more."""
        run = run_of(self.strategy)
        return server_round == self.settings.exchanges or bool(run.state.round and run.finished())

    def _due(self, server_round: int, every: int) -> bool:
        """Return whether this is the first communication at or after a multiple of `every` rounds."""
        return server_round * self.settings.stretch % every < self.settings.stretch

    def _scores(self, w: Vector, server_round: int, full: bool) -> dict[str, float]:
        """Return the task's scores; on a graph, if the task asks for it, their means over the nodes' points."""
        # All nodes start at the same point.
        run = run_of(self.strategy)
        graph = self.task.over_nodes and server_round > 0 and run.graph is not None
        points = cast(Any, run.method).node_points(run.problem, run.state) if graph else [w]
        found = [self.task.scores(point, full=full) for point in points]
        scores = {name: float(np.mean([own[name] for own in found])) for name in found[0]}
        metric, node = self.settings.plateau, self.settings.plateau_node
        if node >= 0 and metric in scores:
            scores[self._watched] = found[node if len(found) > 1 else 0][metric]
        if not self.task.over_nodes or server_round == 0:
            return scores
        metrics = run.method.metrics(run.problem, run.state)
        return {**scores, **{name: float(metrics[name]) for name in _GRAPH_METRICS if name in metrics}}

    def _observe(self, when: int) -> None:
        """Show the last line, that of a round, to the plateau rule if there is one."""
        if self._plateau is None:
            return
        stage = when // self.settings.stretch // _stage_length(self.settings) if self.settings.stage_rounds else 0
        if stage != self._stage:
            self._stage = stage
            self._plateau.restart()
        self._plateau.observe(self._score())

    def _score(self) -> float:
        """Return what the plateau rule watches, from the last line."""
        line, metric = self.history[-1], self._watched
        if metric not in line:
            reported = ", ".join(line)
            raise ConfigurationError(f"plateau={metric!r}, but a round of {self.settings.problem} reports {reported}")
        return line[metric]

    def _write(self) -> None:
        """Pass on the line of the round."""
        if self._unwritten is None:
            return
        if self.task.costs:
            cpu = time.process_time() - self._cpu_began - self._cpu_evaluating
            self._unwritten.update(self._costs, **{"cpu-seconds": round(cpu, 3)})
        if self.sink is not None:
            self.sink(self._unwritten)
        self._unwritten = None

    def __call__(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> bool:
        """Record a round; this callback of ``start`` is saved with the run."""
        return self.record(server_round, arrays, metrics)

    def record(self, server_round: int, arrays: ArrayRecord, metrics: MetricRecord | None) -> bool:
        """Return whether the run has diverged (a callback of ``start``)."""
        if self.task.costs and metrics is not None:
            # Means over the clients; a method that takes gradient steps has one gradient a step.
            gradients = metrics.get("gradient-evaluations", metrics.get("local-steps", 0.0))
            spent = {"gradient-evaluations": gradients, "hessian-products": metrics.get("hessian-products", 0.0)}
            for name, count in spent.items():
                self._costs[name] += float(count)  # type: ignore[arg-type]
            # Either reads all of a client's examples twice.
            self._costs["passes"] = sum(self._costs[name] for name in spent)
        self._write()
        # Clients that lost their state when the run was stopped give no valid reply in the first round afterwards.
        forgotten = self._resumed > 0 and server_round == self._resumed + 1
        if metrics is not None and metrics.get("skipped", 0) and not self.diverged and not forgotten:
            self.diverged = server_round * self.settings.stretch
        if self.on_round is not None:
            self.on_round(server_round * self.settings.stretch)
        return bool(self.diverged)


def build_strategy(
    settings: RunSettings, num_clients: int, regularizer: Regularizer, plateau: Plateau | None = None
) -> CompositeStrategy:
    """Return the strategy of a run.

    Parameters
    ----------
    settings : RunSettings
    num_clients : int
        Number of clients in the federation.
    regularizer : Regularizer
    plateau : Plateau, optional
        The rule that both rates follow.

    Returns
    -------
    CompositeStrategy

    Raises
    ------
    ConfigurationError
        If the strategy has no such option, or more clients are requested than there are.

    Examples
    --------
    >>> settings = RunSettings.of("lasso-small", "FedMid", {"server-prox": False})
    >>> build_strategy(settings, 16, settings.load().regularizer).server_prox
    False
    """
    if settings.clients_per_round > num_clients:
        raise ConfigurationError(
            f"clients-per-round={settings.clients_per_round}, but {settings.problem} has {num_clients} "
            f"client{'s' * (num_clients != 1)}; expected at most that, or 0 for all of them"
        )
    clients = settings.clients_per_round or num_clients
    if clients < num_clients and needs_everyone(settings.strategy):
        raise ConfigurationError(
            f"clients-per-round={clients}; expected 0, because {settings.strategy} needs all {num_clients} clients in "
            "every round"
        )
    layout, private = settings.load().layout, is_private(settings.strategy_options)
    batch_size = settings.batch_size * settings.stretch or None
    steps, epochs = settings.local_steps, settings.local_epochs
    rates = {name: getattr(settings, name) for name in ("client_lr", "server_lr")}
    decided: dict[str, Any] = {
        "regularizer": regularizer,
        "mirror_map": named_map(settings.mirror_map, layout.size),
        # A perturbation is a vector next to a matrix: by their shapes the server would regularize only the matrix.
        "arrays": Arrays(apply_to=layout.regularized_names),
        **{name: rate if plateau is None else plateau.rate(float(rate)) for name, rate in rates.items()},
        "batch_size": batch_size,
        "work": Steps(steps, batch_size) if steps else Epochs(epochs, batch_size),
        # The sample is int(nodes * fraction); the half keeps rounding from losing a client. Privacy is accounted for
        # by the fraction itself.
        "fraction_train": min(1.0, (clients + 0.5 * (not private)) / num_clients),
        "min_train_nodes": 1 if private else clients,
        "min_available_nodes": num_clients,
        "fraction_evaluate": 0.0,
        # The recorder has its own rule, and keeps the line of the round in which a run diverged.
        "on_divergence": "warn",
        "seed": settings.seed,
    }
    options = {key.replace("-", "_"): value for key, value in settings.strategy_options.items()}
    if settings.stage_rounds:
        length = _stage_length(settings)
        decided["stages"] = make_stages(settings.strategy, length, settings.exchanges, options)
    elif settings.stage_accuracy:
        decided["stages"] = _stages_of_theory(settings, num_clients)
    return make_strategy(settings.strategy, decided, options)


def _stage_length(settings: RunSettings) -> int:
    """Return the number of communications in a stage."""
    return max(1, settings.stage_rounds // settings.stretch)


def _stages_of_theory(settings: RunSettings, num_clients: int) -> list[Stage]:
    """Return the schedule of theorem C.2 if the problem's constants are known and the method's are given."""
    constants = settings.load().theorem_constants(settings.batch_size or None)
    given: dict[str, Any] = {
        key.replace("-", "_"): settings.strategy_options.get(key) for key in ("sparsity", "radius-squared")
    }
    if constants is None or None in given.values():
        raise ConfigurationError(
            f"stage-accuracy={settings.stage_accuracy!r}; expected 0, or problem='sparse-linear-graph' with "
            "radius-squared and sparsity"
        )
    stages = theorem_stages(**constants, **given, accuracy=settings.stage_accuracy, num_clients=num_clients)
    # One more: a stage's result is the start of the next stage, and the last stage's result is the output.
    return [*stages, stages[-1]]
