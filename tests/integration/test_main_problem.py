"""The main job's problem in this process: the bars that `flwr run .` and `make run` are held to."""

from problems import arrays_of

from main_job.compare import centralised, model_of, read_task, train
from reproduction.pooled import support_scores


def test_300_rounds_come_within_3_percent_of_scikit_learn(request):
    task = read_task(request.config.rootpath, {"evaluate-every": 300})
    ours, theirs = model_of(train(task)), centralised(task)
    reached, best = (task.evaluate(300, arrays_of(model)) for model in (ours, theirs))
    assert -1e-9 < reached["objective"] / best["objective"] - 1 < 0.02  # the bar is 3 %, measured 1.1 %
    assert support_scores(ours["coefficients"], theirs["coefficients"]).f1 > 0.85  # measured .884
    assert reached["density"] < 0.3  # measured .252
    assert reached["accuracy"] > 0.94  # measured .967
