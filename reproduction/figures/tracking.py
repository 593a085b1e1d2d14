"""The figures of 'Gradient Tracking for High Dimensional Federated Optimization' (Liang, Peng, Zhang)."""

from __future__ import annotations

from typing import Any

from reproduction.figure import Figure, figure

#: On a chain both rates are halved where the first node sees a plateau.
CHAIN: dict[str, Any] = {"mixing": "chain", "plateau": "gap", "plateau_node": 0, "server_lr": 1.0}
LIANG: dict[str, Any] = {"variant": "liang", "mirror_map": "euclidean"}
MULTISTEP = "MultistepReFedDAGT"
STAGES: dict[str, Any] = {"server_lr": 1.0, "restart_window": 100, "sparsity": 16, "mirror_map": "p-norm(12)"}
STEPS: dict[str, Any] = {"batch_size": 10, "local_steps": 10, "sampling": "gradients"}
#: The best constants (rates.csv) of each method, and of those with a server at 16 times the batch.
LINEAR: dict[str, dict[str, Any]] = {
    "DFedMid": {"client_lr": 0.0006, "strength": 0.03},
    "DFedDA": {"client_lr": 0.1},
    "DFedDA-GT": {"client_lr": 0.05},
    "MReFedDA-GT": {"radius_squared": 25000.0, "client_lr": 0.1},
    "Fast-FedDA": {"convexity": 4.0, "strength": 0.1},
    "C-FedDA": {"convexity": 1.0, "smoothness": 6.0, "strength": 0.03},
    "MReFedDA-GT, M x batch": {"radius_squared": 25000.0, "client_lr": 0.2},
    "Fast-FedDA, M x batch": {"convexity": 4.0, "strength": 0.007},
    "C-FedDA, M x batch": {"convexity": 1.0, "smoothness": 1.0, "strength": 0.01},
}
LOGISTIC: dict[str, dict[str, Any]] = {
    "DFedMid": {"client_lr": 0.003, "strength": 0.002},
    "DFedDA": {"client_lr": 0.5},
    "DFedDA-GT": {"client_lr": 0.2},
    "MReFedDA-GT": {"radius_squared": 4.0, "client_lr": 0.2},
    "Fast-FedDA": {"convexity": 1.0, "strength": 0.0005},
    "C-FedDA": {"convexity": 1.0, "smoothness": 1.0, "strength": 0.0005},
    "MReFedDA-GT, M x batch": {"radius_squared": 4.0, "client_lr": 1.0},
    "Fast-FedDA, M x batch": {"convexity": 0.5, "strength": 0.0002},
    "C-FedDA, M x batch": {"convexity": 0.5, "smoothness": 0.6, "strength": 0.0002},
}


def _on_the_chain(own: Figure, best: dict[str, dict[str, Any]]) -> None:
    """Run the methods without restarts."""
    own.run("DFedMid", **CHAIN, mirror_map="euclidean", **best["DFedMid"])
    own.run("DFedDA", **CHAIN, mirror_map="p-norm(12)", **best["DFedDA"])
    own.run("DFedDA-GT", "DFedDAGT", **CHAIN, mirror_map="p-norm(12)", **best["DFedDA-GT"])


def _with_a_server(
    own: Figure, best: dict[str, dict[str, Any]], stage_rounds: int, reading: str = "", **more: Any
) -> None:
    """Run the methods with a server; `more` is for all of them, and of MReFedDA-GT also the plateau rule."""
    plateau: dict[str, Any] = {key: more.pop(key) for key in ("plateau", "plateau_every") if key in more}
    restarts: dict[str, Any] = {**STAGES, "stage_rounds": stage_rounds, **plateau}
    own.run("MReFedDA-GT", MULTISTEP, **restarts, **best[f"MReFedDA-GT{reading}"], **more)
    own.run("Fast-FedDA", "FastFedDA", **LIANG, **best[f"Fast-FedDA{reading}"], **more)
    own.run("C-FedDA", "CFedDA", **LIANG, **best[f"C-FedDA{reading}"], **more)


def _figure(own: Figure, best: dict[str, dict[str, Any]], **restarts: float) -> None:
    own.settings(num_rounds=3000, every=10, **STEPS)
    _on_the_chain(own, best)
    own.run("DReFedDA-GT", "DReFedDAGT", **CHAIN, mirror_map="p-norm(12)", **restarts)
    _with_a_server(own, best, 300)
    own.part("M x batch", batch_size=160)
    _with_a_server(own, best, 300, ", M x batch")


