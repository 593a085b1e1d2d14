"""Small problems and federations of them, runs, refusals, and the strategies that stand for others."""

import itertools

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from scipy import sparse

from flwr_fco.algorithms.gradient_tracking import trackers
from flwr_fco.client_apps import client_app
from flwr_fco.core.computing import quiet, single_threaded_blas
from flwr_fco.engines import Minimum
from flwr_fco.errors import ConfigurationError
from flwr_fco.objectives import Layout, LeastSquares, Objective
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import STRATEGIES, run_of

SIZES = (12, 25, 7, 16)
#: Methods for saddle points have a saddle point to find.
SADDLE = ("FeDualEx", "FedMiP", "ExtraStepLocalSGD", "FedAvgS", "DistributedPGDA", "ScaffoldS")
#: Constants that a method has no defaults for, or whose defaults are for other problems.
CONSTANTS = {
    "DualFL": {"nu": 0.5, "smoothness": 1.0},
    "Scaffnew": {"probability": 0.3, "client_lr": 0.4},
    "APDAInexact": {"primal_step": 0.5, "damping": 0.5, "convexity": 0.5},
    "FedDyn": {"penalty": 1.0},
    "FiveGCS": {"step": 0.5, "convexity": 0.5},
}
FEATURES = 6
#: With the intercept.
D = FEATURES + 1


def kind_of(name):
    """Return the strategy of a name: one of the library's, or of those in `reproduction.rivals`."""
    if name in STRATEGIES:
        return STRATEGIES[name]
    # The tests of the library do without it.
    from reproduction.rivals import RIVALS

    return RIVALS[name]


def clients(sizes=SIZES, seed=0):
    """Heterogeneous least squares: every client has its own truth."""
    objectives = []
    for m, size in enumerate(sizes):
        rng = np.random.default_rng((seed, m, 1))
        features = rng.standard_normal((size, FEATURES))
        truth = np.array([2.0, -2.0, 1.0, 0.0, 0.0, 0.0]) + 0.3 * rng.standard_normal(FEATURES)
        objectives.append(LeastSquares(features, features @ truth + 0.5 + 0.1 * rng.standard_normal(size)))
    return objectives


def app_of(objectives, mods=(), **limits):
    load = lambda context: objectives[int(context.node_config["partition-id"])]  # noqa: E731
    return client_app(load, mods=list(mods or ()), **limits)


def foreign_app(trained, *, metrics=None, evaluated=None, mods=()):
    """Return a ClientApp that knows nothing of this package, as those of FedAvg.

    ``trained(arrays, message, context)`` returns the new arrays; `metrics` and `evaluated` are what it reports beside
    ten examples, or functions of message and context.
    """
    app = ClientApp(mods=list(mods))

    def reported(given, message, context):
        return {"num-examples": 10, **(given(message, context) if callable(given) else given or {})}

    @app.train()
    def train(message, context):
        now = {name: array.numpy() for name, array in message.content["arrays"].items()}
        new = trained(now, message, context)
        arrays = new if isinstance(new, ArrayRecord) else arrays_of(new)
        content = {"arrays": arrays, "metrics": MetricRecord(reported(metrics, message, context))}
        return Message(RecordDict(content), reply_to=message)

    if evaluated is not None:

        @app.evaluate()
        def evaluate(message, context):
            own = MetricRecord(reported(evaluated, message, context))
            return Message(RecordDict({"metrics": own}), reply_to=message)

    return app


def arrays_of(arrays):
    """Return Flower's record of named arrays."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def zeros(layout):
    """Return a start point of a layout, as Flower's record."""
    return arrays_of(layout.unflatten(np.zeros(layout.size)))


def outcome(grid, strategy, start, rounds=4, **options):
    """Return all that a run ends in, to the bit."""
    result = started(strategy, grid, rounds, start, **options)
    state = [np.asarray(value).tobytes() for value in strategy.state]
    arrays = {name: array.numpy().tobytes() for name, array in result.arrays.items()}
    metrics = {number: dict(row) for number, row in result.train_metrics_clientapp.items()}
    states = grid.states() if hasattr(grid, "states") else {}
    return arrays, state, metrics, result.left_out, states


def numpy_of(arrays):
    """Return named arrays of Flower's record."""
    return {name: array.numpy() for name, array in arrays.items()}


