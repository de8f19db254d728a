"""Calls as people type them on a command line, such as ``torus(4, 5)`` or ``Every(5, Gossip(2))``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from proxdasa.conditions import Condition
from proxdasa.configs.objects import ROOMS, look_up, make
from proxdasa.configs.settings_file import ConfigError
from proxdasa.contracts import Mixing


def call_arguments(text: str, function: Callable[..., Any], example: str) -> dict[str, Any]:
    """The arguments in the brackets of a call of this function, by name."""
    try:
        call = ast.parse(text, mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("it is not a single call")
        return _arguments(call, function)
    except (SyntaxError, ValueError, TypeError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise ConfigError(f"{text}: cannot be read: {why}; write a call such as {example}") from error


def condition(text: str) -> Condition:
    """The condition that a call stands for, such as ``LinkLoss(0.3)``."""
    made: Condition = _object("condition", text, "LinkLoss(0.3)")
    return made


def mixing(text: str) -> Mixing:
    """The mixing that a call stands for, such as ``CompressedGossip(TopK(0.1), step=0.3)``."""
    made: Mixing = _object("mixing", text, "Gossip(2)")
    return made


def _object(kind: str, text: str, example: str) -> Any:
    """The object of a room that a call stands for, or a name alone if it needs no arguments."""
    choices = {choice.__name__: choice for choice in ROOMS[kind]}
    name = text.partition("(")[0].strip()
    if name not in choices:
        raise ConfigError(f"there is no {kind} {name!r}; accepted: {', '.join(choices)}, in a call such as {example}")
    text = text if "(" in text else f"{text}()"
    return make(*look_up(kind, {"name": name, **call_arguments(text, choices[name], example)}, text), text)


def _arguments(call: ast.Call, function: Callable[..., Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(f"**{ast.unparse(keyword.value)} is not accepted; give each argument by its name")
        named[keyword.arg] = _value(keyword.value)
    signature, given = inspect.signature(function), [_value(argument) for argument in call.args]
    try:
        return dict(signature.bind_partial(*given, **named).arguments)
    except TypeError as error:
        raise ValueError(f"{error}; {function.__name__} accepts {', '.join(signature.parameters)}") from error


def _value(node: ast.expr) -> Any:
    """A number, text or list; a bare name, such as that of a weighting, is a text, and a call an object's table."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(entry) for entry in node.elts]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        name = node.func.id
        known = {choice.__name__: choice for choices in ROOMS.values() for choice in choices}
        if name not in known:
            raise ValueError(f"there is no {name!r}")
        return {"name": name, **_arguments(node, known[name])}
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{ast.unparse(node)} is neither a number, a text, a list nor a call") from None
