"""Dependencies point one way. Reads the imports, so that a shortcut is noticed when it is taken."""

import ast
import functools
import statistics
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "proxdasa"

MAY_IMPORT = {
    "checks": set(),
    "schedules": {"checks"},
    "disk": set(),
    "descriptions": set(),
    "exit_codes": set(),
    "experiment_choices": set(),
    "lazy_names": set(),
    "memory_budget": set(),
    "thread_counts": set(),
    "torch_internals": set(),
    "caller_warnings": set(),
    "devices": {"checks"},
    "modules": {"checks", "contracts", "torch_internals"},
    "running_statistics": {"checks", "devices"},
    "networks": {"caller_warnings", "checks", "memory_budget"},
    "contracts": {"schedules"},
    "samples": {"checks", "contracts", "devices"},
    "data": {"checks", "memory_budget", "samples"},
    "regularizers": {"checks", "contracts", "devices", "modules", "schedules"},
    "mixing": {"checks", "contracts"},
    "problems": {
        "caller_warnings", "checks", "contracts", "data", "devices", "memory_budget", "modules", "running_statistics",
        "samples", "torch_internals",
    },
    "algorithms": {"checks", "contracts", "schedules"},
    "conditions": {"checks", "contracts", "devices", "samples"},
    "compressors": {"checks", "contracts", "devices"},
    "engines": {
        "compressors", "conditions", "contracts", "devices", "exit_codes", "samples", "schedules", "thread_counts",
        "torch_internals",
    },
    "metrics": {"checks", "contracts", "schedules", "thread_counts"},
    # A run needs a default regulariser and mixing, the name of a network's class, and which links and data are ours.
    "runs": {
        "caller_warnings", "checks", "conditions", "contracts", "data", "descriptions", "devices", "disk", "engines",
        "memory_budget", "metrics", "mixing", "networks", "problems", "regularizers", "samples", "schedules",
        "thread_counts", "torch_internals",
    },
    "tensorboard": {"runs"},
    "optim": {
        "algorithms", "checks", "contracts", "descriptions", "engines", "mixing", "networks", "regularizers",
        "running_statistics", "runs", "schedules",
    },
    # Plans are shown in tables and files as runs are; of runs, reports read the records only (see below).
    "reports": {"disk", "networks", "plans", "runs"},
    # Plans estimate L, the scale of a quick search.
    "tuning": {
        "checks", "contracts", "memory_budget", "metrics", "networks", "plans", "problems", "regularizers", "reports",
        "runs", "schedules",
    },
    "plans": {
        "algorithms", "checks", "contracts", "descriptions", "engines", "memory_budget", "mixing", "networks", "runs",
        "schedules",
    },
    "estimators": {
        "algorithms", "caller_warnings", "checks", "contracts", "data", "metrics", "mixing", "modules", "networks",
        "problems", "regularizers", "runs", "schedules", "tuning",
    },
    "testing": {
        "checks", "conditions", "contracts", "engines", "mixing", "networks", "problems", "regularizers", "runs",
        "schedules",
    },
    "configs": {
        "algorithms", "checks", "compressors", "conditions", "contracts", "data", "descriptions", "memory_budget",
        "metrics", "mixing", "networks", "problems", "regularizers", "runs", "schedules",
    },
    "experiments": {
        "algorithms", "compressors", "conditions", "contracts", "data", "descriptions", "disk", "experiment_choices",
        "metrics", "mixing", "networks", "problems", "regularizers", "runs", "schedules", "tuning",
    },
    "cli": {
        "configs", "contracts", "data", "descriptions", "devices", "disk", "engines", "exit_codes",
        "experiment_choices", "experiments", "memory_budget", "networks", "plans", "reports", "runs", "sites", "tuning",
    },
    "sites": {"checks", "configs", "contracts", "data", "disk", "engines", "metrics", "problems", "runs"},
    "__init__": {
        "algorithms", "compressors", "conditions", "data", "metrics", "mixing", "networks", "optim", "plans",
        "problems", "regularizers", "reports", "runs", "schedules", "testing", "tuning",
    },
    "__main__": {"cli"},
}  # fmt: skip


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def tree(path: Path) -> ast.Module:
    """The source of a module, read once."""
    return ast.parse(path.read_text(encoding="utf-8"))


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements within; imports are statements, and most nodes are not."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield child
            yield from statements(child)


