"""Rejects those wrappers of Flower's differential privacy that cannot act on increments of a dual."""

from __future__ import annotations

from flwr_fco.errors import ConfigurationError


def refuse_privacy_wrappers(caller: str, *, unmodified: bool) -> None:
    """Reject Flower's differential-privacy wrappers, which call a strategy's hooks from their own modules.

    Flower does not tell a wrapped strategy about its wrapper: there is no argument or attribute, and ``start``, which
    the wrapper replaces, is not called. Only the caller's module distinguishes a wrapper from a user's own loop over
    the hooks, and without this error the model would silently be wrong.
    """
    if caller.startswith("flwr.serverapp.strategy.dp_"):
        if unmodified:
            why = (
                "Unmodified clients reply with models, which may be clipped; but the server keeps a dual vector, and "
                "the next model comes from that: the noise would be forgotten. Run the strategy without the wrapper. "
                "On the clients LocalDpMod clips and adds noise, and fixedclipping_mod clips where start's "
                "train_config has 'clipping_norm'"
            )
        else:
            why = (
                "The clients of this strategy reply with increments of a dual vector, and the server keeps the dual, "
                "not the model: the clipping would be meaningless and the noise would be forgotten. Run the strategy "
                "without the wrapper; noise must act on the increments before the server's update: "
                "privacy=GaussianDP(...) of FedDualAvg, FedDualAvgOSP and FeDualEx does that"
            )
        raise ConfigurationError(
            "Flower's differential-privacy wrappers clip (reply - what was sent) and add noise to the aggregated "
            f"model. {why}."
        )
