"""Data in one file per agent: the same run as on the pooled data, and no process reads what is not its own."""

import bz2
import dataclasses
import json
import os
import re
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from typer.testing import CliRunner

import proxdasa
from proxdasa import data, networks, regularizers
from proxdasa.cli import app, main
from proxdasa.configs import read
from proxdasa.descriptions import describe
from proxdasa.problems import Supervised, squared_error
from proxdasa.runs.setup import Setup
from tests.processes import LINUX, commands, fork_together
from tests.setups import digest, in_threads

SIZES, FEATURES, LABELS = (5, 9, 4, 7), 6, (-1, 2, 5)

CONFIG = """
iterations = 8
observe_every = 4
exact = true
algorithm = { name = "ProxDASAGT", gamma = 0.5, alpha = 0.3 }
network = "ring"
regularizer = { name = "L1", weight = 1e-3 }
[problem]
name = "Supervised"
agents = 4
batch_size = 3
model = { name = "mlp", inputs = 6, outputs = 3 }
[problem.data]
name = "per_agent"
files = "agent-{agent}.svm"
features = 6
labels = [-1, 2, 5]
test = "test.svm"
"""


def svm(path, x, y):
    rows = zip(y.tolist(), x.tolist(), strict=True)
    pairs = ((label, " ".join(f"{i}:{value!r}" for i, value in enumerate(row, 1) if value)) for label, row in rows)
    path.write_text("".join(f"{label} {rest}\n" for label, rest in pairs))


@pytest.fixture
def drawn():
    """Rows of four agents and for testing; the second agent has no label 2, the third only that."""
    rng = np.random.default_rng(0)
    parts = []
    for agent, size in enumerate((*SIZES, 10)):
        x = rng.normal(size=(size, FEATURES)).astype(np.float32)
        x[rng.random(x.shape) < 0.3] = 0
        x[:, -1] = 0 if agent == 1 else x[:, -1]  # nor the last feature
        parts.append((x, rng.choice({1: (-1, 5), 2: (2,)}.get(agent, LABELS), size)))
    return parts


@pytest.fixture
def sites(tmp_path, drawn):
    """The folder of their files."""
    for agent, (x, y) in enumerate(drawn[:4]):
        svm(tmp_path / f"agent-{agent}.svm", x, y)
    svm(tmp_path / "test.svm", *drawn[4])
    return tmp_path


def files(folder, **changes):
    settings = {"features": FEATURES, "labels": LABELS, "test": folder / "test.svm"} | changes
    return data.per_agent(folder / "agent-{agent}.svm", **settings)


def problem(examples, **changes):
    model = nn.Sequential(nn.Linear(FEATURES, 4), nn.Tanh(), nn.Linear(4, 3))
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return Supervised(model, examples, 4, **{"batch_size": 3} | changes)


def pooled(drawn, **changes):
    """The same rows as one data set, with class numbers in place of labels."""
    x, y = (np.concatenate([part[i] for part in drawn[:4]]) for i in range(2))
    test_x, test_y = drawn[4]
    whole = data.from_tensors(x, np.searchsorted(LABELS, y), test_x, np.searchsorted(LABELS, test_y))
    return problem(whole, partition=data.Sizes(SIZES), **changes)


def setup(chosen, **changes):
    settings = {"regularizer": regularizers.L1(1e-3), "iterations": 8, "observe_every": 4, "trials": 2, "exact": True}
    method = proxdasa.ProxDASAGT(gamma=0.5, alpha=proxdasa.schedules.constant(0.3))
    return Setup(method, chosen, networks.ring(4), **settings | changes)


def same(records, others, tolerance):
    """Whether they are the same but for the time that was spent, and what only processes record."""
    for row, other in zip(records, others, strict=True):
        for name in set(other) - {"seconds", "computation"}:
            assert row[name] == pytest.approx(other[name], rel=tolerance, abs=tolerance), name
    return True


# the same run


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_same_bits_as_pooled_data_in_any_number_of_processes(sites, drawn, size):
    expected = setup(pooled(drawn)).run()
    made = setup(problem(files(sites)))
    first, *_ = in_threads(size, lambda transport: made.run(processes=transport))
    assert digest(first.x) == digest(expected.x)
    spent = {"wire_bytes", "communication", "waiting"}
    rows = [{name: value for name, value in row.items() if name not in spent} for row in expected.records]
    # The epochs too, though the agents of each process have other sizes.
    assert {"accuracy", "epochs"} <= set(rows[0])
    assert same(first.records, rows, 1e-5)


