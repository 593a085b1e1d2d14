"""A ClientApp as Flower's scikit-learn quickstart has it; nothing here knows of flwr_fco."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from one_line_sklearn.task import NUM_CLASSES, get_model, get_model_params, load_data, set_model_params

app = ClientApp()


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Go on from the global model for a few iterations on local data."""
    model = get_model(context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    images, _, labels, _ = load_data(context.node_config)
    with warnings.catch_warnings():
        # Few local iterations do not converge, and are not meant to.
        warnings.simplefilter("ignore")
        model.fit(images, labels)

    metrics = {"num-examples": len(images), "train_logloss": log_loss(labels, model.predict_proba(images))}
    content = RecordDict({"arrays": ArrayRecord(get_model_params(model)), "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Score the global model on local data."""
    model = get_model(context.run_config["local-epochs"])
    set_model_params(model, msg.content["arrays"].to_numpy_ndarrays())
    _, images, _, labels = load_data(context.node_config)
    loss = log_loss(labels, model.predict_proba(images), labels=range(NUM_CLASSES))
    metrics = {"num-examples": len(images), "test_logloss": loss, "accuracy": model.score(images, labels)}
    return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
