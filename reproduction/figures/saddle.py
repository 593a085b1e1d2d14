"""The figures of 'Local Composite Saddle Point Optimization' (Bai, Bullins 2024)."""

from __future__ import annotations

from typing import Any

from reproduction.figure import Figure, figure

#: What the quick versions with an attack run on, and what is run without noise, for the last point.
DIGITS: dict[str, Any] = {"problem": "adversarial-digits", "num_clients": 5, "num_rounds": 10, "client_lr": 0.1}
EXACT: dict[str, Any] = {"batch_size": 0, "output": "last"}
#: The images that a classifier is trained on, and how long.
MNIST: dict[str, Any] = {"num_rounds": 20}
CIFAR10: dict[str, Any] = {"problem": "adversarial-cifar10", "num_clients": 20, "num_examples": 10000, "num_rounds": 40}


@figure("bilinear-l1", "gap; density", seeds=10, targets={"gap": 0.316, "density": 0.7})
def spp_fig4(own: Figure) -> None:
    """Bilinear saddle point with l1 norms in boxes: the paper's 100 clients, A.2's rounds (A.1 prints none).

    Bai, Bullins (ICLR 2024), section 6 and A.1, figure 4.

    A.1: m = 600, n = 300, lambda = 0.1, D = 0.05, 100 equal clients, noise 0.1 in every query; K = 1 for 100 rounds and
    K = 10 for 20. Rates by rates.csv, an average's by sweeps of its own. The seed draws A, b, the start and the
    noise; the paper keeps A and b. What ends in 'average' is the ergodic mean of the half steps, or the mean of the
    rounds' last points of a method without half steps.
    """
    own.settings(batch_size=1)
    own.part("K = 1", local_steps=1, num_rounds=100)
    own.run("FeDualEx", client_lr=0.3, server_lr=0.06)
    own.run("FeDualEx, average", "FeDualEx", client_lr=0.3, server_lr=1.0, output="ergodic")
    own.run("FedMiP", client_lr=0.1, server_lr=0.1)
    own.run("FedMiP, psi once", "FedMiP", client_lr=0.06, server_lr=0.3, server_prox=False)
    own.run("FedMiP, psi once, average", "FedMiP", client_lr=0.1, server_lr=0.3, server_prox=False, output="ergodic")
    own.run("FedDualAvg", client_lr=0.03, server_lr=0.3)
    own.run("FedDualAvg, average", "FedDualAvg", client_lr=0.3, server_lr=0.2, output="average")
    own.run("FedMid", client_lr=0.01, server_lr=1.0)
    own.run("FedMid, average", "FedMid", client_lr=0.03, server_lr=1.0, output="average")
    own.run("ExtraStepLocalSGD", client_lr=0.02, server_lr=1.0)
    own.part("K = 10", local_steps=10, num_rounds=20)
    own.run("FeDualEx", client_lr=0.03, server_lr=0.6)
    own.run("FeDualEx, average", "FeDualEx", client_lr=0.03, server_lr=1.0, output="ergodic")
    own.run("FedMiP", client_lr=0.006, server_lr=1.0)
    own.run("FedMiP, psi once", "FedMiP", client_lr=0.02, server_lr=0.6, server_prox=False)
    own.run("FedMiP, psi once, average", "FedMiP", client_lr=0.03, server_lr=1.0, server_prox=False, output="ergodic")
    own.run("FedDualAvg", client_lr=0.03, server_lr=0.3)
    own.run("FedDualAvg, average", "FedDualAvg", client_lr=0.03, server_lr=0.6, output="average")
    own.run("FedMid", client_lr=0.006, server_lr=1.0)
    own.run("FedMid, average", "FedMid", client_lr=0.006, server_lr=2.0, output="average")
    own.run("ExtraStepLocalSGD", client_lr=0.02, server_lr=0.6)
    own.quick("FeDualEx before the methods of convex optimization, K = 1", num_clients=2, every=10)


