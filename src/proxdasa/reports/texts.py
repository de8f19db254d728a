"""Texts that others wrote, as a terminal, a table or a figure may show them."""

from __future__ import annotations

import re

UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, with which escape sequences begin; marks that turn the direction of writing; half characters."""


def visible(text: str) -> str:
    r"""The text in one line, with escapes such as \x1b in place of characters that act rather than show."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its end if it is longer."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - most // 2 + 1 :]}"
