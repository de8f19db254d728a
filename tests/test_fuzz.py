"""Files from others, damaged or invented: never a traceback, a hang, a file opened outside, or much memory."""

import contextlib
import functools
import json
import os
import resource
import shutil
import signal
import sys
import tomllib
import warnings
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from typer.testing import CliRunner

import proxdasa
from proxdasa import cli, metrics, networks, problems, schedules
from proxdasa.configs.reading import build, read
from proxdasa.runs import checkpoints
from tests.laws import FEWER, TWICE
from tests.processes import LINUX
from tests.results import opened_files

pytestmark = LINUX

USUAL = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
EXAMPLES, CHEAP = (settings(USUAL, max_examples=law.max_examples) for law in (FEWER, TWICE))
MEMORY, SECONDS = 500 * 2**20, 5
"""What reading a file may take: bytes, and seconds of the processor, which a busy machine does not stretch."""
REFUSALS = (ValueError, OSError, MemoryError)
"""What the command line tells in a sentence."""

SECRET = "the first line of a file that is nobody's business"


# what there is to damage


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """A results folder with checkpoints, a configuration, lists of edges, and a file that nothing should open."""
    folder = tmp_path_factory.mktemp("material")
    method = proxdasa.ProxDASAGT(gamma=0.1, alpha=schedules.constant(0.3))
    problem = problems.PhaseRetrieval(agents=3, dim=4, sparsity=2, evaluation=10)
    stop = proxdasa.Stationary(1e-12, every=5)
    run = proxdasa.run(
        method, problem, networks.ring(3), iterations=20, observe_every=10, trials=2, stop=stop,
        metrics=(metrics.loss, metrics.stationarity, metrics.consensus),
        checkpoints=folder / "run" / "checkpoints", checkpoint_every=10,
    )  # fmt: skip
    run.save(folder / "run")
    (folder / "run.toml").write_text(TOML)
    (folder / "secret").write_text(SECRET)
    os.mkfifo(folder / "fifo")
    return folder


TOML = """
iterations = 5
trials = 2
seed = 3
x0 = [0.5, 0.5, 0.5]
metrics = ["loss", "consensus"]
[algorithm]
name = "ProxDASA"
gamma = [0.1, 0.2]
alpha = { name = "horizon", scale = 1.0 }
[problem]
name = "PhaseRetrieval"
agents = 4
dim = 3
sparsity = 2
evaluation = 20
[network]
name = "ring"
[mixing]
name = "Chebyshev"
rounds = 2
[regularizer]
name = "L1"
weight = 0.01
[stop]
name = "Stationary"
tolerance = 0.1
"""


# how it is damaged

TEXTS = st.sampled_from(
    ["", "x", "auto", "\x1b[2J", "=1+1", "../../secret", "/dev/zero", "from_file", "inf", "é" * 300]
)
NUMBERS = st.sampled_from([-5, -1, 0, 1, 2, 3, 10**6, 10**12, 10**30, -0.5, 0.5, 1e-320, 1e308])
PLAIN = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=5
)


@st.composite
def changed(draw, document):
    """A copy of a JSON document with one value, at any depth, replaced, removed or added."""
    document = json.loads(json.dumps(document))
    place = document
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = draw(st.sampled_from(keys)) if keys else None
        if key is None or not isinstance(place[key], dict | list) or draw(st.booleans()):
            break
        place = place[key]
    deed = draw(st.sampled_from(["replace", "replace", "remove", "add"]))
    if deed == "remove" and key is not None:
        del place[key]
    elif deed == "add" or key is None:
        place.update({"more": draw(VALUES)}) if isinstance(place, dict) else place.append(draw(VALUES))
    else:
        place[key] = draw(VALUES)
    return document


@st.composite
def damaged(draw, data):
    """Bytes with some cut off, changed, or put in between."""
    place = draw(st.integers(0, len(data)))
    more = draw(st.binary(max_size=8) | st.sampled_from([b"\0" * 1000, b"[" * 5000, b"\n", b"9" * 400, b"\xff\xfe"]))
    return data[:place] + more + data[place + draw(st.sampled_from([0, 1, len(more), len(data)])) :]


# what must not happen


class TooLongError(BaseException):
    """Not an Exception, so that nobody takes it for bad input."""


def _stop(*_):
    raise TooLongError


@contextlib.contextmanager
def bounded(*folders):
    """In here nothing but these folders, and what Python and its libraries consist of, may be opened."""
    allowed = (*map(os.path.realpath, folders), *_libraries())
    before, held = resource.getrlimit(resource.RLIMIT_DATA), int(_status("VmData")) * 1024
    handler = signal.signal(signal.SIGPROF, _stop)
    with opened_files() as opened:
        try:
            resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY, before[1]))
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, handler)
            resource.setrlimit(resource.RLIMIT_DATA, before)
    outside = [name for name in opened if not os.path.realpath(name).startswith(allowed)]
    assert not outside


@functools.cache
def _libraries():
    own = [sys.prefix, sys.base_prefix, "/usr", "/proc", "/sys", "/etc", os.devnull, Path.home() / ".cache"]
    own += [Path(proxdasa.__file__).parent, os.environ.get("MPLCONFIGDIR", Path.home() / ".config" / "matplotlib")]
    return [os.path.realpath(folder) for folder in own]


def _status(name):
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def check_refusal(act):
    """What is done, or refused with some words."""
    try:
        act()
    except REFUSALS as refusal:
        words = str(refusal)
    else:
        return
    assert words


def call(*words):
    with warnings.catch_warnings(action="default"):
        warnings.showwarning = cli.show_warning
        return CliRunner().invoke(cli.app, [str(word) for word in words])


