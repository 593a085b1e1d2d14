"""The figures of 'DualFL' (Park, Xu)."""

from __future__ import annotations

from typing import Any

from reproduction.figure import Figure, figure

#: The energy error over rounds and over two costs.
COSTS = "energy-error; energy-error against passes; energy-error against cpu-seconds"
#: What the quick versions run on.
DIGITS: dict[str, Any] = {"problem": "logistic-digits", "num_examples": 0}


def _in_the_number_of_clients(own: Figure) -> None:
    for count in (8, 16, 32, 64, 128):
        own.run(f"N = {count}", "DualFL", num_clients=count)
    but = {"run": ["N = 16"], "than": ["N = 8"], "below": 0.1, "at_most": 4.0}
    own.quick("robust in N: the level", but=but, **DIGITS, num_rounds=10)


def _in_rho(own: Figure, values: tuple[float, ...]) -> None:
    for rho in values:
        own.run(f"rho = {rho}", "DualFL", rho=rho)
    own.quick("robust in rho, 0.03", but={"below": 0.1, "at_most": 2.0}, **DIGITS, num_rounds=12)


@figure("logistic-convex", "energy-error; gradient-norm; distance", seeds=2)
def dualfl_alpha(own: Figure) -> None:
    """Logistic regression without an l2 term: DualFL's regularization.

    Park, Xu, section 4, theorems 4.1 and 4.2.

    Every client adds alpha/2 ||x||^2; nu = alpha. Theorem 4.1 has rho = 0, theorem 4.2 rho = alpha/(L + alpha): L = 10
    bounds the clients' constants, and R_0 = 2 the solutions, so that alpha = epsilon/4.
    """
    own.settings(num_rounds=300)
    for alpha, rounds in ((0.1, 100), (0.01, 200), (0.001, 300)):
        own.run(f"alpha = {alpha}, rho = 0", "DualFL", alpha=alpha, rho=0.0, num_rounds=rounds)
    own.run("alpha = 0.001", "DualFL", alpha=0.001, smoothness=10.0, num_rounds=300)
    own.run("alpha = 0.0001", "DualFL", alpha=0.0001, smoothness=10.0, num_rounds=1200)
    own.quick("as near as alpha says", but={"factor": 3.0}, num_rounds=50)


@figure("logistic-mnist", COSTS, seeds=2)
def dualfl_fig1a(own: Figure) -> None:
    """MNIST, 2,400 images of the paper's 60,000: DualFL beside nine methods, eight clients.

    Park, Xu, section 7, figure 1(a). Smaller than the paper: 2,400 images of 60,000, 300 a client and not 7,500; 20
    rounds.

    mu = 1e-2, N = 8, an even random split of a random part of the images, pixels in [0, 1], mean losses, the intercepts
    regularized too. The paper's grid is that of table 2: powers of ten, for DualFL multiples of 0.001 (rho), for FedDR
    the relaxation of its tuned value, 1, for 5GCS the dual step 1/(2 gamma N). The finer grid is ours, and its
    constants are the best of rates.csv; FedDR is over-relaxed there, and 5GCS's dual step is
    twice as long. FedDualAvg has the l2 term as psi, FedAvg in the losses. Every minimisation is to a gradient of norm
    1e-8, for DualFL a certified gap of 5e-15, by the fastest engine.
    """
    own.settings(num_rounds=20, num_examples=2400)
    own.part("the paper's grid")
    own.run("DualFL", nu=0.01, rho=0.0, tolerance=1e-08)
    own.run("FedPD", step=10.0, tolerance=1e-08)
    own.run("FedDR", step=10.0, relaxation=1.0, tolerance=1e-08)
    own.run("FedDyn", penalty=0.1, tolerance=1e-08)
    own.run("APDA-Inexact", "APDAInexact", primal_step=10.0, damping=100.0, tolerance=1e-08)
    own.run("5GCS", "FiveGCS", step=10.0, tolerance=1e-08)
    own.run("FedDualAvg", l2_as_psi=True, client_lr=10.0, local_steps=10)
    own.run("Scaffnew", client_lr=0.1, probability=0.01)
    own.part("a finer grid")
    own.run("DualFL", nu=0.01, rho=0.0, tolerance=1e-08)
    own.run("FedPD", step=20.0, tolerance=1e-08)
    own.run("FedDR, over-relaxed", "FedDR", step=10.0, relaxation=1.95, tolerance=1e-08)
    own.run("FedDyn", penalty=0.06, tolerance=1e-08)
    own.run("APDA-Inexact", "APDAInexact", primal_step=10.0, damping=60.0, tolerance=1e-08)
    own.run("5GCS", "FiveGCS", step=20.0, dual_step=0.05, tolerance=1e-08)
    own.run("FedDualAvg", l2_as_psi=True, client_lr=20.0, local_steps=10)
    own.run("Scaffnew", client_lr=0.6, probability=0.03)
    own.run("FedAvg", "FedDualAvg", client_lr=0.3, local_steps=30)
    own.run("FedCM", client_lr=0.1, local_steps=10)
    own.run("FedSAM", client_lr=0.3, local_steps=30)
    own.quick("not competitive", **DIGITS, num_rounds=8)


