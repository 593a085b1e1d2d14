"""The ClientApp of an institution: the model's own, where the rows are, and what may leave."""

from flwr_fco.client_apps import Disclosure
from hospital_survival.task import load, new_model

#: What the owners of the rows have agreed on: no answer about fewer than 5 patients or 3 deaths.
OWNERS = Disclosure(min_rows=5, min_events=3)

app = new_model().client_app(load, disclosure=OWNERS)