def _long(own: Figure, best: dict[str, dict[str, Any]]) -> None:
    own.settings(num_rounds=48000, every=160, **STEPS)
    _on_the_chain(own, best)
    _with_a_server(own, best, 4800, ", M x batch", plateau="gap", plateau_every=160, stretch=16)
    # In the authors' code an exchange is a round, with 10 examples a step, and a stage has 2,000 rounds: the plateau
    # rule looks at it 200 times. The stages above, of 300 exchanges and 30 looks, end before the rule could halve a
    # rate.
    own.part("as the authors' code")
    _with_a_server(own, best, 2000, plateau="gap")


@figure(
    "sparse-linear-graph",
    "l1-error; recovery-error; gap",
    limits={"l1-error": [0.05, 300.0], "recovery-error": [0.02, 50.0], "gap": [0.0002, 1000.0]},
    targets={"gap": 1.0},
)
def gt_fig1(own: Figure) -> None:
    """Sparse linear regression over a chain.

    Liang, Peng, Zhang, section 7 and D.1.2, figure 1.

    Section 7: M = 16, d = 1,024, s = 16, p = 12, K = 10, batch 10, a chain; errors are means over the nodes, or of the
    server's point without a graph. The size of the models is that of the authors' public code, where the paper is
    silent; so is the plateau rule: every 10 rounds the gap of node 0 (an end of the chain), both rates halved after 30
    looks without a new best. Gradients are drawn from their exact distribution (sampling), which saves making examples.
    The constants are the best of rates.csv; the radius is stated, not tuned: 25,000. D.1.2,
    "we will increase the batch size and communication rounds for evaluation by a factor of M", can be read in three
    ways: the same batches for everybody; "M x batch", 160 examples a step for the methods with a server; and that with
    an exchange that counts as 16 rounds of the axis, which takes 48,000 rounds to be fair: gt-long1. The plateau rule
    never acts on MReFedDA-GT here: each stage forgets the best gap, the rule waits for 30 looks, and a stage has 30 of
    them. gt-long1 has the authors' stages of 2,000 rounds.
    """
    own.table = {
        "metric": "l1-error",
        "rounds": [100, 300, 1000, 3000],
        "source": "the authors' public code, one seed, at the same rounds",
        "known": {
            "DFedMid": [83, 32, 9.8, 3.2],
            "DFedDA": [57.5, 18.7, 9.73, 1.21],
            "DFedDA-GT": [57.7, 10.1, 2.93, 0.447],
            "MReFedDA-GT": [57.7, 15.7, 2.57, 0.179],
            "Fast-FedDA": [157, 34, 7.1, 5.8],
        },
    }
    _figure(own, LINEAR, client_lr=0.05, radius_squared=25000.0)
    own.part("")
    own.run(
        "MC-FedDA", "MCFedDA", **LIANG, convexity=1.0, smoothness=6.0, strength=0.125, radius=5000.0, stage_rounds=250
    )
    own.part("on the chain", mixing="chain")
    own.run("Fast-FedDA", "FastFedDA", **LIANG, **LINEAR["Fast-FedDA"])
    own.run("C-FedDA", "CFedDA", **LIANG, **LINEAR["C-FedDA"])
    own.run("MReFedDA-GT", "DReFedDAGT", **STAGES, radius_squared=25000.0, stage_rounds=300, client_lr=0.1)
    own.quick("tracking", num_rounds=120, dimension=128, client_lr=0.1)


