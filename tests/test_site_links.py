"""What a site counts, message by message: the neighbours are played by the test."""

import threading
import time
from collections import deque

import numpy as np
import pytest
import torch

from proxdasa import networks
from proxdasa.engines.products import ExactProduct
from proxdasa.sites.links import BEAT, KEPT, LEAP, NEAR, NOTHING, UNKNOWN, Links
from proxdasa.sites.notifier import Notifier
from proxdasa.sites.rounds import Combination, Rounds
from proxdasa.sites.wire_format import NEVER, TURNS, Kind, Message, unpack

WEIGHTS = {"aachen": 0.25, "celle": 0.25}


class Letterbox:
    """What `Links` and `Rounds` need of a `proxdasa.sites.connections.Connections`; messages to send are kept."""

    me = "berlin"

    def __init__(self):
        self.boxes, self.news = {name: deque() for name in WEIGHTS}, Notifier()
        self.sent, self.refused = [], []
        self.gone = set()

    def put(self, name, *messages):
        self.boxes[name] += messages
        self.news.notify()

    def send(self, name, message):
        message.pack()  # it fits into a header
        self.sent.append((name, message))
        return True

    def connected(self, name):
        return name not in self.gone

    def refuse(self, why):
        self.refused.append(why)


@pytest.fixture
def links():
    return Links(Letterbox(), WEIGHTS, n=3, patience=60.0, end=100)


def row(k, value, since=0, counted=0):
    return Message(Kind.ROWS, 0, k, 0, since, counted, payload=torch.full((2,), value).numpy().tobytes())


def test_the_last_row_of_a_neighbour_that_has_finished_counts(links):
    """It has our row of this round, and counted it; that it has finished comes before the row of another one."""
    rounds, found = Rounds(links, patience=60.0, wait=1.0), {}
    links.begin(0)
    links.connections.put("aachen", row(0, 1.0), Message(Kind.DONE, k=0, payload=bytes(8)))
    waiting = threading.Thread(target=lambda: found.update(rounds.exchange(np.zeros(2, np.float32))), daemon=True)
    waiting.start()
    while links.connections.boxes["aachen"] or not links.all["aachen"].last_row:
        time.sleep(0.001)
    links.connections.put("celle", row(0, 2.0))
    waiting.join(20)
    assert {name: values.tolist() for name, values in found.items()} == {"aachen": [1.0, 1.0], "celle": [2.0, 2.0]}
    links.begin(1)
    assert links.all["aachen"].since is None, "no further row is expected of it"
    assert links.all["celle"].since == 0


def test_a_round_does_not_wait_for_a_neighbour_that_has_finished(links):
    links.begin(0)
    links.connections.put("aachen", Message(Kind.DONE, k=0, payload=bytes(8)))
    links.connections.put("celle", row(0, 2.0))
    assert list(Rounds(links, patience=60.0, wait=1.0).exchange(np.zeros(2, np.float32))) == ["celle"]


def test_the_row_of_a_neighbour_that_leaves_at_this_moment_counts(links, monkeypatch):
    """It has sent its row, so it may have counted ours."""

    def leave(name):
        if name == "aachen" and name not in links.connections.gone:
            links.connections.put(name, row(0, 1.0))
            links.connections.gone.add(name)
        return name not in links.connections.gone

    links.begin(0)
    links.connections.put("celle", row(0, 2.0))
    monkeypatch.setattr(links.connections, "connected", leave)
    assert {*Rounds(links, patience=60.0, wait=1.0).exchange(np.zeros(2, np.float32))} == {"aachen", "celle"}


@pytest.mark.parametrize(
    ("ours", "theirs", "reset"),
    [
        (NOTHING, NOTHING, False),
        ((4, 7), (4, 7), False),
        ((4, 7), (4, 8), True),
        ((4, 7), UNKNOWN, True),
        (UNKNOWN, NOTHING, True),
        (UNKNOWN, UNKNOWN, True),
    ],
)
def test_trackers_are_reset_unless_both_ends_know_that_they_counted_the_same(links, ours, theirs, reset):
    """After a power cut nobody knows: that both say so is no agreement."""
    link = links.all["aachen"]
    links.begin(9)
    link.since, link.last = None, ours
    links.connections.put("aachen", Message(Kind.PROPOSE, 0, 12, since=theirs[0], counted=theirs[1]))
    links.read()
    assert link.since == 12
    assert links.adopt() is reset


@pytest.mark.parametrize("here", range(4))
def test_a_combination_has_the_bits_of_the_exact_product(here):
    """Whatever is computed before rows come, and whoever comes; zeros with a sign too."""
    network, rng = networks.complete(4), np.random.default_rng(here)
    x = rng.normal(size=(4, 50)).astype(np.float32)
    x[rng.random(x.shape) < 0.5] = -0.0
    expected = ExactProduct(network.W, torch.float32)(torch.from_numpy(x)[None])[0, here].numpy()
    combination = Combination({j: float(network.W[here, j]) for j in range(4)}, here)
    others = [j for j in range(4) if j != here]
    for came in (others, others[1:], [], others):  # the weights of those who do not come stay here
        combination.begin(x[here])
        found = combination.end(x[here], {j: x[j] for j in came})
        total = np.zeros_like(found)
        for j in sorted([*came, here]):
            total += x[j] * np.float32(0.25 * (4 - len(came) if j == here else 1))
        assert found.tobytes() == total.tobytes()
    assert found.tobytes() == expected.tobytes()


