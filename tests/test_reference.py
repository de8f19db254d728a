"""The reference lists what is public, and everything in it has an example that is executed.

A page of the reference names an object in a line ``::: proxdasa.run``. Classes and functions need an example; values
and types, such as `metrics.loss`, need not have one, and neither do the methods of a class. Examples begin with the
imports that the first page of the reference states.
"""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

from proxdasa import data
from proxdasa.runs.setup import Setup

PAGES = Path(__file__).parents[1] / "docs" / "reference"
LISTED = {
    name: page
    for page in sorted(PAGES.glob("*.md"))
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
}
"""The public names, each with its page."""
ROOMS = (
    "algorithms",
    "compressors",
    "conditions",
    "data",
    "estimators",
    "mixing",
    "networks",
    "optim",
    "problems",
    "regularizers",
    "tensorboard",
    "testing",
)
"""Modules whose every class and function in `__all__` is public."""
DOWNLOADED = {
    "proxdasa.data.a9a": "a9a",
    "proxdasa.data.fetch": "a9a",
    "proxdasa.data.mnist": "mnist",
}
"""Objects whose examples need the files of a data set."""
READ = ("proxdasa.data.a9a", "proxdasa.data.mnist")
"""Those that read all of it; `tests/test_data.py` does so too, and checks the same shapes."""


def find(name):
    """The object of a dotted name."""
    module, attributes = name, []
    while True:
        try:
            found = importlib.import_module(module)
            break
        except ModuleNotFoundError:
            module, _, attribute = module.rpartition(".")
            attributes.insert(0, attribute)
    for attribute in attributes:
        found = getattr(found, attribute)
    return found


def needs_example(thing):
    return inspect.isclass(thing) or inspect.isfunction(thing)


def start():
    """The names that examples begin with."""
    (imports,) = re.findall(r"```python\n(.*?)```", (PAGES / "index.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    names = {"__name__": "__main__"}
    exec(imports, names)
    return names


EXAMPLES = [name for name in LISTED if needs_example(find(name))]


@pytest.fixture
def cheap(monkeypatch):
    """Runs that do not say how often they observe do so at the beginning and at the end; searches are short."""
    complete = Setup.__post_init__

    def observe_ends(setup):
        if setup.observe_every is None:
            object.__setattr__(setup, "observe_every", max(1, setup.iterations))
        complete(setup)

    monkeypatch.setattr(Setup, "__post_init__", observe_ends)
    monkeypatch.setattr("proxdasa.estimators.solver.SEARCHED", 15)


@pytest.mark.slow  # as a reader runs them
@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_runs_as_it_stands(name, tmp_path, monkeypatch):
    run_example(name, tmp_path, monkeypatch)


@pytest.mark.usefixtures("drawn", "cheap")
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in READ])
def test_every_public_object_has_an_example_that_runs(name, tmp_path, monkeypatch):
    run_example(name, tmp_path, monkeypatch)


def run_example(name, tmp_path, monkeypatch):
    thing = inspect.unwrap(find(name))
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", start(), name, None, 0)
    assert test.examples, f"{name} is in the reference but has no example (>>>) in its docstring"
    needed = DOWNLOADED.get(name)
    if needed and not all(present for source, _, present in data.listing() if source == needed):
        pytest.skip(f"{needed} is not on this machine: proxdasa data fetch {needed}")
    monkeypatch.chdir(tmp_path)
    report = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("room", ["", *(f".{room}" for room in ROOMS)])
def test_what_the_modules_export_is_in_the_reference(room):
    module = importlib.import_module(f"proxdasa{room}")
    listed = {id(find(name)) for name in LISTED}
    exported = {name: getattr(module, name) for name in module.__all__}
    missing = [name for name, thing in exported.items() if needs_example(thing) and id(thing) not in listed]
    assert not missing, f"proxdasa{room} exports {', '.join(missing)}, which docs/reference does not list"


def test_every_page_is_in_the_table_of_the_first():
    index = (PAGES / "index.md").read_text(encoding="utf-8")
    assert {page.name for page in PAGES.glob("*.md")} - {"index.md"} == set(re.findall(r"\]\((\w+\.md)\)", index))
