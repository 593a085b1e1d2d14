"""Counts and reports what clients leave undone: minimisations that were stopped, blocks kept back, other losses."""

from __future__ import annotations

from collections.abc import Sequence
from logging import WARNING
from typing import Any

from flwr_fco.algorithms.contract import COLUMNS_LEFT, HESSIAN_SHARE, named
from flwr_fco.algorithms.newton.terms import FACTS_OF_LOSS, TERMS
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import SparseVector, dense
from flwr_fco.server.parts import Host, Part
from flwr_fco.server.replies.checks import LeftOut, Round
from flwr_fco.server.replies.metrics import others_than_most
from flwr_fco.wire.protocol import Node, Uplink


class CappedMinimisations(Part):
    """Logs and counts the clients that hit `max_iterations`."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._capped: int | None = None

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Forget the count of the last round: this one may be skipped."""
        self.forget()
        return nodes

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Log clients that hit `max_iterations`."""
        capped = [uplink for uplink in uplinks if uplink.metrics.get("capped", 0.0) > 0.0]
        if any("capped" in uplink.metrics for uplink in uplinks):
            self._capped = len(capped)
        if capped:
            text = "Round %s: %s of %s clients stopped before their stopping rule was met, the first is %s"
            log(WARNING, text, host.current.number, len(capped), len(uplinks), capped[0].node)

    def metrics(self, host: Host) -> dict[str, float | int]:
        """Return the number of clients that stopped too early; nothing for a round that was skipped."""
        return {} if self._capped is None else {"num-capped": self._capped}


class KeptBack(Part):
    """Adds a row to the table of what was left out, and a line to the log, for each block that a client keeps back."""

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Report the blocks of which nothing came; the rest of these replies counts."""
        for uplink in uplinks:
            told, asked = uplink.metrics, host.algorithm.sums(uplink.vectors)
            for name in named(type(host.algorithm), "columns") if COLUMNS_LEFT in told else ():
                vector = uplink.vectors.get(name)
                if not isinstance(vector, SparseVector) or vector.indices.size or not asked[name]:
                    continue
                reason = (
                    f"it keeps back a Hessian block of {asked[name]} columns, and allows {told[COLUMNS_LEFT]:.0f} now: "
                    f"its owner's limit is hessian_share={told.get(HESSIAN_SHARE, 0.0):.3g}; its gradient counts"
                )
                _report(host.current, uplink, reason)


class OtherLosses(Part):
    """Names the clients whose losses are of another kind than most clients': there is no duality gap of both.

    Their sums count, for the objective is the mean of all losses; the run ends at a residual.
    """

    def after_round(self, host: Host, before: Any, uplinks: Sequence[Uplink]) -> None:
        """Report them in the round in which clients say what never changes."""
        # The one exchange of an inference asks for nothing that never changes.
        if getattr(before, "population", 0.0) >= 0.0:
            return
        said = [dict(zip(TERMS, dense(uplink.vectors["terms"]).tolist(), strict=True)) for uplink in uplinks]
        for i, reason in others_than_most(said, FACTS_OF_LOSS).items():
            _report(host.current, uplinks[i], f"{reason}: no duality gap bounds the objective; its sums count")


def _report(current: Round, uplink: Uplink, reason: str) -> None:
    """Log what a client leaves undone, and add a row to the table of what was left out."""
    log(WARNING, "Round %s: %s: %s", current.number, uplink.node, reason)
    current.left_out.append(LeftOut(current.number, *(uplink.node or Node(-1, None)), reason))
