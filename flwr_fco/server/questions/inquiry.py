"""Questions to all clients: who is asked, which answers count, and the rates that follow from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from logging import INFO
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_fco.core.layout import Vector
from flwr_fco.errors import ConfigurationError
from flwr_fco.mirror_maps import MirrorMap
from flwr_fco.server.algorithm import AUTOMATIC, Grid, RecordDict, log
from flwr_fco.server.options import AUTO
from flwr_fco.server.questions.rates import LossFacts, bounded_largest, bounded_smallest, smoothness_for
from flwr_fco.server.questions.strength_path import with_strength
from flwr_fco.server.replies import checks as reading
from flwr_fco.server.replies.bounds import IncrementBounds, check_examples
from flwr_fco.server.replies.checks import Round
from flwr_fco.server.replies.mail import Messaging
from flwr_fco.wire import records
from flwr_fco.wire.protocol import Node, Uplink
from flwr_fco.wire.questions import Answer, Question
from flwr_fco.work import FirstOrder

__all__ = ["Asking"]

_ASK_SAMPLE = 4
_CHOSEN = "chosen-"
_NO_SHAPES: Mapping[str, tuple[int, ...]] = MappingProxyType({})


class Asking(Messaging):
    """What a strategy asks all clients besides training and evaluation.

    Attributes
    ----------
    chosen : dict of str to float
        The options that are ``"auto"`` and what was chosen for them.
    reasons : dict of str to str
        Why.
    """

    chosen: dict[str, float]
    reasons: dict[str, str]

    def ask(
        self,
        grid: Grid,
        question: Question,
        *,
        wanted: Iterable[str] = (),
        shapes: Mapping[str, tuple[int, ...]] = _NO_SHAPES,
    ) -> list[Answer]:
        """Ask all connected nodes; nothing changes there or in the state.

        An answer is checked as a reply of training is: what it must hold and nothing else, finite numbers, the round's
        stamp, one answer a node, numbers of examples and lengths of vectors within ``max_ratio`` of the median. What
        does not count is in :attr:`left_out`.

        Parameters
        ----------
        grid : flwr.serverapp.Grid
        question : Question
        wanted : iterable of str
            The numbers that an answer must hold.
        shapes : mapping of str to tuple of int
            Its vectors and their shapes.

        Returns
        -------
        list of Answer
            Sorted by partition id, with the weights of training, which sum to 1; nothing if nobody's answer counts.
        """
        size = (1.0, self.min_train_nodes, self.nodes_needed())
        nodes = self.nodes.sample(grid, self.current.number, _ASK_SAMPLE, *size)
        number, wanted = self.current.number, tuple(wanted)
        current = Round(number, left_out=self.left_out, kind="question")
        current.nodes = {node.node_id: node for node in nodes}
        content = records.question_records(question)
        contents = ((node.node_id, content.copy()) for node in nodes)
        current.messages = records.messages(grid, contents, records.QUESTION, str(number))

        def read(node: Node, content: RecordDict) -> Answer:
            found = records.read_answer(content, numbers=wanted, shapes=shapes)
            check_examples(found.examples, self.max_examples)
            return found._replace(partition=node.partition_id, node_id=node.node_id)

        caller = f"question ({question.kind})"
        good = current.good(caller, grid.send_and_receive(current.messages, timeout=self._timeout), read)
        bounds = IncrementBounds(self.max_ratio, None)
        claims = [Uplink(reply.value.vectors, None, 1, examples=reply.value.examples) for reply in good]
        good = current.without(caller, good, bounds.objections(claims))
        weights = reading.weights_of([self._examples_of(reply.value) for reply in good], self.weighting)
        if not weights:
            return []
        return [reply.value._replace(weight=weight) for reply, weight in zip(good, weights, strict=True)]

    def _examples_of(self, found: Answer) -> float:
        if self.client_weights is None or found.partition is None:
            return found.examples
        return self.client_weights.get(found.partition, 0.0)

    def question(self, kind: str, primal: Vector, numbers: Mapping[str, float] | None = None) -> Question:
        """Return a question about a point of the run's model.

        Parameters
        ----------
        kind : str
        primal : ndarray of float64, shape (d,)
        numbers : mapping of str to float, optional
        """
        return Question(kind, self.plan.layout, {"primal": primal}, numbers or {}, self.pass_through_arrays)

    @abstractmethod
    def renew_plan(self, mirror_map: MirrorMap) -> None:
        """Make the plan from the present settings; every node is told of it in its next message."""

    # --- what is "auto" -----------------------------------------------------------------------------------------

    def check_choices(self) -> None:
        """Refuse an ``"auto"`` for which there is no rule.

        Raises
        ------
        ConfigurationError
        """
        if self.strength is not None:
            with_strength(self.regularizer, 1.0)
        if getattr(self, "server_lr", None) == AUTO and not (self.extrapolates and self.aggregation == "mean"):
            raise ConfigurationError(
                f"server_lr='auto': {type(self).__name__} with aggregation={self.aggregation!r} takes something else "
                "than the plain mean of increments, for which there is no such rule; give a number. FedDualAvg, "
                "FedMid, FedAvgSubgradient and LocalSGD have it"
            )

    def choose_server_lr(self, uplinks: Sequence[Uplink]) -> None:
        """Choose the server's rate of a round, if it is ``"auto"``.

        Parameters
        ----------
        uplinks : sequence of Uplink
            With weights.
        """
        if getattr(self, "server_lr", None) == AUTO:
            self.chosen["server_lr"] = extrapolation(uplinks)

    def automatic_options(self) -> list[str]:
        """Return the options that are ``"auto"`` and chosen from what the clients say."""
        return [name for name in AUTOMATIC if getattr(self, name, None) == AUTO]

    def choose_rates(self, grid: Grid) -> None:
        """Ask the clients what their losses are like, and choose the options that are ``"auto"``, once in a run.

        Parameters
        ----------
        grid : flwr.serverapp.Grid

        Raises
        ------
        ConfigurationError
            If nobody answers, or theory has no answer for this geometry or these losses.
        """
        names = [name for name in self.automatic_options() if name != "server_lr"]
        if not names or set(names) <= self.chosen.keys():
            return
        facts = self._facts(grid)
        found = self.theory(facts)
        for name in names:
            self.chosen[name], formula = found[name]
            self.reasons[name] = f"{formula}, {facts}"
            log(INFO, "\t├──> %s=%.4g: %s", name, self.chosen[name], self.reasons[name])
        self.renew_plan(self.plan.mirror_map)

    def _facts(self, grid: Grid) -> LossFacts:
        work = self.plan.work
        batch_size = (work.batch_size or 0) if isinstance(work, FirstOrder) else 0
        question = self.question("smoothness", self.retrieve(self.state), {"batch-size": float(batch_size)})
        answers = self.ask(grid, question, wanted=("l2", "l1", "convexity", "probed"))
        if not answers:
            raise ConfigurationError(
                f"{' and '.join(self.automatic_options())} cannot be chosen: no client has said how smooth its loss "
                "is. The reasons are in `left_out`; give the rates by hand"
            )
        l2, clipped = bounded_largest([answer.numbers["l2"] for answer in answers])
        l1, _ = bounded_largest([answer.numbers["l1"] for answer in answers])
        convexity = bounded_smallest([answer.numbers["convexity"] for answer in answers])
        smoothness, norm = smoothness_for(self.h, l2, l1)
        steps = 1
        if isinstance(work, FirstOrder):
            steps = max(work.num_draws(max(1, int(answer.examples))) for answer in answers)
        probed = any(answer.numbers["probed"] for answer in answers)
        return LossFacts(smoothness, norm, convexity, steps, probed, len(answers), clipped)

    def saved_choices(self) -> dict[str, NDArray[Any]]:
        """Return what was chosen, for :meth:`save_state`: a run that is resumed has the same rates."""
        return {_CHOSEN + name: np.array(value) for name, value in self.chosen.items()}

    def restore_choices(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take back what :meth:`saved_choices` gave."""
        found = {key.removeprefix(_CHOSEN): float(value) for key, value in arrays.items() if key.startswith(_CHOSEN)}
        if found:
            self.chosen = found
            self.reasons = dict.fromkeys(found, "as the run began that is resumed")
            self.renew_plan(self.plan.mirror_map)