@pytest.mark.parametrize("exact", [True, False])
def test_alone_it_reads_all_files_and_that_is_pooled_data(sites, drawn, exact):
    ours, theirs = (setup(chosen, exact=exact).run() for chosen in (problem(files(sites)), pooled(drawn)))
    assert torch.equal(ours.x, theirs.x)
    assert same(ours.records, theirs.records, 0)


def test_a_part_of_the_agents_is_a_part_of_the_problem(sites, drawn):
    x = torch.randn(2, 2, problem(files(sites)).dim)
    ours, theirs = (p.restrict(range(1, 3)) for p in (problem(files(sites)), pooled(drawn)))
    assert torch.equal(ours.examples.x, theirs.examples.x)
    assert ours.examples.y.tolist() == theirs.examples.y.tolist()
    assert ours.epoch == theirs.epoch == (9 + 4) / 2 / 3
    for mine, other in zip(ours.evaluate(x), theirs.evaluate(x), strict=True):
        assert torch.equal(mine, other)
    # So are some of a part, and a problem that says itself which part it is.
    alone = dataclasses.replace(problem(files(sites)), agents=1, first=2)
    for one in (ours.restrict(range(1, 2)), alone, alone.restrict(range(1))):
        assert (one.first, one.examples.y.tolist()) == (2, [1] * 4)


# nothing but its own


def test_nothing_is_read_before_it_is_needed_and_then_only_its_own(sites):
    made = setup(problem(files(sites), dtype=torch.float32), dtype=torch.float64)
    contents = {path: path.read_bytes() for path in sites.iterdir()}
    for path in contents:
        path.unlink()
    before = made.config()
    assert made.start().shape == (2, 4, made.problem.dim)
    for agents in (range(2), range(2, 4), range(1, 2)):
        own = [sites / "test.svm", *(sites / f"agent-{agent}.svm" for agent in agents)]
        for path in own:
            path.write_bytes(contents[path])
        assert [len(part) for part in made.problem.restrict(agents).parts] == list(SIZES[agents.start : agents.stop])
        for path in own:
            path.unlink()
    assert made.config() == before
    with pytest.raises(FileNotFoundError, match=re.escape(f"agent 0: {sites / 'agent-0.svm'} cannot be read: No such")):
        _ = made.problem.parts


def run_at_site(sites):
    os.chdir(sites / f"site-{os.environ['RANK']}")
    sys.argv = ["proxdasa", "run", "../run.toml", "--output", "../results"]
    main()


@LINUX
def test_sites_that_have_their_own_files_only(sites, drawn, monkeypatch):
    """Two processes in two folders, each with the files of its own agents, under the same names in the same file."""
    (sites / "run.toml").write_text(CONFIG)
    expected = read_in(sites, monkeypatch).run()
    for rank in range(2):
        folder = sites / f"site-{rank}"
        folder.mkdir()
        for name in ("test", f"agent-{2 * rank}", f"agent-{2 * rank + 1}"):
            (folder / f"{name}.svm").write_bytes((sites / f"{name}.svm").read_bytes())
    for path in sites.glob("*.svm"):
        path.unlink()
    codes, said = fork_together(sites, 2, run_at_site, sites)
    assert codes == [0, 0], said
    assert digest(proxdasa.load(sites / "results").x) == digest(expected.x)