@figure(
    "sparse-logistic-graph",
    "l1-error; recovery-error; gap",
    limits={"l1-error": [0.005, 40.0], "recovery-error": [0.002, 2.0], "gap": [5e-07, 0.3]},
)
def gt_fig2(own: Figure) -> None:
    """Sparse logistic regression over a chain.

    Liang, Peng, Zhang, section 7 and D.1.2, figure 2.

    Section 7: M = 16, d = 1,024, s = 16, p = 12, K = 10, batch 10, a chain; errors are means over the nodes, or of the
    server's point without a graph. The size of the models is that of the authors' public code, where the paper is
    silent; so is the plateau rule: every 10 rounds the gap of node 0 (an end of the chain), both rates halved after 30
    looks without a new best. Gradients are drawn from their exact distribution (sampling), which saves making examples.
    The constants are the best of rates.csv; the radius is stated, not tuned: Q = 4, where
    ||w*||_q^2 is 1.1 to 1.6. D.1.2, "we will increase the batch size and communication rounds for evaluation by a
    factor of M", can be read in three ways: the same batches for everybody; "M x batch", 160 examples a step for the
    methods with a server; and that with an exchange that counts as 16 rounds of the axis, which takes 48,000 rounds to
    be fair: gt-long2. The plateau rule never acts on MReFedDA-GT here: each stage forgets the best gap, the rule waits
    for 30 looks, and a stage has 30 of them. gt-long2 has the authors' stages of 2,000 rounds.
    """
    own.table = {"metric": "l1-error", "rounds": [100, 300, 1000, 3000]}
    _figure(own, LOGISTIC, client_lr=0.2, radius_squared=4.0)
    own.quick("tracking", num_rounds=120, dimension=128, client_lr=0.2)


@figure(
    "sparse-linear-graph",
    "l1-error; recovery-error; gap",
    seeds=1,
    hours=True,
    targets={"gap": 1.0},
    axes={"": "round; a server's exchange counts as 16"},
)
def gt_long1(own: Figure) -> None:
    """Sparse linear regression for 48,000 rounds: an exchange with a server counts as 16 rounds of the chain.

    Liang, Peng, Zhang, section 7 and D.1.2, figure 1. Reading of D.1.2: the methods with a server have 160 examples a
    step, and an exchange counts as 16 rounds; 48,000 rounds, the paper prints no number and the authors' code has
    100,000 as its default; one seed.

    gt-fig1 has the other readings of D.1.2 for 3,000 rounds. Here an exchange with the server has 16 times the batch
    and counts as 16 rounds (stretch), so 3,000 exchanges take 48,000 rounds, and the methods on the chain run as long.
    The constants are those of gt-fig1: for the server's methods, of its reading 'M x batch', which has the same 3,000
    exchanges.
    """
    _long(own, LINEAR)
    own.quick("rapid: Fast-FedDA", num_rounds=480, dimension=128)


@figure(
    "sparse-logistic-graph",
    "l1-error; recovery-error; gap",
    seeds=1,
    hours=True,
    axes={"": "round; a server's exchange counts as 16"},
)
def gt_long2(own: Figure) -> None:
    """Sparse logistic regression for 48,000 rounds: an exchange with a server counts as 16 rounds of the chain.

    Liang, Peng, Zhang, section 7 and D.1.2, figure 2. Reading of D.1.2: the methods with a server have 160 examples a
    step, and an exchange counts as 16 rounds; 48,000 rounds, the paper prints no number and the authors' code has
    100,000 as its default; one seed.

    gt-fig2 has the other readings of D.1.2 for 3,000 rounds. Here an exchange with the server has 16 times the batch
    and counts as 16 rounds (stretch), so 3,000 exchanges take 48,000 rounds, and the methods on the chain run as long.
    The constants are those of gt-fig2: for the server's methods, of its reading 'M x batch', which has the same 3,000
    exchanges.
    """
    _long(own, LOGISTIC)
    own.quick("gap: DFedDA-GT", but={"than": ["MReFedDA-GT"]}, num_rounds=480, dimension=128)


@figure("sparse-linear-graph", "gap", limits={"gap": [0.0003, 2000.0]})
def gt_spread(own: Figure) -> None:
    """How unequal the clients are.

    Liang, Peng, Zhang, theorems 4.1, B.1 and B.2; the spread is ours. D = 128, a fixed rate.

    The figures' problem (16 clients on a chain, s = 16, p = 12, K = 10, batch 10) with a smaller d; how much the
    clients' models differ is varied, where the figures have 5, and nothing else. The rate 0.1 is kept: no plateau rule.
    """
    own.table = {"metric": "gap", "rounds": [100, 300, 600, 1500]}
    chain: dict[str, Any] = {"dimension": 128, "mixing": "chain", "mirror_map": "p-norm(12)", **STEPS}
    own.settings(**chain, client_lr=0.1, server_lr=1.0, num_rounds=1500, structure_every=10, objective_every=100)
    for spread in (0, 2, 5, 20):
        own.part(f"spread {spread}", spread=float(spread))
        own.run("DFedDA")
        own.run("DFedDA-GT", "DFedDAGT")
    own.quick("spread 20: tracking pays", num_rounds=100, dimension=64)


