"""One reply is worth one reply: what a client says of itself, altered replies, weights, robust centres, saved files."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from faulty import Faulty, start_on, strategy, with_increment, with_metrics
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from problems import FEATURES, app_of, clients, flat, optimum, problem, start_arrays

from flwr_fco.client_apps import client_app
from flwr_fco.client_apps.quotas import Limits
from flwr_fco.core.layout import Layout
from flwr_fco.errors import ConfigurationError, ProtocolError
from flwr_fco.mirror_maps import Euclidean, OrthantEntropy, SimplexEntropy
from flwr_fco.objectives import LeastSquares
from flwr_fco.regularizers import L1, GroupLasso, Nuclear, PerParameter, Regularizer
from flwr_fco.server.clients.memory import ClientMemories
from flwr_fco.server.replies.bounds import IncrementBounds
from flwr_fco.server.replies.centres import geometric_median, median, trimmed_mean
from flwr_fco.server.rounds import saving
from flwr_fco.simulation import InProcessGrid, simulate
from flwr_fco.strategies import DFedDA, FastFedDA, FedDAGT, FedDualAvg, FedMid, Scaffold
from flwr_fco.wire import flower as _flower
from flwr_fco.wire import records
from flwr_fco.wire.protocol import OWN_LOOP, Node, Plan, SpecError, Uplink
from flwr_fco.work import FirstOrder

D = FEATURES + 1
SEVEN = (12, 25, 7, 16, 20, 14, 11)


def read(data, shape=(13,), dtype="float64"):
    return records._from_array("x", Array(dtype, shape, "numpy.ndarray", data), (dtype,), shape)


# --- bytes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(13,), (2, 3), ()])
def test_every_single_bit_flip_of_a_header_is_refused_or_harmless(shape):
    value = np.arange(1.0, 1.0 + int(np.prod(shape))).reshape(shape)
    data = Array(value).data
    header = len(data) - value.nbytes
    refused = 0
    for place in range(header):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            try:
                np.testing.assert_array_equal(read(bytes(flipped), shape), value)
            except ProtocolError:
                refused += 1
    assert refused > 7 * header


@pytest.mark.parametrize(
    "data",
    [
        b"PK\x03\x04junk",
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff{",
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
        b"\x93NUMPY\x01\x00\x50\x00"
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(79)
        + b"\n",
        b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"-" * 9000,
        b"\x93NUMPY\x01\x00" + (3000).to_bytes(2, "little") + b"-" * 3000,
        Array(np.ones(13)).data[:-1],
        Array(np.ones(13)).data + b"x",
        Array(np.ones(13)).data.replace(b"(13,)", b"(31,)"),
        Array(np.ones(13)).data.replace(b"<f8", b">f8"),
        Array(np.ones(13)).data.replace(b"'<f8'", b"'|O8'"),
    ],
)
def test_bytes_that_are_no_array_of_ours(data):
    with pytest.raises(ProtocolError, match="'x'"):
        read(data)


def test_the_other_memory_order_and_padding_are_read():
    value = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(read(Array(np.asfortranarray(value)).data, (2, 3)), value)
    text = b"{'descr': '<f8', 'shape': (2,3), 'fortran_order': False}\n"
    for padding in (0, 4000):
        header = text[:-1] + b" " * padding + b"\n"
        data = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + value.tobytes()
        np.testing.assert_array_equal(read(data, (2, 3)), value)
    header = text[:-1] + b" " * 4100 + b"\n"
    with pytest.raises(ProtocolError, match="its header claims"):
        read(b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little") + header + value.tobytes(), (2, 3))


# --- claims -------------------------------------------------------------------------------------------------------


def scaled(factor):
    return with_increment(lambda arrays: {name: value * factor for name, value in arrays.items()})


CLAIMS = {
    "elapsed too long": (with_metrics(lambda m: {**m, "elapsed": 1e12}), "elapsed"),
    "elapsed too short": (with_metrics(lambda m: {**m, "elapsed": 1e-12}), "elapsed"),
    "more steps": (with_metrics(lambda m: {**m, "local-steps": 10**6, "elapsed": 0.02 * 10**6}), "local steps"),
    "half a step": (with_metrics(lambda m: {**m, "local-steps": 0.5}), "whole number"),
    "more examples than there are": (with_metrics(lambda m: {**m, "num-examples": 10**15}), "max_examples"),
    "far more examples than others": (with_metrics(lambda m: {**m, "num-examples": 10**9}), "max_ratio"),
    "an integer beyond the floats": (with_metrics(lambda m: {**m, "num-examples": 10**400}), "num-examples"),
    "an increment of 1e12": (scaled(1e12), "max_ratio"),
    "an increment of 1e300": (scaled(1e300), "max_ratio"),
}


@pytest.mark.parametrize("name", CLAIMS)
@pytest.mark.parametrize("cls", [FedDualAvg, FedMid, FedDAGT, DFedDA, FastFedDA])
def test_an_absurd_claim_is_left_out_and_counted(cls, name):
    if cls is FastFedDA and "elapsed" in name:
        pytest.skip("its elapsed counts steps; the same check")
    fault, reason = CLAIMS[name]
    options = {"batch_size": 5, "fraction_evaluate": 0.0, "local_epochs": 1}
    if cls is not FastFedDA:
        options |= {"client_lr": 0.02}

    def result_with(fault):
        chosen = cls(**options)
        return start_on(Faulty(app_of(clients(SEVEN)), len(SEVEN), fault), chosen, rounds=4), chosen

    result, chosen = result_with(fault)
    expected, _ = result_with(lambda message, reply: [])
    np.testing.assert_array_equal(flat(result.arrays), flat(expected.arrays))
    rows = [row for row in result.left_out if row.round == 2]
    assert [(row.partition_id, row.kind) for row in rows] == [(1, "train")]
    assert reason in rows[0].reason
    assert chosen.left_out is result.left_out
    assert result.train_metrics_clientapp[2]["num-left-out"] == 1


def test_duplicates_late_and_missing_replies_are_in_the_table():
    def late_and_twice(message, reply):
        twin = Message(content=reply.content, reply_to=message)
        twin.metadata.__dict__["_group_id"] = "1"
        return [twin, reply, reply]

    result = start_on(Faulty(app_of(clients()), 4, late_and_twice), strategy())
    assert [row.reason.split(",")[0].split(";")[0] for row in result.left_out] == [
        "it answers round 1",
        "it answered twice",
    ]
    metrics = result.train_metrics_clientapp[2]
    assert (metrics["num-left-out"], metrics["num-surplus"]) == (0, 2)
    silent = start_on(Faulty(app_of(clients()), 4, lambda m, r: []), strategy())
    assert [(row.round, row.partition_id, row.reason) for row in silent.left_out] == [(2, 1, "no reply")]


@pytest.mark.parametrize("epochs", [None, 1])
def test_honest_clients_of_10_to_1000_examples_lose_nothing(epochs):
    """Nor under a bound forty times as tight as the default: the largest shard is twenty times the median."""
    sizes = (10, 20, 50, 100, 300, 1000, 15)
    for cls in (FedDualAvg, FedMid, FedDAGT):
        options = {"regularizer": L1(0.1), "fraction_evaluate": 0.0, "local_epochs": epochs, "max_ratio": 25.0}
        chosen = cls(client_lr=0.005, batch_size=5, **options)
        result = start_on(Faulty(app_of(clients(sizes)), len(sizes), None, rounds=()), chosen, rounds=10)
        assert result.left_out == []


def test_bounds_look_back_and_are_off_in_small_rounds():
    def uplinks(*norms):
        return [Uplink({"increment": np.array([norm, 0.0])}, 1.0, 1, examples=1.0) for norm in norms]

    bounds = IncrementBounds(1000.0, None)
    assert bounds.objections(uplinks(1.0, 1.0, 1.0, 1e9)) == {}  # four replies have no median to speak of
    assert list(bounds.objections(uplinks(1.0, 1.0, 1.0, 1.0, 1e9))) == [4]
    # Near the optimum the median is small; what was usual before is no lie.
    assert bounds.objections(uplinks(1e-9, 1e-9, 1e-9, 1e-9, 1.0)) == {}
    assert list(bounds.objections(uplinks(1e-9, 1e-9, 1e-9, 1e-9, 1001.0))) == [4]
    again = IncrementBounds(1000.0, None)
    again.from_arrays(bounds.to_arrays())
    assert again.largest == bounds.largest
    assert IncrementBounds(1000.0, None).objections(uplinks(0.0, 0.0, 0.0, 1.0, 2.0)) == {}
    assert list(IncrementBounds(None, 5.0).objections(uplinks(1.0, 6.0))) == [1]


def test_running_statistics_are_bounded_too():
    def uplinks(*values, dtype=np.float32):
        through = [{"mean": np.array([value], dtype), "count": np.array([10**9 * (value > 2)])} for value in values]
        return [Uplink({"increment": np.ones(2)}, 1.0, 1, examples=1.0, pass_through=own) for own in through]

    bounds = IncrementBounds(1000.0, None)
    assert bounds.objections(uplinks(1.0, 1.0, 1.0, 1.0, 900.0)) == {}
    found = bounds.objections(uplinks(1.0, 1.0, 1.0, 1.0, 3e38))
    assert list(found) == [4]
    assert "its mean is 3e+38" in found[4]
    assert IncrementBounds(1000.0, None).objections(uplinks(0.0, 0.0, 0.0, 1.0, 3.0)) == {}


def opened(chosen):
    """In round 1, before anybody is asked."""
    chosen.prepare(start_arrays())
    chosen.mail.open(1, [], ConfigRecord(), chosen._open_problem(1), chosen.state)
    return chosen


def check_claims(chosen, node, uplink, num_examples):
    chosen.mail.language.check(chosen.mail, node, uplink, num_examples)


def test_an_unmodified_client_may_have_a_schedule_but_not_any():
    chosen = opened(strategy(client="unmodified", local_steps=10))
    for elapsed, fine in ((0.02 * 10, True), (0.02, True), (0.02 * 9000, True), (1e12, False), (1e-12, False)):
        uplink = Uplink({}, elapsed, 10, examples=10.0)
        if fine:
            check_claims(chosen, Node(1, 0), uplink, None)
        else:
            with pytest.raises(ProtocolError, match="elapsed"):
                check_claims(chosen, Node(1, 0), uplink, None)


# --- altered replies ----------------------------------------------------------------------------------------------


def altering(first=1, last=10**9):
    """A mod that scales, clips and adds a noise that fades."""

    def mod(message, context, call_next):
        reply = call_next(message, context)
        number = int(message.metadata.group_id or 0)
        if message.metadata.message_type != "train" or not first <= number <= last or not reply.has_content():
            return reply
        if "arrays" not in reply.content:
            return reply
        rng = np.random.default_rng((number, int(context.node_config["partition-id"])))
        arrays = {}
        for name, array in reply.content["arrays"].items():
            value = 0.8 * array.numpy()
            value = value * min(1.0, 5.0 / np.linalg.norm(value)) + 0.85**number * 0.1 * rng.standard_normal(value.size)
            arrays[name] = Array(value)
        content = reply.content.copy()
        content["arrays"] = ArrayRecord(arrays)
        reply.content = content
        return reply

    return mod


def tracked_run(chosen, objectives, rounds, mods, check=lambda strategy: None):
    app = client_app(lambda context: objectives[int(context.node_config["partition-id"])], mods=mods)
    chosen.fraction_evaluate = 0.0
    grid = InProcessGrid(app, len(objectives))
    with _flower.identity(grid.run_id):
        return chosen.start(grid, start_arrays(), rounds, callbacks=[lambda n, a, m: check(chosen)])


def invariant(chosen):
    weights = {key: member.examples for key, member in chosen.memories.members.items()}
    total = sum(weights[key] * tracker for key, tracker in chosen.trackers().items())
    assert np.abs(total).max() <= 1e-10 * sum(weights.values())


@pytest.mark.parametrize("cls", [FedDAGT, Scaffold])
@pytest.mark.parametrize("altered", [(1, 10**9), (3, 3)], ids=["every reply", "one round"])
def test_what_alters_the_uplink_acts_on_a_tracker_without_breaking_it(cls, altered):
    objectives = problem()
    chosen = cls(client_lr=0.05, local_steps=4, batch_size=None, client_state="ledger")
    result = tracked_run(chosen, objectives, 200, [altering(*altered)], invariant)
    weights = np.array([f.num_examples for f in objectives]) / sum(f.num_examples for f in objectives)
    assert np.abs(flat(result.arrays) - optimum(objectives, weights)).max() < 1e-8


def test_with_reset_an_accident_is_mended_and_the_rule_is_an_error_that_names_the_ledger():
    objectives = problem()
    options = {"client_lr": 0.05, "local_steps": 4, "batch_size": None, "client_state": "reset"}
    result = tracked_run(FedDAGT(**options), objectives, 200, [altering(3, 3)])
    weights = np.array([f.num_examples for f in objectives]) / sum(f.num_examples for f in objectives)
    assert np.abs(flat(result.arrays) - optimum(objectives, weights)).max() < 1e-8
    with pytest.raises(ConfigurationError, match='client_state="ledger"'):
        tracked_run(FedDAGT(**options), objectives, 20, [altering()])


# --- weights ------------------------------------------------------------------------------------------------------


def test_a_first_report_does_not_fix_a_weight_for_ever():
    objectives = problem((30, 40, 20, 30, 25, 30, 30))
    for lie in (0, 20_000):
        fault = with_metrics(lambda m, lie=lie: {**m, "num-examples": lie})
        chosen = FedDAGT(client_lr=0.05, local_steps=4, batch_size=None, client_state="ledger", fraction_evaluate=0.0)
        grid = Faulty(app_of(objectives), len(objectives), fault, rounds=(0, 1))
        result = start_on(grid, chosen, rounds=150, callbacks=[lambda n, a, m, chosen=chosen: invariant(chosen)])
        assert chosen.memories.members[(0, 1)].examples == 40
        weights = np.array([f.num_examples for f in objectives]) / sum(f.num_examples for f in objectives)
        assert np.abs(flat(result.arrays) - optimum(objectives, weights)).max() < 1e-8


def test_a_weight_changes_by_a_factor_of_two_at_most():
    memories = ClientMemories(("own",), client_state="ledger", ledger_bytes=0, weighting="examples")
    memories.forget(2)
    node = Node(5, 0)
    memories.notice([node])
    assert memories.admitted(node, 1e9) == 1e9
    memories.member(node).examples = 100.0
    assert [memories.admitted(node, value) for value in (100.0, 120.0, 1e9, 0.0)] == [100.0, 120.0, 200.0, 50.0]


def test_weights_that_the_user_pins_win_and_strangers_are_left_out():
    lying = with_metrics(lambda m: {**m, "num-examples": 5000})
    weights = {m: float(size) for m, size in enumerate((12, 25, 7, 16))}
    for cls in (FedDualAvg, FedDAGT):
        make = lambda cls=cls, **more: cls(client_lr=0.02, local_steps=3, fraction_evaluate=0.0, **more)  # noqa: E731
        grid = Faulty(app_of(clients()), 4, lying, rounds=range(99))
        honest = start_on(Faulty(app_of(clients()), 4, None, rounds=()), make(), rounds=5)
        pinned = start_on(grid, make(client_weights=weights), rounds=5)
        np.testing.assert_array_equal(flat(pinned.arrays), flat(honest.arrays))
    result = start_on(
        Faulty(app_of(clients()), 4, None, rounds=()), FedDualAvg(client_weights={0: 1, 1: 1}, fraction_evaluate=0.0)
    )
    assert {row.partition_id for row in result.left_out} == {2, 3}
    with pytest.raises(ConfigurationError, match="client_weights"):
        FedDualAvg(client_weights={0: 1.0}, weighting="uniform")
    with pytest.raises(ConfigurationError, match="client_weights"):
        FedDualAvg(client_weights={0: float("nan")})


def test_members_that_cannot_come_back_are_forgotten():
    memories = ClientMemories(("own",), client_state="ledger", ledger_bytes=0, weighting="examples")
    memories.forget(2)
    memories.members[(0, 3)] = type(memories.member(Node(1, 3)))()
    for number in range(50):
        nodes = [Node(2 * number, None), Node(2 * number + 1, None)]
        memories.notice(nodes)
        for node in nodes:
            memories.member(node).accepted = number
    assert len(memories.members) <= 1 + 3 * 2
    assert (0, 3) in memories.members


# --- the primal, pairs, plans -------------------------------------------------------------------------------------


def test_a_primal_that_is_not_finite_is_never_handed_out():
    # The dual stays finite, its exponential does not.
    rng = np.random.default_rng(0)
    features = np.abs(rng.standard_normal((20, FEATURES)))
    objectives = [LeastSquares(-features, 100.0 * np.ones(20), scale=0.5) for _ in range(2)]
    ones = start_arrays(start=np.ones(D))
    go_on = {"fraction_evaluate": 0.0, "on_divergence": "warn"}
    chosen = FedDualAvg(mirror_map=OrthantEntropy(), client_lr=100.0, local_steps=1, **go_on)
    single = start_arrays(dtype=np.float32)
    for start, used in ((ones, chosen), (single, FedDualAvg(client_lr=1e38, local_steps=2, **go_on))):
        flipped = objectives if used is not chosen else [LeastSquares(features, 1e6 * np.ones(20)) for _ in range(2)]
        willing = client_app(lambda c, own=flipped: own[c.node_config["partition-id"]], limits=Limits(max_number=1e300))
        result = simulate(used, willing, num_nodes=2, num_rounds=3, initial_arrays=start, progress=False)
        assert np.isfinite(flat(result.arrays)).all()
        assert any(metrics["skipped"] for metrics in result.train_metrics_clientapp.values())


def test_a_state_that_is_not_finite_is_skipped_even_if_its_primal_is():
    """Increments of 1e300 over an elapsed time of 1e-10: the dual stays finite, the trackers' mean would not."""
    chosen = FedDAGT(client_lr=1e-10, local_steps=1, batch_size=None, fraction_evaluate=0.0, on_divergence="warn")
    fault = with_increment(lambda arrays: {name: np.full(value.size, 1e300) for name, value in arrays.items()})
    result = start_on(Faulty(app_of(clients()), 4, fault, nodes=(2, 3, 4, 5)), chosen)
    assert [metrics["skipped"] for metrics in result.train_metrics_clientapp.values()] == [0, 1, 0]
    assert np.isfinite(chosen.state.control).all()


