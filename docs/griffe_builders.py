"""Show functions in the reference as their decorators leave them; documentation is read from the source.

The source of a network's builder returns W, which a decorator turns into a `Network`. The source of `run` takes
``*args`` and ``**settings``, to which a decorator gives the names of a class's parameters.
"""

from __future__ import annotations

from typing import Any

import griffe

DECORATORS = "proxdasa.networks.recipes."


class Builders(griffe.Extension):
    """Correct what decorators change."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Replace the return type of a builder."""
        if any(decorator.callable_path.startswith(DECORATORS) for decorator in func.decorators):
            func.returns = "Network"

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Give functions that take the parameters of a dataclass these parameters, once the package is read."""
        for module in modules_of(pkg):
            for function in (each for each in module.functions.values() if not each.is_alias):
                for decorator in function.decorators:
                    if decorator.callable_path.endswith(".with_parameters_of"):
                        (kind,) = decorator.value.arguments  # type: ignore[union-attr]
                        function.parameters = griffe.Parameters(*fields_of(module[str(kind)]))


def fields_of(kind: griffe.Class) -> list[griffe.Parameter]:
    """The fields of a dataclass and its bases, as parameters; those after ``_: KW_ONLY`` are keywords."""
    fields, manner = [], griffe.ParameterKind.positional_or_keyword
    for each in (*reversed(kind.mro()), kind):
        for name, attribute in each.members.items():
            if not attribute.is_attribute:
                continue
            if name == "_":
                manner = griffe.ParameterKind.keyword_only
            elif attribute.annotation is not None and not attribute.has_labels("property"):
                default = attribute.value
                if str(default).startswith("field(default_factory="):
                    default = str(default).removeprefix("field(default_factory=").removesuffix(")") + "()"
                fields.append(griffe.Parameter(name, annotation=attribute.annotation, kind=manner, default=default))
    return fields


def modules_of(module: griffe.Module) -> list[griffe.Module]:
    """A module and those below it."""
    return [module, *(below for each in module.modules.values() if not each.is_alias for below in modules_of(each))]
