"""Where the agents start: the parameters of a given network, PyTorch's initialisation, or zeros."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from proxdasa import samples
from proxdasa.checks import invalid
from proxdasa.modules import Model, make_module

Initial = Literal["shared", "each", "zeros"]
"""PyTorch's initialisation, once per trial or once per trial and agent, or zeros."""


def check_initial(initial: Initial, model: Model) -> None:
    """Refuse an unknown choice, and for a given network all but "shared"."""
    if initial not in get_args(Initial):
        raise invalid("initial", '"shared", "each" or "zeros"', initial)
    if initial != "shared" and isinstance(model, nn.Module):
        raise ValueError(f'initial = "{initial}" needs a function that makes the network, not a network')


def starting_points(model: Model, initial: Initial, seed: int, trials: int, agents: range) -> Tensor:
    """PyTorch's initialisation, named by seed, trial and, for "each", agent; or that of a given network."""
    if isinstance(model, nn.Module):
        return flatten(model)
    if initial == "zeros":
        return torch.zeros_like(flatten(make_module(model)))
    named = agents if initial == "each" else range(1)
    return torch.stack([torch.stack([_draw(model, seed, trial, agent) for agent in named]) for trial in range(trials)])


def flatten(module: nn.Module) -> Tensor:
    """The trained parameters as one vector."""
    return torch.cat([values.detach().flatten() for values in module.parameters() if values.requires_grad])


def _draw(model: Model, seed: int, trial: int, agent: int) -> Tensor:
    words = samples.words(seed, samples.START, trial, agent, 2).to(torch.int64)
    return flatten(make_module(model, int(words[0].abs() << 31 | words[1].abs())))
