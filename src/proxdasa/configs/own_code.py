"""Your own classes and functions in files: ``name = "methods:NEXT"`` is the class NEXT of the module methods.

The module is looked for in the folder in which the program was started, then among the installed packages. Importing it
executes its code, so use a configuration file with such names only if you would run a script from the same source. Only
the commands that build a run (run, resume, tune, plan, study and those of sites) import anything; loading or reporting
results never does.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import inspect
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from proxdasa.data import Dataset
from proxdasa.descriptions import remember_name


class OwnCodeError(ValueError):
    """A name of the form MODULE:NAME that cannot be used."""


def is_own(name: object) -> bool:
    """Whether a name in a file stands for the user's own code."""
    return isinstance(name, str) and ":" in name


def load(name: str) -> Any:
    """The object with a name of the form MODULE:NAME; descriptions use this name from now on."""
    module, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise OwnCodeError(f"{name!r} is not of the form MODULE:NAME, such as methods:NEXT")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)  # and not removed: the module may import its neighbours later
    try:
        found = operator.attrgetter(path)(importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise OwnCodeError(f"{name}: importing {module} fails: {error}") from error
        raise OwnCodeError(f"{name}: there is no module {error.name} in {folder} or among the packages") from None
    except AttributeError as error:
        raise OwnCodeError(f"{name}: {error}") from error
    except Exception as error:  # whatever the module does when it is imported
        raise OwnCodeError(f"{name}: importing {module} fails: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise OwnCodeError(f"{name} must be a class or a function; it is {found!r:.60}")
    remember_name(found, name)
    return found


def digest(settings: Any) -> str:
    """The SHA-256 of the files of all modules that loaded settings name, but not of what these import."""
    names = {name.partition(":")[0] for name in _strings(settings) if is_own(name)} & sys.modules.keys()
    files = [getattr(sys.modules[name], "__file__", None) for name in sorted(names)]
    parts = [hashlib.sha256(Path(file).read_bytes()).digest() for file in files if file]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(each)


def load_class(name: str) -> Callable[..., Any]:
    """A class of the user's own whose objects can be described, and so be made again when a run is resumed."""
    found: Callable[..., Any] = load(name)
    if not inspect.isclass(found):
        raise OwnCodeError(f"{name} must be a class; it is {found!r:.60}")
    if not dataclasses.is_dataclass(found) and not callable(getattr(found, "describe", None)):
        raise OwnCodeError(f"{name} must be a dataclass, so that its parameters can be saved with the results")
    return found


def load_data(name: str) -> Callable[..., Any]:
    """A function of the user's own that returns a data set, which is then described by the call that made it."""
    loader: Callable[..., Any] = load(name)

    def call(**arguments: Any) -> Dataset:
        made = loader(**arguments)
        if not isinstance(made, Dataset):
            raise TypeError(f"{name} must return a data set, such as data.from_tensors(x, y); got {made!r:.60}")
        return dataclasses.replace(made, name=name, origin=arguments)

    call.__signature__ = inspect.signature(loader)  # type: ignore[attr-defined]
    call.__annotations__ = getattr(loader, "__annotations__", {})
    return call
