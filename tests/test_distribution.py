"""Wheel and sdist: what is in them, what they say of themselves, and that the wheel works where nothing of ours was."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import proxdasa
from tests.oldest import constraints, floors

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NAME = f"proxdasa-{PROJECT['version']}"
LIMIT = 120
PROGRAM = """
import os, sys
import torch
import proxdasa
from proxdasa import data, problems
from proxdasa.cli import app
print(proxdasa.__file__)
network = lambda: torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1))
problems.Supervised(network, data.from_tensors(torch.ones(4, 2), [0, 1, 0, 1]), 2, path="loop")
print("torch._dynamo" in sys.modules)
app(["run", sys.argv[1], "--output", "results"], standalone_mode=False)
app(["report", "results", "--html"], standalone_mode=False)
sys.stdout.flush()
os._exit(0)
"""
"""A problem and two commands in one interpreter, which imports torch once, and does not take it down at its end."""


def run(*words, cwd, env=None):
    """What a command prints; it must succeed."""
    ended = subprocess.run(
        list(map(str, words)), cwd=cwd, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def files(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the checkout without what git ignores, so that building changes nothing in the checkout itself."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()]
    folder = tmp_path_factory.mktemp("distribution") / "checkout"
    ignore = shutil.ignore_patterns(".git", ".ci", "PKG-INFO", "setup.cfg", *ignored)
    shutil.copytree(ROOT, folder, ignore=ignore, copy_function=copy)
    return folder


def copy(source, target):
    """Copy a file, but leave figures empty, which most of the bytes are."""
    Path(target).touch() if source.endswith(".png") else shutil.copy2(source, target)


@pytest.fixture(scope="module")
def built(checkout):
    """Wheel and sdist as `make dist` builds them, in a checkout that has been worked in."""
    pytest.importorskip("build", reason="build is not installed: pip install .[test]")
    used = checkout.with_name("used")
    shutil.copytree(checkout, used, copy_function=os.link)
    for left in ("build/lib/proxdasa/removed.py", "tests/__pycache__/left.pyc", "src/proxdasa/__pycache__/left.pyc"):
        (used / left).parent.mkdir(parents=True)
        (used / left).touch()
    run(sys.executable, "-m", "build", "--no-isolation", "--skip-dependency-check", cwd=used)
    assert files(used / "dist") == {f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz"}
    return used / "dist"


@pytest.fixture(scope="module")
def wheel(built):
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        yield wheel


@pytest.fixture(scope="module")
def metadata(wheel):
    return message_from_string(wheel.read(f"{NAME}.dist-info/METADATA").decode())


def test_the_wheel_holds_the_package_and_nothing_else(wheel, checkout):
    about = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE", "top_level.txt"}
    assert set(wheel.namelist()) == files(checkout / "src") | {f"{NAME}.dist-info/{name}" for name in about}


def test_the_sdist_holds_the_whole_checkout(built, checkout):
    with tarfile.open(built / f"{NAME}.tar.gz") as sdist:
        found = {name.removeprefix(f"{NAME}/") for name in (member.name for member in sdist if member.isfile())}
    generated = {name for name in found if re.match("PKG-INFO$|setup.cfg$|src/proxdasa.egg-info/", name)}
    assert found - generated == files(checkout), "MANIFEST.in says what goes into the sdist"


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A folder with an environment into which the wheel is installed, and what `PROGRAM` prints in it."""
    folder = tmp_path_factory.mktemp("installed")
    home = folder / "environment"
    venv.create(home, symlinks=True)  # without pip
    paths = {"base": str(home), "platbase": str(home)}
    site, scripts = (Path(sysconfig.get_path(kind, "venv", paths)) for kind in ("purelib", "scripts"))
    # The dependencies are those of this environment. A folder that a .pth file adds has its own .pth files ignored,
    # so an editable installation of ours stays behind.
    (site / "dependencies.pth").write_text("\n".join({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}))
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["OMP_NUM_THREADS"] = "1"
    pip = importlib.metadata.distribution("pip").locate_file("pip")  # what pip itself starts if it is told --python
    options = ("--no-deps", "--no-index", "--no-compile")  # Python compiles what it imports
    words = ("--isolated", "--disable-pip-version-check", "install", *options, built / f"{NAME}-py3-none-any.whl")
    run(scripts / "python", pip, *words, cwd=folder, env=env)

    assert run(scripts / "proxdasa", "--version", cwd=folder, env=env) == f"proxdasa {PROJECT['version']}\n"
    quickstart = (ROOT / "examples/quickstart.toml").read_text(encoding="utf-8")
    shorter = quickstart.replace("iterations = 2_500", "iterations = 100")  # test_examples.py runs it to its end
    (folder / "quickstart.toml").write_text(shorter, encoding="utf-8")
    place, *said = run(scripts / "python", "-c", PROGRAM, "quickstart.toml", cwd=folder, env=env).splitlines()
    assert Path(place) == site / "proxdasa/__init__.py"
    return folder, said


def test_the_installed_wheel_runs_the_quickstart(installed):
    folder, _ = installed
    result = proxdasa.load(folder / "results")
    assert result.records[-1]["k"] == 100
    assert list((folder / "results").glob("*.html"))


def test_a_problem_is_made_without_torchs_compiler(installed):
    """Importing it takes seconds."""
    assert installed[1][0] == "False"


def test_the_metadata_say_what_the_project_says(metadata):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload() == readme
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert f"version: {metadata['Version']}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    python = metadata["Requires-Python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {python}" in metadata.get_all("Classifier")
    assert f"need Python {python} or newer" in readme
    assert f"(PyTorch {floors()['torch']} or newer" in readme


def test_everything_that_is_installed_works_with_the_oldest_python():
    """A pin that needs a later 3.11 would fail `make test` for those who have an earlier one, as on Debian 12."""
    oldest = f"{PROJECT['requires-python'].removeprefix('>=')}.0"
    needs = {each.name: each.metadata.get("Requires-Python") or "" for each in importlib.metadata.distributions()}
    assert len(needs) > 50
    assert [f"{name} {need}" for name, need in needs.items() if not SpecifierSet(need).contains(oldest)] == []


def test_the_oldest_environment_has_every_library_at_its_floor():
    """A library without a floor would promise versions that nobody has tried."""
    required = {re.match(r"[\w-]+", line).group() for line in PROJECT["dependencies"]}
    assert required <= floors().keys()
    lines = constraints()
    names = [line.partition("==")[0] for line in lines if not line.startswith("#")]
    assert len(set(names)) == len(names), "one version of each"
    assert {f"{name}=={version}" for name, version in floors().items()} <= set(lines)
