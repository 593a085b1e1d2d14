"""Runs of Flower Apps in this process, as SuperNodes and a ServerApp of a deployment would run them."""

from flwr.app import Context, RecordDict

from flwr_fco.simulation import InProcessGrid


def node(run_config=None, **node_config):
    """Return the context of a node."""
    return Context(run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config=run_config or {})


def run_app(example, nodes=10, *, path=None, raise_errors=True, **settings):
    """Run an example on nodes in this process, with its settings changed; `path` is their file, or a function."""
    config = example.config | {name.replace("_", "-"): value for name, value in settings.items()}
    file_of = path if callable(path) else lambda partition: path
    files = None if path is None else lambda partition: {"data-path": str(file_of(partition))}
    options = {"run_config": config, "node_config": files, "raise_errors": raise_errors}
    grid = InProcessGrid(example.client_app.app, nodes, **options)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with grid.identity():
        example.server_app.app(grid, context)
