"""The pages tell the truth: every block of README and docs/ is executed, or at least read by what it is meant for.

The blocks of a page are taken in order, in a folder and a namespace of the page's own. Python runs. A configuration, or
a part of one, is built into a run. The commands of proxdasa run on pages that are followed from top to bottom
(`FOLLOWED`); on the others, where they take minutes or name a FILE, their words must be ones that they understand. A
block with a title is a file. Text in the section of a block that prints must be what it prints, up to the last digits.
"""

import contextlib
import io
import math
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import typer
from torch.distributed.run import get_args_parser
from typer.testing import CliRunner

from proxdasa import cli
from proxdasa.algorithms import ALL
from proxdasa.configs import asks_auto, build, fill, read_study
from tests import processes

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
FOLLOWED = {"index.md", "own-model.md", "add-an-algorithm.md", "planning.md"}
SHORTER = {"README.md": ("iterations=2_500", "iterations=100")}
"""The page has only comments on what this run finds; `test_examples` makes the same run to its end."""
NO_CODE = {"text", "math", "bibtex"}
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
BASE = """
[algorithm]
name = "ProxDASAGT"
gamma = 0.1
[problem]
name = "Supervised"
agents = 4
model = { name = "mlp", inputs = 30 }
data = "breast_cancer"
[network]
name = "ring"
"""
"""What a part of a configuration is a part of."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    title: str | None
    text: str
    section: int
    where: str


def blocks(page):
    """The fenced blocks of a page; an indented one would not be seen."""
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"^ +```", text, flags=re.MULTILINE), f"{page.name}: an indented fence"
    assert not re.search(r"\n\n {4}\w", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)), page
    found = re.finditer(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', text, flags=re.MULTILINE | re.DOTALL)
    places = [(m, text[: m.start()]) for m in found]
    return [
        Block(*m.groups(), before.count("\n## "), f"{page.name}, line {before.count(chr(10)) + 2}")
        for m, before in places
    ]


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_block(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if page.stem == "scikit-learn":
        monkeypatch.setattr("proxdasa.estimators.solver.SEARCHED", 15)  # searches have tests of their own
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    namespace, printed, section = {"__name__": "__main__"}, None, None
    for block in blocks(page):
        if section != block.section:
            printed, section = None, block.section
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        if block.language == "python":
            printed = run_python(block, namespace)
        elif block.language == "sh":
            printed = "".join(run_command(words, block, page.name in FOLLOWED) for words in commands(block)) or None
        elif block.language == "toml":
            check_configuration(block)
        elif block.language == "text" and printed is not None and not block.title:
            assert_alike(block, printed)
            printed = None
        else:
            assert block.language in NO_CODE, (
                f"{block.where}: nothing checks a block of {block.language or 'no language'}"
            )


def check_configuration(block):
    """Build the run, or the study, that it describes."""
    settings = tomllib.loads(block.text)
    if "methods" in settings:
        read_study(Path(block.title))
        return
    settings = complete(settings)
    settings = fill(settings, {"gamma": 0.1}) if asks_auto(settings) else settings
    build(settings, try_step=block.title is not None)


def run_python(block, namespace):
    """What it prints."""
    page = block.where.partition(",")[0]
    text = block.text.replace(*SHORTER[page]) if page in SHORTER else block.text
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(text, block.where, "exec"), namespace)
    return out.getvalue()


# ---------------------------------------------------------------------------------------- commands


def commands(block):
    """The words of each command, comments left out."""
    lines = (shlex.split(line, comments=True) for line in block.text.replace("\\\n", " ").splitlines())
    return [words for line in lines for words in piped(line) if words]


def piped(words):
    """The commands of a line, each of which reads what the one before prints."""
    if "|" not in words:
        return [words]
    place = words.index("|")
    return [words[:place], *piped(words[place + 1 :])]


def run_command(words, block, run):
    """What it prints if it is run; otherwise it is found to be one that could be."""
    program, *rest = words
    match Path(program).name:
        case "proxdasa":
            understood(rest, block)
            if run and "--processes" in rest and sys.platform == "linux":
                with processes.commands(Path.cwd()) as start:  # forks the processes too
                    return start(*words).ended()
            if run and rest != ["doctor"]:  # which starts processes of all kinds, and has its own test
                result = CliRunner().invoke(cli.app, rest, terminal_width=80)
                assert result.exit_code == 0, f"{block.where}: {words}\n{result.output}"
                return result.stdout
        case "torchrun":
            asked = get_args_parser().parse_args(rest)
            if asked.module:
                assert asked.training_script == "proxdasa"
                understood(asked.training_script_args, block)
            else:
                assert Path(asked.training_script).is_file(), f"{block.where}: there is no {asked.training_script}"
        case "mpiexec" | "srun":
            understood(rest[rest.index("proxdasa") + 1 :], block)
        case "make":
            targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
            assert set(rest) <= set(targets), block.where
        case "pip":
            named = re.findall(r"\[([\w,]+)\]", " ".join(rest))
            assert {extra for names in named for extra in names.split(",")} <= set(EXTRAS), block.where
        case "python" | "python3":
            assert rest[:2] == ["-m", "venv"] or Path(rest[0]).is_file(), f"{block.where}: there is no {rest[0]}"
        case "jq" | "tensorboard":
            pass  # programs of others, which only read
        case _:
            pytest.fail(f"{block.where}: nothing checks the command {program}")
    return ""


def understood(words, block):
    """Fail unless the command line has this command with these options and arguments."""
    command, context = typer.main.get_command(cli.app), None
    try:
        while True:
            context = command.make_context(words[0] if words else "", list(words), parent=context)
            if not hasattr(command, "resolve_command"):
                return
            _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    except Exception as error:
        raise AssertionError(f"{block.where}: {' '.join(words)}: {error}") from error


# ---------------------------------------------------------------------------------------- configurations and output


def complete(settings):
    """The settings, with those of `BASE` where they are a part of a configuration only."""
    return settings if "algorithm" in settings and "problem" in settings else merge(tomllib.loads(BASE), settings)


def merge(base, settings):
    """An object that is named replaces that of the base; one that is not has more parameters."""
    merged = dict(base)
    for key, value in settings.items():
        further = isinstance(value, dict) and "name" not in value and isinstance(base.get(key), dict)
        merged[key] = merge(base[key], value) if further else value
    return merged


NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def assert_alike(block, printed):
    """The same words, and numbers as near as those of another machine."""
    said, is_said = (NUMBER.sub("#", text).split() for text in (block.text, printed))
    assert said == is_said, f"{block.where} prints\n{printed}"
    for ours, theirs in zip(*(map(number, NUMBER.findall(text)) for text in (block.text, printed)), strict=True):
        assert near(ours, theirs), f"{block.where} prints\n{printed}"


def near(ours, theirs):
    """Small numbers are errors, of which rounding may change much."""
    if abs(ours) < 1e-3:
        return ours == theirs or 0.1 < theirs / ours < 10
    return math.isclose(ours, theirs, rel_tol=0.1, abs_tol=0.03 if abs(ours) > 0.1 else 0.0)


def number(text):
    return float(text.replace(",", ""))


# ---------------------------------------------------------------------------------------- what pages say of the project


def test_the_costs_of_the_methods_are_those_that_the_classes_declare():
    page = (DOCS / "methods.md").read_text(encoding="utf-8")
    costs, _, ends = page.partition("\n## Which to choose")
    rows = cells(costs)
    declared = [
        [f.title, method.__name__, str(f.vectors), str(f.gradients), "any" if f.composite else "none"]
        for method in ALL
        for f in [method.facts]
    ]
    assert rows[1:] == declared
    assert not any(method.facts.sends_every for method in ALL), "the page says that all send in every step"
    assert all(f"`{method.__name__}(" in page for method in ALL), "every method has its equations"
    trackers = [[method.__name__, f.tracking.tracker if f.tracking else ""] for method in ALL for f in [method.facts]]
    assert [row[:2] for row in cells(ends)[1:]] == trackers


def cells(page):
    """The first five cells of the rows of its tables."""
    lines = [line for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip(" `") for cell in line.split("|")[1:6]] for line in lines]


def test_the_gallery_has_every_figure_with_the_command_that_makes_it():
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    for figure in DOCS.glob("*.png"):
        before, found, _ = page.partition(f"]({figure.name})")
        section = before.rpartition("\n## ")[2]
        assert found, f"{figure.name} is not in the gallery"
        assert "```sh" in section, f"the gallery does not say how {figure.name} is made"


def test_what_is_run_shorter_is_on_its_page():
    assert all(long in (ROOT / page).read_text(encoding="utf-8") for page, (long, _) in SHORTER.items())


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", (ROOT / "README.md").read_text(encoding="utf-8")):
        assert (ROOT / target).exists(), target
