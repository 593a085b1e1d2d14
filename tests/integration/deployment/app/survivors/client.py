"""The ClientApp; with faults where the run config asks for them."""

from faults import fault_mod

from flwr_fco import client_app, short_mod
from survivors.problem import objective


def faults(message, context, call_next):
    """Answer badly now and then: drawn from round and partition, whatever process answers."""
    share = float(context.run_config["faults"]) / 4
    if not share:
        return call_next(message, context)
    kinds = ("raise", "corrupt", "malformed", "garbage")
    return fault_mod(dict.fromkeys(kinds, share), seed=3)(message, context, call_next)


app = client_app(lambda context: objective(context.node_config["partition-id"]), mods=[short_mod(), faults])
