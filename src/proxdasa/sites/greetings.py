"""The first message of a stream each way: who the sender is, and which study it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from proxdasa.sites.wire_format import GREETING, Kind, Message, unpack


def greeting(me: str, study: Mapping[str, str]) -> bytes:
    """The greeting of a site."""
    return Message(Kind.HELLO, payload=json.dumps({"site": me, **study}).encode()).pack()


def greeting_fault(me: str, study: Mapping[str, str], name: str, data: bytes) -> str:
    """What is wrong with a greeting, if anything; ``name`` is the one in the sender's certificate."""
    try:
        message = unpack(data)
        said = json.loads(bytes(message.payload[:GREETING])) if message.kind is Kind.HELLO else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        return f"{name} sent no greeting"
    if said.get("site") != name:
        return f"the certificate is of {name}, but the greeting of {str(said.get('site'))[:64]!r}"
    for what, ours in study.items():
        if said.get(what) != ours:
            return f"{name} and {me} do not have the same {what}"
    return ""