def read_in(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return read(folder / "run.toml")


# files of runs


def test_a_configuration_is_read_back_without_the_files(sites, monkeypatch):
    (sites / "run.toml").write_text(CONFIG)
    config = read_in(sites, monkeypatch).config()
    assert config["problem"]["data"] == {
        "name": "per_agent",
        "files": "agent-{agent}.svm",
        "features": 6,
        "labels": [-1, 2, 5],
        "test": "test.svm",
        "regression": False,
        "target": None,
    }
    for path in sites.glob("*.svm"):
        path.unlink()
    (sites / "config.json").write_text(json.dumps(config))
    assert read(sites / "config.json", try_step=False).config() == config


def test_from_the_command_line_in_two_processes(sites, monkeypatch):
    (sites / "run.toml").write_text(CONFIG)
    expected = read_in(sites, monkeypatch).run()
    (sites / "run.toml").write_text(CONFIG.replace('= "agent', f'= "{sites}/agent').replace('"test', f'"{sites}/test'))
    with commands(sites) as start:
        start("proxdasa", "run", sites / "run.toml", "--output", sites / "results", "--processes", 2).ended()
    saved = proxdasa.load(sites / "results")
    assert digest(saved.x) == digest(expected.x)
    assert saved.config["problem"]["data"]["name"] == "per_agent"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("agent-{agent}", "agent", "problem.data: files must have {agent} in place of the agent's number; got 'agent"),
        ("features = 6", "", "features must be given for LIBSVM files and left out for .safetensors files; got None"),
        ("agent}.svm", "agent}.safetensors", "problem.data: features must be given for LIBSVM files and left out for"),
        ("labels = [-1, 2, 5]", "", "problem.data: give either the labels of all agents, such as [-1, 1], or"),
        ("labels =", "regression = true\nlabels =", "problem.data: give either the labels of all agents"),
        ("labels = [-1, 2, 5]", "labels = []", "problem.data: labels must be a list of whole numbers below"),
        ("labels = [-1, 2, 5]", "labels = [-1, 0.5]", "problem.data.labels[1] must be a whole number; got 0.5"),
        ("batch_size", "partition = 'Shuffled'\nbatch_size", "problem: partition must be left out: the data are"),
        ("batch_size = 3", "batch_size = 0", "problem: batch_size must be a whole number of at least 1; got 0"),
        ("batch_size", "weights = 'rows'\nbatch_size", "problem.weights must be 'agents' or 'examples'; got 'rows'"),
        ("agents = 4", "agents = 5", "agent-4.svm cannot be read: No such file or directory"),
        ('"test.svm"', '"tests.svm"', "tests.svm cannot be read: No such file or directory"),
        ('"agent-{agent}.svm"', '"{agent}/agent"', "0/agent cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_bad_configurations_are_refused_in_one_line(sites, monkeypatch, old, new, words):
    monkeypatch.chdir(sites)
    (sites / "run.toml").write_text(CONFIG.replace("exact = true", "").replace(old, new))
    result = CliRunner().invoke(app, ["run", "run.toml", "--output", "results"])
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1
    assert words in result.stderr
    assert not (sites / "results").exists()


# contents of files


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("agent-2.svm", "7 1:1\n", "the label 7 does not occur in labels = [-1, 2, 5]"),
        ("agent-2.svm", "0.5 1:1\n", "the label 0.5 of row 0 is not a whole number; with regression=True"),
        ("agent-2.svm", "2 7:1\n", "line 1: the index of '7:1' must be in 1, ..., 6"),
        ("agent-2.svm", "# nothing\n", "it has no rows"),
        ("test.svm", "3 1:1\n", "the label 3 does not occur in labels"),
    ],
)
def test_malformed_files_are_named(sites, name, text, message):
    (sites / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(f"{sites / name}") + ".*" + re.escape(message)):
        problem(files(sites)).restrict(range(1, 3))


def test_compressed_files(sites):
    for path in sites.glob("agent-*"):
        path.with_suffix(".svm.bz2").write_bytes(bz2.compress(path.read_bytes()))
    packed = data.per_agent(sites / "agent-{agent}.svm.bz2", FEATURES, LABELS)
    assert torch.equal(packed.load(range(4))[0].x, files(sites).load(range(4))[0].x)


def tensors(folder, parts):
    for agent, (x, y) in enumerate(parts):
        save_file({"x": torch.as_tensor(x), "y": torch.as_tensor(y)}, folder / f"agent-{agent}.safetensors")
    return folder / "agent-{agent}.safetensors"


