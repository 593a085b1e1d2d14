"""Short messages: what they hold, who can read them, and what hostile bytes come to."""

import json
import re
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import problems
import pytest
from flwr.app import Array, ConfigRecord, RecordDict
from fuzz.budget import damaged, fuzzed, mutated
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import arrays_of, foreign_app, numpy_of, refused, simulated, zeros

from flwr_fco.client_apps import client_app
from flwr_fco.core.layout import Layout
from flwr_fco.datasets import digits
from flwr_fco.errors import ConfigurationError, FlwrFcoError, NothingTrainedError, ProtocolError
from flwr_fco.messages import short
from flwr_fco.messages.short import Form, Short, mask_of, read_reply, short_mod, shorten
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import Density, FedDualAvg, Steps

# --- one exchange -----------------------------------------------------------------------------------------------------


def layout_of(*arrays):
    """Return the layout of arrays, of which the regularized ones travel short."""
    made = {name: np.broadcast_to(np.zeros((), dtype), shape) for name, dtype, shape, _ in arrays}
    return Layout.from_arrays(made).regularizing([name for name, *_, regularized in arrays if regularized])


def model(rng, layout, size=1.0):
    """Return arrays of which those that travel short are mostly 0."""

    def drawn(unit):
        kept = (rng.random(unit.shape) < 0.3) | (not unit.regularized)
        return np.where(kept, size * rng.standard_normal(unit.shape), 0.0).astype(unit.dtype)

    return {unit.name: drawn(unit) for unit in layout.entries}


def answered(content, trained, number=1, partition=1, **limits):
    """Return what a client with the mod replies: ``trained(arrays)`` returns its new arrays."""

    def train(arrays, message, context):
        assert set(message.content) <= {"arrays", "config"}
        return trained(arrays)

    grid = InProcessGrid(foreign_app(train, mods=[short_mod(**limits)]), partition + 1)
    return problems.answered(grid, content, number=number, node=2 + partition).content


def sent(form, arrays=None):
    """Return a message in the short form, and where its model is not 0."""
    arrays = model(np.random.default_rng(0), form.layout) if arrays is None else arrays
    content = RecordDict({"arrays": arrays_of(arrays), "config": ConfigRecord({"x": 1})})
    return content, shorten(content, "arrays", form)


def exchange(form, arrays, moved, number=3, partition=1):
    """Return what a client is given, its reply, and where the model that it was sent is not 0."""
    content, support = sent(form, arrays)
    seen = {}

    def trained(given):
        seen.update(given)
        return {name: np.asarray(a + moved.get(name, 0), a.dtype) for name, a in seen.items()}

    return seen, answered(content, trained, number, partition), support


def form_of(*arrays, **wire):
    layout = layout_of(*arrays)
    return Form(Short(**wire), layout, "", list(layout.names), 7)


@st.composite
def exchanges(draw):
    shapes = draw(st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=5))
    flags = draw(st.lists(st.booleans(), min_size=len(shapes), max_size=len(shapes)))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    arrays = [(f"w{i}", dtype, shape, flag) for i, (shape, flag) in enumerate(zip(shapes, flags, strict=True))]
    wire = {name: draw(st.sampled_from(["int8", "float16"])) for name in ("down", "up")}
    still = draw(st.sets(st.sampled_from([name for name, *_ in arrays])))
    form = form_of(*arrays, growth=draw(st.sampled_from([0.0, 0.3, 5.0])), **wire)
    # 65,504 is the largest number of float16.
    return form, still, draw(st.integers(0, 99)), draw(st.sampled_from([1.0, 1e5]))


