"""The ClientApp: the model's own, and where the data are. The server's messages say what to compute."""

from sparse_logistic.task import load_client, new_model

app = new_model().client_app(load_client)
