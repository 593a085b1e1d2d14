"""Custom training loops: an optimiser built from the server's message, and the reply.

Flower's quickstart changes in three places, and its `train` takes an optimiser instead of a learning rate::

    -from flwr.clientapp import ClientApp
    +from flwr_fco.torch import ClientApp, local_training

    -    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    -    train_loss = train_fn(model, trainloader, epochs, lr, device)
    +    with local_training(msg, context, model) as training:
    +        train_loss = train_fn(model, trainloader, epochs, training.optimizer, device)

    -    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord(metrics)})
    -    return Message(content=content, reply_to=msg)
    +    return training.reply(metrics)
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from functools import partial
from typing import Any, Self, cast

import numpy as np
import torch
from flwr.app import Context, Message
from numpy.typing import NDArray
from torch import nn

from flwr_fco.algorithms.contract import Moved, Sent, method_of
from flwr_fco.client_apps import client
from flwr_fco.client_apps.client import Limits, Mod, TaskApp, as_it_leaves, checked_mods, recall, task_of
from flwr_fco.client_apps.disclosure import Disclosure, answered
from flwr_fco.core.computing import own_turn, random_generator
from flwr_fco.core.validation import NON_NEGATIVE, checked, of_type, short
from flwr_fco.errors import ConfigurationError, in_words
from flwr_fco.messages.protocol import MemoryLostError, Plan, Uplink
from flwr_fco.messages.records import NAMES_ONLY, PARTITION, TABLE, encode_uplink, partition_of
from flwr_fco.mirror_maps import Euclidean
from flwr_fco.regularizers import Zero
from flwr_fco.torch import optim
from flwr_fco.torch.objective import buffers_of, layout_of, load_buffers, seeded
from flwr_fco.work import Work

_INSTEAD = "use client_app with a flwr_fco.torch.TorchObjective, which takes every method, psi and mirror map"

#: Of the metrics that a reply must have.
_ROWS = {**NON_NEGATIVE, "example": "len(trainloader.dataset) among the metrics"}
#: Limits of the ClientApp that handles the current message; None outside a handler.
_within_app: ContextVar[Limits | None] = ContextVar("flwr_fco_torch_app", default=None)


class ClientApp(TaskApp):
    """Flower's ClientApp with handlers for flwr_fco's additional messages.

    It reports the node's partition id, so that runs are reproducible, and reports that a node has lost its
    memory, as after a restart, so that the server sends it again.

    Parameters
    ----------
    mods : sequence of callable, optional
        Flower mods. Those for differential privacy are refused: they clip differences of models.
    limits : Limits, optional
        What a server may ask of this client; by default ``Limits()``. A message that exceeds the limits or cannot be
        read raises an error that says why. The steps of your training loop are counted as it runs: the optimiser step
        that exceeds ``max_steps`` raises.
    disclosure : Disclosure, optional
        Only `min_rows` and `max_numbers`, for a training loop says of its data how many rows there are: an answer whose
        ``"num-examples"`` are fewer, or that has none, does not leave. Your loop draws the batches. With one, even
        ``Disclosure()``, each message is a line of the log: what the server asked for, and what was sent, or why it was
        refused.

    Raises
    ------
    ConfigurationError
        If `mods` is not a sequence of functions, a mod clips replies, or `disclosure` has another limit.

    Examples
    --------
    >>> from flwr_fco.client_apps import Limits
    >>> app = ClientApp(limits=Limits(max_steps=1000))
    >>> @app.train()
    ... def train(message, context):
    ...     model = torch.nn.Linear(3, 2)
    ...     with local_training(message, context, model) as training:
    ...         ...  # your training loop, with training.optimizer
    ...     return training.reply({"num-examples": 100})
    """

    def __init__(
        self, *, mods: Sequence[Mod] | None = None, limits: Limits | None = None, disclosure: Disclosure | None = None
    ) -> None:
        given: Disclosure = checked("disclosure", disclosure, Disclosure | None) or Disclosure()
        if wrong := [name for name in ("min_class_rows", "min_events") if getattr(given, name) is not None]:
            prefix = f"disclosure has {', '.join(wrong)}, and your training loop says only how many rows it has"
            raise ConfigurationError(f"{prefix}: leave it out, or use flwr_fco.client_app with an objective")
        own = [*checked_mods(mods), partial(_answering, limits or Limits(), given)]
        super().__init__(own if disclosure is None else [partial(answered, disclosure), *own])
        self.query("question")(_no_answer)


def _no_answer(message: Message, context: Context) -> Message:
    prefix = "a loop of one's own answers no questions, such as those of client_lr='auto' and certificate_every"
    raise ConfigurationError(f"{prefix}. Leave them out on the server, or {_INSTEAD}")


def _answering(limits: Limits, disclosure: Disclosure, message: Message, context: Context, call_next: Any) -> Message:
    """Answer a message as the innermost mod, with what the client's owner allows."""
    token = _within_app.set(limits)
    try:
        with own_turn():
            answer: Message = call_next(message, context)
    except MemoryLostError:
        return Message(encode_uplink(None), reply_to=message)
    finally:
        _within_app.reset(token)
    _check_rows(answer, message, disclosure)
    return answer


