"""The ClientApp of a hospital: the model's own, and where the rows are."""

from hospital_lasso.task import load, new_model

app = new_model().client_app(load)
