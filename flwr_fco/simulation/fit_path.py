"""A path of regularization strengths in this process, and its plot."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

from flwr_fco.core.files import write_file
from flwr_fco.errors import ConfigurationError
from flwr_fco.simulation.simulate import simulate
from flwr_fco.simulation.strength_path import PathPoint, PathResult, StrengthPath
from flwr_fco.strategies import CompositeStrategy

__all__ = ["PathPoint", "PathResult", "StrengthPath", "fit_path", "plot_path"]

#: Maximum number of coefficients drawn: those that are largest anywhere on the path.
_LINES = 200
_BLUE, _GREY = "#0072B2", "#8c8c8c"


def fit_path(
    strategy: CompositeStrategy,
    client_app: ClientApp,
    *,
    num_nodes: int,
    num_rounds: int,
    initial_arrays: ArrayRecord | Mapping[str, NDArray[Any] | Array],
    num_strengths: int = 20,
    ratio: float = 0.01,
    strengths: Sequence[float] | None = None,
    validate: bool = True,
    cv: int | None = None,
    **options: Any,
) -> PathResult:
    """Fit a path of regularization strengths with the clients in this process.

    In a ServerApp: ``StrengthPath(strategy).start(grid, initial_arrays, num_rounds)``.

    Parameters
    ----------
    strategy : CompositeStrategy
        Strategy whose regularizer has a strength; the value of that strength is ignored.
    client_app : flwr.clientapp.ClientApp
        Needs ``load_evaluation_objective``, the loss on a client's held-out data, if the path is validated.
    num_nodes, num_rounds, initial_arrays
        As for :func:`flwr_fco.simulate`; each strength runs `num_rounds` rounds. ``FedNewton`` runs once for all
        strengths, and `num_rounds` is the largest number of all rounds.
    num_strengths : int, default 20
        Number of strengths, in equal steps of the logarithm.
    ratio : float, default 0.01
        Ratio of the smallest to the largest strength; at the largest, all entries that psi acts on are 0.
    strengths : sequence of float, optional
        Strengths to use instead of `num_strengths` and `ratio`.
    validate : bool, default True
        Whether every model is evaluated on the clients' held-out data.
    cv : int, optional
        Number of folds of a cross-validation, into which each client deals its own rows, instead of held-out data; for
        ``FedNewton``, whose messages carry all strengths and folds.
    **options
        Passed to :func:`flwr_fco.simulate`, such as ``callbacks``.

    Returns
    -------
    PathResult
        A point for each strength, from the largest to the smallest.

    Examples
    --------
    >>> from flwr_fco import L1, Epochs, FedDualAvg, LeastSquares, client_app
    >>> def load(context, shift=0):
    ...     features = np.random.default_rng(shift + context.node_config["partition-id"]).standard_normal((30, 4))
    ...     return LeastSquares(features, features @ np.array([1.0, -1.0, 0.0, 0.0]))
    >>> path = fit_path(
    ...     FedDualAvg(regularizer=L1(1.0), client_lr="auto", work=Epochs(1, batch_size=None), fraction_evaluate=0.0),
    ...     client_app(load, load_evaluation_objective=lambda context: load(context, 100)),
    ...     num_nodes=3,
    ...     num_rounds=50,
    ...     initial_arrays={"coefficients": np.zeros(4), "intercept": np.zeros(1)},
    ...     num_strengths=4,
    ... )
    >>> [point.nonzero for point in path.points]
    [0, 2, 2, 2]
    """
    runs = StrengthPath(strategy, num_strengths, ratio, strengths, validate, cv)
    path = simulate(
        cast(Any, runs),
        client_app,
        num_nodes=num_nodes,
        num_rounds=num_rounds,
        initial_arrays=initial_arrays,
        on_interrupt="raise",
        **options,
    )
    return cast(PathResult, path)


def plot_path(path: PathResult, file: str | os.PathLike[str]) -> None:
    """Plot a path in the style of glmnet: coefficients, and the loss on held-out data, against log10(strength).

    The top axis counts non-zero entries. Dashed: the smallest held-out loss; dotted: one standard error, with the
    coefficients in blue that are not 0 there.

    Parameters
    ----------
    path : PathResult
        The path to plot.
    file : path-like
        PNG, SVG or PDF.

    Raises
    ------
    ConfigurationError
        If matplotlib is not installed, or no strength is above 0.
    """
    try:
        figures = import_module("matplotlib.figure")
    except ImportError as error:
        raise ConfigurationError("the picture needs matplotlib: pip install matplotlib (the extra [plot])") from error
    points = [point for point in path.points if point.strength > 0.0]
    if not points:
        raise ConfigurationError("no strength of this path is above 0, so there is no axis for it")
    validated = not math.isnan(points[0].held_out)
    x = np.log10([point.strength for point in points])
    figure = figures.Figure(figsize=(10.0 if validated else 5.5, 4.2), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, 2 if validated else 1))
    lines = _coefficients(path.points, path.acted_on)
    blue, title = np.ones(lines.shape[1], np.bool_), f"{points[0].nonzero} to {points[-1].nonzero} are not zero"
    if validated:
        best, simple = path.best, path.one_standard_error
        blue = lines[path.points.index(simple)] != 0.0
        title = f"{simple.nonzero} are not zero at one standard error, {best.nonzero} at the smallest loss"
    lines = lines[[point.strength > 0.0 for point in path.points]]
    # Grey ones first, below the others.
    for j in np.argsort(blue, kind="stable"):
        axes[0].plot(x, lines[:, j], color=_BLUE if blue[j] else _GREY, linewidth=0.9)
    axes[0].get_lines()[-1].set_label("coefficients, a line each")
    axes[0].axhline(0.0, color="#000000", linewidth=0.6)
    axes[0].set_ylabel("coefficient")
    axes[0].set_title(title, fontsize=9)
    if validated:
        losses = np.array([point.held_out for point in points])
        errors = [point.standard_error for point in points]
        look = {"color": _BLUE, "ecolor": _GREY, "marker": "o", "markersize": 3.5, "capsize": 2}
        axes[1].errorbar(x, losses, errors, label="loss on held-out data, with its standard error", **look)
        axes[1].set_ylabel("loss on held-out data")
        text = f"smallest loss {best.held_out:.4g}, at one standard error {simple.held_out:.4g}"
        axes[1].set_title(text, fontsize=9)
    for place in axes:
        place.set_xlabel("log10(strength)")
        if validated:
            for point, style, what in (
                (path.best, "dashed", "smallest loss"),
                (path.one_standard_error, "dotted", "one standard error"),
            ):
                if point.strength > 0.0:
                    look = {"color": "#000000", "linewidth": 0.8, "linestyle": style}
                    place.axvline(math.log10(point.strength), label=what, **look)
        top = place.secondary_xaxis("top")
        shown = np.unique(np.linspace(0, len(points) - 1, min(6, len(points))).round().astype(int))
        top.set_xticks(x[shown], [str(points[i].nonzero) for i in shown])
        top.set_xlabel("not zero")
    handles = {text: handle for place in axes for handle, text in zip(*place.get_legend_handles_labels(), strict=True)}
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8
    )
    ending = Path(file).suffix[1:] or "png"
    write_file(file, lambda place: figure.savefig(place, dpi=150, format=ending))


def _coefficients(points: Sequence[PathPoint], names: Sequence[str]) -> NDArray[np.float64]:
    """Return the coefficients of each point as rows; for a large model, only the largest ones."""
    rows = np.array(
        [np.concatenate([point.result.arrays[name].numpy().reshape(-1) for name in names]) for point in points]
    )
    if rows.shape[1] > _LINES:
        rows = rows[:, np.sort(np.argsort(np.abs(rows).max(axis=0))[-_LINES:])]
    return rows
