"""Dependencies point one way. Reads the imports, so that a shortcut is noticed when it is taken."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "proxdasa"

MAY_IMPORT = {
    "schedules": set(),
    "budget": set(),
    "callers": set(),
    "disk": set(),
    "exits": set(),
    "networks": {"budget", "callers"},
    "records": {"callers", "disk"},
    "contracts": {"schedules"},
    "samples": {"contracts"},
    "data": {"budget", "samples"},
    "regularizers": {"contracts", "schedules"},
    "mixing": {"contracts"},
    "problems": {"budget", "contracts", "data", "samples"},
    "algorithms": {"contracts", "schedules"},
    "engines": {"contracts", "exits", "schedules", "samples"},
    "metrics": {"contracts", "schedules"},
    "footprint": {"contracts", "engines", "samples"},
    "results": {"records"},
    "divergence": {"contracts", "schedules", "results"},
    "checkpoints": {"callers", "disk", "records"},
    "tensorboard": {"records"},
    "stopping": {"contracts", "schedules"},
    "resumption": {"checkpoints", "records"},
    "probes": {"contracts", "schedules", "metrics", "networks", "problems", "records"},
    "loop": {
        "callers", "probes", "stopping", "contracts", "schedules", "metrics", "disk", "records", "results",
        "divergence", "checkpoints", "resumption",
    },
    # The runner needs a default regulariser and mixing, and the name of a network's class.
    "runner": {
        "budget", "contracts", "schedules", "samples", "engines", "footprint", "metrics", "records", "results",
        "checkpoints", "loop", "mixing", "networks", "regularizers", "probes", "stopping",
    },
    "optim": {
        "contracts", "schedules", "algorithms", "engines", "loop", "mixing", "networks", "records", "regularizers",
    },
    "tuning": {
        "budget", "contracts", "schedules", "metrics", "results", "divergence", "loop", "runner", "networks",
        "problems", "regularizers", "reports",
    },
    "testing": {
        "contracts", "schedules", "engines", "loop", "divergence", "runner", "mixing", "networks", "problems",
        "regularizers",
    },
    "experiments": {
        "budget", "tuning", "contracts", "schedules", "metrics", "disk", "records", "results", "loop", "runner",
        "stopping",
        "algorithms", "data", "mixing", "networks", "problems", "regularizers",
    },
    "plans": {"budget", "contracts", "schedules", "records", "runner", "algorithms", "engines", "mixing", "networks"},
    "reports": {"disk", "records"},
    "cli": {
        "contracts", "data", "disk", "engines", "exits", "experiments", "networks", "plans", "reports", "records",
        "results",
        "loop", "runner", "tuning", "tensorboard",
    },
    "__init__": {
        "algorithms", "data", "divergence", "metrics", "mixing", "networks", "optim", "plans", "problems",
        "regularizers", "results", "runner", "schedules", "stopping", "testing", "tuning",
    },
    "__main__": {"cli"},
}  # fmt: skip


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms that a module imports from the package."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            parts = (node.module or "").split(".")
            if parts[0] == "proxdasa":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            assert all(alias.name != "proxdasa" for alias in node.names), f"{path}: import the room, not the package"
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("proxdasa.")}
    return found - {room(path)}


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path):
    extra = imports(path) - MAY_IMPORT[room(path)]
    assert not extra, f"{path.relative_to(PACKAGE)} may not import {sorted(extra)}"


def test_the_allowed_directions_have_no_cycle():
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        free = [name for name in MAY_IMPORT if name not in order and MAY_IMPORT[name] <= set(order)]
        assert free, f"a cycle among {sorted(set(MAY_IMPORT) - set(order))}"
        order += free


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) == "algorithms"], ids=lambda path: path.name)
def test_algorithms_know_nothing_of_the_world(path):
    """No randomness, clock, printing, processes or devices: only rows, verbs and k."""
    source = path.read_text(encoding="utf-8")
    modules = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    allowed = {"__future__", "abc", "dataclasses", "typing", "torch", "math", "collections.abc"}
    assert {name for name in modules if not name.startswith("proxdasa")} <= allowed
    for word in ("torch.rand", "manual_seed", "print(", "distributed", "device", ".shape[", "rank"):
        assert word not in source, f"{path.name} uses {word}"