@figure("sparse-linear-graph", "gap")
def gt_theory(own: Figure) -> None:
    """What the theorems say.

    Liang, Peng, Zhang, theorems 4.1, 6.1, B.1, B.2 and C.2, table 1. Last iterates, in the place of the theorems'
    means.

    The linear problem with a fixed rate, so that what falls and what stays can be told apart. Gradients are drawn from
    their exact distribution (sampling), which saves making the examples.
    """
    own.table = {"metric": "gap", "rounds": [100, 200, 400, 1000, 2000, 8000, 20000]}
    own.settings(client_lr=0.1, server_lr=1.0, **STEPS, every=5)
    # The dimension: complete graph, p = 2 log d as in the theorems, effects of the clients a fifth of the figures'.
    own.part("complete graph", spread=1.0, mirror_map="p-norm(2 log d)", client_lr=0.05, num_rounds=450)
    for dimension in (256, 1024, 4096, 16384):
        own.run(f"d = {dimension:,}", "FedDAGT", dimension=dimension)
    # The graph: 16 nodes, small d.
    own.part("16 nodes", dimension=128, mirror_map="p-norm(12)", num_rounds=1000)
    for graph in ("complete", "ring", "chain"):
        own.run(graph, "DFedDAGT", mixing=graph)
    # The number of clients: the same model for all (spread 0) and much noise, long enough that the noise is all that is
    # left.
    own.part("much noise", dimension=256, spread=0.0, noise=20.0, mirror_map="p-norm(12)", num_rounds=1500)
    for count in (4, 16, 64):
        own.run(f"M = {count}", "FedDAGT", num_clients=count)
    # Exact gradients of unequal clients on a chain of 4. Theorem B.1 allows rates up to 1/(tau L K) = 0.0157 and lets
    # them fall like R^(-1/3); theorem B.2 allows 1/(tau^2 L K) = 0.0016, whatever R is.
    four: dict[str, Any] = {"num_clients": 4, "mirror_map": "p-norm(2 log d)"}
    own.part("exact gradients", **four, dimension=64, mixing="chain", batch_size=0, every=100)
    own.run("DFedDA, R = 2,500", "DFedDA", client_lr=0.015, num_rounds=2500)
    own.run("DFedDA, R = 20,000", "DFedDA", client_lr=0.0075, num_rounds=20000)
    own.run("DFedDA-GT", "DFedDAGT", client_lr=0.0015, num_rounds=20000)
    # Theorem C.2, its schedule with all constants (theorem_stages): L = mu = 1. Exact gradients: 13 stages of 622
    # rounds with K = 1. With noise: 6 stages of 178 rounds, K doubles; a small d and large batches, or K would begin in
    # the thousands.
    own.part("theorem C.2", **four, objective_every=5000, scale=1.0)
    data: dict[str, Any] = {"dimension": 128, "num_nonzero": 2, "spread": 1.0, "batch_size": 0}
    theory: dict[str, Any] = {"sparsity": 2, "radius_squared": 64.0, "stage_accuracy": 0.01}
    own.run("exact gradients", MULTISTEP, **data, **theory, structure_every=311, num_rounds=8086)
    data = {"dimension": 16, "num_nonzero": 1, "spread": 0.5, "noise": 0.1, "batch_size": 100}
    theory = {"sparsity": 1, "radius_squared": 16.0, "stage_accuracy": 0.25}
    own.run("noise", MULTISTEP, **data, **theory, structure_every=25, num_rounds=1068)
    # D.1.2: covariates that are not truncated, as in all of these experiments, and truncated ones.
    own.part("d = 128", sampling="examples", dimension=128, mixing="chain", mirror_map="p-norm(12)", num_rounds=500)
    own.run("normal covariates", "DFedDAGT")
    own.run("truncated covariates", "DFedDAGT", truncation=2.0)
    but: dict[str, Any] = {"run": ["d = 1,024, complete graph"], "than": ["d = 256, complete graph"]}
    own.quick("rounds grow like h(w*)", but={**but, "below": 350.0, "at_least": 1.2, "at_most": 1.65}, num_rounds=100)