@figure("bilinear-nuclear", "gap; rank-x; rank-y", seeds=10, targets={"rank-x": 10.0, "rank-y": 10.0})
def spp_fig5(own: Figure) -> None:
    """Bilinear saddle point with nuclear norms in spectral balls; the paper's size: 100 clients, ten seeds.

    Bai, Bullins (ICLR 2024), section 6 and A.2, figure 5.

    A.2: m = 600, n = 300, p = 20, lambda = 0.1, D = 0.05; K = 1 for 100 rounds and K = 10 for 20; 100 equal clients
    with noise 0.1; 10 seeds. Rates by rates.csv, an average's by a sweep of its own. The start U[-1, 1] is not
    feasible: a dual for the methods that average duals, projected for those that average primal points.
    """
    own.settings(batch_size=1, num_clients=100)
    own.part("K = 1", local_steps=1, num_rounds=100)
    own.run("FeDualEx", client_lr=1000.0, server_lr=3.0)
    own.run("FeDualEx, average", "FeDualEx", client_lr=60000.0, server_lr=1.0, output="ergodic")
    own.run("FedMiP", client_lr=0.002, server_lr=2.0, start="projected")
    own.run("FedMiP, psi once", "FedMiP", client_lr=0.006, server_lr=1.0, server_prox=False, start="projected")
    own.run("FedDualAvg", client_lr=6.0, server_lr=0.6)
    own.run("FedMid", client_lr=0.002, server_lr=2.0, start="projected")
    own.run("ExtraStepLocalSGD", client_lr=0.006, server_lr=1.0, start="projected")
    own.part("K = 10", local_steps=10, num_rounds=20)
    own.run("FeDualEx", client_lr=600.0, server_lr=1.0)
    own.run("FeDualEx, average", "FeDualEx", client_lr=6000.0, server_lr=1.0, output="ergodic")
    own.run("FedMiP", client_lr=0.0006, server_lr=2.0, start="projected")
    own.run("FedMiP, psi once", "FedMiP", client_lr=0.003, server_lr=1.0, server_prox=False, start="projected")
    own.run("FedDualAvg", client_lr=2000.0, server_lr=1.0)
    own.run("FedMid", client_lr=0.0006, server_lr=2.0, start="projected")
    own.run("ExtraStepLocalSGD", client_lr=0.003, server_lr=1.0, start="projected")
    own.quick(
        "FeDualEx before FedDualAvg, K = 1", num_clients=1, noise=0.01, num_rounds=30, rows=60, columns=120, every=10
    )


@figure("adversarial-mnist", "training-loss; accuracy; hardened-accuracy; density", seeds=10)
def spp_fig6(own: Figure) -> None:
    """Universal adversarial training of logistic regression, penalty -lambda ||delta||_1 (printed with +); MNIST at the
    paper's size, CIFAR-10 with 20 clients for its 100.

    Bai, Bullins (ICLR 2024), section 6 and A.3, figure 6.

    A.3: D = 0.05, lambda = 0.1, K = 5. MNIST as in the paper: 100 clients with 600 images, 20 rounds. CIFAR-10: a
    subset, 20 clients with 500 images (the paper: 100 clients), 40 rounds. The paper does not say what a local update
    looks at: minibatches of 32. The penalty of the attack is -lambda ||delta||_1 (the paper prints +), concave for its
    player. The attack starts at random in the box, the classifier, without intercept, at 0. Rates by rates.csv.
    PGDA is the plain ascent. 'hardened-accuracy' is that under the strongest perturbation in the box against each
    model.
    """
    own.settings(batch_size=32, local_steps=5, objective_every=5)
    for part, settings, dual, average, plain in (
        ("MNIST", MNIST, (0.2, 2.0), (0.6, 2.0), 1.0),
        ("CIFAR-10", CIFAR10, (0.006, 2.0), (0.03, 1.0), 0.02),
    ):
        own.part(part, **settings)
        own.run("FeDualEx", client_lr=dual[0], server_lr=dual[1])
        own.run("FeDualEx, average", "FeDualEx", client_lr=average[0], server_lr=average[1], output="ergodic")
        own.run("PGDA", "DistributedPGDA", client_lr=plain, server_lr=1.0)
        own.run("PGDA, rates of FeDualEx", "DistributedPGDA", client_lr=dual[0], server_lr=dual[1])
    own.quick("attack of the average of FeDualEx sparser, MNIST", **DIGITS)


