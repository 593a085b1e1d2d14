"""Certificates of a run: every few rounds, a federated pass measures how far the model is from the optimum."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from logging import WARNING
from typing import Any

import numpy as np
from flwr.serverapp import Grid
from numpy.typing import NDArray

from flwr_fco.certificates import Certificate, Request, certificate, settle
from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import log
from flwr_fco.errors import NoAnswerError
from flwr_fco.server.clients.schemas import NO_REPLY
from flwr_fco.server.inquiry import Inquiry
from flwr_fco.server.parts import Host, Part
from flwr_fco.server.rounds.output import structure
from flwr_fco.wire.questions import Answer

_ABSURD = "the numbers that the clients have answered come to none that is finite"


def certify(host: Host, inquiry: Inquiry, grid: Grid, w: Vector) -> Certificate:
    """Return a certificate of a point's distance from the optimum of the pooled problem, by asking all clients.

    For a duality gap every client sends one vector (and a few numbers); otherwise it sends its gradient. The
    certificate covers the clients that answer all of these questions, with numbers that are those of one loss.

    Parameters
    ----------
    host : Host
        A strategy that is prepared with a model.
    inquiry : Inquiry
        The inquiry that asks the clients.
    grid : flwr.serverapp.Grid
        Flower's connection to the nodes.
    w : ndarray of float64, shape (d,)
        The point.

    Raises
    ------
    NoAnswerError
        If no client answers, or the answers contradict each other or are so large that the certificate is not finite.
    """
    left: set[int | None] = set()
    while True:
        try:
            result = settle(certificate(host.problem.psi, w), _asking(inquiry, grid, w, left))
        except _MissingError as error:
            # A client whose answers are absurd voids no certificate of the others.
            left |= error.left_out
            log(WARNING, "The certificate of this round begins anew: %s", error)
            continue
        except OverflowError as error:
            raise NoAnswerError(f"{_ABSURD}: {error}") from error
        if not (math.isfinite(result.objective) and math.isfinite(result.value)):
            raise NoAnswerError(f"{_ABSURD}: objective={result.objective:g}, {result.kind}={result.value:g}")
        return result


class _MissingError(NoAnswerError):
    """Clients whose answer to a later question of a certificate does not count."""

    def __init__(self, left_out: set[int | None]) -> None:
        super().__init__(f"answers of {len(left_out)} clients do not count, so it is about the data of the others")
        self.left_out = left_out


def _asking(
    inquiry: Inquiry, grid: Grid, w: Vector, left: AbstractSet[int | None]
) -> Callable[[Request], list[Answer]]:
    """Return what asks all clients the questions of a certificate, about the same data throughout."""
    first: set[int | None] = set()

    def ask(request: Request) -> list[Answer]:
        """Return the answers of the clients that have answered all questions so far."""
        rows, point = inquiry.left_out, w if request.point is None else request.point
        question, before = inquiry.question(request.kind, point, request.numbers), len(rows)
        checks = {name: getattr(request, name) for name in ("wanted", "shapes", "agreed", "check")}
        answers = inquiry.ask(grid, question, **checks)
        here = {answer.node_id for answer in answers} - left
        first.update(() if first else here)
        if missing := first - here:
            absurd = missing & {row.node_id for row in rows[before:] if row.reason != NO_REPLY}
            if absurd and here:
                raise _MissingError(absurd)
            raise NoAnswerError(
                f"{len(missing)} of the {len(first)} clients that answered the first question did not answer the next "
                "one, so the answers are about different data"
            )
        # Clients that were silent at first would add data that the first answers do not cover.
        same = [answer for answer in answers if answer.node_id in first]
        total = math.fsum(answer.weight for answer in same)
        return same if len(same) == len(answers) else [a._replace(weight=a.weight / total) for a in same]

    return ask


class Certifier(Part):
    """Certifies the model every few rounds, and reports how much its structure has changed since the last time.

    Parameters
    ----------
    inquiry : Inquiry
        The inquiry that asks the clients.
    every : int
        Rounds between two certificates.
    """

    def __init__(self, inquiry: Inquiry, every: int) -> None:
        self._inquiry, self.every = inquiry, every
        self.forget()

    def forget(self) -> None:
        self._support: NDArray[np.bool_] | None = None
        self._rank: float | None = None

    def certified(self, host: Host, grid: Grid, w: Vector) -> dict[str, float]:
        """Return ``objective``, ``certificate`` (also under its own name), and the stability of the structure.

        Empty, with a warning, if clients do not answer or their answers are absurd: the run continues.

        Parameters
        ----------
        host : Host
            The run.
        grid : flwr.serverapp.Grid
            Flower's connection to the nodes.
        w : ndarray of float64, shape (d,)
            The point.

        Returns
        -------
        dict of str to float
            ``certificate`` is ``duality-gap`` or ``residual``, for the data of ``certificate-clients`` clients of the
            ``certificate-of`` that are connected. From the second time on also ``support-stability``: of the entries
            that psi acts on and that are non-zero now or were last time, the fraction that is non-zero both times; and,
            if psi is about singular values, ``rank-stability``: the smaller of the two ranks over the larger one.
        """
        try:
            result = certify(host, self._inquiry, grid, w)
        except NoAnswerError as error:
            log(WARNING, "There is no certificate of this round: %s.", error)
            return {}
        connected = len(host.nodes.ordered)
        if result.clients < connected:
            text = "The certificate of this round is about the data of %d of the %d clients: the others did not answer."
            log(WARNING, "%s It ends no run.", text % (result.clients, connected))
        numbers = {"objective": result.objective, "certificate": result.value, result.kind: result.value}
        numbers |= {"certificate-clients": float(result.clients), "certificate-of": float(connected)}
        layout = host.plan.layout
        measured = structure(host.problem.psi, layout, w)
        if "density" in measured:
            support = (w != 0.0) & layout.regularized_mask()
            if self._support is not None:
                both, either = (support & self._support).sum(), (support | self._support).sum()
                numbers["support-stability"] = float(both / either) if either else 1.0
            self._support = support
        if "rank" in measured:
            rank = float(measured["rank"])
            if self._rank is not None:
                numbers["rank-stability"] = min(rank, self._rank) / larger if (larger := max(rank, self._rank)) else 1.0
            self._rank = rank
        return numbers

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the structure of the last certificate."""
        known = {"support": self._support, "rank": self._rank}
        return {name: np.array(value) for name, value in known.items() if value is not None}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._support = arrays.get("support")
        self._rank = float(arrays["rank"]) if "rank" in arrays else None
