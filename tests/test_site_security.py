"""Who gets in: certificates, greetings, and messages that do not fit."""

import contextlib
import json
import logging
import os
import socket
import ssl
import struct
import subprocess
import sys
import time
from datetime import timedelta

import grpc
import numpy as np
import pytest

from proxdasa.sites import keys
from proxdasa.sites.connections import METHOD, Connections
from proxdasa.sites.greetings import GREETING, greeting_fault
from proxdasa.sites.links import Links
from proxdasa.sites.notifier import Notifier
from proxdasa.sites.rounds import Rounds
from proxdasa.sites.sparing_log import BURST, Sparing
from proxdasa.sites.streams import BOX, QUEUE, Stream
from proxdasa.sites.wire_format import SIZE, TURNS, Kind, Message, unpack
from tests.federation import HOST, Relay, credentials, free_ports, make_keys

STUDY = {"study file": "abc", "version of proxdasa": "1"}


def wait_until(happened, timeout=20):
    until = time.monotonic() + timeout
    while not happened() and time.monotonic() < until:
        time.sleep(0.005)
    assert happened()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    make_keys(folder, ["aachen", "berlin", "celle"])
    return folder


@pytest.fixture
def connections(folder):
    """Aachen, whose one neighbour is Berlin, and which waits to be called."""
    connections = Connections("aachen", {"berlin": ""}, f"{HOST}:0", credentials(folder, "aachen"), STUDY, 1_000)
    yield connections
    connections.close()


class Caller:
    """A program that calls Aachen with some certificate and says what it likes."""

    def __init__(self, connections, folder, name, greeting=None):
        key, certificate, roots = (
            (folder / file).read_bytes() for file in (f"{name}.key", f"{name}.crt", keys.CERTIFICATE)
        )
        self._channel = grpc.secure_channel(
            f"{HOST}:{connections.port}",
            grpc.ssl_channel_credentials(roots, key, certificate),
            [("grpc.ssl_target_name_override", "aachen")],
        )
        self._open = True
        said = json.dumps({"site": name, **STUDY} if greeting is None else greeting)
        self.messages = [Message(Kind.HELLO, payload=said.encode()).pack()] if said != "{}" else []
        self.call = self._channel.stream_stream(METHOD)(self._send())

    def _send(self):
        while self._open:
            while self.messages:
                yield self.messages.pop(0)
            time.sleep(0.002)

    def refusal(self):
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self.call:
                pass
        return caught.value.details()

    def close(self):
        self._open = False
        self._channel.close()


@pytest.fixture
def call(connections, folder):
    callers = []

    def make(name, greeting=None, at=folder):
        callers.append(Caller(connections, at, name, greeting))
        return callers[-1]

    yield make
    for caller in callers:
        caller.close()


def test_a_neighbour_gets_in(connections, call):
    caller = call("berlin")
    assert unpack(next(caller.call)).kind is Kind.HELLO
    wait_until(lambda: connections.connected("berlin"))
    caller.messages.append(Message(Kind.WHERE, k=7, sequence=0).pack())
    wait_until(lambda: connections.boxes["berlin"])
    assert connections.boxes["berlin"][0].k == 7
    assert connections.send("berlin", Message(Kind.WHERE, k=8))
    assert unpack(next(caller.call)).k == 8
    assert connections.spent["refused"] == 0


def test_a_site_that_is_no_neighbour_is_refused(connections, call):
    assert call("celle").refusal() == "celle is no neighbour of aachen"
    assert connections.spent["refused"] == 1
    assert not connections.connected("berlin")


def test_a_greeting_of_lists_within_lists_is_none():
    endless = Message(Kind.HELLO, payload=b"[" * GREETING).pack()
    assert greeting_fault("aachen", STUDY, "berlin", endless) == "berlin sent no greeting"


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        ({"site": "celle", **STUDY}, "the certificate is of berlin, but the greeting of 'celle'"),
        ({"site": "berlin", **STUDY, "study file": "other"}, "berlin and aachen do not have the same study file"),
        (
            {"site": "berlin", **STUDY, "version of proxdasa": "2"},
            "berlin and aachen do not have the same version of proxdasa",
        ),
        ([1, 2], "berlin sent no greeting"),
    ],
)
def test_greetings_that_do_not_fit(connections, call, greeting, words):
    assert call("berlin", greeting).refusal() == words
    assert connections.spent["refused"] == 1