def _check_rows(answer: Message, message: Message, disclosure: Disclosure) -> None:
    """Refuse an answer about fewer rows than the client's owner allows, or about rows that it does not count."""
    # A handler that returns nothing is silent in Flower.
    silent = cast(Any, answer) is None
    kind = message.metadata.message_type
    if disclosure.min_rows is None or kind in (PARTITION, TABLE, NAMES_ONLY) or silent or answer.has_error():
        return
    counts = [record["num-examples"] for record in answer.content.metric_records.values() if "num-examples" in record]
    prefix = f"an answer to {kind!r:.80}"
    if not counts:
        prefix = f"the server asks for {prefix}; this site's owner sets min_rows={disclosure.min_rows}"
        raise ConfigurationError(f"{prefix}: add 'num-examples' to the metrics of the answer, or leave the limit out")
    for count in counts:
        disclosure.check_rows(int(_number("num-examples", count)), prefix)


class LocalTraining:
    """A client's work in a round, for a ``with`` block around your own training loop.

    At the start of the block the model is set to the point in the server's message, and ``training.optimizer`` is the
    optimiser that the server's strategy needs, with its learning rate. After the block, ``training.reply(metrics)``
    returns the reply: the increments, the sum of the step sizes used by the optimiser (including changes by a
    scheduler), and the model's running statistics.

    Notes
    -----
    1. The training loop is yours: your loader determines epochs and batches, not the strategy's ``local_epochs`` and
       ``batch_size`` (``training.work`` has these, if you want to follow them).
    2. PyTorch's random numbers in the block depend only on the run's seed, the round and the partition. All threads
       share its generators, so blocks in other threads wait.
    3. Frozen parameters and buffers must pass through the strategy unoptimised (``arrays=Arrays(pass_through=...)``).
    4. With a strategy's ``density`` the steps are plain ones from the server's model.
    5. With dual averaging the optimiser goes on from the server's vectors, whatever the model holds, and the reply is
       its steps. Weights that are loaded before the first step and not frozen, such as a head that a client keeps, are
       refused, as they would be gone after it; those that are loaded after the last one, or clipped after each, are
       not part of the reply. Clients that keep layers stay unmodified, with ``PerParameter({"head.*": Zero()})``.

    Parameters
    ----------
    message : Message
        A training message from a flwr_fco strategy.
    context : Context
        The node's context.
    model : torch.nn.Module
        The model; its parameters are overwritten.
    momentum : float, default 0.0
        Momentum of the local steps, as in `torch.optim.SGD`; only for dual averaging strategies without a tracker. It
        restarts in every round.

    Attributes
    ----------
    work : Work
        What the strategy requests for this round; your training loop may differ from it.
    server_round : int
        The round, from 1; in round 0 some strategies collect initial gradients.

    Raises
    ------
    ConfigurationError
        If the model differs from the server's, or the strategy's method or geometry has no optimiser.

    Examples
    --------
    >>> def train(message, context, model, loss, num_rows):  # called by a ClientApp's training function
    ...     with local_training(message, context, model) as training:
    ...         loss(model).backward()
    ...         training.optimizer.step()
    ...     return training.reply({"num-examples": num_rows})
    """

    _optimizer: optim.CompositeOptimizer | None = None

    def __init__(self, message: Message, context: Context, model: nn.Module, *, momentum: float = 0.0) -> None:
        limits = _within_app.get()
        if limits is None:
            prefix = "this message came through Flower's own ClientApp, which cannot report what is missing here"
            advice = "write `from flwr_fco.torch import ClientApp` instead of `from flwr.clientapp import ClientApp`"
            raise ConfigurationError(f"{prefix}; {advice}")
        self.model = model
        self._momentum = momentum
        self._limits = limits
        self._stack = ExitStack()
        self._trained = False
        self.server_round, self._downlink = task_of(message, limits, as_sent=True)
        self.work: Work = self._downlink.local_work
        self._message = message
        self._context = context
        plan = self._downlink.plan
        limits.check_task(self._downlink, None)
        self._state = recall(context, self._downlink)
        self._method = method_of(plan.solver, plan.options)
        self._loop = cast(Any, UserLoop(plan))
        self._method.local(self._loop, self._downlink, self._state)
        if not self._loop.asked:
            raise ConfigurationError(f"the method {plan.solver!r} asks for no steps; {_INSTEAD}")
        self._kind, self._start, self._shift, self._acts = self._loop.asked
        terms = plan.regularizer.terms() if plan.scope == "joint" and self._acts else ()
        joint = f"scope='joint': {short(plan.regularizer)} of all arrays together has no form on tensors"
        objections = {
            "the strategy asks for all local points, which an optimiser does not keep": plan.sends_every_step,
            f"mirror_map={short(plan.mirror_map)}: optimisers are Euclidean": type(plan.mirror_map) is not Euclidean,
            joint: terms is None or any(map(np.ndim, terms)),
        }
        for prefix in (prefix for prefix, objects in objections.items() if objects):
            raise ConfigurationError(f"{prefix}. Take something else on the server, or {_INSTEAD}")
        tracked = self._method.memory or hasattr(self._method, "tracker_start")
        if momentum and (tracked or self._kind is not optim.DualAveraging):
            prefix = f"momentum={momentum!r}: the method {plan.solver!r} has none. Leave it out, or take FedDualAvg"
            raise ConfigurationError(f"{prefix}; the server's momentum is server_momentum")

    @property
    def optimizer(self) -> optim.CompositeOptimizer:
        """What the training loop steps with, in its block."""
        if self._optimizer is None:
            advice = "train in its block: with local_training(msg, context, model) as training: ..."
            raise ConfigurationError(f"there is no optimiser outside of the training's block; {advice}")
        return self._optimizer

    def __enter__(self) -> Self:
        downlink, plan = self._downlink, self._downlink.plan
        same = "ArrayRecord(model.state_dict()) of the same model, of tied weights with the first name alone"
        client.check_layout(layout_of(self.model), plan.layout, "this model", same)
        if plan.layout.passed_through:
            load_buffers(self.model, downlink.pass_through)
        # Escaped, because these are names, not patterns.
        patterns = [glob.escape(name) for name in plan.layout.regularized_names]
        named = dict(self.model.named_parameters())
        params = [(name, named[name]) for name in plan.layout.shapes]
        psi = plan.regularizer if self._acts else Zero()
        own: dict[str, Any] = {"apply_to": patterns, "momentum": self._momentum}
        self._optimizer = optimizer = self._kind(params, downlink.client_lr, psi, **own)
        # As they came: what is sent back is of the same precision.
        single = plan.wire_dtype == "auto" and self._start.dtype == np.float32
        self._single = single and self._kind is optim.DualAveraging
        optimizer.start_from(plan.layout.views(self._start), elapsed=downlink.elapsed, single=self._single)
        if isinstance(optimizer, optim.DualAveraging) and np.any(self._shift):
            optimizer.set_shift(plan.layout.views(self._shift))
        parts = self.model.modules() if isinstance(optimizer, optim.DualAveraging) else ()
        # A forward pass of an embedding with a max_norm changes its weights itself.
        kept = (p for part in parts if not getattr(part, "max_norm", None) for p in part.parameters(recurse=False))
        self._held = [(p, p.detach().clone()) for p in kept if p.requires_grad]
        # Removed at the end: the reference cycle would keep the optimiser, this object and the model in memory.
        self._stack.callback(optimizer.register_step_pre_hook(self._before_step).remove)
        self._stack.callback(optimizer.register_step_post_hook(self._after_step).remove)
        # Last, as it holds what other threads wait for.
        rng = random_generator(plan.seed, self.server_round, partition_of(self._context))
        self._stack.enter_context(seeded(self.model.parameters(), int(rng.integers(2**63)), all_devices=True))
        return self

    def _before_step(self, *_: object) -> None:
        """Refuse weights that the loop loads before its first step, and does not freeze: they would be gone."""
        held, self._held = self._held, []
        if not all(torch.allclose(p, own.to(p), equal_nan=True) for p, own in held if p.requires_grad):
            prefix = "the model's weights were changed before the first step, which goes on from the server's vectors"
            raise ConfigurationError(f'{prefix}; clients that keep layers stay client="unmodified", with PerParameter')

    def _after_step(self, *_: object) -> None:
        """Refuse steps beyond the owner's limit; note a gradient, which a closure may have computed in the step."""
        self._limits.check("max_steps", self.optimizer.num_steps, "a round of", "local steps")
        self._trained = self._trained or any(own.grad is not None for own in self.model.parameters())

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def reply(self, metrics: Mapping[str, float]) -> Message:
        """Return the reply to the server's message.

        Parameters
        ----------
        metrics : mapping of str to float
            ``"num-examples"``, the client's number of examples, and any other metrics to report.

        Raises
        ------
        ConfigurationError
            If the number of examples is missing, a metric is not a number, or the optimiser has not taken a step.
        """
        downlink, plan = self._downlink, self._downlink.plan
        optimizer = self.optimizer
        if optimizer.num_steps < 1:
            prefix = f"the optimiser of {plan.solver!r} has taken no step in this round: step with `training.optimizer`"
            raise ConfigurationError(f"{prefix}, not with one of your own, and see that the loader is not empty")
        if not self._trained:
            prefix = "no parameter of the model had a gradient in any step of this round"
            raise ConfigurationError(f"{prefix}; compute the loss with the model that local_training is given")
        parts = [moved.cpu().numpy().reshape(-1) for moved in optimizer.increments().values()]
        increment: NDArray[Any] = np.concatenate(parts, dtype=np.float32 if self._single else np.float64)
        own = Moved(optimizer.elapsed_since_start, optimizer.num_steps)
        self._loop.done = {"increment": increment}, Moved(downlink.client_lr, 1) if self._kind is GradientProbe else own
        sent, moved = self._method.local(self._loop, downlink, self._state)
        reported = {key: _number(key, value) for key, value in metrics.items()}
        rows = float(int(checked("num-examples", reported.pop("num-examples", None), float, _ROWS)))
        # By the plan's names: the loop may have frozen parameters by now.
        passed = {entry.name for entry in plan.layout.passed_through}
        buffers = {name: array for name, array in buffers_of(self.model).items() if name in passed}
        up = Uplink(sent, moved.elapsed, moved.steps, examples=rows, metrics=reported, pass_through=buffers)
        up = as_it_leaves(self._context, self.server_round, self._method, downlink, self._state, up)
        return Message(encode_uplink(up), reply_to=self._message)