def test_a_site_that_is_alone_keeps_the_pace_of_all(links):
    """Otherwise it is at the end before its neighbours can answer, and they jump after it."""
    for link in links.all.values():
        link.since = None
    links.pace = 30.0
    links.begin(0)
    waiting = threading.Thread(target=links.begin, args=(1,), daemon=True)
    waiting.start()
    links.connections.put("aachen", Message(Kind.WHERE, 0, 1))
    time.sleep(0.05)
    assert waiting.is_alive()
    links.connections.put("aachen", Message(Kind.PROPOSE, 0, 12, since=NOTHING[0], counted=NOTHING[1]))
    waiting.join(20)
    assert not waiting.is_alive(), "a neighbour that takes part again ends the pause"
    assert BEAT / 10 <= links.pace <= 30.0


LAST = 2**31 - 1
"""The largest number that the header of a message holds for an iteration."""


@pytest.mark.parametrize(
    "lie",
    [
        Message(Kind.DROP, 0, LAST, since=0),
        Message(Kind.WHERE, 0, LAST),
        Message(Kind.PROPOSE, 0, LAST),
        Message(Kind.PROPOSE, 0, -LAST),
        row(LAST, 1.0),
        row(0, 1.0)._replace(jump_at=-LAST, jump_to=LAST),
        row(0, 1.0)._replace(jump_at=LAST, jump_to=LAST),
        Message(Kind.DONE, 0, LAST, payload=bytes(3)),
    ],
)
def test_a_neighbour_that_lies_about_iterations_ends_no_site(links, lie):
    """At worst the others jump to the end; and what they tell third sites still fits into a message."""
    links.begin(0)
    links.connections.put("aachen", lie)
    for k in range(1, 8):
        links.connections.put("celle", row(links.begin(k), 2.0, counted=k - 1))
        rounds = Rounds(links, patience=0.0, wait=0.0)
        assert "celle" in rounds.exchange(np.zeros(2, np.float32))
        if links.all["aachen"].since is not None:
            links.drop(links.all["aachen"], "it does not matter any more")
        assert links.k <= links.end
        assert links.jump is None or links.jump[1] <= links.end


def test_a_jump_far_ahead_does_not_keep_a_site_from_a_real_one(links):
    links.begin(0)
    links.connections.put("aachen", row(0, 1.0)._replace(jump_at=99, jump_to=100))
    links.connections.put("celle", row(0, 1.0)._replace(jump_at=2, jump_to=70))
    links.begin(1)
    assert links.begin(2) == 70


def test_a_link_is_not_taken_up_for_an_iteration_far_ahead(links):
    links.begin(3)
    links.connections.put("aachen", Message(Kind.PROPOSE, 0, 4 + 2 * NEAR))
    links.read()
    assert links.all["aachen"].since is None
    assert [(name, message.kind) for name, message in links.connections.sent] == [("aachen", Kind.WHERE)]


def test_an_answer_without_a_proposal_resets_no_trackers(links):
    links.begin(0)
    links.drop(links.all["aachen"], "it is away")
    links.connections.put("aachen", Message(Kind.ACCEPT, 0, NEVER, since=5))
    links.read()
    assert not links.adopt()


def test_a_neighbour_cannot_claim_a_stop_where_there_is_no_vote():
    for votes, at, heard in ((0, 20, False), (10, 25, False), (10, 0, False), (10, 20, True)):
        links = Links(Letterbox(), WEIGHTS, n=3, patience=60.0, end=100, votes=votes)
        links.begin(5)
        links.connections.put("aachen", Message(Kind.WHERE, 0, 100, jump_at=at, jump_to=100))
        links.read()
        assert (links.stop == at) is heard


def test_a_neighbour_waits_for_the_others_at_the_start_only(links):
    """One that says so later cannot make a round wait as long as the start may take."""
    rounds, link = Rounds(links, patience=1.0, wait=600.0), links.all["aachen"]
    link.alive = time.monotonic()
    assert rounds._may_wait(link, 300.0)
    link.made = 1
    assert not rounds._may_wait(link, 300.0)
    assert rounds._may_wait(link, 2.0)


def test_few_rows_are_kept_and_none_of_a_link_that_does_not_count(links):
    links.begin(0)
    links.connections.put("aachen", *(row(0, 1.0)._replace(round=number) for number in range(100)))
    links.read()
    assert len(links.all["aachen"].rows) == KEPT
    links.drop(links.all["aachen"], "it does not matter")
    links.connections.put("aachen", row(1, 1.0))
    links.read()
    assert not links.all["aachen"].rows


def test_numbers_begin_again_before_they_outgrow_a_message(links):
    """A round within an iteration, the rounds that a link has counted; epochs do not get so far."""
    links.begin(0)
    links.round = links.all["celle"].counted = TURNS - 1
    rounds = Rounds(links, patience=0.0, wait=0.0)
    for number in (TURNS - 1, 0, 1):
        links.connections.put("celle", row(0, 2.0, counted=number)._replace(round=number))
        assert "celle" in rounds.exchange(np.zeros(2, np.float32))
    far = Message(Kind.WHERE, 2**62)
    assert unpack(far.pack()).epoch == 2**62
    for message in (far, far._replace(epoch=LEAP)):
        links.connections.put("celle", message)
    links.read()
    assert links.higher == LEAP
    assert len(links.connections.refused) == 1