@given(exchanges())
@settings(max_examples=80, deadline=None)
def test_what_is_sent_arrives(exchange_of):
    """Zeros as zeros, values to half a step of their scale, increments to one, the largest ones off the non-zeros."""
    form, still, seed, size = exchange_of
    rng = np.random.default_rng(seed)
    arrays = model(rng, form.layout, size)
    passed = {"running_mean": rng.standard_normal(3).astype(np.float32), "count": np.array(seed)}
    moving = [unit for unit in form.layout.entries if unit.name not in still]
    moved = {unit.name: (size * rng.standard_normal(unit.shape)).astype(unit.dtype) for unit in moving}
    form = form._replace(order=[*passed, *arrays])
    seen, reply, support = exchange(form, {**arrays, **passed}, moved)
    assert list(seen) == form.order
    increment, rest = read_reply(form, support, reply)
    found = numpy_of(rest["arrays"])
    assert {name: array.tolist() for name, array in found.items()} == {n: a.tolist() for n, a in passed.items()}
    steps = {"int8": 1 / 127, "float16": 2.0**-11}
    for unit in form.layout.entries:
        sent, found, got = arrays[unit.name], seen[unit.name], increment[unit.block]
        assert (found.dtype, found.shape) == (unit.dtype, unit.shape)
        move = np.ravel((found + moved[unit.name] if unit.name in moved else found) - found)
        if not unit.regularized:
            np.testing.assert_array_equal(found, sent)
            np.testing.assert_array_equal(got, move)
            continue
        most = np.abs(sent).max(initial=0.0)
        assert not found[sent == 0.0].any()
        assert np.abs(found - sent).max(initial=0.0) <= most * steps[form.wire.down] * 0.51
        on = np.ravel(sent) != 0.0
        np.testing.assert_array_equal(support[unit.block], on)
        left = np.sort(np.abs(move[~on]))[::-1][: form.wire.most_indices(int(on.sum()))]
        sent_off = got[~on] != 0.0
        assert sent_off.sum() <= left.size
        step = max(np.abs(move[on]).max(initial=0.0), left.max(initial=0.0)) * steps[form.wire.up]
        assert np.abs(got - move)[on | (got != 0.0)].max(initial=0.0) <= step * 1.01
        assert np.all(np.abs(move[~on][sent_off]) >= left.min(initial=np.inf))


def test_a_client_that_works_in_less_precision_has_moved_nothing():
    form = form_of(("w", "float64", (40,), True), ("b", "float64", (5,), False))
    content, support = sent(form)
    reply = answered(content, lambda given: {name: a.astype(np.float32) for name, a in given.items()})
    assert not read_reply(form, support, reply)[0].any()


@pytest.mark.parametrize("up", ["int8", "float16"])
def test_rounding_is_right_in_the_mean_and_of_seed_round_and_partition(up):
    form = form_of(("w", "float32", (40,), True), up=up)
    rng = np.random.default_rng(0)
    arrays = model(rng, form.layout)
    moved = {"w": (0.1 * rng.standard_normal(40)).astype(np.float32)}

    def got(*of, form=form):
        seen, reply, support = exchange(form, arrays, moved, *of)
        return read_reply(form, support, reply)[0][support], ((seen["w"] + moved["w"]) - seen["w"])[support]

    found = np.array([got(number)[0] for number in range(1, 251)])
    expected = got(1)[1]
    most = np.abs(moved["w"]).max()
    # Of a number of float16, a step is at most 2**-10 of its size.
    steps = most / 127 if up == "int8" else 2.0**-10 * np.abs(expected) + 2.0**-24 * most
    assert np.all(np.abs(found - expected) <= steps * 1.001)
    assert np.all(np.abs(found.mean(0) - expected) < 5.0 * 0.5 * steps / np.sqrt(250))
    # All of them together, whose mean is known better than that of one.
    assert abs(((found - expected) / steps).mean()) < 5.0 * 0.5 / np.sqrt(found.size)
    # Each is rounded up in some rounds and down in others.
    assert np.all([len(set(column)) == 2 for column in found.T])
    np.testing.assert_array_equal(got(5, 2)[0], got(5, 2)[0])
    others = got(5, 3), got(6, 2), got(5, 2, form=form._replace(seed=8))
    assert all((got(5, 2)[0] != other[0]).any() for other in others)


# --- hostile bytes ----------------------------------------------------------------------------------------------------

FORM = form_of(("w", "float32", (60, 10), True), ("v", "float32", (9,), True), ("b", "float32", (5,), False))


def good_reply():
    rng = np.random.default_rng(0)
    moved = {unit.name: rng.standard_normal(unit.shape).astype(np.float32) for unit in FORM.layout.entries}
    _, reply, support = exchange(FORM, model(rng, FORM.layout), moved)
    return reply, support


def deflated(data):
    return np.frombuffer(zlib.compress(data, 9), np.uint8)


