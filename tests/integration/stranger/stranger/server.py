"""The ServerApp: it asks all nodes, and notes how many answer with an error."""

import os
from pathlib import Path

from flwr.app import Message, RecordDict
from flwr.serverapp import ServerApp

RAN = Path(os.environ["RAN"])
(RAN / f"serverapp-{os.getpid()}").touch()
app = ServerApp()


@app.main()
def main(grid, context):
    nodes = list(grid.get_node_ids())
    replies = grid.send_and_receive([Message(RecordDict(), node, "train") for node in nodes], timeout=120)
    errors = [str(reply.error.reason) for reply in replies if reply.has_error()]
    (RAN / "errors").write_text(f"{len(errors)} of {len(nodes)} {' '.join(errors)}")