@figure("logistic-mnist", COSTS, seeds=1)
def dualfl_fig1b(own: Figure) -> None:
    """MNIST, all 60,000 images: DualFL with more and more clients.

    Park, Xu, section 7, figure 1(b).
    """
    own.settings(num_rounds=30, num_examples=0, tolerance=1e-08, nu=0.01, rho=0.003)
    _in_the_number_of_clients(own)


@figure("logistic-mnist", COSTS, seeds=1)
def dualfl_fig1c(own: Figure) -> None:
    """MNIST, all 60,000 images: DualFL with several rho.

    Park, Xu, section 7, figure 1(c).
    """
    own.settings(num_rounds=30, num_examples=0, tolerance=1e-08, nu=0.01)
    _in_rho(own, (0.0, 0.0003, 0.003, 0.01, 0.03))


@figure("logistic-cifar10", COSTS, seeds=2)
def dualfl_fig1d(own: Figure) -> None:
    """CIFAR-10, 640 images of the paper's 50,000: DualFL beside nine methods, eight clients.

    Park, Xu, section 7, figure 1(d). Smaller than the paper: 640 images of 50,000 (1.3 %), 80 a client and not 6,250;
    the constants are searched more finely than in the paper's powers of ten.

    mu = 1e-2, N = 8, an even random split of a random part of the images, pixels in [0, 1], mean losses, the intercepts
    regularized too. Every method's constants are the best of rates.csv, whose grids grow by one
    rule; DualFL's rho is also table 2's. FedDR has the relaxation 1 of table 2, whose grid is 1 and 2, and FedPD's
    step; over-relaxed it is ours. FedDualAvg has the l2 term as psi, FedAvg in the losses. Every minimisation is to a
    gradient of norm 1e-8, for DualFL a certified gap of 5e-15, by the fastest engine.
    """
    own.settings(num_rounds=20, num_examples=640)
    own.run("DualFL", nu=0.01, rho=0.0, tolerance=1e-08)
    own.run("FedPD", step=10.0, tolerance=1e-08)
    own.run("FedDR", step=10.0, relaxation=1.0, tolerance=1e-08)
    own.run("FedDR, over-relaxed", "FedDR", step=6.0, relaxation=1.95, tolerance=1e-08)
    own.run("FedDyn", penalty=0.1, tolerance=1e-08)
    own.run("APDA-Inexact", "APDAInexact", primal_step=6.0, damping=100.0, tolerance=1e-08)
    own.run("5GCS", "FiveGCS", step=10.0, tolerance=1e-08)
    own.run("FedDualAvg", l2_as_psi=True, client_lr=0.2, local_steps=100)
    own.run("Scaffnew", client_lr=0.03, probability=0.01)
    own.run("FedAvg", "FedDualAvg", client_lr=0.03, local_steps=100)
    own.run("FedCM", client_lr=0.2, local_steps=100)
    own.run("FedSAM", client_lr=0.03, local_steps=30)
    own.quick("not competitive", **DIGITS, num_rounds=10)


@figure("logistic-cifar10", COSTS, seeds=1)
def dualfl_fig1e(own: Figure) -> None:
    """CIFAR-10, 10,000 images of the paper's 50,000: DualFL with more and more clients.

    Park, Xu, section 7, figure 1(e).
    """
    own.settings(num_rounds=20, num_examples=10000, tolerance=1e-08, nu=0.01, rho=0.0)
    _in_the_number_of_clients(own)


