"""The ClientApp; with faults and with notes where the run config asks for them."""

import json
import os
from pathlib import Path

from faults import fault_mod
from problems import app_of, problem

from flwr_fco import short_mod


def faults(message, context, call_next):
    """Answer badly now and then: drawn from round and partition, whatever process answers."""
    share = float(context.run_config["faults"]) / 3
    return fault_mod(dict.fromkeys(("raise", "malformed", "garbage"), share), seed=3)(message, context, call_next)


def note(message, context, call_next):
    """Leave a note besides the reply: the raylet that the client has run on, and its folder for compiled code."""
    reply = call_next(message, context)
    if folder := context.run_config["notes"]:
        import ray

        found = {"raylet": ray.get_runtime_context().get_node_id(), "compiled": os.environ["NUMBA_CACHE_DIR"]}
        found["partition"] = context.node_config["partition-id"]
        Path(str(folder), f"{message.metadata.message_id}.json").write_text(json.dumps(found))
    return reply


app = app_of(problem(), [short_mod(), faults, note])