def test_a_foreign_authority_is_refused(connections, call, folder, tmp_path):
    make_keys(tmp_path, ["berlin"])
    (tmp_path / keys.CERTIFICATE).write_bytes((folder / keys.CERTIFICATE).read_bytes())  # so that we trust aachen
    call("berlin", at=tmp_path).refusal()
    assert not connections.connected("berlin")


@pytest.mark.parametrize("foreign", [False, True])
def test_whoever_answers_in_place_of_a_neighbour_is_refused(folder, tmp_path, foreign):
    """One has a certificate of the same authority in another name, the other one in this name of its own authority."""
    make_keys(tmp_path, ["berlin"])
    own = credentials(tmp_path, "berlin") if foreign else credentials(folder, "celle")
    other = Connections("berlin", {"aachen": ""}, f"{HOST}:0", own, STUDY, 1_000)
    aachen = Connections(
        "aachen", {"berlin": f"{HOST}:{other.port}"}, None, credentials(folder, "aachen"), STUDY, 1_000
    )
    try:
        wait_until(lambda: aachen.spent["refused"])
        assert not aachen.connected("berlin")
    finally:
        aachen.close()
        other.close()


def test_a_neighbour_that_is_not_there_is_not_refused(folder, monkeypatch):
    lines = []
    monkeypatch.setattr(logging.getLogger("proxdasa.sites"), "debug", lambda text, *values: lines.append(text % values))
    address = f"{HOST}:{free_ports(1)[0]}"
    aachen = Connections("aachen", {"berlin": address}, None, credentials(folder, "aachen"), STUDY, 1_000)
    try:
        wait_until(lambda: any("berlin cannot be reached" in line for line in lines))
    finally:
        aachen.close()
    assert aachen.spent["refused"] == 0


def test_an_expired_certificate_is_refused(connections, call, folder, tmp_path, monkeypatch):
    for file in ("authority/authority.crt", "authority/authority.key", keys.CERTIFICATE):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    _, request = keys.make_request("berlin", tmp_path)
    monkeypatch.setattr(keys, "SKEW", timedelta(days=3))
    monkeypatch.setattr(keys, "timedelta", lambda days: timedelta(days=-days))
    keys.sign(tmp_path / "authority", request, days=1)
    with pytest.raises(ValueError, match="expired on"):
        keys.check_pair(*credentials(tmp_path, "berlin"))
    call("berlin", at=tmp_path).refusal()
    assert not connections.connected("berlin")


def test_tls_1_2_is_refused(connections, folder):
    context = ssl.create_default_context(cafile=str(folder / keys.CERTIFICATE))
    context.load_cert_chain(folder / "berlin.crt", folder / "berlin.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((HOST, connections.port)) as raw,
        context.wrap_socket(raw, server_hostname="aachen") as new,
    ):
        assert new.version() == "TLSv1.3"
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with (
        socket.create_connection((HOST, connections.port)) as raw,
        pytest.raises((ssl.SSLError, OSError)),
        context.wrap_socket(raw, server_hostname="aachen"),
    ):
        pass


def test_plain_tcp_does_no_harm(connections, call):
    with socket.create_connection((HOST, connections.port)) as raw:
        raw.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(1000))
        call("berlin")
        wait_until(lambda: connections.connected("berlin"))


@pytest.mark.parametrize(
    "data",
    [
        Message(Kind.WHERE, sequence=1).pack(),  # one is missing, or out of order
        b"short",
        struct.pack("<B", 99) + bytes(SIZE),  # of no kind
        Message(Kind.ROWS, payload=bytes(20_000)).pack(),  # larger than any that is due
    ],
)
def test_letters_that_do_not_fit_end_the_stream(connections, call, data):
    caller = call("berlin")
    wait_until(lambda: connections.connected("berlin"))
    caller.messages.append(data)
    wait_until(lambda: not connections.connected("berlin"))
    assert not connections.boxes["berlin"]


def test_a_letter_that_is_sent_twice_ends_the_stream(connections, call):
    caller = call("berlin")
    wait_until(lambda: connections.connected("berlin"))
    caller.messages += [Message(Kind.WHERE, k=1).pack()] * 2
    wait_until(lambda: not connections.connected("berlin"))
    assert [message.k for message in connections.boxes["berlin"]] == [1]
    assert connections.spent["refused"] == 1