@figure("adversarial-mnist", "perturbation", seeds=10, kind="images")
def spp_fig7(own: Figure) -> None:
    """The universal attack: MNIST at the paper's size, CIFAR-10 with 20 clients for its 100; and with smaller
    penalties.

    Bai, Bullins (ICLR 2024), section 6 and A.3, figure 7.

    The attacks of spp-fig6, at its rates, after its rounds, on its clients: 100 with 600 images each of MNIST, 20 with
    500 of CIFAR-10; and FeDualEx with smaller penalties, PGDA with none: what averaging over clients does alone.
    """
    own.settings(batch_size=32, local_steps=5, objective_every=20)
    for part, settings, dual, plain in (("MNIST", MNIST, 0.2, 1.0), ("CIFAR-10", CIFAR10, 0.006, 0.02)):
        own.part(part, **settings)
        own.run("FeDualEx", client_lr=dual, server_lr=2.0)
        for strength in (0.01, 0.001):
            own.run(f"FeDualEx, lambda {strength}", "FeDualEx", client_lr=dual, server_lr=2.0, strength=strength)
        own.run("PGDA", "DistributedPGDA", client_lr=plain, server_lr=1.0)
        own.run("PGDA, no penalty", "DistributedPGDA", client_lr=plain, server_lr=1.0, strength=0.0)
    own.quick("PGDA is dense, MNIST", **DIGITS, num_examples=0)


@figure("adversarial-network-cifar10", "training-loss; accuracy; density")
def spp_fig8(own: Figure) -> None:
    """A convolutional network against a universal attack: 20 clients with 500 images of CIFAR-10 each; the paper has
    100 such clients.

    Bai, Bullins (ICLR 2024), A.4, figure 8. Smaller than the paper: 20 clients of 100, 10,000 images of 50,000,
    minibatches of 16 and 3 seeds, which the paper does not say; as in the paper: 500 images a client, 5 local steps, 40
    rounds.

    A.4 says the network and the data; D = 0.05, lambda = 0.1, K = 5 and 40 rounds are A.3's. The penalty of the attack
    is -lambda ||delta||_1, concave for its player; the attack starts at random in the box, the network at PyTorch's
    initial parameters. The theory is about convex-concave functions and does not cover networks. Rates by
    rates.csv: the best training loss after 40 rounds, seed 0; the smaller penalty has the rates of the larger
    one.
    """
    own.settings(num_clients=20, num_examples=10000, batch_size=16, local_steps=5, num_rounds=40, objective_every=5)
    own.run("FeDualEx", client_lr=0.3, server_lr=1.0)
    own.run("FeDualEx, lambda 0.001", "FeDualEx", client_lr=0.3, server_lr=1.0, strength=0.001)
    own.run("PGDA", "DistributedPGDA", client_lr=0.1, server_lr=1.0)
    small: dict[str, Any] = {"problem": "adversarial-network-digits", "num_examples": 0}
    own.quick("PGDA's attack is dense", **small, num_rounds=3, objective_every=3, client_lr=0.1)