#: By this name in a training function: ``with local_training(message, context, model) as training``.
local_training = LocalTraining


def _number(name: str, value: Any) -> float:
    prefix = f"the metric {name!r} is {of_type(value)}, {value!r:.80}; expected a number"
    advice = f". Report the entries of a list under names of their own, such as {name + '-0'!r}"
    with in_words(prefix, ConfigurationError, advice):
        return float(value)


class UserLoop:
    """A client whose loop is the user's: it finds out what a method asks for, and later has the outcome.

    Parameters
    ----------
    plan : Plan
        Of the run.

    Attributes
    ----------
    asked : tuple, optional
        The class of the optimiser, where it starts, what is added to every gradient, and whether psi acts.
    done : tuple of dict and Moved
        What the method sends: nothing has moved, until it is known.
    """

    asked: tuple[Any, ...] = ()

    def __init__(self, plan: Plan) -> None:
        self._solver = plan.solver
        self.done: tuple[Sent, Moved] = {"increment": np.zeros(plan.layout.size)}, Moved(1.0, 1)

    def __getattr__(self, name: str) -> Any:
        methods = "dual averaging, gradient tracking and mirror descent have one"
        prefix = f"the method {self._solver!r} has no optimiser ({methods})"
        raise ConfigurationError(f"{prefix}. Take something else on the server, or {_INSTEAD}")

    def dual_steps(self, dual: Any, shift: Any = 0.0, *, psi: bool = True) -> tuple[Sent, Moved]:
        """Return the outcome of steps of dual averaging."""
        return self._outcome(optim.DualAveraging, dual, shift, psi)

    def proximal_steps(self, primal: Any, *, psi: bool = True) -> tuple[Sent, Moved]:
        """Return the outcome of proximal steps."""
        return self._outcome(optim.ProximalSGD, primal, 0.0, psi)

    def gradient(self, dual: Any) -> tuple[Sent, Moved]:
        """Return a gradient."""
        return self._outcome(GradientProbe, dual, 0.0, True)

    def _outcome(self, *asked: Any) -> tuple[Sent, Moved]:
        self.asked = asked
        return self.done


class GradientProbe(optim.DualAveraging):
    """Takes no steps; its increments are the mean of the gradients at the start point."""

    def _take(self, group: optim.Group, lr: float) -> None:
        self._descend(group, self._kept(group, "moved"), -1.0)

    def increments(self) -> dict[str, torch.Tensor]:
        """Return the mean of the gradients by parameter name."""
        return {name: total / self.num_steps for name, total in super().increments().items()}