def test_a_flood_loses_the_oldest_letters(connections, call):
    caller = call("berlin")
    wait_until(lambda: connections.connected("berlin"))
    caller.messages += [Message(Kind.DROP, k=k, sequence=k).pack() for k in range(3 * BOX)]
    wait_until(lambda: connections.boxes["berlin"] and connections.boxes["berlin"][-1].k == 3 * BOX - 1)
    assert len(connections.boxes["berlin"]) == BOX


def test_a_site_that_computes_for_long_keeps_the_row_that_waits_for_it():
    """Its neighbour says in every second that it waits, and it reads nothing for minutes."""
    stream = Stream(Notifier(), attached=True)
    kinds = [Kind.ROWS, *[Kind.WHERE] * (3 * BOX), Kind.DONE]
    for number, kind in enumerate(kinds):
        assert isinstance(stream.take(Message(kind, k=number, sequence=number).pack()), bytes)
    assert [(message.kind, message.k) for message in stream.box] == [
        (Kind.ROWS, 0), (Kind.WHERE, 3 * BOX), (Kind.DONE, 3 * BOX + 1),
    ]  # fmt: skip


def test_a_row_that_takes_long_to_send_is_not_cut_off(connections):
    """Meanwhile the site says in every second that it waits; that must not fill the queue behind the row."""
    stream = connections._streams["berlin"] = Stream(connections.news, cancel=lambda: None)
    assert connections.send("berlin", Message(Kind.ROWS))
    assert all(connections.send("berlin", Message(Kind.WHERE)) for _ in range(2 * QUEUE))
    assert stream.outgoing.qsize() == 1
    assert connections.spent["bytes"] == SIZE
    del connections._streams["berlin"]


def test_messages_are_numbered_anew_in_a_long_stream():
    here, there = Stream(Notifier(), sent=TURNS - 1), Stream(Notifier(), received=TURNS - 1, attached=True)
    for _ in range(2):
        here.send(Message(Kind.ROWS))
        assert isinstance(there.take(here.outgoing.get()), bytes)


def test_the_log_is_limited_and_says_what_it_left_out(monkeypatch):
    """A neighbour could fill the disk with messages that are refused."""
    now = [0.0]
    monkeypatch.setattr("proxdasa.sites.sparing_log.time.monotonic", lambda: now[0])
    sparing, lines = Sparing(), []
    for second in (0.0, 2.0):
        now[0] = second
        for _ in range(2 * BURST):
            line = logging.LogRecord("", 0, "", 0, "%s lies", ("berlin",), None)
            lines += [line.getMessage()] if sparing.filter(line) else []
    assert lines == ["berlin lies"] * BURST + [f"({BURST} lines were left out) berlin lies", "berlin lies"]


def test_silent_calls_of_one_neighbour_do_not_keep_others_out(connections, call):
    first = call("berlin", greeting={})
    assert unpack(next(first.call)).kind is Kind.HELLO
    second = call("berlin", greeting={})
    assert unpack(next(second.call)).kind is Kind.HELLO
    assert first.refusal() == "CANCELLED"
    assert connections.spent["refused"] == 0, "it was not cut off for its silence"
    call("berlin")
    wait_until(lambda: connections.connected("berlin"))


def test_a_neighbour_that_takes_no_letters_is_cut_off(connections, call):
    call("berlin")  # it never reads
    wait_until(lambda: connections.connected("berlin"))
    until = time.monotonic() + 20
    while connections.send("berlin", Message(Kind.ROWS, payload=bytes(1_000))) and time.monotonic() < until:
        pass
    assert not connections.connected("berlin")


def test_bytes_between_sites_do_not_hold_the_rows(folder):
    """A relay between two sites sees nothing of what they send."""
    (port,) = free_ports(1)
    relay = Relay(port)
    row = bytes(range(256)) * 4
    berlin = Connections("berlin", {"aachen": ""}, f"{HOST}:{port}", credentials(folder, "berlin"), STUDY, 2_000)
    aachen = Connections(
        "aachen", {"berlin": f"{HOST}:{relay.port}"}, None, credentials(folder, "aachen"), STUDY, 2_000
    )
    try:
        wait_until(lambda: aachen.connected("berlin") and berlin.connected("aachen"))
        assert aachen.send("berlin", Message(Kind.ROWS, payload=row))
        wait_until(lambda: berlin.boxes["aachen"])
        assert berlin.boxes["aachen"][0].payload == row
    finally:
        aachen.close()
        berlin.close()
        relay.close()
    assert len(relay.seen) > len(row)
    assert row[:16] not in relay.seen