def test_tensors_are_read_as_the_same_rows(tmp_path, drawn, sites):
    pattern = tensors(tmp_path, [(x.astype(np.float64), y.astype(np.int16)) for x, y in drawn[:4]])
    changes = {"labels": (5, -1, 2), "test": sites / "test.svm"}
    ours, theirs = problem(data.per_agent(pattern, dtype="float32", **changes)), problem(files(sites))
    with pytest.raises(ValueError, match=r"test.svm: x and y are float32 and int64, those of .*agent-0.safetensors fl"):
        problem(data.per_agent(pattern, **changes)).examples  # noqa: B018
    assert torch.equal(ours.examples.x, theirs.examples.x)
    assert torch.equal(ours.examples.y, theirs.examples.y)
    assert torch.equal(ours.examples.test_x, theirs.examples.test_x)


def test_types_stay_and_rounding_is_announced(tmp_path):
    """Whole numbers reach an embedding, and float64 rows a problem in float64 with all their digits."""
    words = tensors(tmp_path, [(torch.arange(12).view(4, 3) % 5, torch.arange(4) % 2)] * 2)
    net = lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2))  # noqa: E731
    p = Supervised(net, data.per_agent(words, labels=[0, 1]), 2)
    assert (p.examples.x.dtype, p.dtype) == (torch.int64, torch.float32)
    assert p.grad(p.start(0, 1).expand(1, 2, -1), torch.zeros(1, 2, 1, dtype=torch.int64)).isfinite().all()
    as_numbers = data.per_agent(words, labels=[0, 1], dtype="float32").load(range(2))[0]
    assert torch.equal(as_numbers.x, p.examples.x.float())
    thirds = tensors(tmp_path, [(torch.ones(4, 2).double() / 3, torch.arange(4).double() / 3)] * 2)
    line = lambda: nn.Linear(2, 1)  # noqa: E731
    made = lambda changes, **own: Supervised(  # noqa: E731
        line, data.per_agent(thirds, regression=True, **changes), 2, loss=squared_error, **own
    )
    for exact in (made({"dtype": "float64"}), made({}, dtype=torch.float64), made({}).to(torch.float64)):
        assert (exact.dtype, exact.examples.x.dtype, exact.examples.y.dtype) == (torch.float64,) * 3
        assert exact.examples.x[0, 0] == 1 / 3
    with pytest.warns(
        UserWarning, match=r"x and y in float64 are rounded to float32, in .*\(..., dtype=\"float64\"\) c"
    ):
        assert made({}).restrict(range(1)).examples.x.dtype == torch.float64
    rounded = made({"dtype": "float32"}).examples
    assert (rounded.x.dtype, rounded.y.dtype) == (torch.float32, torch.float32)


def test_text_is_read_in_the_type_that_is_asked_for(tmp_path):
    (tmp_path / "a-0.svm").write_text("0.1 1:0.1 2:7\n", encoding="utf-8")
    (tmp_path / "a-0.csv").write_text("a,b,y\n0.1,7,0.1\n", encoding="utf-8")
    kinds = [("a-{agent}.svm", {"features": 2}), ("a-{agent}.csv", {"target": "y"})]
    for name, settings in kinds:
        read = lambda dtype: data.per_agent(tmp_path / name, **settings, regression=True, dtype=dtype).load(range(1))[0]  # noqa: E731, B023
        for dtype, kind in ((None, torch.float32), ("float32", torch.float32), ("float64", torch.float64)):
            got = read(dtype)
            assert torch.equal(got.x, torch.tensor([[0.1, 7]], dtype=kind))
            assert torch.equal(got.y, torch.tensor([0.1], dtype=kind))
        with pytest.raises(ValueError, match=r'dtype = "int64" needs whole numbers below 2\^53; row 0 has 0.1'):
            read("int64")
    (tmp_path / "a-0.csv").write_text(f"a,b,y\n3,{2**53 + 1},1\n", encoding="utf-8")  # read as 2^53
    with pytest.raises(ValueError, match=r"needs whole numbers below 2\^53; row 0 has 9007199254740992.0"):
        read("int64")
    (tmp_path / "a-0.csv").write_text("a,b,y\n3,7,1\n", encoding="utf-8")
    whole = read("int64")
    assert (whole.x.tolist(), whole.x.dtype, whole.y.dtype) == ([[3, 7]], torch.int64, torch.float32)
    with pytest.raises(ValueError, match=r'dtype must be "float32", "float64" or "int64".*; got \'half\''):
        read("half")