def copy(source, target):
    shutil.rmtree(target, ignore_errors=True)
    return Path(shutil.copytree(source, target))


# results folders


@EXAMPLES
@given(data=st.data())
@pytest.mark.usefixtures("drawn")  # `test_foreign_folders` draws odd names and numbers
def test_a_damaged_folder_is_named_and_does_not_cost_the_report(data, material, tmp_path):
    bad, good = (copy(material / "run", tmp_path / "all" / name) for name in ("bad", "good"))
    path = bad / data.draw(st.sampled_from(["config.json", "records.jsonl", "final.safetensors"]))
    if path.suffix == ".json" and data.draw(st.booleans()):
        config = json.loads(path.read_text(encoding="utf-8"))
        network = st.sampled_from([material / "secret", material / "fifo", "/dev/zero"])
        config["network"] = {"name": "from_file", "path": str(data.draw(network))}
        path.write_text(json.dumps(data.draw(changed(config))), encoding="utf-8")
    elif path.suffix == ".jsonl" and data.draw(st.booleans()):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        rows = data.draw(changed(rows))
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    words = [tmp_path / "all", "--output", tmp_path / "out", *["--html"] * data.draw(st.sampled_from([0, 1, 1, 1]))]
    with bounded(tmp_path / "all", tmp_path / "out"):
        result = call("report", *words)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "\x1b" not in result.output
    # Two runs that can be read are named by their settings, which differ now, and not by their folders.
    rows = (tmp_path / "out" / "report.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert "good" in result.output or len(rows) == 2
    for page in (tmp_path / "out").glob("*.html"):
        assert SECRET not in page.read_text(encoding="utf-8")
    with contextlib.suppress(*REFUSALS), warnings.catch_warnings(action="ignore"), bounded(bad):
        proxdasa.load(bad)
    assert proxdasa.load(good).iterations == 20


# checkpoints


@EXAMPLES
@given(data=st.data())
def test_a_damaged_checkpoint_is_passed_over_or_refused(data, material, tmp_path):
    folder = copy(material / "run", tmp_path / "run")
    shutil.rmtree(folder / "checkpoints" / "000000020")
    files = sorted(path for path in (folder / "checkpoints").rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    path.write_bytes(data.draw(damaged(path.read_bytes())))
    check_resumes(folder)


def check_resumes(folder):
    for name in ("records.jsonl", "final.safetensors", "config.json"):
        (folder / name).unlink(missing_ok=True)
    with bounded(folder):
        result = call("resume", folder)
    assert result.exit_code in (0, 2), (result.output, result.exception)
    if result.exit_code == 0:
        assert proxdasa.load(folder).iterations == 20


@EXAMPLES
@given(data=st.data())
def test_a_checkpoint_whose_sums_are_right_and_whose_content_is_not(data, material, tmp_path):
    folder = copy(material / "run", tmp_path / "run")
    config = json.loads((folder / "checkpoints" / "config.json").read_text(encoding="utf-8"))
    kind = data.draw(st.sampled_from(["notes", "rows", "state", "config"]))
    shutil.rmtree(folder / "checkpoints" / "000000020")
    if kind == "config":
        text = json.dumps(data.draw(changed(config)))
        (folder / "checkpoints" / "config.json").write_text(text, encoding="utf-8")
    else:
        kept = checkpoints.Checkpoints(folder / "checkpoints", checkpoints.fingerprint(config))
        found = kept.latest()
        shutil.rmtree(folder / "checkpoints" / "000000010")
        if kind == "state":
            shape = data.draw(st.sampled_from([(2, 3, 4), (1, 3, 4), (2, 3, 5), (0,), (2, 3)]))
            dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.complex64]))
            name = data.draw(st.sampled_from(["x", "z", "more"]))
            found.state[name] = torch.ones(shape, dtype=dtype)
        elif kind == "rows":
            found = found._replace(rows=data.draw(changed(found.rows)))
        else:
            found = found._replace(notes=data.draw(changed(found.notes)))
        k = data.draw(st.sampled_from([10, 10, 10, 0, 19, 20, 21, 10**12]))
        with contextlib.suppress(*REFUSALS, TypeError, AttributeError):  # what cannot be written is no checkpoint
            kept.write(found._replace(k=k))
    check_resumes(folder)


# configurations and networks


@USUAL
@given(data=st.data())
def test_a_configuration_is_built_or_refused_in_a_sentence(data, material):
    table = data.draw(changed(tomllib.loads(TOML)))
    with warnings.catch_warnings(action="ignore"), bounded():
        check_refusal(lambda: build(table))


@CHEAP
@given(data=st.data())
def test_a_damaged_configuration_file_is_refused_in_a_sentence(data, tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(data.draw(damaged(TOML.encode())))
    with warnings.catch_warnings(action="ignore"), bounded(tmp_path):
        check_refusal(lambda: read(path))


EDGES = b"0 1\n1 2 # a comment\n2,3\n3 0\n"
MATRIX = b"0.5,0.5,0\n0.5,0.25,0.25\n0,0.25,0.75\n"


@CHEAP
@given(data=st.data())
def test_a_damaged_network_file_is_read_or_refused_in_a_sentence(data, tmp_path):
    path = tmp_path / data.draw(st.sampled_from(["edges.txt", "W.csv", "W.npy"]))
    if path.suffix == ".npy":
        np.save(path, np.full((3, 3), 1 / 3))
        good = path.read_bytes()
    else:
        good = MATRIX if path.suffix == ".csv" else EDGES
    path.write_bytes(data.draw(damaged(good)))
    with bounded(tmp_path):
        check_refusal(lambda: networks.from_file(path))