#: The share of the increments' mean square below which a mean is no direction.
_ROUNDING = 1e-6


def extrapolation(uplinks: Sequence[Uplink]) -> float:
    """Return the server rate of FedExP: max(1, S / (2 (||sum_m p_m x_m||^2 + 1e-6 S))), S = sum_m p_m ||x_m||^2.

    Parameters
    ----------
    uplinks : sequence of Uplink
        With weights, and the increments x_m.

    References
    ----------
    Jhunjhunwala, Wang, Joshi: FedExP, speeding up federated averaging via extrapolation (ICLR 2023), equation (4),
    there with equal weights and a small constant in the denominator, which is in proportion to the increments here:
    clients that pull in opposite directions leave a mean of nothing but rounding, which no rate may blow up.

    Examples
    --------
    >>> def increments(*vectors):
    ...     return [Uplink({"increment": np.array(x)}, 1.0, 1, weight=0.5) for x in vectors]
    >>> extrapolation(increments([4.0, 0.0], [0.0, 4.0]))
    1.0
    >>> round(extrapolation(increments([4.0, 1.0], [-4.0, 1.0])), 3)
    8.5
    """
    mean = np.zeros_like(uplinks[0].vectors["increment"])
    squares = 0.0
    for uplink in uplinks:
        vector = uplink.vectors["increment"]
        mean += uplink.weight * vector
        squares += uplink.weight * float(vector @ vector)
    size = float(mean @ mean) + _ROUNDING * squares
    return max(1.0, squares / (2.0 * size)) if size > 0.0 else 1.0
