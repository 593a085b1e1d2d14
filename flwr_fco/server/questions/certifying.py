"""Certificates of a run: a federated pass every few rounds says how far the model is from the optimum."""

from __future__ import annotations

import math
from logging import WARNING
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flwr_fco.certificates import Certificate, Request, certificate, settle
from flwr_fco.core.layout import Vector
from flwr_fco.errors import NoAnswerError
from flwr_fco.server.algorithm import Grid, log
from flwr_fco.server.rounds.structure import structure
from flwr_fco.wire.questions import Answer

if TYPE_CHECKING:
    from flwr_fco.server.strategy import CompositeStrategy

__all__ = ["Certifier", "certify"]

_ABSURD = "the numbers that the clients have answered come to none that is finite"


def certify(strategy: CompositeStrategy, grid: Grid, w: Vector) -> Certificate:
    """Return how far a point is from the optimum of the clients' pooled problem, by asking all clients.

    For a duality gap every client sends one vector (and a few numbers); without one, its gradient. The certificate is
    about the clients that answer the first of these questions, who must answer the others too.

    Parameters
    ----------
    strategy : CompositeStrategy
        Prepared.
    grid : flwr.serverapp.Grid
    w : ndarray of float64, shape (d,)

    Raises
    ------
    NoAnswerError
        If nobody answers, or one who has answered the first question does not answer another, or their answers are
        absurd: so large that the certificate is not finite.
    """
    first: set[int | None] = set()

    def ask(request: Request) -> list[Answer]:
        question = strategy.question(request.kind, w, request.numbers)
        answers = strategy.ask(grid, question, wanted=request.wanted, shapes=request.shapes)
        here = {answer.node_id for answer in answers}
        if not first:
            first.update(here)
        missing = first - here
        if missing:
            raise NoAnswerError(
                f"{len(missing)} of the {len(first)} clients that answered the first question did not answer the next "
                "one, so the answers are about different data"
            )
        # Those who were silent at first would bring data that the first answers are not about.
        same = [answer for answer in answers if answer.node_id in first]
        total = math.fsum(answer.weight for answer in same)
        return same if len(same) == len(answers) else [a._replace(weight=a.weight / total) for a in same]

    try:
        found = settle(certificate(strategy.psi, w), ask)
    except OverflowError as error:
        raise NoAnswerError(f"{_ABSURD}: {error}") from error
    if not (math.isfinite(found.objective) and math.isfinite(found.value)):
        raise NoAnswerError(f"{_ABSURD}: objective={found.objective:g}, {found.kind}={found.value:g}")
    return found


class Certifier:
    """Certifies the model every few rounds, and says how much its structure has changed since the last time.

    Parameters
    ----------
    strategy : CompositeStrategy
        With the option `certificate_every`.
    grid : flwr.serverapp.Grid
    """

    def __init__(self, strategy: CompositeStrategy, grid: Grid) -> None:
        self._strategy, self._grid = strategy, grid
        self._support: NDArray[np.bool_] | None = None
        self._rank: float | None = None

    def due(self, server_round: int) -> bool:
        """Return whether a round's model is to be certified."""
        every = self._strategy.certificate_every
        return every is not None and server_round % every == 0

    def metrics(self, w: Vector) -> dict[str, float]:
        """Return ``objective``, ``certificate``, under its own name too, and how stable the structure is.

        Nothing, with a warning, where the clients do not answer or what they answer is absurd: the run goes on.

        Parameters
        ----------
        w : ndarray of float64, shape (d,)

        Returns
        -------
        dict of str to float
            ``certificate`` is ``duality-gap`` or ``residual``, about the data of ``certificate-clients`` clients. From
            the second time on ``support-stability``: of the entries that psi acts on and that are not 0 now or were not
            the last time, the share that was and is; and ``rank-stability`` where psi is about singular values: the
            smaller of the two ranks over the larger one.
        """
        strategy = self._strategy
        try:
            found = certify(strategy, self._grid, w)
        except NoAnswerError as error:
            log(WARNING, "There is no certificate of this round: %s.", error)
            return {}
        connected = len(strategy.nodes.ordered)
        if found.clients < connected:
            text = "The certificate of this round is about the data of %d of the %d clients: the others did not answer."
            log(WARNING, text, found.clients, connected)
        numbers = {"objective": found.objective, "certificate": found.value, found.kind: found.value}
        numbers["certificate-clients"] = float(found.clients)
        own = structure(strategy.psi, strategy.plan.layout, w)
        if "density" in own:
            support = (w != 0.0) & strategy.plan.layout.regularized_mask()
            if self._support is not None:
                either = int((support | self._support).sum())
                both = int((support & self._support).sum())
                numbers["support-stability"] = both / either if either else 1.0
            self._support = support
        if "rank" in own:
            rank = float(own["rank"])
            if self._rank is not None:
                numbers["rank-stability"] = min(rank, self._rank) / larger if (larger := max(rank, self._rank)) else 1.0
            self._rank = rank
        return numbers