class Reporting(LeastSquares):
    """Reports its loss at each gradient, as a network does."""

    losses = ()
    compiled = None

    def add_gradient(self, w, batch, scale, out):
        self.losses = [*self.losses, self.value(w)]
        super().add_gradient(w, batch, scale, out)

    def take_training_loss(self):
        losses = self.losses
        self.losses = ()
        return np.float32(np.mean(losses)) if losses else None


def start_arrays(dtype=np.float64, start=None):
    start = (np.zeros(D) if start is None else start).astype(dtype)
    return arrays_of({"coefficients": start[:FEATURES], "intercept": start[FEATURES:]})


def flat(arrays):
    return np.concatenate([arrays["coefficients"].numpy().ravel(), arrays["intercept"].numpy().ravel()])


def started(strategy, grid, rounds, start=None, **options):
    """Run quietly over a grid, by default from zeros."""
    with grid.identity(), quiet(50), single_threaded_blas():
        return strategy.start(grid, start_arrays() if start is None else start, rounds, **options)


def simulated(strategy, app, num_rounds, *, num_nodes=4, initial_arrays=None, **options):
    """Simulate quietly, by default on four nodes from zeros."""
    start = start_arrays() if initial_arrays is None else initial_arrays
    given = {"num_nodes": num_nodes, "num_rounds": num_rounds, "initial_arrays": start, "progress": False}
    return simulate(strategy, app, **given, **options)


def run(strategy, objectives, rounds, *, start=None, mods=(), **options):
    """Simulate on one node for each objective, from a flat start point or named arrays, with mods on the clients."""
    strategy.fraction_evaluate = options.pop("fraction_evaluate", 0.0)
    options["initial_arrays"] = start if isinstance(start, dict) else start_arrays(start=start)
    return simulated(strategy, app_of(objectives, mods), rounds, num_nodes=len(objectives), **options)


class Foreign:
    """A grid as Flower's own: without partitions, so that nodes must be asked. Node ids come in another order."""

    def __init__(self, inside):
        self.inside = inside
        self.questions = 0

    def __getattr__(self, name):
        if name not in ("contexts", "identity", "create_message", "pull_messages", "set_run", "run"):
            raise AttributeError(name)
        return getattr(self.inside, name)

    def get_node_ids(self):
        return sorted(self.inside.get_node_ids(), reverse=True)

    def push_messages(self, messages):
        return self.inside.push_messages(list(messages))

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        self.questions += sum(m.metadata.message_type == "query.partition" for m in messages)
        return self.inside.send_and_receive(messages, timeout=timeout)


def foreign(app, num_nodes, **options):
    """Return a grid of nodes in this process that is as Flower's own."""
    return Foreign(InProcessGrid(app, num_nodes, **options))


def problem(sizes=(30, 40, 20, 30, 25)):
    """Well-conditioned, heterogeneous, unequal sizes."""
    objectives = []
    for m, size in enumerate(sizes):
        rng = np.random.default_rng((7, m))
        q, _ = np.linalg.qr(rng.standard_normal((size, FEATURES)))
        features = q * np.sqrt(size)
        objectives.append(LeastSquares(features, features @ rng.standard_normal(FEATURES) + m, scale=0.5))
    return objectives


def optimum(objectives, weights):
    """Of sum_m weights_m F_m, in closed form."""
    full = [np.column_stack([f.features, np.ones(f.num_examples)]) for f in objectives]
    hessian = sum(w * x.T @ x / len(x) for w, x in zip(weights, full, strict=True))
    right = sum(w * x.T @ f.targets / len(x) for w, x, f in zip(weights, full, objectives, strict=True))
    return np.linalg.solve(hessian, right)


def trackers_of(strategy):
    """Return control - own of every client, by its key."""
    return trackers(run_of(strategy).problem, strategy.state)


def changed(base, **functions):
    """Return a strategy class whose algorithm has other functions: ``functions[name](own, ...)``.

    `own` is the base's algorithm's class, for what would be ``super()``.
    """
    own = base.algorithm

    def bound(function):
        return lambda self, *given: function(own, self, *given)

    other = type(own.__name__, (own,), {name: bound(function) for name, function in functions.items()})
    return type(base.__name__, (base,), {"algorithm": other})