@pytest.fixture
def rounds(connections, call):
    """Aachen's rounds, in its first iteration, with Berlin on the line; what Berlin has written is in the box."""
    caller = call("berlin")
    wait_until(lambda: connections.connected("berlin"))

    def make(*messages):
        links = Links(connections, {"berlin": 0.5}, 2, patience=5.0, end=100)
        links.begin(0)
        caller.messages += [message._replace(sequence=number).pack() for number, message in enumerate(messages)]
        wait_until(lambda: len(connections.boxes["berlin"]) == len(messages))
        return Rounds(links, patience=5.0, wait=5.0)

    return make


@pytest.mark.parametrize(
    ("numbers", "accepted"),
    [((1.0, 2.0), False), ((1.0, 2.0, np.nan), False), ((1.0, -np.inf, 3.0), False), ((3e38, -3e38, 0.0), True)],
)
def test_rows_of_a_wrong_size_or_not_finite_are_refused(connections, rounds, numbers, accepted):
    payload = np.array(numbers, np.float32).tobytes()
    made = rounds(Message(Kind.ROWS, k=0, since=0, payload=payload))
    assert len(made.exchange(np.zeros((1, 1, 3), np.float32))) == accepted
    assert connections.spent["refused"] == (not accepted)
    assert (made.links.all["berlin"].since is None) is not accepted


def test_a_caller_without_a_greeting_is_cut_off(connections, call, monkeypatch):
    """Otherwise silent calls of one neighbour could take all threads, and keep the others out."""
    monkeypatch.setattr("proxdasa.sites.connections.GREETED_WITHIN", 0.2)
    caller = call("berlin", greeting={})
    assert unpack(next(caller.call)).kind is Kind.HELLO
    assert caller.refusal() == "CANCELLED"
    assert connections.spent["refused"] == 1
    assert not connections.connected("berlin")


WATCHED = """
import logging, os, sys, time
from pathlib import Path
from proxdasa.sites.failed_handshakes import report_failed_handshakes
with report_failed_handshakes() as report_to:
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    from proxdasa.sites.connections import Connections, Credentials
    folder = Path(sys.argv[1])
    own = Credentials(folder / "aachen.crt", folder / "aachen.key", folder / "authority.crt")
    connections = Connections("aachen", {"berlin": sys.argv[2]}, "127.0.0.1:0", own, {}, 1_000)
    report_to(connections)
    print(connections.port, flush=True)
    os.write(2, b"said by other C code\\n")
    sys.stdin.read()
    connections.close()
print("refused", connections.spent["refused"])
print("said at the end", file=sys.stderr)
"""


def test_failed_handshakes_are_logged_and_counted(folder, tmp_path):
    """By gRPC's own lines, which must still read as they did; everything else on standard error gets through."""
    with subprocess.Popen(
        [sys.executable, "-c", WATCHED, str(folder), ""],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"},
    ) as aachen:  # fmt: skip
        port = int(aachen.stdout.readline())
        with socket.create_connection((HOST, port), timeout=20) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            plain.recv(1)
        stranger = ssl.create_default_context(cafile=folder / keys.CERTIFICATE)
        stranger.check_hostname = False
        for _ in range(3):
            with (
                socket.create_connection((HOST, port), timeout=20) as tcp,
                contextlib.suppress(OSError),
                stranger.wrap_socket(tcp) as tls,
            ):
                tls.recv(1)
        out, err = aachen.communicate(timeout=60)
    assert out == "refused 4\n"
    assert "refused: a call that failed in the TLS handshake (http request)" in err
    assert "that failed in the TLS handshake (peer did not return a certificate)" in err
    assert "said by other C code\n" in err
    assert err.endswith("said at the end\n")
    assert "ssl_transport_security" not in err


WITHOUT_TERMINAL = """
import os
from proxdasa.sites.failed_handshakes import report_failed_handshakes
nobody, terminal = os.pipe()
os.dup2(terminal, 2)
os.close(terminal)
os.close(nobody)
with report_failed_handshakes():
    for _ in range(5_000):
        os.write(2, 99 * b"x" + b"\\n")
print("done")
"""


def test_a_terminal_that_is_gone_does_not_make_writers_wait():
    """They would wait for room in a pipe that nobody reads any more, and gRPC with them."""
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    command = [sys.executable, "-c", WITHOUT_TERMINAL]
    done = subprocess.run(command, stdout=subprocess.PIPE, timeout=60, env=environment, check=False)
    assert done.stdout == b"done\n"