@figure(
    "bilinear-l1",
    "gap",
    seeds=5,
    gap=True,
    axes={"theorem 3": "step", "theorem 3, two simplices": "step", "theorem 4": "step"},
)
def spp_theory(own: Figure) -> None:
    """What the theorems say, on problems small enough for many runs; the bias of unequal clients.

    Bai, Bullins (ICLR 2024), theorems 1 to 4.

    The theorems are about the ergodic average of the half steps. In the box, B = max 1/2 ||z - z_0||^2 is the metric
    'diameter'; beta = ||A||_2 is at most 25 for 300 x 600 entries of U[-1, 1].
    """
    own.settings(batch_size=1, client_lr=0.04, server_lr=1.0, output="ergodic", local_steps=1, num_clients=1)
    # Theorem 4: one client, exact operators, eta = 0.04 <= 1 / beta.
    own.part("theorem 4", batch_size=0)
    own.run("600 against 300", "FeDualEx", num_rounds=200)
    own.run("120 against 60", "FeDualEx", num_rounds=1000, rows=60, columns=120, client_lr=0.08)
    # Theorem 3: one client, noise 0.1 in each of 900 numbers, sigma = 3; eta = min(1 / (sqrt(3) beta), sqrt(B / (3 T))
    # / sigma) with B = 2.7.
    own.part("theorem 3")
    own.run("T = 100", "FeDualEx", num_rounds=100, client_lr=0.023)
    own.run("T = 400", "FeDualEx", num_rounds=400, client_lr=0.0158)
    own.run("T = 1,600", "FeDualEx", num_rounds=1600, client_lr=0.0079, every=10)
    # Theorem 3 beyond the Euclidean space: a matrix game, entropy on both simplices. In the norm (||x||_1^2 +
    # ||y||_1^2)^(1/2) the operator has beta <= max |P_ij| <= 1, B = log(300) + log(600) is the metric 'diameter', and
    # sigma^2 is 0.01 times E max z_i^2 over 300 normal numbers plus the same over 600, 0.207. The steps are the
    # theorem's.
    own.part("theorem 3, two simplices", problem="matrix-game", mirror_map="simplex-entropy")
    own.run("game, T = 400", "FeDualEx", num_rounds=400, client_lr=0.221)
    own.run("game, T = 1,600", "FeDualEx", num_rounds=1600, client_lr=0.11, every=10)
    # Theorem 1: much noise on a smaller problem for M; the paper's noise for K.
    own.part("theorem 1", rows=60, columns=120)
    rounds: dict[str, Any] = {"strategy": "FeDualEx", "num_rounds": 40, "local_steps": 4, "client_lr": 0.02}
    for count in (1, 10, 100, 1000):
        own.run(f"M = {count:,}", num_clients=count, noise=3.0, **rounds)
    own.run("no noise", num_clients=1, batch_size=0, noise=0.0, **rounds)
    own.run("M = 100, the paper's noise", num_clients=100, **rounds)
    own.run("K = 1", "FeDualEx", num_clients=10, num_rounds=30, client_lr=0.02)
    own.run("K = 10", "FeDualEx", num_clients=10, num_rounds=30, local_steps=10, client_lr=0.02)
    # The step of theorem 1 for R = 100, K = 10, M = 10, with beta <= 12.5, G <= 13 (norms of the operator in the box,
    # noise included), B <= 0.58: its last branch, 4.05e-4.
    own.run("its own step", "FeDualEx", num_clients=10, num_rounds=100, local_steps=10, client_lr=0.000405)
    # 16 times the rounds, and the step of the last branch, which falls like R^(-1/2).
    own.run("R = 25", "FeDualEx", num_clients=10, num_rounds=25, local_steps=10, client_lr=0.01)
    own.run("R = 400", "FeDualEx", num_clients=10, num_rounds=400, local_steps=10, client_lr=0.0025, every=10)
    # Theorem 2: sparse least squares, 16 clients with the same 512 examples (the theorems are about equal clients),
    # batches of 8; the gap is to the centralised optimum. The step falls like R^(-1/3), the last branch of the
    # theorem's.
    data: dict[str, Any] = {"problem": "lasso-small", "equal": True, "examples_per_client": 512, "num_clients": 16}
    own.part("theorem 2", **data, clients_per_round=0, batch_size=8, local_steps=4)
    own.run("FeDualEx, R = 32", "FeDualEx", num_rounds=32, client_lr=0.003, objective_every=4)
    own.run("FeDualEx, R = 256", "FeDualEx", num_rounds=256, client_lr=0.0015, objective_every=32)
    own.run("FedDualAvg, R = 32", "FedDualAvg", num_rounds=32, client_lr=0.003, objective_every=4, output="average")
    own.run("FedDualAvg, R = 256", "FedDualAvg", num_rounds=256, client_lr=0.0015, objective_every=32, output="average")
    # Unequal clients, exact operators, one local step, last points, until nothing moves: strongly convex-concave
    # quadratics, whose saddle point is known.
    data = {"problem": "quadratic-saddle", "curvature": 2.0, "rows": 10, "columns": 20, "num_clients": 4}
    own.part("unequal clients", **data, **EXACT)
    own.run("FeDualEx, rate 0.1", "FeDualEx", spread=1.0, num_rounds=400, client_lr=0.1, every=10)
    own.run("FeDualEx, rate 0.01", "FeDualEx", spread=1.0, num_rounds=1500, client_lr=0.01, every=20)
    own.run("FeDualEx, equal clients", "FeDualEx", spread=0.0, num_rounds=400, client_lr=0.1, every=10)
    own.run("FedAvgS, rate 0.03", "FedAvgS", spread=1.0, num_rounds=1000, client_lr=0.03, every=20)
    own.run(
        "SCAFFOLD-S, five local steps", "ScaffoldS", spread=1.0, num_rounds=200, client_lr=0.03, local_steps=5, every=10
    )
    own.run("FedAvgS, five local steps", "FedAvgS", spread=1.0, num_rounds=200, client_lr=0.03, local_steps=5, every=10)
    # The game with nuclear norms (A.2), without noise: what its solution is like.
    own.part("nuclear norms", problem="bilinear-nuclear", noise=0.0, **EXACT)
    own.run("FeDualEx", num_rounds=300, client_lr=10.0, every=10)
    own.quick("theorem 4", num_rounds=60)
