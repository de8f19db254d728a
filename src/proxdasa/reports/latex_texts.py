"""Any text as plain LaTeX, in ASCII, which every TeX compiles."""

from __future__ import annotations

import re
import unicodedata

_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
    "ι": "iota", "κ": "kappa", "λ": "lambda", "μ": "mu", "ν": "nu", "ξ": "xi", "π": "pi", "ρ": "rho", "ϱ": "varrho",
    "σ": "sigma", "τ": "tau", "υ": "upsilon", "φ": "varphi", "χ": "chi", "ψ": "psi", "ω": "omega", "Γ": "Gamma",
    "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Ξ": "Xi", "Π": "Pi", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_SIGNS = {
    "±": "pm", "≥": "ge", "≤": "le", "×": "times", "∞": "infty", "∝": "propto", "∇": "nabla", "·": "cdot", "√": "surd",
    "→": "rightarrow", "≈": "approx", "∈": "in", "∑": "sum", "⌈": "lceil", "⌉": "rceil", "⌊": "lfloor", "⌋": "rfloor",
    "‖": "|",
}  # fmt: skip
COMMANDS = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"|": r"\textbar{}", "<": r"\textless{}", ">": r"\textgreater{}", "…": r"\dots{}", "−": "$-$"}
    | {"—": "---", "–": "--", "“": "``", "”": "''", "‘": "`", "’": "'", "\u00a0": "~"}
    | {sign: f"$\\{name}$" for sign, name in (_SIGNS | _GREEK).items()}
)
"""Characters that LaTeX reads as commands, or that its usual fonts lack."""
ACCENTS = {
    "\u0300": "`", "\u0301": "'", "\u0302": "^", "\u0303": "~", "\u0304": "=", "\u0306": "u", "\u0307": ".",
    "\u0308": '"', "\u030a": "r", "\u030b": "H", "\u030c": "v", "\u0327": "c", "\u0328": "k",
}  # fmt: skip
"""Marks that follow the letter they belong to, such as the bar over x, and LaTeX's command for each."""


def latex(text: str) -> str:
    """The text for LaTeX; a character that it cannot show is replaced by its number, such as U+4E2D."""
    pieces = []
    for letter, marks in re.findall("(.)([\u0300-\u036f]*)", unicodedata.normalize("NFD", text), re.DOTALL):
        piece = _character(letter)
        for mark in marks:
            piece = rf"\{ACCENTS[mark]}{{{piece}}}" if mark in ACCENTS else piece + _number(mark)
        pieces.append(piece)
    return "".join(pieces)


def _character(character: str) -> str:
    plain = character.translate(COMMANDS)
    if plain.isascii():
        return plain
    kind, _, codes = unicodedata.decomposition(character).partition(" ")
    if kind not in ("<super>", "<sub>"):
        return _number(character)
    raised = "".join(_character(chr(int(code, 16))) for code in codes.split())
    return rf"\text{kind[1:-1]}script{{{raised}}}"


def _number(character: str) -> str:
    return rf"\texttt{{U+{ord(character):04X}}}"