@figure("logistic-cifar10", COSTS, seeds=1)
def dualfl_fig1f(own: Figure) -> None:
    """CIFAR-10, 10,000 images of the paper's 50,000: DualFL with several rho.

    Park, Xu, section 7, figure 1(f).
    """
    own.settings(num_rounds=20, num_examples=10000, tolerance=1e-08, nu=0.01)
    _in_rho(own, (0.0, 0.001, 0.003, 0.01, 0.03))


@figure("logistic-mnist", "energy-error", seeds=2)
def dualfl_table2(own: Figure) -> None:
    """MNIST, 2,400 images of the paper's 60,000: table 2's settings, for means and for sums.

    Park, Xu, section 7, table 2.

    As printed the steps barely move, if losses are means as in (7.1). For sums of the losses of 60,000 images they are
    60,000 times as long: the second form of each.
    """
    own.settings(num_rounds=20, num_examples=2400)
    own.part("as printed")
    own.run("FedPD", step=0.0001, tolerance=1e-08)
    own.run("FedDR", step=0.0001, relaxation=1.0, tolerance=1e-08)
    own.run("FedDyn", penalty=1000.0, tolerance=1e-08)
    own.run("APDA-Inexact", "APDAInexact", primal_step=0.001, damping=0.01, tolerance=1e-08)
    own.run("5GCS", "FiveGCS", step=0.0001, tolerance=1e-08)
    own.run("FedDualAvg", client_lr=0.001, local_steps=10)
    own.run("Scaffnew", client_lr=1e-05, probability=0.1)
    own.run("DualFL", nu=0.01, rho=0.003, tolerance=1e-08)
    own.part("for sums")
    own.run("FedPD", step=6.0, tolerance=1e-08)
    own.run("FedDR", step=6.0, relaxation=1.0, tolerance=1e-08)
    own.run("FedDyn", penalty=0.0167, tolerance=1e-08)
    own.run("APDA-Inexact", "APDAInexact", primal_step=60.0, damping=0.01, tolerance=1e-08)
    own.run("5GCS", "FiveGCS", step=6.0, tolerance=1e-08)
    own.quick("no method with a step arrives as printed", **DIGITS, num_rounds=3)


@figure("logistic-digits", "energy-error; distance", seeds=2)
def dualfl_theory(own: Figure) -> None:
    """scikit-learn's digits: what DualFL's theorems and sections 1 and 5 say.

    Park, Xu, sections 1, 3 and 5.

    Eight clients with labels drawn by Dirichlet(0.3); L = 7 bounds the constants of all of them. rho = nu/L.
    """
    own.settings(num_rounds=60, tolerance=1e-10)
    tolerances: dict[str, Any] = {"smoothness": 7.0, "schedule": "linear", "gamma": 0.1}
    own.run("mu = 0.1", "DualFL", nu=0.1, l2=0.1, smoothness=7.0)
    own.run("mu = 0.01", "DualFL", nu=0.01, l2=0.01, smoothness=7.0, num_rounds=150)
    own.run("no momentum, mu = 0.1", "DualFL", nu=0.1, l2=0.1, rho=0.999)
    own.run("once more, mu = 0.1", "DualFL", nu=0.1, l2=0.1, smoothness=7.0)
    own.run("L-BFGS, mu = 0.1", "DualFL", nu=0.1, l2=0.1, smoothness=7.0, local_solver="lbfgs", num_rounds=40)
    own.run("AOGM, mu = 0.1", "DualFL", nu=0.1, l2=0.1, smoothness=7.0, local_solver="aogm", num_rounds=40)
    own.run("Newton-CG, mu = 0.1", "DualFL", nu=0.1, l2=0.1, smoothness=7.0, num_rounds=40)
    own.run("tolerances of theorem 3.3", "DualFL", nu=0.05, l2=0.1, **tolerances)
    own.run("exact, nu = mu/2", "DualFL", nu=0.05, l2=0.1, smoothness=7.0)
    for nu, mu in ((0.05, 0.1), (0.005, 0.01)):
        aogm = {"local_solver": "aogm", "num_rounds": 40, **tolerances}
        own.run(f"AOGM, theorem 3.3's tolerances, mu = {mu}", "DualFL", nu=nu, l2=mu, **aogm)
    own.run("rho = nu/4L, mu = 0.1", "DualFL", nu=0.1, l2=0.1, rho=0.00357)
    own.run("rho = nu/100L, mu = 0.1", "DualFL", nu=0.1, l2=0.1, rho=0.000143)
    own.quick("communication acceleration", but={"at_most": 0.005, "factor": 1.5}, num_rounds=22)


