"""What a configuration file can name, read from our source code, because importing PyTorch takes seconds.

Only what `ROOMS`, `NAMED` and `DTYPES` of `proxdasa.configs.objects` refer to is read. Names are looked up as Python
does, through assignments and imports; a test compares all that is read here with the objects themselves.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]
OBJECTS, SETUP = "proxdasa.configs.objects", "proxdasa.runs.setup"
Function = ast.FunctionDef | ast.ClassDef


class Found(NamedTuple):
    """An expression or definition, and the module where its names are looked up; a module has no node."""

    module: str
    node: ast.AST | None


class Parameter(NamedTuple):
    """A parameter of a class or function; the default is a text, and there is none if it must be given."""

    name: str
    default: str | None

    def __str__(self) -> str:
        return self.name if self.default is None else f"{self.name}={self.default}"


class Entry(NamedTuple):
    """A class or function that a file can name: its parameters, and the first line of its description."""

    name: str
    parameters: list[Parameter]
    summary: str


def run_keys() -> list[Parameter]:
    """The keys of a file: the parameters of a run."""
    return list(_parameters(_look_up(SETUP, "Setup")))


def rooms() -> dict[str, list[Entry]]:
    """The objects that a file can name, by kind."""
    return {kind: list(map(_entry, choices)) for kind, choices in _table("ROOMS").items()}


def values() -> dict[str, list[str]]:
    """The values of parameters that a file gives by name, by kind; a measure with parameters is shown with them."""
    dtypes = ast.literal_eval(_keys_of(_look_up(OBJECTS, "DTYPES")))
    return {kind: list(map(_value, choices)) for kind, choices in _table("NAMED").items()} | {"dtype": dtypes}


def _table(name: str) -> dict[str, list[Found]]:
    """A dictionary of tuples in the module of objects."""
    found = _look_up(OBJECTS, name)
    assert isinstance(found.node, ast.Dict)
    return {
        ast.literal_eval(key): list(_members(_resolve(found.module, tuple_)))
        for key, tuple_ in zip(found.node.keys, found.node.values, strict=True)
        if key
    }


def _members(found: Found) -> Iterator[Found]:
    assert isinstance(found.node, ast.Tuple)
    return (_resolve(found.module, member) for member in found.node.elts)


def _keys_of(found: Found) -> ast.List:
    assert isinstance(found.node, ast.Dict)
    return ast.List([key for key in found.node.keys if key])


def _entry(found: Found) -> Entry:
    assert isinstance(found.node, Function)
    description = ast.get_docstring(found.node) or ""
    return Entry(found.node.name, list(_parameters(found)), description.partition("\n")[0])


def _value(found: Found) -> str:
    if isinstance(found.node, Function) and found.module == "proxdasa.metrics":  # a measure with parameters
        return f"{found.node.name}({', '.join(map(str, _parameters(found)))})"
    return _name(found)


def _parameters(found: Found) -> Iterator[Parameter]:
    """The parameters that a file may set; ``dtype`` is left out, because it is a separate key."""
    node = found.node
    if isinstance(node, ast.ClassDef):
        made = next((f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None)
        given = _fields(found) if made is None else list(_arguments(made))[1:]
    else:
        assert isinstance(node, ast.FunctionDef)
        given = list(_arguments(node))
    for argument, default in given:
        if argument.annotation is None or ast.unparse(argument.annotation) != "torch.dtype":
            yield Parameter(argument.arg, None if default is None else _default(found.module, default))


def _arguments(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    takes = function.args
    plain = [*takes.posonlyargs, *takes.args]
    required = len(plain) - len(takes.defaults)
    yield from ((argument, None) for argument in plain[:required])
    yield from zip(plain[required:], takes.defaults, strict=True)
    yield from zip(takes.kwonlyargs, takes.kw_defaults, strict=True)


def _fields(found: Found) -> list[tuple[ast.arg, ast.expr | None]]:
    """The fields of a dataclass, those of its bases first."""
    assert isinstance(found.node, ast.ClassDef)
    fields: dict[str, tuple[ast.arg, ast.expr | None]] = {}
    for base in reversed(found.node.bases):
        above = _resolve(found.module, base)
        if isinstance(above.node, ast.ClassDef):
            fields |= {argument.arg: (argument, default) for argument, default in _fields(above)}
    for line in found.node.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            options = _options(line.value)
            kind = ast.unparse(line.annotation)
            if kind.startswith("ClassVar") or kind.endswith("KW_ONLY") or "init" in options:
                continue
            default = options.get("default") or options.get("default_factory") or (None if options else line.value)
            fields[line.target.id] = ast.arg(line.target.id, line.annotation), default
    return list(fields.values())


def _options(value: ast.expr | None) -> dict[str | None, ast.expr]:
    """The arguments of ``field(...)``."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).endswith("field"):
        return {keyword.arg: keyword.value for keyword in value.keywords}
    return {}


