"""Client apps: what runs on a client, for every strategy."""

from flwr_fco.client_apps.client import Limits, client_app
from flwr_fco.client_apps.disclosure import Disclosure
from flwr_fco.client_apps.numpy_client import numpy_client_app
from flwr_fco.messages.short import short_mod

__all__ = ["Disclosure", "Limits", "client_app", "numpy_client_app", "short_mod"]
