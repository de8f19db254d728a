"""Learning from examples: any network, any per-example loss, data split over the agents."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from proxdasa import samples
from proxdasa.contracts import Evaluation
from proxdasa.data import Dataset, Examples, Partition, Shuffled, Sizes
from proxdasa.problems.stacked import Forward, stacked

CHUNK = 2**21
"""Numbers that the widest layer of the networks holds at a time: few enough for the cache, enough for fast products."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The cross entropy of each example ``[N]``, for outputs ``[N, classes]`` and class numbers ``[N]``."""
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of each example ``[N]``."""
    return (outputs - targets.view_as(outputs)).square().flatten(1).sum(-1)


Loss = Callable[[Tensor, Tensor], Tensor]
"""Outputs ``[N, ...]`` and targets ``[N, ...]`` to one loss per example ``[N]``."""
LOSSES = (cross_entropy, squared_error)
Model = nn.Module | Callable[[], nn.Module]
"""A network, or a function that makes one."""


@dataclass(frozen=True, eq=False)
class Supervised:
    """Empirical risk of a network on data that are split over agents.

        F_i(x) = (1/|D_i|) Σ_{(a, b) ∈ D_i} ℓ(f(a; x), b),     ∇G_i(x, ξ) = the same over a batch ξ ⊂ D_i

    x is the vector of all parameters, in the order of ``model.named_parameters()``. A batch is drawn without
    replacement at every iteration. ``model`` is a function that makes the network, or a network, whose parameters are
    then the starting point of all agents. With a function, ``initial`` chooses the start: PyTorch's initialisation once
    per trial ("shared"), once per trial and agent ("each", as the authors did), or "zeros". ``first`` is the number of
    the first agent, for a part of a larger network. ``partition`` divides the data, by default as `Shuffled` does; what
    lies in one file per agent (`data.per_agent`) is divided already, and read when it is needed, or by ``restrict``.
    """

    model: Model
    data: Examples
    agents: int
    batch_size: int = 1
    partition: Partition | None = None
    loss: Loss = cross_entropy
    initial: Literal["shared", "each", "zeros"] = "shared"
    first: int = field(default=0, repr=False)
    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    def __post_init__(self) -> None:
        if self.initial not in ("shared", "each", "zeros"):
            raise ValueError(f'initial must be "shared", "each" or "zeros"; got {self.initial!r}')
        if self.initial != "shared" and isinstance(self.model, nn.Module):
            raise ValueError(f'initial = "{self.initial}" needs a function that makes the network, not a network')
        if self.data.here:
            object.__setattr__(self, "partition", self.partition or Shuffled())
            _ = self.parts  # what is wrong with them is said now
        elif self.partition is not None:
            raise ValueError("partition: the data lie in one file per agent, divided already; leave it out")

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return sum(shape.numel() for shape in self._shapes.values())

    @property
    def epoch(self) -> float:
        """Examples of an agent, on average, over those of a batch."""
        return len(self._rows) / (self.agents * self.batch_size)

    @property
    def words(self) -> int:
        """One per example of a batch."""
        return self.batch_size

    def to(self, dtype: torch.dtype) -> Supervised:
        """The same problem in another type."""
        return replace(self, dtype=dtype)

    def restrict(self, agents: range) -> Supervised:
        """The problem of some of the agents, with their examples only; everyone has the test examples."""
        first = self.first + agents.start
        if self.data.here:
            data, parts = self.examples, self.parts[agents.start : agents.stop]
        else:
            data, parts = self.data.load(range(first, first + len(agents)))
        rows, sizes = torch.cat(parts), [len(part) for part in parts]
        own = replace(data, x=data.x[rows], y=data.y[rows])
        return replace(self, data=own, partition=Sizes(sizes), agents=len(agents), first=first)

    @property
    def examples(self) -> Dataset:
        """The data set with the examples of all these agents."""
        return self._loaded[0]

    @property
    def parts(self) -> list[Tensor]:
        """The row numbers of each agent's examples."""
        return self._loaded[1]

    def start(self, seed: int, trials: int) -> Tensor:
        """PyTorch's initialisation, named by seed, trial and, for "each", agent."""
        if isinstance(self.model, nn.Module):
            return self._flatten(self.model)
        if self.initial == "zeros":
            return torch.zeros(self.dim, dtype=self.dtype)
        agents = range(self.first, self.first + self.agents) if self.initial == "each" else range(1)
        return torch.stack(
            [torch.stack([self._initial(seed, trial, agent) for agent in agents]) for trial in range(trials)]
        )

    def sample(self, words: Tensor) -> Tensor:
        """Row numbers ``[..., trials, n, batch_size]`` of the agents' examples, each batch without repetition.

        Floyd's method: the j-th draw is uniform over one more example than the one before; what was drawn already is
        replaced by the newcomer.
        """
        sizes = torch.tensor([len(part) for part in self.parts]).unsqueeze(-1)
        newcomers = sizes - self.batch_size + torch.arange(self.batch_size)  # [n, batch_size]
        drawn = (samples.uniforms(words) * (newcomers + 1)).to(torch.int64)
        for j in range(1, self.batch_size):
            again = (drawn[..., :j] == drawn[..., j : j + 1]).any(-1)
            drawn[..., j] = torch.where(again, newcomers[:, j], drawn[..., j])
        first = sizes.cumsum(0) - sizes
        return self._rows[first + drawn]

    def grad(self, x: Tensor, sample: Tensor) -> Tensor:
        """Gradients of all copies in one backward pass, or in a few where the batches are large."""
        rows, each = x.reshape(-1, self.dim), sample.flatten(0, -2)
        batch = each.shape[-1]
        groups = zip(*(torch.split(stack, self._chunk(batch)) for stack in (rows, each)), strict=True)
        grads = [self._losses_and_grad(some, self._x[own], self._y[own], batch)[1] for some, own in groups]
        return (torch.cat(grads) if len(grads) > 1 else grads[0]).view(x.shape)

    def evaluate(self, x: Tensor) -> Evaluation:
        """Each agent's own loss and gradient, or their means over agents at a shared point ``[trials, 1, d]``."""
        if x.shape[-2] == 1:
            weights = torch.cat([self._equal_weights(part) for part in self.parts]) / self.agents
            loss, grad = self._weighted(x[..., 0, :], self._rows, weights)
            return Evaluation(loss.unsqueeze(-1), grad.unsqueeze(-2))
        each = [self._weighted(x[..., i, :], part, self._equal_weights(part)) for i, part in enumerate(self.parts)]
        return Evaluation(torch.stack([loss for loss, _ in each], -1), torch.stack([grad for _, grad in each], -2))

    def scores(self, x: Tensor) -> dict[str, Tensor]:
        """Loss on the test examples, if there are any, and for classes the share that is answered rightly."""
        data = self.examples
        if data.test_x is None or data.test_y is None:
            return {}
        outputs, targets = self.outputs(x, data.test_x), self._cast(data.test_y)
        each = self.loss(outputs.flatten(0, 1), targets.repeat(len(x), *[1] * (targets.ndim - 1)))
        scores = {"test_loss": each.view(len(x), -1).mean(1)}
        if data.classes is not None:
            scores["accuracy"] = (outputs.argmax(-1) == targets).to(x.dtype).mean(1)
        return scores

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """What the networks x ``[rows, d]`` say of inputs ``[N, ...]``, as ``[rows, N, ...]``."""
        inputs = self._cast(inputs)
        with torch.no_grad():
            chunks = [
                self._forward(self._parameters(x), chunk.expand(len(x), *chunk.shape))
                for chunk in torch.split(inputs, self._chunk(len(x)))
            ]
        return torch.cat(chunks, dim=1)

    def _weighted(self, x: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_j w_j ℓ_j and its gradient at each of the points x ``[trials, d]``."""
        loss, grad = x.new_zeros(len(x)), torch.zeros_like(x)
        size = self._chunk(len(x))
        for chunk, weight in zip(torch.split(rows, size), torch.split(weights, size), strict=True):
            inputs, targets = self._x[chunk], self._y[chunk]
            shared = inputs.expand(len(x), *inputs.shape), targets.expand(len(x), *targets.shape)
            some, part = self._losses_and_grad(x, *shared, weight)
            loss += some
            grad += part
        return loss, grad

    def _losses_and_grad(
        self, x: Tensor, inputs: Tensor, targets: Tensor, weight: Tensor | int
    ) -> tuple[Tensor, Tensor]:
        """Weighted (or, for a number, mean) loss of each row on its own examples ``[rows, batch, ...]``, and gradients.

        Parameters are separate leaves over views of the rows, so that no gradient passes through slices of x.
        """
        with torch.enable_grad():
            leaves = {name: view.detach().requires_grad_() for name, view in self._parameters(x).items()}
            outputs = self._forward(leaves, inputs)
            each = self.loss(outputs.flatten(0, 1), targets.flatten(0, 1)).view(outputs.shape[:2])
            losses = each.sum(1) / weight if isinstance(weight, int) else each @ weight
            grads = torch.autograd.grad(losses.sum(), list(leaves.values()))
        return losses.detach(), torch.cat([part.flatten(1) for part in grads], dim=1)

    def _parameters(self, x: Tensor) -> dict[str, Tensor]:
        """Views of the rows x ``[rows, d]`` as parameters ``[rows, *shape]``."""
        parts = torch.split(x, [shape.numel() for shape in self._shapes.values()], dim=1)
        shaped = zip(self._shapes.items(), parts, strict=True)
        return {name: part.view(-1, *shape) for (name, shape), part in shaped}

    def _equal_weights(self, part: Tensor) -> Tensor:
        return torch.full((len(part),), 1 / len(part), dtype=self.dtype)

    def _chunk(self, others: int) -> int:
        """How many examples go together, or networks, for so many of the other."""
        return max(1, CHUNK // (others * self._width))

    def _initial(self, seed: int, trial: int, agent: int) -> Tensor:
        words = samples.words(seed, samples.START, trial, agent, 2).to(torch.int64)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(words[0].abs() << 31 | words[1].abs()))
            return self._flatten(self.model())

    def _flatten(self, module: nn.Module) -> Tensor:
        return torch.cat([parameter.detach().flatten() for parameter in module.parameters()]).to(self.dtype)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    @cached_property
    def _module(self) -> nn.Module:
        if isinstance(self.model, nn.Module):
            return self.model
        with torch.random.fork_rng(devices=[]):
            return self.model()

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        """Of the parameters."""
        return {name: parameter.shape for name, parameter in self._module.named_parameters()}

    @cached_property
    def _width(self) -> int:
        """Numbers that one example is at the widest place of the network."""
        _ = self._forward  # refuses modules that cannot be stacked
        few = self._x[:2]  # one alone is too few for some layers
        sizes = [few.numel()]

        def note(_layer: nn.Module, _inputs: object, output: object) -> None:
            sizes.append(output.numel() if isinstance(output, Tensor) else 0)

        module = copy.deepcopy(self._module).to(self.dtype)
        for layer in module.modules():
            layer.register_forward_hook(note)
        with torch.no_grad():
            module(few)
        return max(sizes) // len(few)

    @cached_property
    def _forward(self) -> Forward:
        return stacked(self._module)

    @cached_property
    def _loaded(self) -> tuple[Dataset, list[Tensor]]:
        data, parts = self.data.load(range(self.first, self.first + self.agents), self.partition)
        sizes = [len(part) for part in parts]
        fewest = min(sizes)
        if not 1 <= self.batch_size <= fewest:
            agent = self.first + sizes.index(fewest)
            raise ValueError(
                f"batch_size must lie between 1 and {fewest}, the examples of agent {agent}, which has fewest; "
                f"got {self.batch_size}"
            )
        return data, parts

    @cached_property
    def _rows(self) -> Tensor:
        """The row numbers of all agents' examples, agent after agent."""
        return torch.cat(self.parts)

    @cached_property
    def _x(self) -> Tensor:
        return self._cast(self.examples.x)

    @cached_property
    def _y(self) -> Tensor:
        return self._cast(self.examples.y)
