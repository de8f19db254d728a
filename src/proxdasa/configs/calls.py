"""Calls as people type them on a command line, such as ``torus(4, 5)`` or ``LinkLoss(0.3)``."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from proxdasa.conditions import Condition
from proxdasa.configs.objects import ROOMS, make
from proxdasa.configs.settings_file import ConfigError


def call_arguments(text: str, function: Callable[..., Any], example: str) -> dict[str, Any]:
    """The arguments in the brackets of a call of this function, by name."""
    try:
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        named = {keyword.arg: _value(keyword.value) for keyword in call.keywords if keyword.arg}
        bound = inspect.signature(function).bind_partial(*map(_value, call.args), **named)
    except (SyntaxError, ValueError, TypeError) as error:
        raise ConfigError(f"{text}: cannot be read: {error}; write a call such as {example}") from error
    return dict(bound.arguments)


def condition(text: str) -> Condition:
    """The condition that a call stands for, such as ``LinkLoss(0.3)``."""
    choices = {choice.__name__: choice for choice in ROOMS["condition"]}
    name = text.partition("(")[0].strip()
    if name not in choices:
        raise ConfigError(f"there is no condition {name!r}; accepted: {', '.join(choices)}")
    if "(" not in text:
        raise ConfigError(f"{text}: write a call such as LinkLoss(0.3)")
    made: Condition = make(choices[name], call_arguments(text, choices[name], "LinkLoss(0.3)"), text)
    return made


def _value(node: ast.expr) -> Any:
    """A number, text or list; a bare name, such as that of a weighting, is taken as a text."""
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)