@figure("svm-breast-cancer", "energy-error; distance", seeds=2)
def dualfl_nonsmooth(own: Figure) -> None:
    """Support vector machines: DualFL needs no smoothness.

    Park, Xu, section 3, theorem 3.2.

    rho = 0 needs no Lipschitz constant. The tolerances are those of theorem 3.2, certified by the gap of the dual
    ascent.
    """
    own.settings(num_rounds=100)
    own.run("DualFL", nu=0.1, rho=0.0, schedule="sublinear", tolerance=1e-13, max_iterations=100000)
    own.run("FedAvg", "LocalSGD", client_lr=0.03, local_steps=20)
    own.quick("subgradients stall", but={"factor": 1.5}, num_rounds=25)


@figure("logistic-cifar10", COSTS, seeds=1)
def dualfl_cifar10000(own: Figure) -> None:
    """CIFAR-10, 10,000 images of the paper's 50,000: DualFL beside FedPD, FedDR and FedDyn, which are one method, and
    three more.

    Park, Xu, section 7, figure 1(d). Smaller than the paper: 10,000 images of 50,000, 1,250 a client and not 6,250; one
    split.

    FedPD(step) is FedDR(step, 1) and FedDyn(1/step), iterate by iterate, so steps of the one are a grid for all three.
    The others' constants are the best ones at this size (rates.csv).
    """
    own.settings(num_rounds=15, num_examples=10000)
    own.run("DualFL", nu=0.01, rho=0.0, tolerance=1e-08)
    for step in (10.0, 20.0, 30.0, 60.0):
        own.run(f"FedPD, step {step:g}", "FedPD", step=step, tolerance=1e-08)
    own.run("FedDR, step 10, relaxation 1.9", "FedDR", step=10.0, relaxation=1.9, tolerance=1e-08)
    own.run("Scaffnew", client_lr=0.02, probability=0.01)
    own.run("FedDualAvg", l2_as_psi=True, client_lr=0.03, local_steps=100)
    own.quick("fast at first", but={"than": ["FedPD, step 10"], "at_most": 0.5}, **DIGITS, num_rounds=8)


@figure("logistic-mnist", COSTS, seeds=1)
def dualfl_mnist60000(own: Figure) -> None:
    """MNIST, all 60,000 images: DualFL beside FedPD, FedDR and FedDyn, which are one method, and three more.

    Park, Xu, section 7, figure 1(a).

    One split of the paper's own training set. FedPD(step) is FedDR(step, 1) and FedDyn(1/step), iterate by iterate, so
    steps of the one are a grid for all three. The others' constants are the best ones at this size (rates.csv);
    FedDualAvg also has fewer steps, with which it takes the fewest passes.
    """
    own.table = {
        "metric": "energy-error",
        "rounds": [1, 2, 5, 10, 20, 30],
        "source": "an independent implementation's on a contiguous split, to two digits",
        "known": {"DualFL": [0.00034, 0.00014, 2.7e-05, 6.8e-06, 2.4e-06]},
    }
    own.settings(num_rounds=30, num_examples=0)
    own.run("DualFL", nu=0.01, rho=0.003, tolerance=1e-08)
    for step in (10.0, 30.0, 50.0, 100.0):
        own.run(f"FedPD, step {step:g}", "FedPD", step=step, tolerance=1e-08)
    own.run("FedDR, step 10, relaxation 1.9", "FedDR", step=10.0, relaxation=1.9, tolerance=1e-08)
    own.run("Scaffnew", client_lr=0.6, probability=0.03)
    own.run("FedDualAvg", l2_as_psi=True, client_lr=20.0, local_steps=100)
    own.run("FedDualAvg, 10 steps", "FedDualAvg", l2_as_psi=True, client_lr=10.0, local_steps=10)
    own.quick(
        "fast at first", but={"than": ["FedPD, step 10"], "at_most": 0.5}, problem="logistic-digits", num_rounds=8
    )