def _default(module: str, value: ast.expr) -> str:
    """A default as `proxdasa list` shows it: a plain value, or the name of an object."""
    found = _resolve(module, value)
    try:
        return repr(ast.literal_eval(found.node)) if isinstance(found.node, ast.expr) else _name(found)
    except ValueError:
        return _name(found)


def _name(found: Found) -> str:
    """The name of a definition; for an object, the name that it was given, or that of the function that makes it."""
    if isinstance(found.node, Function):
        return found.node.name
    if isinstance(found.node, ast.Call):
        first = next(iter(found.node.args), None)
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            return first.value
        return _name(_resolve(found.module, found.node.func))
    return ast.unparse(found.node) if found.node else found.module


def _resolve(module: str, expression: ast.AST) -> Found:
    """What an expression stands for; one that is not a name stands for itself."""
    if isinstance(expression, ast.Name):
        return _look_up(module, expression.id)
    if isinstance(expression, ast.Attribute):
        owner = _resolve(module, expression.value)
        if owner.node is None:
            return _look_up(owner.module, expression.attr)
    return Found(module, expression)


def _look_up(module: str, name: str) -> Found:
    """What a name stands for in a module; a name from elsewhere stands for itself."""
    bound = _names(module).get(name, ast.Name(name))
    if isinstance(bound, ast.ImportFrom):
        home = str(bound.module)
        own = next(alias.name for alias in bound.names if (alias.asname or alias.name) == name)
        if _path(f"{home}.{own}"):
            return Found(f"{home}.{own}", None)
        return _look_up(home, own) if _path(home) else Found(home, ast.Name(own))
    if isinstance(bound, ast.Name | ast.Attribute) and name in _names(module):
        return _resolve(module, bound)
    return Found(module, bound)


@functools.cache
def _names(module: str) -> dict[str, ast.AST]:
    """What the names of a module are bound to: definitions, values and imports."""
    path = _path(module)
    names: dict[str, ast.AST] = {}
    for line in _statements(ast.parse(path.read_bytes()) if path else ast.Module([], [])):
        if isinstance(line, Function):
            names[line.name] = line
        elif isinstance(line, ast.ImportFrom):
            names |= {alias.asname or alias.name: line for alias in line.names}
        elif isinstance(line, ast.Assign | ast.AnnAssign) and line.value:
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            names |= {target.id: line.value for target in targets if isinstance(target, ast.Name)}
    return names


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, with those under ``if TYPE_CHECKING:`` (see `proxdasa.lazy_names`)."""
    for line in tree.body:
        yield line
        if isinstance(line, ast.If):
            yield from line.body


def _path(module: str) -> Path | None:
    """The file of a module of this package."""
    if not f"{module}.".startswith("proxdasa."):
        return None
    place = PACKAGE.joinpath(*module.split(".")[1:])
    return next((path for path in (place / "__init__.py", place.with_suffix(".py")) if path.is_file()), None)
