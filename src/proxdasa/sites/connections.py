"""Encrypted streams to the neighbours of a site: gRPC with mutual TLS 1.3, one stream for each link.

Either end opens the stream, whichever can reach the other. A stream is accepted if the other end's certificate carries
the name of a neighbour and both ends have the same study. Messages are checked for size and order before they are put
into the neighbour's box; whatever is refused is logged, and the site carries on.

A round waits for the slowest of its messages, so they take the shortest path: the thread in which gRPC reads puts them
into the box and wakes the thread that waits for them.
"""

from __future__ import annotations

import logging
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from proxdasa.sites.greetings import greeting, greeting_fault
from proxdasa.sites.notifier import Notifier
from proxdasa.sites.sparing_log import Sparing
from proxdasa.sites.streams import Stream
from proxdasa.sites.wire_format import GREETING, SIZE, Message

# gRPC has no setting for the oldest version of TLS. The one suite that we leave to TLS 1.2 does not work with
# certificates, and the suites of TLS 1.3 are not affected, so no peer can negotiate an older version.
SUITES = "GRPC_SSL_CIPHER_SUITES"
ONLY_OURS = "ECDHE-PSK-CHACHA20-POLY1305"
TOO_LATE = "grpc" in sys.modules and os.environ.get(SUITES) != ONLY_OURS  # gRPC has read the variable already
os.environ[SUITES] = ONLY_OURS
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # unless `failed_handshakes` or the user wants its lines

import grpc  # noqa: E402

METHOD = "/proxdasa.Site/Link"
GRACE = 3.0
"""Seconds without a stream after which the end that normally waits to be called makes the call itself."""
RETRY = (0.2, 3.0)
"""The shortest and the longest pause, in seconds, between two attempts to reach a neighbour."""
GREETED_WITHIN = 10.0
"""Seconds that a caller has for its greeting; the number of calls is limited, so silent ones would keep others out."""
KEEPALIVE = 5_000
"""Milliseconds between two keepalive pings on an idle stream, and the time limit for their answers."""

NOT_THEM = ("tsi_protocol_failure", "verification check failed")
"""Words in gRPC's error messages after a handshake with a peer that is not the neighbour. They only decide what is
logged and counted; a test fails if gRPC changes them."""

log = logging.getLogger("proxdasa.sites")
log.addFilter(Sparing())


class Credentials(NamedTuple):
    """The files with which a site proves its identity and checks the identity of others."""

    certificate: Path
    key: Path
    authorities: Path


