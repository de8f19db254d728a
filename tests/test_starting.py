"""What starts at once: --help, list, doctor and refused arguments import none of the libraries that take time."""

import dataclasses
import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proxdasa.configs import catalogue
from proxdasa.configs.objects import ROOMS, VALUES
from proxdasa.descriptions import describe
from proxdasa.runs.setup import Setup
from tests.processes import LIMIT, with_tests

SLOW = ("torch", "numpy", "scipy", "networkx", "matplotlib", "sklearn")
QUICK = [
    "--help", "--version", "list", "doctor", "data list", "nonsense",
    "run --help", "run", "run --nonsense", "run nowhere.toml -o out",
    "resume nowhere", "tune --help", "tune nowhere.toml -o out --quick",
    "study --help", "study nowhere.toml -o out", "plan --help", "plan nowhere.toml",
    "report --nonsense", "reproduce --help", "reproduce a9a --help", "reproduce speedup --trials none",
    "site run", "keys --help",
]  # fmt: skip
PROGRAM = """
import json, sys
from typer.testing import CliRunner
from proxdasa.cli import app
from tests.forks import keep_command_line
keep_command_line()
found = {}
for line in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, line.split())
    found[line] = [done.exit_code, [name for name in json.loads(sys.argv[2]) if name in sys.modules]]
print(json.dumps(found))
"""
LAZY = ("", ".configs", ".contracts", ".data", ".engines", ".plans", ".reports", ".tuning")


def test_commands_that_compute_nothing_import_nothing_slow(tmp_path):
    words = [sys.executable, "-c", PROGRAM, json.dumps(QUICK), json.dumps(SLOW)]
    env = {**os.environ, "PYTHONPATH": with_tests()}
    done = subprocess.run(words, timeout=LIMIT, check=True, capture_output=True, text=True, cwd=tmp_path, env=env)
    found = json.loads(done.stdout)
    assert {line: names for line, (_, names) in found.items() if names} == {}
    well = {line for line, (code, _) in found.items() if code == 0}
    assert well == {line for line in QUICK if "help" in line} | {"--version", "list", "doctor", "data list"}


@pytest.mark.parametrize("room", LAZY)
def test_names_that_are_imported_when_they_are_used(room):
    module = importlib.import_module(f"proxdasa{room}")
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match=f"'proxdasa{room}' has no attribute 'nonsense'"):
        _ = module.nonsense


@pytest.mark.parametrize("room", LAZY)
def test_no_name_is_hidden_by_a_module_of_the_same_name(room):
    """Importing ``proxdasa.plans.plan`` would put that module in the place of the function `plans.plan`."""
    module = importlib.import_module(f"proxdasa{room}")
    (place,) = module.__path__
    files = {path.stem for path in Path(place).iterdir()}
    assert [name for name in module.__all__ if name in files and not inspect.ismodule(getattr(module, name))] == []


def shown(default):
    if default is inspect.Parameter.empty:
        return None
    if isinstance(default, int | float | str) or default is None:
        return repr(default)
    described = describe(default)
    return described["name"] if isinstance(described, dict) else described


def signature(thing):
    """The parameters of an object, as Python itself knows them."""
    made = {field.name: field.default_factory for field in dataclasses.fields(thing)} if inspect.isclass(thing) else {}
    return [
        catalogue.Parameter(name, made[name].__name__ if str(p.default) == "<factory>" else shown(p.default))
        for name, p in inspect.signature(thing).parameters.items()
        if p.annotation != "torch.dtype"
    ]


def test_the_catalogue_has_what_the_objects_say():
    entries = {
        kind: [
            catalogue.Entry(thing.__name__, signature(thing), inspect.getdoc(thing).partition("\n")[0])
            for thing in room
        ]
        for kind, room in ROOMS.items()
    }
    assert catalogue.rooms() == entries
    names = {kind: [name.partition("(")[0] for name in values] for kind, values in catalogue.values().items()}
    assert names == {kind: list(values) for kind, values in VALUES.items()}
    assert "merit(lipschitz, optimum=0.0)" in catalogue.values()["metric"]
    keys = {key.name: key.default for key in catalogue.run_keys()}
    assert list(keys) == [field.name for field in dataclasses.fields(Setup)]
    assert (keys["algorithm"], keys["iterations"], keys["mixing"]) == (None, "1000", "Gossip")
