"""Replies are waited for with pauses that grow, where Flower's grids would sleep; other grids wait as they will."""

import logging

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from problems import app_of, problem, start_arrays

from flwr_fco.regularizers import L1
from flwr_fco.simulation import InProcessGrid
from flwr_fco.strategies import DualFL, Everyone, FedDualAvg, run_of
from flwr_fco.wire import envelope as delivery
from flwr_fco.wire import flower as _flower


class Clock:
    """Time that passes in `sleep` alone."""

    def __init__(self):
        self.now, self.pauses = 100.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(delivery, "time", clock)
    return clock


class PollingGrid(InProcessGrid):
    """Nodes of this process that answer after some seconds, as far as pulling goes, in a grid of Flower's kind."""

    def __init__(self, *arguments, clock, seconds=0.0, dead=(), **options):
        super().__init__(*arguments, **options)
        self.clock, self.seconds, self.dead = clock, seconds, set(dead)
        self.pushed, self.pulls, self.due = [], 0, {}

    def push_messages(self, messages):
        messages = list(messages)
        self.pushed += [(m.metadata.message_type, m.metadata.dst_node_id) for m in messages]
        numbers = []
        for message in messages:
            if message.metadata.dst_node_id in self.dead:
                # Flower's grids write the number into the message.
                numbers.append(f"dead-{len(self.pushed)}-{message.metadata.dst_node_id}")
                message.metadata.__dict__["_message_id"] = numbers[-1]
                reply = Message(Error(5, "Node Unavailable"), reply_to=message)
                reply.metadata.__dict__["_src_node_id"] = 1
                self._replies[numbers[-1]] = reply
            else:
                numbers += super().push_messages([message])
            self.due[numbers[-1]] = self.clock.now + self.seconds
        return numbers

    def pull_messages(self, message_ids):
        self.pulls += 1
        return super().pull_messages([number for number in message_ids if self.due[number] <= self.clock.now])


# What decides is whose function it is.
def _flowers(self, messages, *, timeout=None):
    raise AssertionError("Flower's own loop was used")


_flowers.__module__ = "flwr.superlink.grid.http_grid"
PollingGrid.send_and_receive = _flowers


def questions(grid):
    with grid.identity():
        return [Message(RecordDict(), node_id, "query.partition", group_id="0") for node_id in grid.contexts]


@pytest.mark.parametrize("seconds", [0.0, 0.5, 4.0, 60.0, 900.0])
def test_the_pauses_grow_with_the_wait(seconds, clock):
    grid = PollingGrid(app_of(problem()), 5, clock=clock, seconds=seconds)
    replies = delivery.send_and_receive(grid, questions(grid), 3600.0)
    assert len(replies) == 5
    late = clock.now - 100.0 - seconds
    assert 0.0 <= late <= min(1.0, max(0.01, 0.01 * seconds) + 1e-6)
    assert all(0.01 <= pause <= 1.0 for pause in clock.pauses)
    assert grid.pulls <= 1400


def test_a_timeout_is_kept(clock):
    grid = PollingGrid(app_of(problem()), 5, clock=clock, seconds=50.0)
    assert delivery.send_and_receive(grid, questions(grid), 7.3) == []
    assert clock.now == pytest.approx(107.3, abs=1e-3)


def test_those_who_answer_are_not_asked_for_again(clock):
    grid = PollingGrid(app_of(problem()), 5, clock=clock, seconds=1.0)
    asked = questions(grid)
    pulled = []
    true = grid.pull_messages
    grid.pull_messages = lambda numbers: pulled.append(len(numbers)) or true(numbers)
    push = grid.push_messages

    def slow_one(messages):
        numbers = push(messages)
        grid.due[numbers[0]] += 5.0
        return numbers

    grid.push_messages = slow_one
    assert len(delivery.send_and_receive(grid, asked, None)) == 5
    assert set(pulled) == {5, 1}


def test_a_message_that_could_not_be_pushed_is_not_waited_for(clock):
    grid = PollingGrid(app_of(problem()), 5, clock=clock)
    push = grid.push_messages
    grid.push_messages = lambda messages: [None, *push(list(messages)[1:])]
    assert len(delivery.send_and_receive(grid, questions(grid), 3600.0)) == 4
    assert clock.now == 100.0


def test_grids_of_their_own_wait_by_themselves(clock):
    class Own(InProcessGrid):
        def push_messages(self, messages):
            raise AssertionError("it has a send_and_receive of its own")

    grid = Own(app_of(problem()), 5)
    assert len(delivery.send_and_receive(grid, questions(grid), 1.0)) == 5
    assert not _flower.polls(grid)


def test_a_strategy_never_uses_the_naps_of_the_grid(clock):
    grid = PollingGrid(app_of(problem()), 5, clock=clock, seconds=2.0)
    strategy = FedDualAvg(regularizer=L1(0.1), client_lr=0.05, fraction_evaluate=1.0, certificate_every=1)
    with grid.identity():
        result = strategy.start(grid, start_arrays(), 3)
    assert len(result.train_metrics_clientapp) == len(result.evaluate_metrics_clientapp) == 3
    assert {kind for kind, _ in grid.pushed} == {"train", "evaluate", "query.question"}


def test_a_dead_node_is_not_asked_again_in_its_round(clock, caplog):
    grid = PollingGrid(app_of(problem()), 5, clock=clock)
    strategy = DualFL(nu=0.5, smoothness=1.0, participation=Everyone(evict_after=2, on_missing="reset"))
    with grid.identity(), caplog.at_level(logging.WARNING, "flwr"):
        run_of(strategy).prepare(start_arrays())
        for number in (1, 2, 3):
            if number == 2:
                grid.dead = {4}
            before = len(grid.pushed)
            run_of(strategy).train_round(number, start_arrays(), ConfigRecord(), grid)
            asked = [node for _, node in grid.pushed[before:]].count(4)
            assert asked == 1, number
    assert "partition 2 gave no good answer in round 2; rounds in a row without one: 1, evict_after=2" in caplog.text
    assert "can be started again with its key about a minute later" in caplog.text
    assert "partition 2 is given up" in caplog.text
