"""Your own classes and functions in configuration files, named as MODULE:NAME."""

import json
import re
import shutil
import sys

import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa.cli import app
from proxdasa.configs import ConfigError
from proxdasa.configs.reading import build, read
from tests.processes import LINUX, commands

CODE = """
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from proxdasa import data
from proxdasa.contracts import Facts
from proxdasa.schedules import Number


@dataclass(frozen=True, eq=False)
class Plain:
    \"\"\"x' = prox_γ(mix[x − γ g]).\"\"\"

    facts: ClassVar[Facts] = Facts("Plain", vectors=1, gradients=1)
    gamma: Number

    class State(NamedTuple):
        x: Tensor

    @property
    def mapping_gamma(self):
        return self.gamma

    def init(self, agents, x):
        return self.State(x)

    def step(self, agents, k, state):
        x = agents.mix(state.x - self.gamma * agents.grad(state.x, k))
        return self.State(agents.prox(x, self.gamma))


@dataclass(frozen=True)
class Shrink:
    weight: float

    def value(self, x):
        return self.weight * x.square().sum(-1) / 2

    def prox(self, x, gamma):
        return x / (1 + gamma * self.weight)


class Bare:
    def value(self, x): ...
    def prox(self, x, gamma): ...


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(3, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x)))


def load(rows, shift=0.0):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator) + shift
    return data.from_tensors(x, (x.sum(1) > 0).long())


def huber(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none").tanh()


def slow(k):
    return 0.5 / (k + 1) ** 0.5


def nothing():
    return 3
"""
METHOD = {"name": "NAME:Plain", "gamma": 0.2}
PROBLEM = {"name": "Supervised", "model": {"name": "NAME:Net", "width": 4}, "data": {"name": "NAME:load", "rows": 24},
           "agents": 4, "batch_size": 2}  # fmt: skip
SETTINGS = {"iterations": 12, "observe_every": 12, "algorithm": METHOD, "problem": PROBLEM, "network": "ring"}
OWN = {
    "regularizer": {"name": "NAME:Shrink", "weight": 0.1},
    "problem": {**PROBLEM, "loss": "NAME:huber"},
    "algorithm": {"name": "ProxDASA", "gamma": 0.2, "alpha": "NAME:slow"},
}


@pytest.fixture
def module(tmp_path, monkeypatch, request):
    """The name of a module in the folder in which the test is."""
    name = f"mine_{abs(hash(request.node.nodeid)):x}"
    (tmp_path / f"{name}.py").write_text(CODE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    sys.modules.pop(name, None)


def named(value, module):
    return json.loads(json.dumps(value).replace("NAME:", f"{module}:"))


def write(tmp_path, module, **changes):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(named(SETTINGS | changes, module)), encoding="utf-8")
    return path


def test_a_file_with_own_code_is_the_run_made_in_python(module, tmp_path):
    made = read(write(tmp_path, module, **OWN))
    mine = sys.modules[module]
    problem = proxdasa.problems.Supervised(lambda: mine.Net(4), mine.load(24), 4, batch_size=2, loss=mine.huber)
    expected = proxdasa.run(
        proxdasa.ProxDASA(0.2, mine.slow), problem, proxdasa.networks.ring(4), regularizer=mine.Shrink(0.1),
        iterations=12,
    )  # fmt: skip
    assert torch.equal(made.run().x, expected.x)


@pytest.mark.parametrize("changes", [{}, *({key: value} for key, value in OWN.items())], ids=str)
def test_what_is_saved_describes_the_same_run(module, tmp_path, changes):
    made = read(write(tmp_path, module, **changes))
    again = made.config()
    assert json.loads(json.dumps(again)) == again
    assert module in json.dumps(again)
    settings = {key: value for key, value in again.items() if key != "facts"}
    built = build(settings)
    assert built.config() == again
    assert torch.equal(built.run().x, made.run().x)


