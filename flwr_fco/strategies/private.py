"""Differential privacy of the clients: who is asked, and the one noisy mean through which all else sees the replies."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flwr_fco.algorithms.contract.problem import Problem
from flwr_fco.core.layout import Vector, dense
from flwr_fco.core.logs import logger
from flwr_fco.errors import ConfigurationError
from flwr_fco.messages.protocol import Node, Uplink
from flwr_fco.privacy import Accountant, BandedNoise, GaussianDP, clipped, library, secure_normal


class PrivateMean:
    """Stands for the replies of each round: the sum of their clipped increments, with noise.

    Parameters
    ----------
    privacy : GaussianDP
        Clipping, noise and budget.
    options : Options
        Of the strategy.

    Attributes
    ----------
    released : int
        Rounds that this strategy has released, in whichever run.
    """

    saved = ("round", "rounds", "multiplier", "denominator", "order", "noise")

    def __init__(self, privacy: GaussianDP, options: Any) -> None:
        library()
        self.privacy = privacy
        # 1e-9: a fraction of 1 / 49 gives 49 blocks, not 48.
        blocks = 1 if privacy.noise == "independent" else math.floor(1.0 / options.fraction_train + 1e-9)
        bands = (privacy.bands or blocks) if privacy.noise == "banded" else 1
        self.accountant = Accountant(privacy.noise, options.fraction_train, blocks, bands)
        self.round, self.released, self.rounds = 0, 0, 0
        self.multiplier, self.denominator = 0.0, 1.0
        self.order: list[tuple[int, int]] = []
        self._stream = BandedNoise(bands)
        self._asked: set[tuple[int, int]] | None = None

    @property
    def noise(self) -> list[Vector]:
        """The last rounds' noise, on which that of later rounds depends."""
        return self._stream.last

    @noise.setter
    def noise(self, last: Sequence[Vector]) -> None:
        self._stream.last = list(last)

    def begin_round(self, nodes: Sequence[Node], num_rounds: int | None, problem: Problem) -> list[Node]:
        """Return whom the secret schedule asks; before round 1 the noise is settled, for so many rounds.

        Parameters
        ----------
        nodes : sequence of Node
            All that are connected.
        num_rounds : int or None
            Of the run, if it is known.
        problem : Problem
            With the round's numbers.

        Raises
        ------
        ConfigurationError
            If the model, or the number of rounds, leaves no privacy to account for, or the round has been released.
        """
        privacy, layout = self.privacy, problem.layout
        if layout.passed_through:
            names = ", ".join(entry.name for entry in layout.passed_through)
            advice = "Keep them out of the model (use GroupNorm), or optimise them: arrays=Arrays(pass_through=())"
            raise ConfigurationError(f"the arrays {names} are averaged as they are, without noise. {advice}")
        if not self.order:
            self._settle(nodes, privacy.rounds or num_rounds)
        if self.round >= self.rounds:
            prefix = f"the privacy of this run is accounted for {self.rounds} rounds, and it has had them"
            raise ConfigurationError(f"{prefix}. Give GaussianDP more `rounds`, or `start` a larger num_rounds")
        if self.round < self.released:
            prefix = f"round {self.round + 1} of this strategy has been released already, up to round {self.released}"
            advice = "Resume from the last state; another run, whose epsilon adds to this one's, takes another strategy"
            raise ConfigurationError(f"{prefix}; another one costs the clients' privacy again. {advice}")
        if privacy.noise == "independent":
            taken = self._uniforms(len(nodes)) < self.accountant.sampling
            self._asked = {node.key for node, one in zip(nodes, taken, strict=True) if one}
        else:
            blocks = self.accountant.separation
            self._asked = set(self.order[self.round % blocks :: blocks])
        self._bounds = [(slice(None), privacy.total_clip)]
        if isinstance(privacy.clip, Mapping):
            blocks_of = {entry.name: entry.block for entry in layout.optimized}
            if blocks_of.keys() != privacy.clips.keys():
                raise ConfigurationError(f"clip={privacy.clip!r}; expected a bound for each of {', '.join(blocks_of)}")
            self._bounds = [(blocks_of[name], bound) for name, bound in privacy.clips.items()]
        self._size = layout.size
        self._steps = problem.plan.steps or 1
        self._elapsed = problem.client_lr * self._steps
        return [node for node in nodes if node.key in self._asked]

    def _settle(self, nodes: Sequence[Node], rounds: int | None) -> None:
        privacy, accountant = self.privacy, self.accountant
        if not rounds:
            raise ConfigurationError("without `start` the number of rounds is not known; give GaussianDP(rounds=...)")
        order = [node.key for node in nodes]
        if privacy.delta * len(order) >= 1.0:
            text = "delta=%g is that of publishing one of %s clients' data whole; expected less than %g"
            logger.warning(text, privacy.delta, len(order), 1.0 / len(order))
        if privacy.noise_seed is None:
            secrets.SystemRandom().shuffle(order)
        else:
            np.random.default_rng([privacy.noise_seed, 2]).shuffle(order)
        share = accountant.sampling if privacy.noise == "independent" else 1.0 / accountant.separation
        self.rounds, self.order, self.multiplier = rounds, order, self._multiplier_for(rounds)
        self.denominator = share * (privacy.clients or len(order))

    def _multiplier_for(self, rounds: int) -> float:
        privacy = self.privacy
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        return self.accountant.noise_multiplier(float(privacy.target_epsilon or 0.0), rounds, privacy.delta)

    def _uniforms(self, count: int) -> Vector:
        if self.privacy.noise_seed is not None:
            return np.random.default_rng([self.privacy.noise_seed, 3, self.round]).random(count)
        words = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _draw(self) -> Vector:
        if self.privacy.noise_seed is None:
            return secure_normal(self._size)
        return np.random.default_rng([self.privacy.noise_seed, 1, self.round]).standard_normal(self._size)

    def clipped_sum(self, uplinks: Sequence[Uplink]) -> Vector:
        """Return the sum of the clipped increments of those who were asked, one of each: the basis of the privacy.

        A client that is added, removed or silent changes the sum by at most `clip`, a client that sends another
        increment by at most twice that.

        Parameters
        ----------
        uplinks : sequence of Uplink
            The replies that count.
        """
        if self._asked is None:
            prefix = "the replies of a private round are aggregated once; call configure_train before aggregate_train"
            raise ConfigurationError(prefix)
        total = np.zeros(self._size)
        left = set(self._asked)
        for up in uplinks:
            key = None if up.node is None else up.node.key
            if key in left:
                left.remove(key)
                increment = np.asarray(dense(up.vectors["increment"]), np.float64)
                total += clipped(increment, self._bounds)
        return total

    def release(self, uplinks: Sequence[Uplink]) -> Uplink:
        """Return the noisy mean of a round, which takes the place of its replies; without replies, it is pure noise.

        Parameters
        ----------
        uplinks : sequence of Uplink
            The replies that count.
        """
        mean = self.clipped_sum(uplinks)
        mean += self.multiplier * self.privacy.total_clip * self._stream.next(self._draw)
        mean /= self.denominator
        self.round += 1
        self.released = max(self.released, self.round)
        self._asked = None
        return Uplink({"increment": mean}, self._elapsed, self._steps, weight=1.0, examples=1.0)

    def epsilon(self) -> float:
        """Return epsilon after the rounds so far, at the privacy's delta; infinite if anybody can draw the noise."""
        if self.round == 0:
            return 0.0
        if self.privacy.noise_seed is not None:
            return math.inf
        return self.accountant.epsilon(self.multiplier, self.round, self.privacy.delta)

    def metrics(self) -> dict[str, float | int]:
        """Return what has been spent."""
        spent: dict[str, float | int] = {"epsilon": self.epsilon(), "delta": self.privacy.delta}
        return spent if self.privacy.noise_seed is None else {**spent, "not-private": 1}

    def describe(self, num_rounds: int | None) -> list[tuple[str, str]]:
        """Return the lines of the summary about the guarantee and its cost."""
        privacy, accountant = self.privacy, self.accountant
        who = f"a client's increments zeroed; each in 1 of {accountant.separation} rounds, in secret order"
        if accountant.noise == "independent":
            who = f"a client added or removed; Poisson sampling with {accountant.sampling:g}"
        lines = [("Privacy", f"{privacy!r}, {who}")]
        if rounds := self.rounds or privacy.rounds or num_rounds:
            multiplier = self.multiplier or self._multiplier_for(rounds)
            epsilon = accountant.epsilon(multiplier, rounds, privacy.delta)
            text = f"({epsilon:.4g}, {privacy.delta:g}) after {rounds} rounds, noise multiplier {multiplier:.4g}"
            lines.append(("Epsilon, delta", text))
        if privacy.noise_seed is not None:
            logger.warning("noise_seed=%s: this run is NOT private, for anybody can draw its noise", privacy.noise_seed)
            lines.append(("NOT PRIVATE", f"noise_seed={privacy.noise_seed}"))
        return lines


