"""What has left a site in a run, counted in ``context.state``, and what may still leave."""

from __future__ import annotations

from logging import INFO

import numpy as np
from flwr.app import Context

from flwr_fco.algorithms.contract import COLUMNS_LEFT, HESSIAN_SHARE, ClientHalf, Disclosure
from flwr_fco.core.logs import log
from flwr_fco.core.sparse import SparseVector
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives.base import Objective
from flwr_fco.objectives.design import LinearData
from flwr_fco.wire.client_state import read_disclosed, store_disclosed
from flwr_fco.wire.keys import FOLDS, HALVES
from flwr_fco.wire.protocol import Downlink, Uplink
from flwr_fco.wire.questions import Answer


def as_may_leave(
    uplink: Uplink, disclosure: Disclosure, context: Context, half: type[ClientHalf], objective: Objective
) -> Uplink:
    """Return an uplink as it may leave, and count it.

    Parameters
    ----------
    uplink : Uplink
        What the method would send.
    disclosure : Disclosure
        What the site's owner allows.
    context : Context
        The node's context; modified.
    half : type of ClientHalf
        The method's client half, which says what its vectors hold.
    objective : Objective
        The loss on the site's rows.

    Returns
    -------
    Uplink
        Without its Hessian blocks, if the owner's `hessian_share` does not allow them; with a share, the metrics of a
        method that sends blocks say how many columns are left for the next one.
    """
    share = disclosure.hessian_share
    if share is None and not half.optional:
        return uplink
    vectors, sums, outputs = dict(uplink.vectors), half.sums(uplink.vectors), _outputs(objective)
    columns = sum(sums[name] for name in half.optional if name in vectors)
    rest = sum(sums.values()) - columns
    most = disclosure.most_sums(objective.num_examples)
    before = read_disclosed(context).sums
    if columns and before + outputs * (rest + columns) > most:
        text = (
            "Run %s: kept back a Hessian block of %s columns: %s sums over its rows have left (hessian_share=%.3g: %s)"
        )
        log(INFO, text, context.run_id, columns, before, share, most)
        nothing = np.zeros(0, np.int32), np.zeros(0)
        vectors |= {name: SparseVector(*nothing, vectors[name].size) for name in half.optional if name in vectors}
        columns = 0
    count(rest + columns, disclosure, context, objective, columns=columns)
    if share is None or not half.optional:
        return uplink
    # The next answer holds a gradient as well.
    left = max(0, (most - read_disclosed(context).sums) // outputs - 1)
    metrics = {**uplink.metrics, COLUMNS_LEFT: left, HESSIAN_SHARE: share}
    return uplink._replace(vectors=vectors, metrics=metrics)


def count(vectors: int, disclosure: Disclosure, context: Context, objective: Objective, *, columns: int = 0) -> None:
    """Count an answer in the node's context, and log what has left by now, at the 1st, 2nd, 4th, 8th, ... answer.

    Parameters
    ----------
    vectors : int
        Gradients and columns of Hessian blocks in the answer, and vectors like them.
    disclosure : Disclosure
        What the site's owner allows.
    context : Context
        The node's context; modified.
    objective : Objective
        The loss on the site's rows.
    columns : int, default 0
        Columns of the Hessian blocks among them.
    """
    before = read_disclosed(context)
    sums = before.sums + vectors * _outputs(objective)
    now = before._replace(answers=before.answers + 1, sums=sums, columns=max(before.columns, columns))
    store_disclosed(context, now)
    if now.answers & before.answers == 0:
        rows, share = objective.num_examples, disclosure.hessian_share
        limit = f"{rows} rows, and no hessian_share"
        if share is not None:
            most = disclosure.most_sums(rows)
            percent = f"{now.sums / most:.0%} of " if most else ""
            limit = f"{percent}the {most} that hessian_share={share:.3g} allows with a Hessian block"
        text = "Run %s: this site has sent %s answers, Hessian blocks of up to %s columns, %s sums over its rows; %s"
        log(INFO, text, context.run_id, now.answers, now.columns, now.sums, limit)


def withheld(answer: Answer, disclosure: Disclosure, context: Context, objective: Objective) -> Answer:
    """Return a site's answer about its own estimates, without them if the owner's `hessian_share` does not allow them.

    Their standard errors are second derivatives: they leave as a Hessian block does.

    Parameters
    ----------
    answer : Answer
        What the site would say.
    disclosure : Disclosure
        What the site's owner allows.
    context : Context
        The node's context.
    objective : Objective
        The loss on the site's rows.
    """
    sums = read_disclosed(context).sums + len(answer.vectors) * _outputs(objective)
    if sums <= disclosure.most_sums(objective.num_examples):
        return answer
    zeros = {name: np.zeros(vector.shape) for name, vector in answer.vectors.items()}
    return answer._replace(numbers={**answer.numbers, "told": 0.0}, vectors=zeros)


def check_folds(downlink: Downlink, disclosure: Disclosure, context: Context) -> None:
    """Refuse to deal a site's rows into folds in a second way in the same run, if its owner limits rows.

    Sums over folds of both ways tell those over their differences, which may be a single row.

    Parameters
    ----------
    downlink : Downlink
        What the server asks for.
    disclosure : Disclosure
        What the site's owner allows.
    context : Context
        The node's context; modified.

    Raises
    ------
    ConfigurationError
        If the number of folds, or the seed, is another than in the run's earlier messages.
    """
    folds, seed = int(downlink.numbers.get(FOLDS, 0.0)), downlink.plan.seed
    # Halves are another way than as many folds.
    ways, what = (folds, "folds") if HALVES not in downlink.numbers else (-folds, "halves")
    if folds < 1 or not disclosure.limits_rows:
        return
    before = read_disclosed(context)
    if not before.folds:
        store_disclosed(context, before._replace(folds=ways, seed=seed))
    elif (before.folds, before.seed) != (ways, seed):
        earlier = f"{before.folds}" if before.folds > 0 else f"{-before.folds} halves"
        raise ConfigurationError(
            f"the server asks for {folds} {what} (seed={seed}), and has asked for {earlier} (seed={before.seed}) "
            "before in this run: differences of folds can be single rows, and this site's owner sets a smallest number "
            "of rows. Start another run"
        )


def _outputs(objective: Objective) -> int:
    data = objective.dual_terms()
    return data.num_outputs if isinstance(data, LinearData) else int(getattr(objective, "num_outputs", 1))
