"""Learning from examples: any network, any per-example loss, data split over the agents."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from proxdasa import samples
from proxdasa.checks import check_whole, invalid
from proxdasa.contracts import Evaluation, Solved
from proxdasa.data import Dataset, Examples, Partition, Shuffled, Sizes
from proxdasa.modules import Model, make_module, trained_shapes
from proxdasa.problems.fitting import try_two
from proxdasa.problems.losses import Loss, cross_entropy
from proxdasa.problems.stacked import Forward, stacked_forward

CHUNK = 2**21
"""Values that the widest layer of all networks holds at a time: few enough for the cache, enough for fast products."""


@dataclass(frozen=True, eq=False)
class Supervised:
    """Empirical risk of a network on data that are split over agents.

        F_i(x) = (1/|D_i|) Σ_{(a, b) ∈ D_i} ℓ(f(a; x), b),     ∇G_i(x, ξ) = the same over a batch ξ ⊂ D_i

    x is the vector of the parameters that are trained, in the order of ``model.named_parameters()``. Frozen ones, whose
    requires_grad is False, are constants: no part of x, and the same for all agents and trials. `module` puts x back
    into a network. A batch is drawn without replacement at every iteration. ``model`` is a function that makes the
    network, or a network, whose parameters are then the starting point of all agents. With a function, ``initial``
    chooses the start: PyTorch's initialisation once per trial ("shared"), once per trial and agent ("each", as the
    authors did), or "zeros"; what it freezes has the values of the network that it makes after torch.manual_seed(0).
    ``first`` is the number of the first agent, for a part of a larger network. ``partition`` divides the data, by
    default as `Shuffled` does; data in one file per agent (`data.per_agent`) are divided already, and are read when
    they are needed, or by ``restrict``. Two of the examples are used to check that network, loss and data fit together.

    Examples:
        >>> examples = data.from_tensors(torch.randn(60, 3), torch.arange(60) % 2)
        >>> problem = problems.Supervised(lambda: torch.nn.Linear(3, 2), examples, agents=4, batch_size=5)
        >>> problem.dim, [len(part) for part in problem.parts]
        (8, [15, 15, 15, 15])
        >>> problem.module(torch.zeros(8))
        Linear(in_features=3, out_features=2, bias=True)
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
            raise invalid("initial", '"shared", "each" or "zeros"', self.initial)
        if self.initial != "shared" and isinstance(self.model, nn.Module):
            raise ValueError(f'initial = "{self.initial}" needs a function that makes the network, not a network')
        _ = self._forward  # refuses modules that cannot be stacked now rather than in the first step
        if self.data.here:
            object.__setattr__(self, "partition", self.partition or Shuffled())
            _ = self.parts  # the same for a partition that does not fit
        elif self.partition is not None:
            raise ValueError("partition must be left out: the data are already divided into one file per agent")

    @property
    def dim(self) -> int:
        """The number d of parameters that are trained."""
        return sum(shape.numel() for shape in self._shapes.values())

    @property
    def epoch(self) -> float:
        """The mean number of examples of an agent, divided by the size of a batch."""
        return len(self._rows) / (self.agents * self.batch_size)

    @property
    def words(self) -> int:
        """The number of random words per sample: one for each example of a batch."""
        return self.batch_size

    def to(self, dtype: torch.dtype) -> Supervised:
        """The same problem in another floating-point type."""
        return replace(self, dtype=dtype)

    def restrict(self, agents: range) -> Supervised:
        """The problem of some of the agents, with only their examples and all test examples."""
        first = self.first + agents.start
        if self.data.here:
            data, parts = self.examples, self.parts[agents.start : agents.stop]
        else:
            data, parts = self.data.load(range(first, first + len(agents)))
        rows, sizes = torch.cat(parts), [len(part) for part in parts]
        own = replace(data, x=data.x[rows], y=data.y[rows])
        return replace(self, data=own, partition=Sizes(sizes), agents=len(agents), first=first)

    def describe(self) -> dict[str, Any]:
        """The arguments, and the SHA-256 of a given network's parameters, or of the frozen ones that a function makes.

        Those values determine the result, so a run with other values must have another description.
        """
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.repr}
        given = isinstance(self.model, nn.Module)
        values = dict(self._module.named_parameters()) if given else self._frozen
        if values:
            name = repr(self.model) if given else self.model
            plain["model"] = {"name": name, "parameters" if given else "frozen": _digest(values)}
        return {"name": type(self).__name__, **plain}

    def module(self, x: Tensor | Solved, trial: int | None = None) -> nn.Module:
        """A network whose trained parameters are x ``[d]``, in the type of x; frozen parameters keep their values.

        x may also be the result of a run: then it is the solution of a trial, by default of the first.
        """
        if not isinstance(x, Tensor):
            x = _solution(x, 0 if trial is None else trial)
        elif trial is not None:
            raise ValueError("trial is for the result of a run; a vector has none")
        if x.shape != (self.dim,):
            raise ValueError(f"x must be a vector of shape [{self.dim}]; got a tensor of shape {list(x.shape)}")
        module = copy.deepcopy(self._module).to(x.dtype)
        parameters = dict(module.named_parameters())
        with torch.no_grad():
            for name, values in self._parameters(x.unsqueeze(0)).items():
                parameters[name].copy_(values[0])
        return module

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

        Floyd's method: the j-th draw is uniform over one more example than the draw before it; an example that was
        drawn already is replaced by the one that was added.
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
            loss, grad = self._weighted_loss(x[..., 0, :], self._rows, weights)
            return Evaluation(loss.unsqueeze(-1), grad.unsqueeze(-2))
        each = [self._weighted_loss(x[..., i, :], part, self._equal_weights(part)) for i, part in enumerate(self.parts)]
        return Evaluation(torch.stack([loss for loss, _ in each], -1), torch.stack([grad for _, grad in each], -2))

    def scores(self, x: Tensor) -> dict[str, Tensor]:
        """Loss on the test examples, if there are any, and for classes the share that is predicted correctly.

        The prediction is the largest of the outputs; with fewer outputs than classes there is no accuracy.
        """
        data = self.examples
        if data.test_x is None or data.test_y is None:
            return {}
        outputs, targets = self.outputs(x, data.test_x), self._cast(data.test_y)
        each = self.loss(outputs.flatten(0, 1), targets.repeat(len(x), *[1] * (targets.ndim - 1)))
        scores = {"test_loss": each.view(len(x), -1).mean(1)}
        if data.classes is not None and outputs.ndim == 3 and outputs.shape[-1] >= data.classes:
            scores["accuracy"] = (outputs.argmax(-1) == targets).to(x.dtype).mean(1)
        return scores

    def outputs(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The outputs ``[rows, N, ...]`` of the networks x ``[rows, d]`` for inputs ``[N, ...]``."""
        inputs = self._cast(inputs)
        with torch.no_grad():
            chunks = [
                self._forward(self._parameters(x), chunk.expand(len(x), *chunk.shape))
                for chunk in torch.split(inputs, self._chunk(len(x)))
            ]
        return torch.cat(chunks, dim=1)

    def _weighted_loss(self, x: Tensor, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
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
        """How many examples fit into a chunk for each of ``others`` networks, or the other way round."""
        return max(1, CHUNK // (others * self._width))

    def _initial(self, seed: int, trial: int, agent: int) -> Tensor:
        words = samples.words(seed, samples.START, trial, agent, 2).to(torch.int64)
        return self._flatten(make_module(self.model, int(words[0].abs() << 31 | words[1].abs())))

    def _flatten(self, module: nn.Module) -> Tensor:
        values = dict(module.named_parameters())
        return torch.cat([values[name].detach().flatten() for name in self._shapes]).to(self.dtype)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    @cached_property
    def _module(self) -> nn.Module:
        return make_module(self.model)

    @cached_property
    def _shapes(self) -> dict[str, torch.Size]:
        """The shapes of the parameters that are trained."""
        return trained_shapes(self._module)

    @cached_property
    def _frozen(self) -> dict[str, Tensor]:
        """The values of the parameters that are not trained."""
        frozen = {name: values for name, values in self._module.named_parameters() if not values.requires_grad}
        if frozen and not isinstance(self.model, nn.Module):
            again = dict(make_module(self.model, 0).named_parameters())
            if other := [name for name, values in frozen.items() if not torch.equal(values, again[name])]:
                raise ValueError(
                    f"the function that makes the network gives its frozen parameter {other[0]} other values at every "
                    "call; give the network itself, or draw them by torch's generator"
                )
        return {name: self._cast(values.detach()).clone() for name, values in frozen.items()}

    @cached_property
    def _forward(self) -> Forward:
        return stacked_forward(self._module, self._frozen)

    @cached_property
    def _loaded(self) -> tuple[Dataset, list[Tensor], int]:
        """The data, the agents' rows, and the number of values of one example at the widest layer of the network."""
        data, parts = self.data.load(range(self.first, self.first + self.agents), self.partition)
        sizes = [len(part) for part in parts]
        fewest = min(sizes)
        if not 1 <= self.batch_size <= fewest:
            agent = self.first + sizes.index(fewest)
            wanted = f"a whole number from 1 to {fewest}, the number of examples of agent {agent}, which has the fewest"
            raise invalid("batch_size", wanted, self.batch_size)
        x, y = _two_examples(data, torch.cat(parts))
        return data, parts, try_two(self._module, self.loss, self._cast(x), self._cast(y))

    @property
    def _width(self) -> int:
        return self._loaded[2]

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


def _solution(result: Solved, trial: int) -> Tensor:
    """The solution of one trial."""
    if not isinstance(getattr(result, "solution", None), Tensor):
        raise invalid("x", "a vector, or the result of a run", result)
    x = result.solution[check_whole(trial, "trial", least=0, most=len(result.solution) - 1)]
    if not bool(x.isfinite().all()):
        raise ValueError(f"trial {trial} diverged, so it has no solution; choose another with trial=...")
    return x


def _two_examples(data: Dataset, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Two of the examples with the most different targets; the largest label may be that of a test example."""
    level = (data.y if data.y.ndim == 1 else data.y.flatten(1).sum(1))[rows]
    pair = rows[[int(level.argmax()), int(level.argmin())]]
    if pair[0] == pair[1]:
        pair = rows[[0, -1]]
    y = data.y[pair]
    if data.classes is not None and data.test_y is not None:
        y[0] = torch.maximum(y[0], data.test_y.max())
    return data.x[pair], y


def _digest(parameters: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name, values in parameters.items():
        digest.update(f"{name} {values.dtype} {list(values.shape)}".encode())
        digest.update(values.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