def test_a_pair_that_no_model_allows_is_refused_at_construction():
    with pytest.raises(ConfigurationError, match=r"SimplexEntropy cannot be combined with Nuclear"):
        FedDualAvg(regularizer=Nuclear(0.1), mirror_map=SimplexEntropy())


LAYOUT = Layout.from_arrays({"w": np.zeros(3)})


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1.5},
        {"seed": -1},
        {"wire-dtype": "complex128"},
        {"scope": "all"},
        {"solver": 3},
        {"options": {"rate": float("nan")}},
        {"options": [1]},
        {"layout": 3},
        {"layout": [["w", [-3], "float64", 0, True]]},
        {"work": {"kind": "first-order", "steps": 0, "epochs": None, "batch-size": 3}},
        {"work": 3},
        {"regularizer": {"family": ["x"], "kind": "l1"}},
        {"regularizer": {"family": "regularizer", "kind": "per-parameter", "regularizers": {"$mapping": 3}}},
        {"mirror-map": []},
    ],
)
def test_a_plan_that_is_none_is_a_clear_error(change):
    spec = Plan("dual_averaging", LAYOUT, L1(0.1), Euclidean()).to_spec()
    assert Plan.from_spec(spec).solver == "dual_averaging"
    with pytest.raises(SpecError):
        Plan.from_spec(spec._replace(header={**spec.header, **change}))


