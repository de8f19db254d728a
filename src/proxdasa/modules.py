"""The user's network: how it is made, which of its parameters are trained and make up x, and its constants."""

from __future__ import annotations

import copy
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from proxdasa.checks import check_whole, invalid
from proxdasa.contracts import Solved
from proxdasa.torch_internals import has_gradient_hooks

Model = nn.Module | Callable[[], nn.Module]
"""A network, or a function that makes one."""

_GENERATOR = threading.RLock()


@contextmanager
def torch_generator() -> Iterator[torch.Generator]:
    """Context manager that yields torch's global generator, from which modules draw, and restores its state afterwards.

    All threads share the generator, so only one at a time may use it.
    """
    generator = torch.default_generator
    with _GENERATOR:
        state = generator.get_state()
        try:
            yield generator
        finally:
            generator.set_state(state)


def seed_torch(generator: torch.Generator, seed: int) -> None:
    """Seed torch's generator, and those of GPUs where there are any.

    Without a GPU `torch.manual_seed` still queues a request, with a formatted stack, for each kind of GPU, which takes
    longer than making a small network.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        generator.manual_seed(seed)


def make_module(model: Model, seed: int = 0) -> nn.Module:
    """The network itself, or the one that the function makes after torch's generator is seeded.

    The state of the generator is restored.
    """
    if isinstance(model, nn.Module):
        return model
    if not callable(model):
        raise TypeError(f"model must be a network or a function that makes one; got {model!r}")
    with torch_generator() as generator:
        seed_torch(generator, seed)
        module = model()
    if not isinstance(module, nn.Module):
        raise TypeError(f"model must be a network or a function that makes one; it makes {module!r}")
    return module


def trained_shapes(module: nn.Module) -> dict[str, torch.Size]:
    """The shapes of the parameters that are trained, by name; x is their entries, one parameter after the other."""
    return {name: values.shape for name, values in module.named_parameters() if values.requires_grad}


def take_model(model: Model) -> Model:
    """The function, or a copy of the network: it is the starting point, whatever the caller does with it later."""
    if not isinstance(model, nn.Module):
        return model
    check_trained(model)  # before it is copied, because copies lose hooks
    return _copy(model)


def copy_module(module: nn.Module) -> nn.Module:
    """A deep copy, in little more than half the time that ``deepcopy`` takes by itself.

    It spends the rest on empty dictionaries: a layer has a dozen, most of them for hooks.
    """
    held = [each for layer in module.modules() for each in vars(layer).values()]
    empty = [each for each in held if type(each) in (dict, OrderedDict) and not each]
    return copy.deepcopy(module, {id(each): type(each)() for each in empty})


def _copy(module: nn.Module) -> nn.Module:
    try:
        return copy_module(module)
    except (RuntimeError, TypeError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{type(module).__name__} must be copied for the agents, but cannot be: {why}") from error


def convert(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy whose floating-point parameters and buffers have this type; all others keep theirs."""
    module = _copy(module)
    if dtype in (torch.float32, torch.float64):  # .to(dtype) would cut off the imaginary parts of complex buffers
        return module.float() if dtype == torch.float32 else module.double()
    return module.to(dtype)


def check_trained(module: nn.Module) -> None:
    """Raise unless there are parameters to train, all of them real, initialised and without hooks."""
    for name, values in (*module.named_parameters(), *module.named_buffers()):
        if nn.parameter.is_lazy(values):
            kind = "parameter" if isinstance(values, nn.Parameter) else "buffer"
            raise ValueError(
                f"{type(module).__name__}: the shape of its {kind} {name} is not known yet; call the network once, "
                "model(x[:2]), and pass the network itself"
            )
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and has_gradient_hooks(parameter):
            raise ValueError(
                f"{type(module).__name__}: its parameter {name} has a hook, which copies of the network would lose; "
                "change the gradient in the forward pass instead, where detach() stops it"
            )
        if parameter.is_complex() and parameter.requires_grad:
            raise ValueError(
                f"{type(module).__name__}: its parameter {name} is {parameter.dtype}, but x is a real vector; "
                "keep the real and imaginary parts as parameters, and use torch.view_as_complex"
            )
    if not any(parameter.requires_grad for parameter in module.parameters()):
        why = ": all are frozen, with requires_grad = False" if next(module.parameters(), None) is not None else ""
        raise ValueError(f"{type(module).__name__} has no parameters to train{why}")


def constants(module: nn.Module) -> dict[str, Tensor]:
    """The values that all copies share: frozen parameters, and buffers."""
    frozen = {name: values.detach() for name, values in module.named_parameters() if not values.requires_grad}
    return frozen | dict(module.named_buffers())


def check_model(model: Model, module: nn.Module) -> None:
    """Refuse a network that cannot be trained, and a function that gives it other constants in each call."""
    check_trained(module)
    own = constants(module)
    if isinstance(model, nn.Module) or not own:
        return
    again = constants(make_module(model, 0))
    if other := [name for name, values in own.items() if not torch.equal(values, again[name])]:
        kind = "buffer" if other[0] in dict(module.named_buffers()) else "frozen parameter"
        raise ValueError(
            f"the function that makes the network gives its {kind} {other[0]} different values in every "
            "call; pass the network itself, or draw the values from torch's generator"
        )


def describe_model(model: Model, module: nn.Module, cast: Callable[[Tensor], Tensor]) -> object:
    """A model by name, with the SHA-256 of a given network's values, or of the constants that a function makes.

    Constants are those of the run, cast to its type.
    """
    given = isinstance(model, nn.Module)
    own = {name: cast(each) for name, each in constants(module).items()}
    values = {**dict(module.named_parameters()), **dict(module.named_buffers())} if given else own
    if not values:
        return model
    return {"name": repr(model) if given else model, "parameters" if given else "frozen": digest(values)}


def digest(values: Mapping[str, Tensor]) -> str:
    """The SHA-256 of tensors and their names."""
    total = hashlib.sha256()
    for name, tensor in values.items():
        total.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def fill(module: nn.Module, x: Tensor) -> nn.Module:
    """The module, with x ``[d]`` as its trained parameters."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    with torch.no_grad():
        for parameter, values in zip(trained, torch.split(x, [each.numel() for each in trained]), strict=True):
            parameter.copy_(values.view_as(parameter))
    return module


def take_solution(
    x: Tensor | Solved, trial: int | None, buffers: Tensor | None, dim: int
) -> tuple[Tensor, Tensor | None]:
    """The vector x ``[d]`` and the running statistics that belong to it; of a result, those of a trial."""
    if not isinstance(x, Tensor):
        x, rows = _solution_of(x, 0 if trial is None else trial), getattr(x, "buffers", None)
        buffers = rows[trial or 0] if buffers is None and rows is not None else buffers
    elif trial is not None:
        raise ValueError("trial is for the result of a run; a vector has none")
    if x.shape != (dim,):
        raise ValueError(f"x must be a vector of shape [{dim}]; got a tensor of shape {list(x.shape)}")
    return x, buffers


def _solution_of(result: Solved, trial: int) -> Tensor:
    """The solution of one trial."""
    if not isinstance(getattr(result, "solution", None), Tensor):
        raise invalid("x", "a vector, or the result of a run", result)
    x = result.solution[check_whole(trial, "trial", least=0, most=len(result.solution) - 1)]
    if not bool(x.isfinite().all()):
        raise ValueError(f"trial {trial} diverged, so it has no solution; choose another with trial=...")
    return x
