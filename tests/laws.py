"""How many examples Hypothesis takes of laws that cost more than others, as parts of the profile's number."""

from hypothesis import settings

__all__ = ["FEWER", "HALF", "TWICE"]


def _times(factor):
    return settings(max_examples=int(factor * settings.default.max_examples))


FEWER = _times(0.4)
"""For laws of which an example takes 20 ms or more."""
HALF = _times(0.5)
"""For laws that are checked in many cases, such as all regularisers."""
TWICE = _times(2)
"""For cheap laws whose violations only a few examples reveal."""