def test_specifications_do_not_build_anything_of_any_size():
    with pytest.raises(ConfigurationError, match="largest group number"):
        GroupLasso(1.0, groups=np.array([0, 10**9]))
    with pytest.raises(ConfigurationError, match="20000 patterns"):
        PerParameter({f"a{i}": L1(1.0) for i in range(20_000)})
    bomb = Regularizer.from_spec
    spec = PerParameter({"a": L1(1.0)}).to_spec()
    many = {"$mapping": [["a", 1.0]] * 20_000}
    with pytest.raises(SpecError, match="at most"):
        bomb(spec._replace(header={**spec.header, "regularizers": many}))


# --- files --------------------------------------------------------------------------------------------------------


def test_a_damaged_file_is_a_clear_error_and_changes_nothing(tmp_path):
    chosen = FedDAGT(client_lr=0.02, local_steps=2, fraction_evaluate=0.0, client_state="ledger")
    path, other = tmp_path / "state.npz", tmp_path / "other.npz"
    start_on(Faulty(app_of(clients()), 4, None, rounds=()), chosen)
    chosen.memories.member(Node(2**64 - 1, None)).examples = 3.0
    chosen.save_state(path)
    fresh = FedDAGT(client_lr=0.02, local_steps=2, fraction_evaluate=0.0, client_state="ledger")
    fresh.prepare(start_arrays())
    data, before = path.read_bytes(), fresh.state
    rng = np.random.default_rng(0)
    for place in [*rng.integers(0, len(data), 150), *range(8)]:
        other.write_bytes(data[:place] + bytes([data[place] ^ (1 << rng.integers(8))]) + data[place + 1 :])
        try:
            fresh.load_state(other)
        except ConfigurationError:
            assert fresh.state is before
        else:  # a bit of the archive that nothing depends on
            np.testing.assert_array_equal(fresh.state.dual, chosen.state.dual)
            fresh.prepare(start_arrays())
            before = fresh.state
    for content in (b"", data[: len(data) // 2], b"PK\x03\x04junk"):
        other.write_bytes(content)
        with pytest.raises(ConfigurationError, match="damaged"):
            fresh.load_state(other)
    np.savez(other, a=np.zeros(2))
    with pytest.raises(ConfigurationError, match="no saved state"):
        fresh.load_state(other)
    # A good archive with other contents: what zip files check by themselves is not enough.
    with np.load(path) as saved:
        arrays = dict(saved)
    np.savez(other, **{**arrays, "state/dual": arrays["state/dual"] + 1.0})
    with pytest.raises(ConfigurationError, match="do not match its checksum"):
        fresh.load_state(other)
    assert fresh.state is before
    # Whole, and yet not what this strategy saves: nothing is half loaded.
    del arrays["part/memories/accepted"], arrays["checksum"]
    np.savez(other, **arrays, checksum=np.array(saving._checksum(arrays)))
    kept = dict(chosen.memories.members)
    with pytest.raises(ConfigurationError, match="is not a state of this strategy"):
        chosen.load_state(other)
    assert {key: member.accepted for key, member in chosen.memories.members.items()} == {
        key: member.accepted for key, member in kept.items()
    }
    fresh.load_state(path)
    assert fresh.memories.members[(1, 2**64 - 1)].examples == 3.0
    assert fresh.memories.members[(0, 1)].digest == chosen.memories.members[(0, 1)].digest != ""
    assert fresh.mail.bounds.largest == chosen.mail.bounds.largest


@pytest.fixture
def disk(monkeypatch):
    """What is asked of the disk, in order: each fsync with what had been written by then, each renaming."""
    calls, fsync, replace = [], os.fsync, os.replace

    def recorded_fsync(handle):
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            calls.append(("fsync", "folder", about.st_ino))
        else:
            calls.append(("fsync", "file", about.st_ino, about.st_size))
        fsync(handle)

    def recorded_replace(source, target):
        calls.append(("replace", Path(source).name, Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    return calls


def saved_to(path, rounds=1):
    chosen = FedDAGT(client_lr=0.02, local_steps=2, fraction_evaluate=0.0)
    start_on(Faulty(app_of(clients()), 4, None, rounds=()), chosen, rounds=rounds)
    chosen.save_state(path)
    return chosen


def test_a_save_survives_a_power_cut_at_any_moment(tmp_path, disk):
    path = tmp_path / "state.npz"
    saved_to(path)
    # All bytes before the file has its name, or the name might be that of an empty file; then the name itself.
    assert disk == [
        ("fsync", "file", path.stat().st_ino, path.stat().st_size),
        ("replace", ".state.npz.partial", "state.npz"),
        ("fsync", "folder", tmp_path.stat().st_ino),
    ]


def test_where_the_disk_refuses_the_last_save_stays(tmp_path, monkeypatch):
    path = tmp_path / "state.npz"
    chosen = saved_to(path)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        saved_to(path, rounds=3)
    fresh = FedDAGT(client_lr=0.02, local_steps=2, fraction_evaluate=0.0)
    fresh.prepare(start_arrays())
    fresh.load_state(path)
    np.testing.assert_array_equal(fresh.state.dual, chosen.state.dual)
    assert fresh.state.round == chosen.state.round == 1


# --- robust centres -----------------------------------------------------------------------------------------------


def test_centres_are_those_of_the_sorted_values():
    rng = np.random.default_rng(0)
    rows, equal = rng.standard_normal((10, 9000)), np.full(10, 0.1)
    inner = np.sort(rows, axis=0)
    np.testing.assert_allclose(trimmed_mean(rows, equal, 0.2), inner[2:8].mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(trimmed_mean(rows, equal, 0.0), rows.mean(axis=0), atol=1e-14)
    np.testing.assert_allclose(median(rows, equal), np.median(rows, axis=0), atol=1e-15)
    # A weight of two tenths is two rows.
    twice, weights = np.concatenate([rows, rows[:1]]), np.full(10, 1 / 11)
    weights[0] = 2 / 11
    np.testing.assert_allclose(median(rows, weights), np.median(twice, axis=0), atol=1e-15)
    np.testing.assert_allclose(
        trimmed_mean(rows, weights, 0.2), trimmed_mean(twice, np.full(11, 1 / 11), 0.2), atol=1e-14
    )
    point = geometric_median(rows[:, :3], weights)
    directions = (rows[:, :3] - point) / np.linalg.norm(rows[:, :3] - point, axis=1)[:, None]
    assert np.linalg.norm(weights @ directions) < 1e-8  # the gradient of the sum of distances


@pytest.mark.parametrize("rule", ["trimmed", "median", "geometric-median"])
@pytest.mark.parametrize("cls", [FedDualAvg, FedMid])
def test_a_minority_cannot_move_a_robust_centre_far(rule, cls):
    sizes = (20,) * 9
    same = [clients((20,))[0] for _ in sizes]
    liars = scaled(-50.0)

    def run_with(rule, fault):
        robust = {"aggregation": rule, "trim": 0.25, "on_divergence": "warn"}
        chosen = cls(client_lr=0.02, local_steps=3, batch_size=None, fraction_evaluate=0.0, **robust)
        grid = Faulty(app_of(same), len(sizes), fault, rounds=range(1, 99), nodes=(2, 3))
        return flat(start_on(grid, chosen, rounds=30).arrays)

    honest = run_with("mean", lambda message, reply: [reply])
    assert np.abs(run_with(rule, liars) - honest).max() < 1e-6
    with np.errstate(all="ignore"):
        assert np.abs(run_with("mean", liars) - honest).max() > 1.0


def test_methods_that_need_the_mean_say_why():
    for cls, reason in ((FedDAGT, "trackers"), (DFedDA, "gossip"), (FastFedDA, "sums"), (Scaffold, "trackers")):
        with pytest.raises(ConfigurationError, match=f"needs the mean.*{reason}"):
            cls(aggregation="median")
    with pytest.raises(ConfigurationError, match="shadow"):
        FedDualAvg(aggregation="median", output="shadow", local_steps=3)


def test_one_odd_metric_costs_nobody_elses():
    def reply(**values):
        return RecordDict({"metrics": MetricRecord({"num-examples": 10, **values})})

    contents = [reply(loss=1.0, own=[1.0, 2.0]), reply(loss=3.0, own=[3.0, 4.0]), reply(loss=[5.0], own=[1.0])]
    assert dict(records.average_metrics(contents, "num-examples")) == {"loss": 2.0, "own": [2.0, 3.0]}


@pytest.mark.parametrize(
    ("changes", "num_examples", "work", "reason"),
    [
        ({"elapsed": 0.2}, 20.0, None, "elapsed=0.2 after 4 steps"),
        ({"steps": 5}, 20.0, None, "5 local steps, the plan asks for 4"),
        ({"examples": 2e12}, 20.0, None, "more than max_examples"),
        ({}, 10.0, None, "4 local steps, the plan asks for 2"),
        ({}, None, None, "does not report 'num-examples'"),
        ({}, 20.0, FirstOrder(steps=2, batch_size=5), "4 local steps, the plan asks for 2"),
    ],
    ids=["elapsed", "steps", "weight", "examples", "no examples", "other work"],
)
def test_what_one_client_may_say_is_no_leave_for_the_next(changes, num_examples, work, reason):
    """Most clients of a round say the same, which is looked at once; the slightest difference is looked at again."""
    asked = opened(FedDualAvg(client_lr=0.1, batch_size=5))
    honest, other = Node(2, 0), Node(3, 1)
    said = Uplink({"increment": np.zeros(D)}, elapsed=0.4, steps=4, examples=20.0)
    check_claims(asked, honest, said, 20.0)
    check_claims(asked, other, said, 20.0)
    if work is not None:
        asked.current.works[other.node_id] = work
    with pytest.raises(ProtocolError, match=reason):
        check_claims(asked, other, said._replace(**changes), num_examples)
    # And own training loops, which have schedules, are allowed more than our solvers are.
    check_claims(asked, honest, said._replace(steps=40, metrics={OWN_LOOP: 1.0}), 20.0)
    with pytest.raises(ProtocolError, match="40 local steps"):
        check_claims(asked, honest, said._replace(steps=40), 20.0)