WRONG_PARTS = [
    (short.PLACES, lambda a: np.append(a, np.zeros(40, np.uint8)), "holds other than"),
    (short.PLACES, lambda a: a[:-1], "cannot be read|holds other than"),
    (short.PLACES, lambda a: deflated(bytes(2)), "holds other than"),
    (short.PLACES, lambda a: deflated(bytes(20_000)), "holds other than"),
    (short.PLACES, lambda a: deflated(b"\xff" * len(zlib.decompress(a))), "off the non-zeros of 'w', expected at "),
    (short.SCALES, lambda a: a * np.float32(np.nan), "NaN or infinite"),
    (short.SCALES, lambda a: -a, "expected numbers >= 0"),
    (short.SCALES, lambda a: a[:-1], r"expected float32\[3\]"),
    (short.SCALES, lambda a: a.astype(np.float64), r"expected float32\[3\]"),
    (short.SCALES, lambda a: a * 0, "expected at most 0"),
    (short.VALUES, lambda a: a[:-1], r"expected int8\[\d+\]"),
    (short.VALUES, lambda a: a.astype(np.float32), r"expected int8\[\d+\]"),
    (short.REST, lambda a: a[:-1], r"expected float64 or float32 or float16\[5\]"),
    (short.REST, lambda a: a * np.float32(np.nan), "NaN or infinite"),
    (short.REST, lambda a: a.astype("S4"), "expected numbers"),
]


@pytest.mark.parametrize(("name", "change", "message"), WRONG_PARTS)
def test_hostile_arrays_have_a_reason(name, change, message):
    reply, support = good_reply()
    reply["arrays"][name] = Array(np.asarray(change(reply["arrays"][name].numpy())))
    refused(message, read_reply, FORM, support, reply, kind=ProtocolError)


def test_a_bomb_is_not_inflated():
    """As many bytes as a mask may have, which would be a hundred times as many."""
    compressed = deflated(bytes(50_000_000))
    tracemalloc.start()
    refused("holds other than 480000 bits", mask_of, compressed, 480_000, kind=ProtocolError)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


@fuzzed(0.3)
@given(st.data())
def test_any_bytes_are_read_or_refused(data):
    reply, support = good_reply()
    for name in data.draw(st.sets(st.sampled_from([short.PLACES, short.SCALES, short.VALUES, short.REST]), min_size=1)):
        array = reply["arrays"][name]
        if data.draw(st.booleans()):
            reply["arrays"][name] = Array(array.dtype, array.shape, array.stype, data.draw(damaged(array.data)))
        else:
            raw = data.draw(damaged(array.numpy().tobytes()))
            whole = raw[: len(raw) - len(raw) % array.numpy().itemsize]
            reply["arrays"][name] = Array(np.frombuffer(whole, array.dtype))
    with suppress(ProtocolError):
        increment, _ = read_reply(FORM, support, reply)
        assert increment.shape == (FORM.layout.size,)
        assert np.isfinite(increment).all()


@fuzzed(0.3)
@given(st.data())
def test_a_client_reads_or_refuses_any_form(data):
    content, _ = sent(FORM)
    content[short.SHORT] = ConfigRecord({"form": json.dumps(data.draw(mutated(json.loads(FORM.header))))})
    with suppress(FlwrFcoError):
        answered(content, lambda given: given, data.draw(st.sampled_from([1, "first"])), max_parameters=10_000)


TOO_LARGE = layout_of(("w", "float32", (10**6, 10**6), True))
NO_FORMS = [({"seed": seed}, ProtocolError, f"cannot be read: .*seed={seed!r}") for seed in (None, 0.5, "1")]
NO_FORMS += [({"layout": TOO_LARGE}, ConfigurationError, r"1000000000000 parameters.*max_parameters=1e\+08.*short_mod")]


@pytest.mark.parametrize(("change", "kind", "message"), NO_FORMS)
def test_a_client_refuses_a_form_before_it_makes_a_model(change, kind, message):
    content, _ = sent(FORM)
    content[short.SHORT] = ConfigRecord({"form": FORM._replace(**change).header})
    refused(message, answered, content, lambda given: given, kind=kind)


# --- runs -------------------------------------------------------------------------------------------------------------

