"""What a newcomer runs first: the examples."""

import dataclasses
import math
import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import proxdasa
from proxdasa import algorithms, cli
from proxdasa.configs import read_study, study_files
from proxdasa.data import sources
from tests.processes import LINUX, fork_together

ROOT = Path(__file__).parents[1]


def test_the_script_and_the_file_give_the_same_results(tmp_path, monkeypatch, capsys):
    script = runpy.run_path(str(ROOT / "examples" / "quickstart.py"))
    shown = capsys.readouterr().out
    assert "iterate of every trial and agent: [4, 8, 50]" in shown
    losses = re.findall(r"trial \d: loss (\S+), stationarity \S+, k = 2500", shown)
    assert len(losses) == 4
    assert shown.count("nonzeros of the solution: [8, 10, 19, 38, 45]") == 4, "the support of the truth"
    assert all(0.005 < float(loss) < 0.02 for loss in losses), "near the noise, 0.1²"

    monkeypatch.chdir(tmp_path)
    command = ["run", str(ROOT / "examples" / "quickstart.toml"), "--output", "results"]
    said = CliRunner().invoke(cli.app, command, catch_exceptions=False).output
    assert "proxdasa report results" in said
    assert "the solution has 5 nonzeros in 50 coordinates" in said
    saved = proxdasa.load(tmp_path / "results")
    assert saved.config == script["result"].config
    assert [row["k"] for row in saved.records] == [row["k"] for row in script["result"].records]
    assert torch.equal(saved.x, script["result"].x)


def train():
    script = str(ROOT / "examples" / "train_cnn.py")
    sys.argv = [script, "--epochs", "2"]
    runpy.run_path(script)


@LINUX
def test_the_network_is_trained_alone_and_among_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [])
    train()
    codes, output = fork_together(tmp_path, 2, train)
    assert codes == [0, 0], output
    shown = capsys.readouterr().out + output
    figures = re.findall(r"^accuracy (\S+), density of the weights (\S+)$", shown, flags=re.MULTILINE)
    assert len(figures) == 2, "one process of a training speaks"
    assert all(float(accuracy) > 0.3 and 0.2 < float(density) < 1 for accuracy, density in figures)


def test_the_commands_named_in_the_file_are_those_that_exist():
    head = (ROOT / "examples" / "quickstart.toml").read_text(encoding="utf-8")
    assert set(re.findall(r"proxdasa (\w+)", head)) == {"run", "report", "list"}


# ---------------------------------------------------------------------------------------- studies


@pytest.fixture
def few_rows(tmp_path, monkeypatch):
    """Files of a9a and MNIST with 400 random rows each, in place of the real ones."""
    monkeypatch.setenv("PROXDASA_DATA", str(tmp_path))
    draw = np.random.default_rng(0)
    for name, source in sources.SOURCES.items():
        (tmp_path / name).mkdir()
        short = [dataclasses.replace(file, rows=400) for file in source.files]
        monkeypatch.setitem(sources.SOURCES, name, dataclasses.replace(source, files=tuple(short)))
        for file in short:
            if name == "a9a":
                rows = (f"{label:+d} {feature}:1\n" for label, feature in zip(*random_labels(draw), strict=True))
                content = "".join(rows).encode()
            else:
                shape = (400, 28, 28) if "images" in file.name else (400,)
                content = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4) for size in shape)
                content += draw.integers(0, 10, shape).astype(np.uint8).tobytes()
            (tmp_path / name / file.name).write_bytes(content)


def random_labels(draw):
    return draw.choice([-1, 1], 400), draw.integers(1, 124, 400)


@pytest.fixture
def one_trial(monkeypatch):
    """Before a study every method makes one step; here it does so in one trial."""
    step = study_files.make_one_step
    monkeypatch.setattr(study_files, "make_one_step", lambda setup: step(dataclasses.replace(setup, trials=1)))


@pytest.mark.usefixtures("few_rows", "one_trial")
@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "studies").glob("*.toml")), ids=lambda file: file.stem)
def test_every_method_that_can_be_compared_is_in_a_study_with_nine_settings(file, monkeypatch):
    monkeypatch.chdir(ROOT)  # where its own code is found
    study = read_study(file)
    problem = next(iter(study.setups.values())).problem
    asks_for_passes = {proxdasa.ProxGTSRE, proxdasa.DeepStormV1SVRG} if math.isinf(problem.epoch) else set()
    fitting = {method for method in algorithms.ALL if method.facts.composite} - asks_for_passes
    assert {type(setup.algorithm) for setup in study.setups.values()} == fitting
    assert {math.prod(map(len, ranges.values())) for ranges in study.ranges.values()} == {9}
    assert f"proxdasa study examples/studies/{file.name} --output results/" in file.read_text(encoding="utf-8")