def after(base, name, happens):
    """Return a strategy class at whose clients ``happens(downlink, objective)`` comes before their steps."""

    def local(self, client, downlink, memory):
        happens(downlink, client.objective)
        return base.algorithm.local(self, client, downlink, memory)

    return type("After", (base,), {"algorithm": type("Half", (base.algorithm,), {"name": name, "local": local})})


def first_message(strategy, grid, start=None):
    """Return the message of a strategy's first round to the first node of a grid."""
    start = start_arrays() if start is None else start
    strategy.fraction_evaluate = 0.0
    with grid.identity(), quiet(50):
        strategy.prepare(start, 2)
        return strategy.configure_train(1, start, ConfigRecord(), grid)[0]


def answered(grid, content, kind="train", number="1", node=2, app=None):
    """Return what a node of a grid answers to a message of a kind in a round."""
    with grid.identity():
        message = Message(content, node, kind, group_id=f"{number}")
        return (app or grid.client_app)(message, grid.context(node))


def fitting(kind, options):
    """Return those of the options of any strategy that a class has.

    A tuple under ``work`` or ``participation`` lists objects of several kinds, of which the class gets its own.
    """
    known = kind.__dataclass_fields__
    found = {name: value for name, value in options.items() if name in known and known[name].init}
    for name in found.keys() & {"work", "participation"}:
        given = found.pop(name)
        given = given if isinstance(given, tuple) else (given,)
        mine = [value for value in given if type(value) is type(known[name].default)]
        if mine:
            found[name] = mine[0]
    return found


# --- Flower Apps in this process, as SuperNodes and a ServerApp of a deployment would run them ---


def node(run_config=None, **node_config):
    """Return the context of a node."""
    return Context(run_id=1, node_id=1, node_config=node_config, state=RecordDict(), run_config=run_config or {})


def run_app(example, nodes=10, *, path=None, raise_errors=True, **settings):
    """Run an example on nodes in this process, with its settings changed; `path` is their file, or a function."""
    config = example.config | {name.replace("_", "-"): value for name, value in settings.items()}
    file_of = path if callable(path) else lambda partition: path
    files = None if path is None else lambda partition: {"data-path": str(file_of(partition))}
    options = {"run_config": config, "node_config": files, "raise_errors": raise_errors}
    grid = InProcessGrid(example.client_app.app, nodes, **options)
    context = Context(run_id=grid.run_id, node_id=1, node_config={}, state=RecordDict(), run_config=config)
    with grid.identity():
        example.server_app.app(grid, context)


# --- other objectives and rows ---


class Distance(Objective):
    """|w - point| + l2/2 |w|^2."""

    smooth = False

    def __init__(self, point, l2=0.0):
        self.point = np.asarray(point, dtype=float)
        self.l2 = l2
        self.num_examples = 1
        self.layout = Layout.from_arrays({"coefficients": self.point})

    def value(self, w):
        return float(np.linalg.norm(w - self.point)) + 0.5 * self.l2 * float(w @ w)

    def gradient(self, w, batch=None, out=None):
        apart = w - self.point
        return np.add(apart / max(np.linalg.norm(apart), 1e-300), self.l2 * w, out=out)

    def strong_convexity(self):
        return self.l2

    def minimiser(self, pull, penalty, start, work, duality):
        modulus = self.l2 + penalty
        apart = pull / modulus - self.point
        shrunk = max(0.0, 1.0 - 1.0 / (modulus * np.linalg.norm(apart)))
        return Minimum(self.point + shrunk * apart, 1, 1, 0, 0.0, work.tolerance, True)


class Quadratic(Objective):
    """1/2 x'Ax - b'x."""

    quadratic = True

    def __init__(self, matrix, vector):
        self.matrix = matrix
        self.vector = vector
        self.num_examples = 1
        self.layout = Layout.from_arrays({"x": vector})

    def value(self, w):
        return float(0.5 * w @ self.matrix @ w - self.vector @ w)

    def gradient(self, w, batch=None, out=None):
        return np.subtract(self.matrix @ w, self.vector, out=out)

    def hessian_product(self, w, v):
        return self.matrix @ v

    def hessian_block(self, w, indices):
        return self.matrix[np.ix_(indices, indices)][np.triu_indices(indices.size)]

    def strong_convexity(self):
        return float(np.linalg.eigvalsh(self.matrix)[0])


