"""How curves look: the colour shows the method, in every figure and page, and the dash shows what else differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, NamedTuple

from proxdasa.reports.curves import Run, distinctions

Look = dict[str, Any]
"""Colour, marker and line style, as matplotlib takes them."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""The colours of Okabe and Ito, made for the colour-blind, without their yellow, which is faint on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
STYLES = ("-", "--", ":", "-.")

METHODS = {
    "Prox-DASA": ("#0072B2", "o"),
    "Prox-DASA-GT": ("#D55E00", "s"),
    "DEEPSTORM v2": ("#009E73", "^"),
    "ProxGT-SR-E": ("#CC79A7", "D"),
    "SPPDM": ("#E69F00", "v"),
    "D-PSGD": ("#56B4E9", "P"),
    "DProxSGT": ("#000000", "X"),
    "DEEPSTORM v1": ("#004D38", "<"),
    "DEEPSTORM v1-SVRG": ("#7FD6BC", ">"),
    "ProxGT-SR-O": ("#5A1846", "d"),
    "ProxGT-SA": ("#FF6F91", "p"),
    "D²": ("#0B2A66", "h"),
    "CDProxSGT": ("#606060", "*"),
    "PG-EXTRA": ("#6B4A00", "H"),
    "NEXT": ("#7A3FF2", "8"),
}
"""Colours and markers of the library's methods: those of Okabe and Ito for the ones most often compared. The others are
chosen so that any two differ for the colour-blind too, and all of them from white; markers tell close ones apart."""


def method_looks(titles: Sequence[str]) -> dict[str, Look]:
    """The colour and marker of each method; methods that the library does not know take those that are left."""
    taken = {METHODS[title][0] for title in titles if title in METHODS}
    spare = cycle([look for look in METHODS.values() if look[0] not in taken] or list(METHODS.values()))
    known = {title: METHODS[title] if title in METHODS else next(spare) for title in dict.fromkeys(titles)}
    return {title: {"color": colour, "marker": marker} for title, (colour, marker) in known.items()}


def dashes(values: Sequence[str]) -> dict[str, str]:
    """The line style of each value; the first is solid."""
    different = list(dict.fromkeys(values))
    if len(different) > len(STYLES):
        shown = ", ".join(different[: len(STYLES)])
        raise ValueError(
            f"a figure can distinguish {len(STYLES)} dashes, but the runs have {len(different)} different values: "
            f"{shown}, ...; compare fewer of them at a time"
        )
    return dict(zip(different, STYLES, strict=False))


class Looks(NamedTuple):
    """The names of some runs, how each looks, and what a legend has to explain."""

    names: list[str]
    looks: dict[str, Look]
    legend: dict[str, Look]


def run_looks(runs: Sequence[Run], others: Sequence[str] | None = None) -> Looks:
    """Colours by method, and dashes by ``others``, a text for each run; by default what distinguishes runs of a method.

    If there are more of these than dashes, a dash is the number of the run among those of its method; and if a method
    has more runs than there are dashes, every run has its own look.
    """
    more = distinctions(runs) if others is None else others
    names = [", ".join(filter(None, (run.title, text))) for run, text in zip(runs, more, strict=True)]
    colours, own = method_looks([run.title for run in runs]), [text for text in more if text]
    if others is None and len(set(own)) > len(STYLES):
        looks = _looks_within_methods(runs, names, colours) or numbered_looks(list(dict.fromkeys(names)))
        return Looks(names, looks, looks)
    styles = dashes(own)
    looks = {
        name: {**colours[run.title], "linestyle": styles.get(text, "-")}
        for name, run, text in zip(names, runs, more, strict=True)
    }
    if not all(more):  # a run without a text is solid too, so the legend lists all runs
        return Looks(names, looks, looks)
    legend = colours | {text: {"color": "0.4", "linestyle": style} for text, style in styles.items()}
    return Looks(names, looks, legend)


def _looks_within_methods(runs: Sequence[Run], names: Sequence[str], colours: Mapping[str, Look]) -> dict[str, Look]:
    """Dashes in the order of the runs of each method; nothing if one has too many."""
    mine: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        mine.setdefault(run.title, []).append(name)
    if max(map(len, mine.values())) > len(STYLES):
        return {}
    return {
        name: {**colours[title], "linestyle": style}
        for title, own in mine.items()
        for name, style in zip(own, STYLES, strict=False)
    }


def numbered_looks(labels: Sequence[str]) -> dict[str, Look]:
    """Looks by the order of labels, for curves that are not methods."""
    looks: dict[str, Look] = {}
    for i, label in enumerate(labels):
        turn, place = divmod(i, len(PALETTE))
        looks[label] = {"color": PALETTE[place], "marker": MARKERS[place], "linestyle": STYLES[turn % len(STYLES)]}
    return looks


def svg_dash(look: Mapping[str, Any]) -> str:
    """A line style as SVG writes it."""
    return dict(zip(STYLES, ("", "8 4", "2 4", "9 4 2 4"), strict=True))[look.get("linestyle", "-")]