def test_targets_and_images(tmp_path):
    parts = [(torch.full((size, 1, 2, 2), size, dtype=torch.float16), torch.arange(2.0 * size).view(size, 2) / 8)
             for size in (3, 4)]  # fmt: skip
    examples = data.per_agent(tensors(tmp_path, parts), regression=True)
    p = Supervised(
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), examples, 2, loss=squared_error, initial="zeros"
    )
    assert torch.equal(p.examples.y, torch.cat([y for _, y in parts]))
    assert (p.examples.x.dtype, list(p.examples.x.shape), p.examples.classes) == (torch.float32, [7, 1, 2, 2], None)
    described = describe(examples)
    assert described.pop("name") == "per_agent"
    assert data.per_agent(**described) == examples
    loss = p.evaluate(torch.zeros(1, 2, p.dim)).loss
    assert loss[0].tolist() == pytest.approx([float(y.square().sum(1).mean()) for _, y in parts])


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({"x": torch.ones(3, 6)}, "agent-1.safetensors: it must have tensors x and y; it has x"),
        ({}, "agent-1.safetensors: it must have tensors x and y; it has nothing"),
        ({"x": torch.ones(3, 7), "y": torch.ones(3)}, r"rows of x and y have shapes .\[7\], \[\].*-0.* .\[6\], \[\]"),
        (
            {"x": torch.ones(3), "y": torch.ones(3)},
            r"agent-1.safetensors: x must be float32, float64 or int64 of shape \[N, ...\]",
        ),
        ({"x": torch.ones(3, 6), "y": torch.ones(2)}, "agent-1.safetensors: x and y need one row per sample"),
        ({"x": torch.ones(3, 6).to(torch.uint64), "y": torch.ones(3)}, r"x is uint64, whose numbers need not fit into"),
        ({"x": torch.ones(3, 6), "y": torch.ones(3, 1)}, r"agent-1.safetensors: labels y must be int64 of shape \[N\]"),
        ({"x": torch.ones(3, 6), "y": torch.tensor([0, 1, torch.nan])}, "the label nan of row 2 is not a whole number"),
        ({"x": torch.ones(1, 6), "y": torch.tensor(torch.nan)}, "the label nan of row 0 is not a whole number"),
        (
            {"x": torch.ones(3, 6) + 1j, "y": torch.ones(3)},
            "agent-1.safetensors: x must hold real numbers; got torch.c",
        ),
        (
            {"x": torch.ones(3, 6), "y": torch.ones(3) + 0j},
            "agent-1.safetensors: y must hold real numbers; got torch.c",
        ),
        ({"x": torch.ones(3, 6).double(), "y": torch.ones(3)}, "x and y are float64 and int64, those .* float32 and i"),
        (
            {"x": torch.ones(3, 6).int(), "y": torch.ones(3)},
            "x and y are int64 and int64, .*; they must match, and dty",
        ),
        (b"\x80\x04K\x01.", "agent-1.safetensors: not a whole safetensors file"),
    ],
)
def test_tensors_that_are_refused(tmp_path, held, message):
    good = (torch.ones(3, 6), torch.tensor([0, 1, 1]))
    examples = data.per_agent(tensors(tmp_path, [good, good]), labels=(0, 1))
    path = tmp_path / "agent-1.safetensors"
    path.write_bytes(held) if isinstance(held, bytes) else save_file(held, path)
    with pytest.raises(ValueError, match=message):
        examples.load(range(2))
    assert len(examples.load(range(1))[0].y) == 3


@pytest.mark.parametrize("labels", [2, "01", ["0", "1"], [0, 0.5], [0, 2**53]])
def test_labels_are_whole_numbers_that_files_can_hold(labels):
    with pytest.raises(ValueError, match=r"labels must be a list of whole numbers below 2\^53"):
        data.per_agent("{agent}.svm", 2, labels)


def test_a_target_that_is_not_a_number_is_named_by_file_and_row(tmp_path):
    good = (torch.ones(3, 6), torch.tensor([0.5, 1.0, 1.0]))
    examples = data.per_agent(
        tensors(tmp_path, [good, (good[0], torch.tensor([0.5, torch.nan, 1.0]))]), regression=True
    )
    with pytest.raises(ValueError, match=r"agent-1.safetensors: y must be finite; got nan in row 1"):
        examples.load(range(2))
