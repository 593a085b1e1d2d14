"""Private rounds: the choice of clients, and the one noisy mean through which all other code sees the replies."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from logging import WARNING
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_fco.algorithms.contract.choices import Bounds
from flwr_fco.core.layout import Vector
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import dense
from flwr_fco.errors import ConfigurationError
from flwr_fco.privacy import noise
from flwr_fco.privacy.gaussian_dp import GaussianDP
from flwr_fco.server.options import CommonOptions, serves_unmodified
from flwr_fco.server.parts import Host, Part, under
from flwr_fco.wire.metrics import average_metrics
from flwr_fco.wire.protocol import Node, Uplink


class _Run(NamedTuple):
    """Settings fixed before round 1: total rounds, sigma / clip, the denominator, and the order of the nodes' keys."""

    rounds: int
    noise_multiplier: float
    denominator: float
    order: tuple[tuple[int, int], ...]


class _OpenRound(NamedTuple):
    """The nodes that may answer a round, and the scale."""

    keys: frozenset[tuple[int, int]]
    size: int
    bounds: list[tuple[slice, float]]
    steps: int
    elapsed: float


class PrivateMean(Part):
    """Asks the nodes whose turn it is, and makes one noisy mean of their clipped increments.

    Parameters
    ----------
    privacy : GaussianDP
        Clipping, noise and budget.
    options : CommonOptions
        Options of the strategy.
    host : Host
        The run.
    """

    def __init__(self, privacy: GaussianDP, options: CommonOptions, host: Host) -> None:
        _check(options)
        noise.library()
        self.privacy, self._options, self._host = privacy, options, host
        # 1e-9: a fraction of 1 / 49 gives 49 blocks, not 48.
        separation = 1 if privacy.noise == "independent" else math.floor(1.0 / options.fraction_train + 1e-9)
        bands = (privacy.bands or separation) if privacy.noise == "banded" else 1
        self.accountant = noise.Accountant(privacy.noise, options.fraction_train, separation, bands)
        #: Rounds released by this strategy, in whichever run.
        self.released_rounds = 0
        self.forget()

    def forget(self) -> None:
        """Return to the state before the first round, except for the record of released rounds."""
        self.round = 0
        self._run: _Run | None = None
        self._open: _OpenRound | None = None
        tree = self.privacy.noise == "tree"
        self._stream: noise.NoiseStream = (
            noise.TreeNoise(self.accountant.separation) if tree else noise.BandedNoise(self.accountant.bands)
        )

    @property
    def rounds(self) -> int | None:
        """Number of rounds in the privacy accounting; None before it is known."""
        planned = self.privacy.rounds or self._host.num_rounds
        return planned if self._run is None else self._run.rounds

    def before_round(self, host: Host, nodes: Sequence[Node]) -> Sequence[Node]:
        """Return the nodes whose turn it is, or that are drawn."""
        if self._open is None:
            self._open = self._begin(host)
        there = self._open.keys
        return [node for node in host.nodes.ordered if node.key in there]

    def _begin(self, host: Host) -> _OpenRound:
        plan, privacy = host.plan, self.privacy
        # Options are attributes, which may be set after a strategy is made.
        _check(self._options)
        if plan.layout.passed_through:
            names = ", ".join(entry.name for entry in plan.layout.passed_through)
            raise ConfigurationError(
                f"privacy={privacy!r}: the arrays {names} are averaged as they are, without noise. Keep them out of "
                "the model (freeze running statistics, use GroupNorm), or optimise them: arrays=Arrays(pass_through=())"
            )
        run = self._run or self._settle(host)
        if self.round >= run.rounds:
            raise ConfigurationError(
                f"round {self.round + 1}: the privacy of this run is accounted for {run.rounds} rounds, and it has had "
                "them. Give GaussianDP more `rounds`, or `start` a larger num_rounds, before round 1"
            )
        if self.round < self.released_rounds:
            raise ConfigurationError(
                f"round {self.round + 1} of this strategy has been released already, up to round "
                f"{self.released_rounds}; another one of the same clients costs their privacy again. Resume from the "
                "last state; for another run, whose epsilon adds to this one's, make another strategy"
            )
        self._run = run
        if privacy.noise == "independent":
            chances = self._uniforms(len(host.nodes.ordered))
            drawn = chances < self.accountant.sampling
            keys = [node.key for node, taken in zip(host.nodes.ordered, drawn, strict=True) if taken]
        else:
            separation = self.accountant.separation
            keys = list(run.order[self.round % separation :: separation])
        steps = plan.steps or 1
        clips = privacy.clips
        if isinstance(privacy.clip, Mapping):
            blocks = {entry.name: entry.block for entry in plan.layout.optimized}
            if blocks.keys() != clips.keys():
                raise ConfigurationError(f"clip={privacy.clip!r}; expected a bound for each of {', '.join(blocks)}")
            bounds = [(blocks[name], bound) for name, bound in clips.items()]
        else:
            bounds = [(slice(None), privacy.total_clip)]
        return _OpenRound(frozenset(keys), plan.layout.size, bounds, steps, host.problem.client_lr * steps)

    def _settle(self, host: Host) -> _Run:
        privacy, accountant, rounds = self.privacy, self.accountant, self.rounds
        if not rounds:
            raise ConfigurationError(
                "the privacy of a run is accounted for before round 1, and without `start` the number of rounds is not "
                "known; give GaussianDP(rounds=...)"
            )
        order = [node.key for node in host.nodes.ordered]
        if privacy.delta * len(order) >= 1.0:
            text = "delta=%g with %s clients: a mechanism that publishes one client's data whole may have it; expected "
            log(WARNING, text + "less than %g", privacy.delta, len(order), 1.0 / len(order))
        if privacy.noise_seed is None:
            secrets.SystemRandom().shuffle(order)
        else:
            np.random.default_rng([privacy.noise_seed, 2]).shuffle(order)
        share = accountant.sampling if privacy.noise == "independent" else 1.0 / accountant.separation
        denominator = share * (privacy.clients or len(order))
        return _Run(rounds, self._multiplier(rounds), denominator, tuple((a, b) for a, b in order))

    def _multiplier(self, rounds: int) -> float:
        privacy = self.privacy
        if privacy.noise_multiplier is not None:
            return privacy.noise_multiplier
        return self.accountant.noise_multiplier(float(privacy.target_epsilon or 0.0), rounds, privacy.delta)

    def _uniforms(self, count: int) -> Vector:
        if self.privacy.noise_seed is not None:
            return np.random.default_rng([self.privacy.noise_seed, 3, self.round]).random(count)
        words = np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def _draw(self, size: int) -> noise.Draw:
        if self.privacy.noise_seed is None:
            return lambda: noise.secure_normal(size)
        rng = np.random.default_rng([self.privacy.noise_seed, 1, self.round])
        return lambda: rng.standard_normal(size)

    def clipped_sum(self, uplinks: Sequence[Uplink]) -> Vector:
        """Return the sum of the clipped increments of nodes that may answer, one per node: the basis of the privacy.

        A client that is added, removed or silent changes the sum by at most `clip`, a client that sends another
        increment by at most twice that.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        """
        if self._open is None:
            what = "the replies of a private round are aggregated once"
            raise ConfigurationError(f"{what}; call configure_train before aggregate_train")
        total, heard = np.zeros(self._open.size), set()
        for uplink in uplinks:
            key = None if uplink.node is None else uplink.node.key
            if key in self._open.keys and key not in heard:
                heard.add(key)
                increment = np.asarray(dense(uplink.vectors["increment"]), np.float64)
                total += noise.clipped(increment, self._open.bounds)
        return total

    def release(self, uplinks: Sequence[Uplink]) -> Uplink:
        """Return the noisy mean of a round, which replaces its replies; without replies, it is pure noise.

        Parameters
        ----------
        uplinks : sequence of Uplink
            Those of the round, with weights.
        """
        mean, opened, run = self.clipped_sum(uplinks), self._open, self._run
        assert opened is not None
        assert run is not None
        sigma = run.noise_multiplier * self.privacy.total_clip
        mean += sigma * self._stream.next(self._draw(opened.size))
        mean /= run.denominator
        self.round += 1
        self.released_rounds, self._open = max(self.released_rounds, self.round), None
        return Uplink({"increment": mean}, opened.elapsed, opened.steps, weight=1.0, examples=1.0)

    def epsilon(self) -> float:
        """Return epsilon after the rounds so far, at the privacy's delta; infinite if the noise is known."""
        if self._run is None or self.round == 0:
            return 0.0
        if self.privacy.noise_seed is not None:
            return math.inf
        return self.accountant.epsilon(self._run.noise_multiplier, self.round, self.privacy.delta)

    def metrics(self, host: Host) -> dict[str, float | int]:
        """Return epsilon and delta; with a seed, that the run is not private."""
        seeded = {"not-private": 1} if self.privacy.noise_seed is not None else {}
        return {"epsilon": self.epsilon(), "delta": self.privacy.delta, **seeded}

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return noise, shuffle and progress of the run, which are the server's secrets."""
        arrays: dict[str, NDArray[Any]] = {"round": np.array(self.round)}
        if self._run is not None:
            order = np.array(self._run.order, dtype=np.uint64).reshape(-1, 2)
            arrays |= {"run": np.array(self._run[:3]), "order": order}
        return arrays | {f"noise/{name}": value for name, value in self._stream.to_arrays().items()}

    def from_arrays(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        expected = None if self._run is not None else self.rounds
        self.forget()
        self.round = int(arrays["round"])
        if "run" in arrays:
            rounds, noise_multiplier, denominator = arrays["run"].tolist()
            if expected is not None and int(rounds) != expected:
                what = f"its privacy is accounted for {int(rounds)} rounds"
                raise ConfigurationError(f"{what}, and this run is to have {expected}")
            order = tuple((a, b) for a, b in arrays["order"].tolist())
            self._run = _Run(int(rounds), noise_multiplier, denominator, order)
        self._stream.from_arrays(under("noise/", arrays))

    def describe(self) -> list[tuple[str, str]]:
        """Return the lines about the privacy guarantee and its cost."""
        privacy, accountant, rounds = self.privacy, self.accountant, self.rounds
        if privacy.noise_seed is not None:
            log(WARNING, "noise_seed=%s: this run is NOT private, for anybody can draw its noise", privacy.noise_seed)
        if accountant.noise == "independent":
            who = f"a client added or removed; Poisson sampling with {accountant.sampling:g}"
        else:
            who = f"a client's increments zeroed; each in 1 of {accountant.separation} rounds, in secret order"
        lines = [("Privacy", f"{privacy!r}, {who}")]
        if rounds:
            multiplier = self._multiplier(rounds) if self._run is None else self._run.noise_multiplier
            epsilon = accountant.epsilon(multiplier, rounds, privacy.delta)
            text = f"({epsilon:.4g}, {privacy.delta:g}) after {rounds} rounds, noise multiplier {multiplier:.4g}"
            lines.append(("Epsilon, delta", text))
        if privacy.noise_seed is not None:
            lines.append(("NOT PRIVATE", f"the noise comes from noise_seed={privacy.noise_seed}"))
        return lines


def _check(options: Any) -> None:
    """Reject, in one error, all options that a private run does not allow."""
    rates = [name for name in ("client_lr", "server_lr") if not isinstance(getattr(options, name, None), float)]
    asks = "asks clients for numbers to which no noise is added"
    weighs, normalizes = options.weighting != "uniform", getattr(options, "normalize_local_work", None)
    evaluates, rolls_back = options.fraction_evaluate != 0.0, options.on_divergence == "rollback"
    compares = options.bounds.max_ratio not in (None, Bounds().max_ratio)
    averages, unmodified = options.train_metrics_aggr_fn is not average_metrics, serves_unmodified(options)
    wrong = {
        'weighting="uniform" (numbers of examples would be weights of the clients\' own choice)': weighs,
        "normalize_local_work=False (what one client says of its work would change what others count)": normalizes,
        "work=Steps(...) (psi's weight grows by what the server knows)": options.work.steps is None,
        f"fraction_evaluate=0.0 (federated evaluation {asks}; evaluate_fn is the server's own)": evaluates,
        f'{" and ".join(rates)} as numbers ("auto" {asks}; functions of the round, such as a plateau\'s, may depend '
        "on them)": bool(rates),
        f"certificate_every=None (a certificate {asks})": options.certificate_every is not None,
        "Bounds(max_ratio=None) (the median of the replies says whether another one counts)": compares,
        'aggregation="mean" (in another centre one client changes what others count)': options.aggregation != "mean",
        "choose_nodes=None (the accounting needs its own schedule)": options.participation.choose_nodes is not None,
        "min_replies=1 (a round that is skipped says how many answered)": options.participation.min_replies != 1,
        'on_divergence="raise" or "warn" (a round that is gone back on has been released all the same)': rolls_back,
        "fraction_train > 0": options.fraction_train == 0.0,
        'output="last" or Average() (others need the clients\' local steps)': (options.output in ("shadow", "ergodic")),
        'client="composite" (unmodified clients say themselves how far psi\'s weight grows)': unmodified,
        "train_metrics_aggr_fn=None (the clients' metrics are withheld)": averages,
    }
    needed = [text for text, is_so in wrong.items() if is_so]
    if needed:
        raise ConfigurationError(f"privacy={options.privacy!r} needs {'; '.join(needed)}")


def refuse_privacy_wrappers(caller: str, *, unmodified: bool) -> None:
    """Reject Flower's differential-privacy wrappers, which call a strategy's hooks from their own modules.

    Flower does not tell a wrapped strategy about its wrapper: there is no argument or attribute, and ``start``, which
    the wrapper replaces, is not called. Only the caller's module distinguishes a wrapper from a user's own loop over
    the hooks, and without this error the model would silently be wrong.
    """
    if caller.startswith("flwr.serverapp.strategy.dp_"):
        why = (
            "The clients of this strategy reply with increments of a dual vector, and the server keeps the dual, not "
            "the model: the clipping would be meaningless and the noise would be forgotten. Run the strategy without "
            "the wrapper; noise must act on the increments before the server's update: privacy=GaussianDP(...) of "
            "FedDualAvg, FedDualAvgOSP and FeDualEx does that"
        )
        if unmodified:
            why = (
                "Unmodified clients reply with models, which may be clipped; but the server keeps a dual vector, and "
                "the next model comes from that: the noise would be forgotten. Run the strategy without the wrapper. "
                "On the clients LocalDpMod clips and adds noise, and fixedclipping_mod clips where start's "
                "train_config has 'clipping_norm'"
            )
        raise ConfigurationError(
            "Flower's differential-privacy wrappers clip (reply - what was sent) and add noise to the aggregated "
            f"model. {why}."
        )
