"""Write flwr.inv and torch.inv: Sphinx inventories of the names of Flower and PyTorch that our pages link.

Sphinx reads in this folder which address a name of another project has, so that the site is built without the network.
numpy.inv is of Debian's package python-numpy-doc 1:2.4.6+ds-5, scikit-learn.inv of python-sklearn-doc 1.9.0+dfsg-2,
both unchanged: unpack a newer package (`dpkg -x`) and copy its objects.inv. Flower's and PyTorch's inventories are in
no package: a new name of theirs is a word below, with the pattern of its address.
"""

import zlib
from pathlib import Path

from flwr_fco.models import write_file

# Project: {pattern of an address, where $ is the name: names}.
NAMES = {
    "flwr": {
        "ref-api/$.html#$": "flwr.app.Array flwr.app.ArrayRecord flwr.app.ConfigRecord flwr.app.Context "
        "flwr.app.Message flwr.app.MetricRecord flwr.app.RecordDict flwr.clientapp.ClientApp flwr.serverapp.Grid "
        "flwr.serverapp.ServerApp flwr.serverapp.strategy.FedAvg flwr.serverapp.strategy.FedProx "
        "flwr.serverapp.strategy.Result flwr.serverapp.strategy.Strategy"
    },
    "torch": {
        "generated/$.html#$": "torch.nn.Module torch.optim.SGD",
        "optim.html#$": "torch.optim.Optimizer",
        "data.html#$": "torch.utils.data.DataLoader torch.utils.data.Dataset",
        "tensor_attributes.html#$": "torch.dtype",
    },
}


def main() -> None:
    """Write one inventory a project, beside this file."""
    for project, patterns in NAMES.items():
        addresses = {name: pattern.replace("$", name) for pattern, names in patterns.items() for name in names.split()}
        lines = "".join(f"{name} py:class 1 {address} -\n" for name, address in sorted(addresses.items()))
        head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n# Compressed using zlib.\n"
        write_file(Path(__file__).parent / f"{project}.inv", head.encode() + zlib.compress(lines.encode(), 9))


if __name__ == "__main__":
    main()
