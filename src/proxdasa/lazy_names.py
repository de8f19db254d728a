"""Names of a package that are imported when they are first used: PyTorch takes a second, and --help does not need it.

A package lists its names once, as imports that type checkers and editors read and that Python skips::

    if TYPE_CHECKING:
        from proxdasa.runs.setup import run
    else:
        __getattr__, __dir__ = lazy_names(__name__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package whose imports are under ``if TYPE_CHECKING:``.

    The modules of the package are attributes too, as they would be after eager imports.
    """
    module = sys.modules[package]
    homes = {name: home for name, *home in _imports(Path(str(module.__file__)))}

    def find(name: str) -> Any:
        home, own = homes.get(name, (package, name))
        if home != package:
            found = _take(home, own)
        elif own.startswith("_") or find_spec(f"{package}.{own}") is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        else:
            found = import_module(f"{package}.{own}")
        setattr(module, name, found)  # so that Python does not call this for it again
        return found

    return find, lambda: sorted({*vars(module), *homes})


def _take(home: str, name: str) -> Any:
    """What ``from home import name`` gives: an attribute, or else a module."""
    found = import_module(home)
    return getattr(found, name) if hasattr(found, name) else import_module(f"{home}.{name}")


def _imports(source: Path) -> Iterator[tuple[str, str, str]]:
    """Each name that a file imports for type checkers, with the module that has it and its name there."""
    for block in ast.parse(source.read_bytes()).body:
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING":
            for line in block.body:
                if isinstance(line, ast.ImportFrom):
                    yield from ((alias.asname or alias.name, str(line.module), alias.name) for alias in line.names)