class _Door(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Makes a stream for each call; a handler registered in gRPC's usual way would share one between all calls."""

    def __init__(self, answer: Any, news: Notifier) -> None:
        self._answer, self._news = answer, news

    def service(self, handler_call_details: Any) -> Any:
        """The handler for a call."""
        if handler_call_details.method != METHOD:
            return None
        stream = Stream(self._news)
        return grpc.stream_stream_rpc_method_handler(partial(self._answer, stream), request_deserializer=stream.take)


class Connections:
    """The streams of a site, and a box of messages for each neighbour."""

    def __init__(
        self,
        me: str,
        neighbours: Mapping[str, str],
        listen: str | None,
        credentials: Credentials,
        study: Mapping[str, str],
        largest: int,
    ) -> None:
        """``neighbours`` maps names to addresses ("" if we cannot call them); ``study`` must be equal at all sites."""
        if TOO_LATE:
            raise RuntimeError(
                "grpc was imported before proxdasa.sites, so older versions of TLS cannot be refused; import "
                f"proxdasa.sites.connections first, or set {SUITES}={ONLY_OURS}"
            )
        self.me, self._addresses, self._study = me, dict(neighbours), dict(study)
        self.boxes: dict[str, deque[Message]] = {name: deque() for name in neighbours}
        """The messages of each neighbour's latest stream."""
        self.news = Notifier()
        """Notified when a message arrives and when a stream opens or closes."""
        self.spent = {"bytes": 0, "refused": 0}
        self.counts_handshakes = False
        """Whether `failed_handshakes` counts every handshake that fails, our own calls included."""
        self.sent = dict.fromkeys(neighbours, 0)
        """The bytes sent to each neighbour."""
        self._streams: dict[str, Stream] = {}
        self._silent: dict[str, Any] = {}
        """The call of each neighbour from which no greeting has come yet."""
        self._lock = threading.Lock()  # for the streams and silent calls
        self._largest, self._closed = SIZE + max(largest, GREETING), threading.Event()
        self._files = tuple(file.read_bytes() for file in (credentials.key, credentials.certificate))
        self._roots = credentials.authorities.read_bytes()
        self._options = [
            ("grpc.max_receive_message_length", self._largest),
            ("grpc.keepalive_time_ms", KEEPALIVE),
            ("grpc.keepalive_timeout_ms", KEEPALIVE),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE // 2),
            ("grpc.so_reuseport", 0),
        ]
        self.port = 0
        self._server = self._serve(listen) if listen else None
        self._callers = [threading.Thread(target=self._call, args=(name,), daemon=True) for name in neighbours]
        for thread in self._callers:
            thread.start()

    def send(self, name: str, message: Message) -> bool:
        """Send a message to a neighbour; false if there is no stream to it."""
        stream = self._streams.get(name)
        if stream is None:
            return False
        if stream.full():
            self._detach(name, stream, f"{name} does not read its messages")
            return False
        size = stream.send(message)
        self.spent["bytes"] += size
        self.sent[name] += size
        return True

    def connected(self, name: str) -> bool:
        """Whether there is a stream to a neighbour."""
        return name in self._streams

    def close(self) -> None:
        """End all streams."""
        self._closed.set()
        for name, stream in list(self._streams.items()):
            self._detach(name, stream, "")
        if self._server:
            self._server.stop(0.5).wait()
        for thread in self._callers:
            thread.join(timeout=5)

    def _serve(self, listen: str) -> Any:
        pool = ThreadPoolExecutor(2 * len(self._addresses) + 8, thread_name_prefix="proxdasa-connection")
        server = grpc.server(
            pool,
            handlers=[_Door(self._answer, self.news)],
            options=self._options,
            maximum_concurrent_rpcs=2 * len(self._addresses) + 8,  # more are turned away
        )
        credentials = grpc.ssl_server_credentials([self._files], self._roots, require_client_auth=True)
        try:
            self.port = server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise OSError(
                f"cannot listen at {listen}: does another program use it, or is it not an address of this machine?"
            ) from error
        server.start()
        return server

    def _answer(self, stream: Stream, messages: Iterator[Any], context: Any) -> Iterator[bytes]:
        """Answer a call, which may come from a neighbour or from a stranger."""
        who = context.auth_context()
        names = who.get("x509_subject_alternative_name") or who.get("x509_common_name") or []
        name = names[0].decode(errors="replace") if len(names) == 1 else ""
        if name not in self._addresses:
            self.refuse(f"{name or context.peer()}, who is no neighbour of {self.me}")
            context.abort(grpc.StatusCode.PERMISSION_DENIED, f"{name} is no neighbour of {self.me}")
        stream.cancel = context.cancel
        with self._lock:
            before, self._silent[name] = self._silent.get(name), context
        if before:  # calls are limited, and one neighbour could keep the others out
            before.cancel()
        # We send our greeting before we judge theirs, so that the other end can log what does not match.
        yield greeting(self.me, self._study)
        hurry = threading.Timer(GREETED_WITHIN, self._cut_off, (name, context))
        hurry.start()
        try:
            fault = greeting_fault(self.me, self._study, name, next(messages))
        except (StopIteration, grpc.RpcError):
            return
        finally:
            hurry.cancel()
            with self._lock:
                if self._silent.get(name) is context:
                    del self._silent[name]
        if fault:
            self.refuse(fault)
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, fault)
        reader = threading.Thread(target=self._read, args=(name, stream, messages), daemon=True)
        context.add_callback(lambda: self._detach(name, stream, f"{name} is gone"))
        self._attach(name, stream)
        reader.start()
        yield from stream.messages()

    def _cut_off(self, name: str, context: Any) -> None:
        self.refuse(f"{name} sent no greeting within {GREETED_WITHIN:.0f} s")
        context.cancel()

    def _call(self, name: str) -> None:
        """Call a neighbour whenever there is no stream to it."""
        address, pause, missing = self._addresses[name], RETRY[0], time.monotonic()
        if not address:
            return
        files = (self._roots, *self._files)
        # The certificate must carry the neighbour's name; the host name in the address may differ.
        options = [*self._options, ("grpc.ssl_target_name_override", name)]
        while not self._closed.is_set():
            if self.connected(name):
                missing, pause = time.monotonic(), RETRY[0]
            elif self.me < name or time.monotonic() - missing > GRACE:
                with grpc.secure_channel(address, grpc.ssl_channel_credentials(*files), options) as channel:
                    self._converse(name, channel)
                pause = min(2 * pause, RETRY[1])
            self._closed.wait(pause * random.uniform(0.7, 1.3))  # so that two ends do not call in step

    def _converse(self, name: str, channel: Any) -> None:
        stream = Stream(self.news)
        call = channel.stream_stream(METHOD, response_deserializer=stream.take)(stream.messages())
        stream.cancel = call.cancel
        stream.outgoing.put(greeting(self.me, self._study))
        try:
            fault = greeting_fault(self.me, self._study, name, next(call))
            if fault:
                self.refuse(fault)
                return
            self._attach(name, stream)
            self._read(name, stream, call)
        except StopIteration:
            pass
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.FAILED_PRECONDITION):
                log.warning("%s refuses us: %.200r", name, error.details())  # its words: they could imitate our lines
            elif any(words in (error.details() or "").lower() for words in NOT_THEM):
                why = f"the peer at the address of {name}; its certificate is not {name}'s: {error.details()}"
                self.refuse(why, times=0 if self.counts_handshakes else 1)
            else:
                log.debug("%s cannot be reached: %s", name, error.details())
        finally:
            stream.close()
            call.cancel()
            self._detach(name, stream, f"{name} is gone")

    def _read(self, name: str, stream: Stream, messages: Iterator[Any]) -> None:
        """Let gRPC read until the stream ends or a message is refused; `Stream.take` handles the messages."""
        try:
            for taken in messages:
                if isinstance(taken, ValueError):
                    self.refuse(f"{name}: {taken}")
                    break
        except grpc.RpcError as error:
            log.debug("%s: %s", name, error)
        self._detach(name, stream, f"{name} is gone")

    def _attach(self, name: str, stream: Stream) -> None:
        with self._lock:
            before, self._streams[name] = self._streams.get(name), stream
            self.boxes[name] = stream.box  # unread messages of an earlier stream are discarded
            stream.attached = True
            if before:
                before.attached = False
        self.news.notify()
        if before:  # the other end would not have called if it still had the old stream
            before.close(at_once=True)
        log.info("%s is there", name)

    def _detach(self, name: str, stream: Stream, why: str) -> None:
        with self._lock:
            if self._streams.get(name) is not stream:
                return
            del self._streams[name]
            stream.attached = False
        self.news.notify()
        stream.close()
        if why:
            log.info("%s", why)

    def refuse(self, why: str, times: int = 1) -> None:
        """Log a refusal, and count it this many times."""
        self.spent["refused"] += times
        log.warning("refused: %s", why)
