"""Making texts from others' files safe to show in a terminal, a table or a figure."""

from __future__ import annotations

import re

UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, which begin escape sequences; marks that change the writing direction; lone surrogates."""


def visible(text: str) -> str:
    r"""The text in one line, with escapes such as \x1b in place of characters that cannot be seen."""
    return UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def shorten(text: str, most: int) -> str:
    """The text, or its beginning and end if it is longer than ``most`` characters."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - most // 2 + 1 :]}"