def quadratics(count=5, d=6, mu=0.5, top=8.0, seed=0, exact=True):
    """Clients whose Hessians have eigenvalues from mu to top exactly, and minimisers far apart.

    Where not `exact`, local minimisations take Newton's method, which ends at the tolerance.
    """
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(count):
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
        matrix = basis @ np.diag(np.concatenate([[mu, top], rng.uniform(mu, top, d - 2)])) @ basis.T
        result.append(Quadratic((matrix + matrix.T) / 2, 3.0 * rng.standard_normal(d)))
        result[-1].quadratic = exact
    return result


def rows(n=25, d=30, seed=0, density=0.2):
    return sparse.random_array((n, d), density=density, rng=np.random.default_rng(seed), format="csr")


def as_users_bring_them(matrix):
    """Return the matrix with unsorted columns, entries in two parts, and a stored zero."""
    matrix = sparse.csr_array(matrix)
    data = []
    indices = []
    ends = [0]
    for i in range(matrix.shape[0]):
        part = slice(matrix.indptr[i], matrix.indptr[i + 1])
        own, columns = matrix.data[part], matrix.indices[part]
        order = np.random.default_rng(i).permutation(2 * own.size)
        data.append(np.r_[np.r_[0.25 * own, 0.75 * own][order], 0.0])
        indices.append(np.r_[np.r_[columns, columns][order], 3])
        ends.append(ends[-1] + data[-1].size)
    return sparse.csr_array((np.concatenate(data), np.concatenate(indices), ends), shape=matrix.shape)


# --- refusals, and who stands for whom ---


def refused(message, call, *given, kind=ConfigurationError, **options):
    """Expect an error whose text matches from a call; return the text."""
    # Not above: processes of Ray and Flower load the clients of this module, and not one test.
    import pytest

    with pytest.raises(kind, match=message) as error:
        call(*given, **options)
    return str(error.value)


#: A strategy, and why it is here: what runs its clients, what they remember, who takes part, what the server reads.
REPRESENTATIVES = {
    "FedDualAvg": "dual steps of clients that remember nothing; the server reads the mean",
    "FedDAGT": "dual steps with a tracker in each client's memory; sums over a sample",
    "DFedDAGT": "dual steps on a graph: the server reads every node's row, and remembers for all",
    "FedMid": "proximal steps of clients that remember nothing",
    "FeDualEx": "pairs of extragradient steps, on a saddle point",
    "FedMiP": "steps of its own, in pairs, whose primal points are averaged",
    "FedDR": "minimisations with two vectors in each client's memory; a sample",
    "DualFL": "minimisations with a shift; everybody, and nobody's answer may be missing",
    "FedNewton": "evaluations by clients that remember nothing; everybody, and the server checks what is said",
}


def nightly(*values):
    """Mark values, for `pytest.mark.parametrize`, that only the nightly tests run."""
    return [_at_night(value) for value in values]


def _at_night(*row):
    import pytest

    return pytest.param(*row, marks=pytest.mark.nightly)


def covered(*axes):
    """Return as few combinations as show each value once."""
    values = [tuple(axis) for axis in axes]
    return [tuple(axis[i % len(axis)] for axis in values) for i in range(max(map(len, values)))]


def crossed(*axes):
    """Return all combinations, of which only the nightly tests run those that show no value for the first time."""
    values = [tuple(axis) for axis in axes]
    day = covered(*values)
    return [row if row in day else _at_night(*row) for row in itertools.product(*values)]


def paired(*axes):
    """Return all combinations, of which only the nightly tests run those that show no two values together first."""
    rows, day = [*itertools.product(*map(tuple, axes))], []
    new = {row: set(itertools.combinations(enumerate(row), 2)) for row in rows}
    while any(new.values()):
        day.append(max(rows, key=lambda row: len(new[row])))
        new = {row: new[row] - new[day[-1]] for row in rows}
    return [row if row in day else _at_night(*row) for row in rows]


def by_class(names=STRATEGIES):
    """Mark the names of strategies, for `pytest.mark.parametrize`, that only the nightly tests run."""
    return [name if name in REPRESENTATIVES else _at_night(name) for name in names]