RNG = np.random.default_rng(0)
SHAPES = {"conv": (4, 2, 3, 3), "hidden": (60, 36), "bias": (60,), "head": (10, 60), "frozen": (20, 20)}
START = {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
START |= {"bn.running_mean": np.zeros(3, np.float32), "bn.num_batches_tracked": np.array(0)}
OPTIONS = {"client": "unmodified", "density": 0.2, "fraction_evaluate": 0.0}


def walking(arrays, message, context):
    """A client that goes to a fixed place of its own."""
    rng = np.random.default_rng(context.node_config["partition-id"])
    ends = {name: 2.0 * rng.standard_normal(shape) for name, shape in SHAPES.items() if name != "frozen"}
    moved = {n: a + (0.2 * (ends[n] - a) if n in ends else 0) for n, a in arrays.items()}
    moved |= {name: arrays[name] + 1 for name in arrays if name.startswith("bn.")}
    return {name: np.asarray(moved[name], arrays[name].dtype) for name in arrays}


def run(app=None, **options):
    own = FedDualAvg(**OPTIONS | {"wire": Short()} | options)
    result = simulated(own, app or foreign_app(walking, mods=[short_mod()]), 12, initial_arrays=START)
    return numpy_of(result.arrays), own, result


def length(record):
    return sum(len(array.data) for array in record.values())


def test_a_run_says_what_it_costs_and_ends_near_that_of_whole_messages():
    found, own, result = run()
    whole, _, plain = run(wire=FedDualAvg().wire)
    for name in ("bn.running_mean", "bn.num_batches_tracked", "frozen"):
        np.testing.assert_array_equal(found[name], whole[name])
    np.testing.assert_array_equal(found["frozen"], START["frozen"])
    assert (found["bn.running_mean"][0], found["bn.num_batches_tracked"]) == (12.0, 12)
    assert sum(np.count_nonzero(found[n]) for n in ("conv", "hidden", "head")) == round(0.2 * (72 + 2160 + 600))
    kept = np.concatenate([np.ravel((found[n] != 0) == (whole[n] != 0)) for n in ("conv", "hidden", "head")])
    assert kept.mean() > 0.97
    last, all_of_it = (each.train_metrics_clientapp[12] for each in (result, plain))
    assert last["bytes-fedavg"] == all_of_it["bytes-down"] + all_of_it["bytes-up"] == 8 * length(arrays_of(START))
    assert last["bytes-down"] + last["bytes-up"] < last["bytes-fedavg"] / 2.5
    said = dict(own.describe())["Short messages"]
    assert "int8 down, int8 up" in said
    assert "times as many" in said
    assert f"messages of training: {said.partition('; ')[2].partition('; ')[2]}" in str(result)


LINE = "ClientApp(mods=[flwr_fco.short_mod()])"


def needs_its_arrays(arrays, message, context):
    raise RuntimeError("shapes differ")


@pytest.mark.parametrize("trained", [walking, needs_its_arrays])
def test_a_client_without_the_mod_is_refused_with_the_line_to_add(trained):
    where = {"num_nodes": 3, "initial_arrays": START, "raise_errors": False}
    with pytest.raises(NothingTrainedError, match=re.escape(LINE)) as caught:
        simulated(FedDualAvg(**OPTIONS, wire=Short()), foreign_app(trained), 4, **where)
    rows = caught.value.result.left_out
    assert [row.round for row in rows] == [1, 1, 1, 2, 2, 2]  # of four rounds
    assert all(row.reason.endswith(LINE) for row in rows)


def test_evaluations_are_short_and_of_the_model():
    lengths, seen = [], []

    def counted(message, context, call_next):
        if message.metadata.message_type == "evaluate":
            lengths.append(length(message.content["arrays"]))
        return call_next(message, context)

    def evaluated(message, context):
        seen.append(message.content["arrays"])
        return {}

    app = foreign_app(walking, evaluated=evaluated, mods=[counted, short_mod()])
    _, _, result = run(app, fraction_evaluate=1.0)
    assert seen[-1] == result.arrays
    assert max(lengths[-4:]) < 0.6 * length(result.arrays)


@pytest.mark.parametrize("options", [{"density": Density(0.25, "global")}, {"wire": Short("float16", "float16")}])
def test_clients_of_this_package_learn_with_a_fraction_of_the_bytes(options):
    data = digits(num_clients=4, alpha=None)
    clients = client_app(lambda context: data.objective(context.node_config["partition-id"]), mods=[short_mod()])
    test = data.test_objective()
    found = []
    for more in ({}, {"wire": Short(), **options}):
        given = {"density": 0.25, "client_lr": 0.3, "work": Steps(5), "fraction_evaluate": 0.0, **more}
        result = simulated(FedDualAvg(**given), clients, 20, initial_arrays=zeros(test.layout))
        found.append(test.metrics(test.layout.flatten(numpy_of(result.arrays)))["accuracy"])
    assert np.count_nonzero(result.arrays["coefficients"].numpy()) == 160
    assert found[1] > found[0] - 0.01
    last = result.train_metrics_clientapp[20]
    assert last["bytes-down"] + last["bytes-up"] < last["bytes-fedavg"] / 4
