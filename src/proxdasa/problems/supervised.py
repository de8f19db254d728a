"""Learning from examples: any network, any per-example loss, data split over the agents."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from proxdasa.checks import check_count, invalid
from proxdasa.contracts import Evaluation, Peers, Running, Solved
from proxdasa.data import Dataset, Examples, Partition, Shuffled, Sizes
from proxdasa.modules import (
    Model,
    check_model,
    convert,
    describe_model,
    fill,
    make_module,
    take_model,
    take_solution,
    trained_shapes,
)
from proxdasa.problems.chunks import evaluate_parts, outputs_of, sample_pass, scores_of
from proxdasa.problems.copies import Copies, Pass, Path
from proxdasa.problems.losses import Loss, cross_entropy
from proxdasa.problems.measuring import Measured
from proxdasa.problems.module_checks import two_examples
from proxdasa.problems.precision import check_precision, default_dtype
from proxdasa.problems.site_batches import SiteBatches, check_filled_batches
from proxdasa.problems.starting_points import Initial, check_initial, starting_points
from proxdasa.problems.training_modes import evaluating_copies, training_copies
from proxdasa.running_statistics import Policy, RunningStatistics, check_policy, check_statistics


@dataclass(frozen=True, eq=False)
class Supervised(Measured):
    """Empirical risk of a network on data that are split over agents.

        F_i(x) = (w_i/|D_i|) Σ_{(a, b) ∈ D_i} ℓ(f(a; x), b),     ∇G_i(x, ξ) = the same over a batch ξ ⊂ D_i

    With ``weights`` = "agents" all w_i are 1, as in the paper: agents count alike, however many examples they have.
    With "examples" w_i = n |D_i| / Σ_j |D_j|: examples count alike, and (1/n) Σ F_i is the mean over all of them.

    x is the vector of the parameters that are trained, in the order of ``model.named_parameters()``. Frozen ones, whose
    requires_grad is False, and buffers are constants: no part of x, and the same for all agents and trials. `module`
    puts x back into a network. A batch is drawn without replacement at every iteration; an agent with at most
    ``batch_size`` examples takes all of them, so that its gradient is exact. ``model`` is a function that makes the
    network, or a network, which is copied: its parameters are the start of all agents. With a function, ``initial``
    chooses the start: PyTorch's initialisation once per trial ("shared"), once per trial and agent ("each", as the
    authors did), or "zeros"; its constants are those of the network that it makes after torch.manual_seed(0). ``first``
    is the number of the first agent, for a part of a larger network, and ``mean_size`` the mean of |D_i| over all its
    agents. ``partition`` divides the data, by default by site if they have sites, else as `Shuffled` does; data in one
    file per agent (`data.per_agent`) are divided already, and are read when they are needed, or by ``restrict``. Two of
    the examples are used to check that network, loss and data fit together.

    Buffers that forward passes change, such as the running statistics of BatchNorm, are not constants: agent i has its
    own r_i beside x_i, updated by its first sample gradient in each iteration. ``buffers`` must say whether agents also
    mix r_i with their neighbours' ("average"), or not ("local"). x̄ goes with r̄, the mean over the agents.

    ``loss`` is called with what the network returns, a tensor or anything else, and the targets. Gradients are taken in
    the mode that the network has, usually training; F, its gradient and scores after ``eval()``. Dropout belongs to the
    sample ξ: its masks follow from seed, trial, agent and iteration.

    ``path`` is how the gradients of all copies are computed: in a "chain" of batched layers, by "vmap", or in a "loop"
    over the copies. By default it is the first that works for the network; a loop is announced by a `LoopWarning`.
    ``dtype`` is the type of x and of all computations; by default float64 if the data have it, otherwise torch's
    default. Whole-number inputs stay as they are. Examples are cast, which copies them; so does ``restrict``.

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
    initial: Initial = "shared"
    weights: Literal["agents", "examples"] = "agents"
    first: int = field(default=0, repr=False)
    mean_size: float | None = field(default=None, repr=False)
    dtype: torch.dtype = None  # type: ignore[assignment] # __post_init__ takes it from the data
    path: Path | None = field(default=None, repr=False)
    buffers: Policy | None = None

    def __post_init__(self) -> None:
        if self.weights not in ("agents", "examples"):
            raise invalid("weights", '"agents" or "examples"', self.weights)
        check_policy(self.buffers)
        check_count(self.batch_size, "batch_size")
        check_initial(self.initial, self.model)
        object.__setattr__(self, "dtype", self.dtype or default_dtype(self.data))
        object.__setattr__(self, "model", take_model(self.model))
        check_model(self.model, self._module)
        self._try()

    def _try(self) -> None:
        """Try the network, unless the data are still to be read."""
        if self.data.here:
            object.__setattr__(self, "partition", self.partition or self.data.partition or Shuffled())
            _ = self.parts  # refuses a partition that does not fit now rather than in the first step
            object.__setattr__(self, "path", self._training.path)
        elif self.partition is not None:
            raise ValueError("partition must be left out: the data are already divided into one file per agent")

    @cached_property
    def dim(self) -> int:
        """The number d of parameters that are trained."""
        return sum(shape.numel() for shape in trained_shapes(self._module).values())

    @property
    def epoch(self) -> float:
        """The mean number of batches in the examples of an agent, at least one; infinite with dropout or statistics.

        A batch with a new mask is a new sample, and a full gradient would be that of a network without dropout. That of
        a network which normalises over a batch is not the mean of its sample gradients.
        """
        return math.inf if self._random or self.running else self._batches.epoch

    @property
    def words(self) -> int:
        """The number of random words per sample: one for each example that is drawn, and one for dropout."""
        return self.batch_size + self._random if self._random or max(map(len, self.parts)) > self.batch_size else 0

    def to(self, dtype: torch.dtype) -> Supervised:
        """The same problem in another floating-point type."""
        return self if dtype == self.dtype else self._try_again(dtype=dtype)

    def restrict(self, agents: range) -> Supervised:
        """The problem of some of the agents, with only their examples and all test examples."""
        first = self.first + agents.start
        if self.data.here or len(agents) == self.agents:
            data, parts, mean_size = self.examples, self.parts[agents.start : agents.stop], self._mean_size
        else:
            data, parts = self._change(agents=len(agents), first=first)._loaded
            mean_size = math.nan  # until `join` has asked the processes of the other agents
        rows, sizes = torch.cat(parts), [len(part) for part in parts]
        own = replace(data, x=data.x[rows], y=data.y[rows])
        # Which statistics change may depend on the examples, so those of each agent are tried for them.
        make = self._keep_trial if self.data.here and not self.running else self._try_again
        return make(data=own, partition=Sizes(sizes), agents=len(agents), first=first, mean_size=mean_size)

    def join(self, peers: Peers) -> Supervised:
        """This part of the problem, with the mean number of examples of an agent over all processes."""
        held = self.examples
        peers.agree({"types of x and y, which dtype of per_agent would choose": f"{held.x.dtype}, {held.y.dtype}"})
        if held.columns is not None:
            peers.agree({"columns, which features = [...] would choose by name": str(held.columns)})
        if self.weights == "agents":
            return self
        total, agents = peers.sum(torch.tensor([len(self._rows), self.agents], dtype=torch.float64)).tolist()
        return self._keep_trial(mean_size=total / agents)

    def describe(self) -> dict[str, Any]:
        """The arguments, and the SHA-256 of a given network's parameters, or of the constants that a function makes.

        Those values determine the result, so a run with other values must have another description.
        """
        plain = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.repr}
        for choice, default in (("weights", "agents"), ("buffers", None)):
            if plain[choice] == default:
                del plain[choice]  # so that runs from before this choice existed keep their description
        plain["model"] = describe_model(self.model, self._module, self._cast)
        return {"name": type(self).__name__, **plain}

    def module(self, x: Tensor | Solved, trial: int | None = None, buffers: Tensor | None = None) -> nn.Module:
        """A network whose trained parameters are x ``[d]``, in the type of x; constants keep their values.

        x may also be the result of a run: then it is the solution of a trial, by default of the first. If the network
        has running statistics, a vector needs them too: ``buffers`` ``[s]``, or those of all agents ``[n, s]``, of
        which r̄ is taken. A result has them (`Result.buffers`).
        """
        x, buffers = take_solution(x, trial, buffers, self.dim)
        module = fill(convert(self._module, x.dtype), x)
        if self.buffers is None and buffers is None:  # otherwise data that are elsewhere would be read
            return module
        r, running = self._check_buffers(buffers), self._training.running
        return running.fill(module, r) if running and r is not None else module

    @property
    def running(self) -> Running | None:
        """The problem itself, if its network has running statistics."""
        return self if self._training.running else None

    @property
    def mixed_buffers(self) -> int:
        """How many statistics, counted from the first, are mixed with the neighbours'; counters are not."""
        return self._running.averages if self.buffers == "average" else 0

    def first_buffers(self, trials: int) -> Tensor:
        """The running statistics before the first batch ``[trials, n, s]``."""
        return self._running.start(self.dtype).repeat(trials, self.agents, 1)

    def combine_buffers(self, rows: Tensor) -> Tensor:
        """The statistics r̄ ``[..., 1, s]`` from those of all agents: means, and maxima of counters."""
        return self._running.combine(rows)

    @property
    def examples(self) -> Dataset:
        """The data set with the examples of all these agents."""
        return self._tried[0]

    @property
    def parts(self) -> list[Tensor]:
        """The row numbers of each agent's examples."""
        return self._tried[1]

    def start(self, seed: int, trials: int) -> Tensor:
        """PyTorch's initialisation, named by seed, trial and, for "each", agent."""
        agents = range(self.first, self.first + self.agents)
        return starting_points(self.model, self.initial, seed, trials, agents).to(self.dtype)

    def sample(self, words: Tensor) -> Tensor:
        """Row numbers ``[..., trials, n, batch_size]`` of the agents' examples, as `SiteBatches` draws them.

        With dropout, the last column is the word that names its masks.
        """
        words, names = torch.split(words, [words.shape[-1] - self._random, int(self._random)], dim=-1)
        drawn = self._rows[self._batches.draw(words)].expand(*words.shape[:-1], self.batch_size)
        return torch.cat([drawn, names], dim=-1) if self._random else drawn

    def grad(self, x: Tensor, sample: Tensor, buffers: Tensor | None = None) -> Tensor:
        """Gradients of all copies in one backward pass, or in a few where the batches are large."""
        return self._pass(x, self._check_buffers(buffers), sample).grads.view(x.shape)

    def grad_of(self, agents: range, x: Tensor, sample: Tensor) -> Tensor:
        """The gradients of some of the agents."""
        return self._pass(x, self._check_buffers(None), sample, slice(agents.start, agents.stop)).grads.view(x.shape)

    def grad_and_buffers(self, x: Tensor, buffers: Tensor, sample: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients, and the running statistics ``[trials, n, s]`` after the forward pass."""
        made = self._pass(x, self._check_buffers(buffers), sample)
        assert made.statistics is not None
        return made.grads.view(x.shape), made.statistics.view(buffers.shape)

    def evaluate(self, x: Tensor, buffers: Tensor | None = None) -> Evaluation:
        """Each agent's own loss and gradient, or their means over agents at a shared point ``[trials, 1, d]``.

        ``buffers`` are the running statistics, if the network has any, with one row for each row of x.
        """
        parts = [(rows, self._batches.full_weights(i)) for i, rows in enumerate(self.parts)]
        if x.shape[-2] == 1:
            parts = [(self._rows, self._shared_weights())]
        return evaluate_parts(self._evaluating, x, self._check_buffers(buffers), self._x, self._y, parts)

    def scores(self, x: Tensor, buffers: Tensor | None = None) -> dict[str, Tensor]:
        """Loss on the test examples, if there are any, and for classes the share that is predicted correctly."""
        return scores_of(self._evaluating, x, self.examples, self._cast, self._check_buffers(buffers))

    def outputs(self, x: Tensor, inputs: Tensor, buffers: Tensor | None = None) -> Tensor:
        """The outputs ``[rows, N, ...]`` of the networks x ``[rows, d]`` for inputs ``[N, ...]``."""
        return outputs_of(self._evaluating, x, self._cast(inputs), self._check_buffers(buffers))

    def _pass(self, x: Tensor, r: Tensor | None, sample: Tensor, agents: slice = slice(None)) -> Pass:
        """The copies x and r of these agents on their samples, as many at a time as fit the cache."""
        own, seeds = (sample[..., :-1], sample[..., -1:]) if self._random else (sample, None)
        weights = None if self._batches.weights is None else self._batches.weights[agents]
        return sample_pass(self._training, x, r, own, seeds, self._x, self._y, weights)

    def _check_buffers(self, buffers: Tensor | None) -> Tensor | None:
        return check_statistics(self._training.running, buffers)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    @cached_property
    def _module(self) -> nn.Module:
        return make_module(self.model)

    @cached_property
    def _training(self) -> Copies:
        """The copies whose gradients are taken."""
        module = convert(self._module, self.dtype)
        fewest = min(map(len, self._loaded[1]))
        return training_copies(module, self.loss, self._two, self.batch_size, fewest, self.path, self.buffers)

    @cached_property
    def _evaluating(self) -> Copies:
        """The copies that are measured."""
        return evaluating_copies(self._module, self.dtype, self._two, self._training)

    @property
    def _running(self) -> RunningStatistics:
        assert self._training.running is not None, "the network has no running statistics"
        return self._training.running

    @property
    def _random(self) -> bool:
        return self._training.fit.random

    @cached_property
    def _two(self) -> tuple[Tensor, Tensor]:
        data, parts = self._loaded
        x, y = two_examples(data, torch.cat(parts))
        return self._cast(x), self._cast(y)

    @cached_property
    def _tried(self) -> tuple[Dataset, list[Tensor]]:
        """The data and the agents' rows, once it is known that network, loss and data fit together."""
        sizes = [len(part) for part in self._loaded[1]]
        check_filled_batches(self._module, self._training.fit, sizes, self.batch_size, self.first)
        _ = self._evaluating
        return self._loaded

    @cached_property
    def _loaded(self) -> tuple[Dataset, list[Tensor]]:
        """The data, and the agents' rows."""
        data, parts = self.data.load(range(self.first, self.first + self.agents), self.partition)
        if not self.data.here:
            check_precision(data, self.dtype)
        return data, parts

    @cached_property
    def _rows(self) -> Tensor:
        """The row numbers of all agents' examples, agent after agent."""
        return torch.cat(self.parts)

    @property
    def _mean_size(self) -> float:
        """The mean number of examples of an agent of the whole network; NaN if it is not known."""
        if self.mean_size is not None:
            return self.mean_size
        return math.nan if self.first else len(self._rows) / self.agents

    @cached_property
    def _batches(self) -> SiteBatches:
        sizes = torch.tensor([len(part) for part in self.parts])
        mean_size = self._mean_size if self.weights == "examples" else None
        return SiteBatches(sizes, self.batch_size, mean_size, self.dtype, self._device)

    @cached_property
    def _x(self) -> Tensor:
        return self._cast(self.examples.x)

    @cached_property
    def _y(self) -> Tensor:
        return self._cast(self.examples.y)
