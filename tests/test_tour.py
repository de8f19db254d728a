"""The tour of the code visits files that exist, and names what is in them."""

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = " ".join((ROOT / "docs" / "tour.md").read_text(encoding="utf-8").split())
STOPS = re.findall(r"`([\w/]+\.py)`, `(\w+)`", TEXT)


def test_every_file_that_is_named_exists():
    named = re.findall(r"`([\w/]+\.py)`", TEXT)
    assert len(named) > 25
    assert [path for path in named if not (ROOT / "src" / "proxdasa" / path).is_file()] == []


@functools.cache
def defined(path):
    """The classes and functions of a file."""
    tree = ast.parse((ROOT / "src" / "proxdasa" / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


@pytest.mark.parametrize(("path", "name"), STOPS)
def test_every_stop_is_in_its_file(path, name):
    assert name in defined(path)


def test_every_step_of_the_way_names_what_to_read():
    assert len(STOPS) == len(re.findall(r"(?m)^\d+\. ", (ROOT / "docs" / "tour.md").read_text(encoding="utf-8"))) + 2
