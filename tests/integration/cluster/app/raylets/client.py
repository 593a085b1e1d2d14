"""The ClientApp; it notes the raylet that it has run on, and that one's folder for compiled code."""

import json
import os
from pathlib import Path

from flwr_fco.client_apps import client_app
from raylets.problem import objective


def note(message, context, call_next):
    """Leave a note besides the reply."""
    reply = call_next(message, context)
    if folder := str(context.run_config["out"]):
        import ray

        reported = {"raylet": ray.get_runtime_context().get_node_id(), "compiled": os.environ["NUMBA_CACHE_DIR"]}
        partition = context.node_config["partition-id"]
        Path(folder, f"{message.metadata.message_id}.json").write_text(json.dumps(reported | {"partition": partition}))
    return reply


app = client_app(lambda context: objective(context.node_config["partition-id"]), mods=[note])
