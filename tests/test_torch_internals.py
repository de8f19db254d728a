"""What is private to torch is used in one module, and still works. Only this file has to change with torch."""

import ast
import re
import warnings
from pathlib import Path

import pytest
import torch
from torch import fx, nn

from proxdasa import torch_internals
from tests.processes import COMPILER

PACKAGE = Path(torch_internals.__file__).parent
OF_TORCH = {
    "_C", "_inductor", "_dynamo", "_functorch", "_python_dispatch", "_version", "_buffers", "_parameters", "_modules",
    "_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks", "_post_accumulate_grad_hooks",
    "_BatchNorm",
}  # fmt: skip
"""Private names of torch and of its tensors and modules."""


def private_names(path):
    """The private names of torch that a module uses on objects other than self, and in imports."""
    source = path.read_text(encoding="utf-8")
    if not re.search(rf"\b({'|'.join(OF_TORCH)})\b", source):
        return  # most modules; parsing all of them takes a second
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            yield from {node.attr} & OF_TORCH
        elif isinstance(node, ast.Import):
            yield from (name for alias in node.names for name in {*alias.name.split(".")} & OF_TORCH)
        elif isinstance(node, ast.ImportFrom):
            yield from {*(node.module or "").split(".")} & OF_TORCH


def test_no_other_module_uses_what_is_private_to_torch():
    found = {path.relative_to(PACKAGE).as_posix(): {*private_names(path)} for path in PACKAGE.rglob("*.py")}
    used = found.pop("torch_internals.py")
    assert {"_C", "_inductor", "_python_dispatch", "_version", "_forward_hooks"} <= used
    assert {path: names for path, names in found.items() if names} == {}


def test_parameters_without_a_value_are_named():
    layer = nn.Linear(1, 1, bias=False)
    assert torch_internals.parameter_names(layer) == {"weight", "bias"}
    del layer.bias
    assert torch_internals.parameter_names(layer) == {"weight"}


def test_every_write_is_counted():
    x = torch.zeros(3)
    before = torch_internals.write_count(x)
    x.add_(0)
    x.view(3, 1)[0] = 0
    assert torch_internals.write_count(x) == before + 2
    with torch.inference_mode():
        assert torch_internals.write_count(torch.zeros(3)) is None


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_hooks_of_layers_are_found(register):
    layer = nn.Linear(1, 1)
    assert not torch_internals.has_hooks(layer)
    hook = getattr(layer, register)(lambda *_: None)
    assert torch_internals.has_hooks(layer)
    hook.remove()
    assert not torch_internals.has_hooks(layer)


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_of_gradients_are_found(register):
    parameter = nn.Parameter(torch.zeros(1))
    assert not torch_internals.has_gradient_hooks(parameter)
    getattr(parameter, register)(lambda _: None)
    assert torch_internals.has_gradient_hooks(parameter)


def test_vmap_warns_only_if_it_may():
    """If this fails, look up in torch what replaced the switch: without it attention warns in every step."""

    def attention(row):
        return nn.functional.scaled_dot_product_attention(*[row.view(1, 1, 1, 3)] * 3)

    def warnings_if(on):
        torch_internals.warn_of_slow_vmap(on)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.func.vmap(attention)(torch.ones(2, 3))
        return len(caught)

    assert [warnings_if(on) for on in (False, True)] == [0, 1]


def test_random_operations_are_noticed():
    """`test_distribution` checks that torch's compiler is not imported for this."""
    with torch_internals.RandomOperations() as quiet:
        torch.ones(3).add(1)
    with torch_internals.RandomOperations() as operations:
        torch.nn.functional.dropout(torch.ones(3))
    assert (quiet.seen, operations.seen) == (False, True)


def test_all_batch_normalisations_have_the_base_class():
    for layer in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LazyBatchNorm1d):
        assert issubclass(layer, torch_internals.BatchNorm)


@pytest.mark.slow  # `test_compiled` compiles a graph too
@COMPILER
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own parts, as it imports its compiler
def test_a_recorded_graph_is_compiled():
    x = torch.arange(4.0)
    graph = fx.symbolic_trace(lambda x: [x * 2 + 1])
    (found,) = torch_internals.compile_graph(graph, [x])(x)
    assert torch.equal(found, 2 * x + 1)