def imports(path: Path) -> set[str]:
    """The rooms that a module imports from the package."""
    found = set()
    for node in statements(tree(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written in full"
            parts = (node.module or "").split(".")
            if parts[0] == "proxdasa":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            assert all(alias.name != "proxdasa" for alias in node.names), f"{path}: import the room, not the package"
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("proxdasa.")}
    return found - {room(path), "lazy_names"}  # which any package may use


MODULES = sorted(PACKAGE.rglob("*.py"))


def test_imports_point_one_way():
    extra = {path: imports(path) - MAY_IMPORT[room(path)] for path in MODULES}
    found = [f"{path.relative_to(PACKAGE)} may not import {sorted(names)}" for path, names in extra.items() if names]
    assert not found, "\n".join(found)


def test_the_allowed_directions_have_no_cycle():
    order: list[str] = []
    while len(order) < len(MAY_IMPORT):
        free = [name for name in MAY_IMPORT if name not in order and MAY_IMPORT[name] <= set(order)]
        assert free, f"a cycle among {sorted(set(MAY_IMPORT) - set(order))}"
        order += free


def module(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


NAMES = {module(path) for path in MODULES}


def imported_modules(path: Path) -> set[str]:
    """The modules of the package that a module imports as it is loaded."""
    body = [*tree(path).body]
    if path.stem == "__init__":  # packages that import their names when they are first used
        body += [line for block in body if isinstance(block, ast.If) for line in block.body]
    full = {f"{node.module}.{alias.name}" for node in body if isinstance(node, ast.ImportFrom) for alias in node.names}
    full |= {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    return {name if name in NAMES else name.rpartition(".")[0] for name in full if name.startswith("proxdasa")}


def test_no_modules_import_each_other_in_a_circle():
    edges = [(module(path), name) for path in MODULES for name in imported_modules(path) & NAMES]
    circles = [each for each in nx.strongly_connected_components(nx.DiGraph(edges)) if len(each) > 1]
    assert not circles


def test_reports_read_records_and_nothing_else_of_runs():
    for path in (path for path in MODULES if room(path) == "reports"):
        of_runs = {name for name in imported_modules(path) if name.startswith("proxdasa.runs")}
        assert of_runs <= {"proxdasa.runs.records"}, path


def test_file_names_occur_once():
    names = [path.stem for path in MODULES if path.stem != "__init__"]
    assert sorted(set(names)) == sorted(names)


def test_modules_are_short():
    lengths = {path.relative_to(PACKAGE).as_posix(): len(path.read_text("utf-8").splitlines()) for path in MODULES}
    assert {name: length for name, length in lengths.items() if length > 350} == {}
    assert statistics.median(lengths.values()) <= 120


def test_only_plan_tables_know_networks_and_plans():
    """A report of runs has nothing but the results folders; what an experiment knows besides is passed to it."""
    for path in (path for path in MODULES if room(path) == "reports"):
        known = {name for name in imported_modules(path) if name.startswith(("proxdasa.plans", "proxdasa.networks"))}
        assert not known or path.name == "plan_tables.py", path


@pytest.mark.parametrize("path", [p for p in MODULES if room(p) == "algorithms"], ids=lambda path: path.name)
def test_algorithms_know_nothing_of_the_world(path):
    """No randomness, clock, printing, processes or devices: only rows, verbs and k."""
    source = path.read_text(encoding="utf-8")
    modules = {
        alias.name if isinstance(node, ast.Import) else node.module
        for node in statements(tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    allowed = {"__future__", "abc", "dataclasses", "typing", "torch", "math", "collections.abc"}
    assert {name for name in modules if not name.startswith("proxdasa")} <= allowed
    for word in ("torch.rand", "manual_seed", "print(", "distributed", "device", ".shape[", "rank"):
        assert word not in source, f"{path.name} uses {word}"