@pytest.mark.usefixtures("drawn")
def test_an_interrupted_run_is_resumed_and_a_report_imports_nothing(module, tmp_path):
    file, folder = write(tmp_path, module), tmp_path / "results"
    runner = CliRunner()
    done = runner.invoke(app, ["run", str(file), "-o", str(folder), "--checkpoint-every", "5"])
    assert done.exit_code == 0, done.output
    whole = proxdasa.load(folder)
    for name in ("records.jsonl", "final.safetensors"):
        (folder / name).unlink()
    shutil.rmtree(max((folder / "checkpoints").glob("0*")))
    sys.modules.pop(module)
    done = runner.invoke(app, ["resume", str(folder)])
    assert done.exit_code == 0, done.output
    assert torch.equal(proxdasa.load(folder).x, whole.x)
    sys.modules.pop(module)
    done = runner.invoke(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    proxdasa.load(folder)
    assert module not in sys.modules


def test_data_that_have_changed_are_noticed(module, tmp_path):
    folder = tmp_path / "checkpoints"
    read(write(tmp_path, module)).run(None, proxdasa.runs.loop.Saving(folder, every=6))
    code = tmp_path / f"{module}.py"
    code.write_text(CODE.replace("manual_seed(0)", "manual_seed(123)"), encoding="utf-8")
    sys.modules.pop(module)
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    try:
        with pytest.raises(ValueError, match=r"something of your own has changed: .*problem\.data"):
            read(write(tmp_path, module)).run(None, proxdasa.runs.loop.Saving(folder))
    finally:
        sys.dont_write_bytecode = before


@pytest.mark.parametrize("command", ["tune", "plan"])
def test_other_commands_take_own_code(module, tmp_path, command):
    file = tmp_path / "run.toml"
    tables = {key: re.sub(r'"(\w+)": ', r"\1 = ", json.dumps(value)) for key, value in SETTINGS.items()}
    file.write_text("".join(f"{key} = {named(value, module)}\n" for key, value in tables.items()), encoding="utf-8")
    more = ["--grid", "gamma=0.1,0.2", "-o", "tuned"] if command == "tune" else []
    done = CliRunner().invoke(app, [command, str(file), *more])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": {"name": "nowhere:Plain"}}, "algorithm: nowhere:Plain: there is no module nowhere in .* or"),
        ({"algorithm": {"name": "NAME:Missing"}}, r"algorithm: NAME:Missing: module 'NAME' has no attribute 'Missing'"),
        ({"algorithm": {"name": "NAME:"}}, r"algorithm: 'NAME:' is not of the form MODULE:NAME"),
        ({"algorithm": {"name": "NAME:slow"}}, r"algorithm: NAME:slow must be a class; it is <function slow"),
        ({"algorithm": {"name": "NAME:Plain"}}, r"algorithm.gamma is missing; Plain needs it: a number"),
        ({"algorithm": {**METHOD, "beta": 1}}, r"algorithm.beta: unknown key; accepted: gamma"),
        ({"regularizer": {"name": "NAME:Bare"}}, r"NAME:Bare must be a dataclass, so that its parameters can be saved"),
        ({"problem": {**PROBLEM, "data": "NAME:nothing"}}, r"NAME:nothing must return a data set, .*; got 3"),
        ({"problem": {**PROBLEM, "data": "NAME:load"}}, r"problem.data.rows is missing; "),
        ({"problem": {**PROBLEM, "loss": "NAME:CODE"}}, r"problem.loss: NAME:CODE: module .* has no attribute"),
        ({"network": {"name": "NAME:load"}}, r"network.name: there is no network 'NAME:load'; accepted: ring, "),
        ({"algorithm": {"name": "broken:Plain"}}, r"broken:Plain: importing broken fails: ZeroDivisionError"),
        ({"algorithm": {"name": "needs:Plain"}}, r"needs:Plain: importing needs fails: No module named 'not_there'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(module, tmp_path, changes, said):
    (tmp_path / "broken.py").write_text("1 / 0\n", encoding="utf-8")
    (tmp_path / "needs.py").write_text("import not_there\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=re.sub(r"(?<!MODULE:)NAME", module, said)) as refused:
        build(named(SETTINGS | changes, module))
    assert "\n" not in str(refused.value)


@LINUX
def test_processes_import_it_too(module, tmp_path):
    file = write(tmp_path, module)
    with commands(tmp_path) as start:
        start("proxdasa", "run", file, "-o", "alone", "--exact").ended()
        start("proxdasa", "run", file, "-o", "two", "--exact", "--processes", 2).ended()
    assert torch.equal(proxdasa.load(tmp_path / "two").x, proxdasa.load(tmp_path / "alone").x)