def check_private(options: Any) -> None:
    """Raise a ConfigurationError that lists what a private run cannot have.

    Parameters
    ----------
    options : Options
        Of the strategy.
    """
    needed = {
        'weighting="uniform"': options.weighting == "uniform",
        "normalize_local_work=False": not options.normalize_local_work,
        "work=Steps(...)": options.work.steps is not None,
        "fraction_evaluate=0.0": options.fraction_evaluate == 0.0,
        "fraction_train > 0": options.fraction_train > 0.0,
        "client_lr as a number": isinstance(options.client_lr, float),
        "server_lr as a number": isinstance(options.server_lr, float),
        "certificate_every=None": options.certificate_every is None,
        'aggregation="mean"': options.aggregation == "mean",
        "no choose_nodes": options.participation.choose_nodes is None,
        "min_replies=1": options.participation.min_replies == 1,
        'output="last" or Average()': options.output not in ("shadow", "ergodic"),
        'client="composite"': not options._unmodified,
        "train_metrics_aggr_fn=None": options.train_metrics_aggr_fn is None,
    }
    missing = [text for text, there in needed.items() if not there]
    if missing:
        why = "otherwise numbers of clients leave without noise, or one client counts for more than `clip`"
        raise ConfigurationError(f"privacy={options.privacy!r} needs {'; '.join(missing)}: {why}")
