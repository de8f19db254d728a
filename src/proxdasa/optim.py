"""The methods as optimizers of torch, for training loops of your own: every process is one agent.

    processes = engines.connect() or engines.Alone()  # the others that torchrun or mpiexec has started, if any
    optimizer = ProxDASA(model.parameters(), networks.ring(processes.size), regularizer=L1(1e-4),
                         gamma=0.1, alpha=0.3, processes=processes)
    for inputs, targets in batches:  # of this agent's own data
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
    with optimizer.averaged():
        ...  # here the model is the mean of all agents' models

`step` takes the gradient that backward() has left and exchanges messages with the agent's neighbours. All agents must
make equally many steps; where their data give them unequal numbers of batches, `common_steps` finds a number for all.
Nobody's start is sent to the others: for a common one, seed all processes alike before the model is made.

Parameters that are frozen (requires_grad is False) when the optimizer is made are left alone and are sent to nobody.

Groups of parameters may have a regularizer of their own: ``{"params": biases, "regularizer": Zero()}``. It belongs to
the optimizer, not to its state.

Learning-rate schedulers act on α: every group has an ``lr``, at first 1, and in step k its α_k is lr · alpha(k), which
must lie in (0, 1]. γ stays as it is.

`state_dict` has an agent's averages and the number of its steps. Every agent saves and loads its own, beside its model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast, final, overload

import torch
from torch import Tensor
from torch import distributed as dist
from torch.optim.optimizer import Optimizer, ParamsT, StateDict

from proxdasa import algorithms, schedules
from proxdasa.checks import check_count, check_positive_number, check_regularizer
from proxdasa.contracts import Agents, Algorithm, Mixing, NonFiniteError, Regularizer, unpack
from proxdasa.descriptions import describe
from proxdasa.engines import Alone, Transport, connect
from proxdasa.engines.messages.neighbourhood import Neighbourhood
from proxdasa.mixing import Gossip
from proxdasa.networks import Network
from proxdasa.regularizers import Blocks, Zero
from proxdasa.runs.loop import flushed_denormals
from proxdasa.schedules import Alpha, Number, Schedule

__all__ = ["ProxDASA", "ProxDASAGT"]

REMEDY = "unequal numbers of steps? optimizer.common_steps(len(loader)) gives one number for all agents"
"""The usual reason why an agent misses another's message in a training loop, and what to do."""


class Decentralised(Optimizer, ABC):
    """One agent's part of a method, whose steps are those of the method's own file.

    Args:
        params: the model's parameters, or groups of them, as torch takes them; those that are trained all float32 or
            all float64.
        network: the graph and its weights W, with one agent for each process.
        gamma: the proximal step γ.
        alpha: α_k for groups whose ``lr`` is 1: a number in (0, 1], or one of `proxdasa.schedules`.
        regularizer: Ψ for all groups that name none; nothing by default.
        mixing: how W is applied in each step; one round of gossip by default.
        iterations: the number K of steps, for schedules that depend on it.
        processes: the other agents (`engines.connect`); by default those that this process was started with.
    """

    def __init__(
        self,
        params: ParamsT,
        network: Network,
        *,
        gamma: float,
        alpha: float | Alpha,
        regularizer: Regularizer = Zero(),  # noqa: B008 - a frozen value
        mixing: Mixing = Gossip(),  # noqa: B008 - a frozen value
        iterations: int | None = None,
        processes: Transport | None = None,
    ) -> None:
        _check_network(network)
        self._name, self._complete = type(self).__name__, False
        self._default, self._regularizers = regularizer, list[Regularizer]()
        super().__init__(params, {"lr": 1.0, "k": 0})
        self._complete = True
        self._trained = {number: each for number, each in enumerate(self._given) if each.requires_grad}
        self._params = list(self._trained.values())
        _check_alike(self._trained)
        x = _flat(self._params)
        shapes = [[each.shape for each in group["params"] if each.requires_grad] for group in self.param_groups]
        self._sizes = [sum(shape.numel() for shape in group) for group in shapes]
        self._regularizer = _side_by_side(self._sizes, self._regularizers)
        self._schedule = schedules.as_schedule(alpha, "alpha")
        self._alpha = _bound(self._schedule, network, iterations, x.dtype)
        self._alphas(0)
        self._method = self.method(check_positive_number(gamma, f"{self._name}: gamma"), self._alphas)
        self._neighbourhood = Neighbourhood(network, mixing, _connected(network, processes), x.dtype, remedy=REMEDY)
        self._neighbourhood.agree(
            {
                "method": self._name,
                "parameters": str([[list(shape) for shape in group] for group in shapes]),
                "floating-point type": str(x.dtype),
                "gamma": str(gamma),
                "alpha": str((describe(self._schedule), iterations)),
                "regularizer": str(describe(self._regularizer)),
                "mixing": str(describe(mixing)),
            }
        )
        first = self._method.init(self._agent(torch.zeros_like(x)), x)
        self._rows = {name: rows for name, rows in first._asdict().items() if name != "x"}
        self._show_rows()

    @property
    @abstractmethod
    def method(self) -> Callable[[float, Alpha], Algorithm]:
        """The algorithm, made of γ and α."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Part of making an optimizer; afterwards the agents have agreed on what they exchange."""
        if self._complete:
            raise ValueError("agents exchange the parameters that they began with; make a new optimizer for others")
        regularizer = param_group.get("regularizer", self._default)
        check_regularizer(regularizer, f"{self._name}: the regularizer of group {len(self.param_groups)}")
        self._regularizers.append(regularizer)
        super().add_param_group({name: value for name, value in param_group.items() if name != "regularizer"})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step k of the method, with the gradient that backward() has left, perhaps in the closure."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        k = self._neighbourhood.k = self._k
        with torch.no_grad(), flushed_denormals():
            agent = self._agent(_flat(self._gradients()))
            state = self._method.step(agent, k, self._method.State(_flat(self._params), **self._rows))
            self._write(state.x)
            for name, rows in self._rows.items():
                rows.copy_(getattr(state, name))
        for group in self.param_groups:
            group["k"] = k + 1
        return loss

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """In here the parameters are x̄, the mean of all agents', for measuring or saving; then the agent's own again.

        All agents must come here together. What is no parameter, such as the statistics of batch normalisation, stays
        the agent's own.
        """
        own = _flat(self._params)
        self._meet()
        total = self._neighbourhood.sum(own.to("cpu", copy=True))
        self._write(total / len(self._neighbourhood.parts))
        try:
            yield
        finally:
            self._write(own)

    def common_steps(self, own: int) -> int:
        """The least number of steps that an agent can make, such as that of its batches in an epoch: ``len(loader)``.

        All agents must come here together. With it they make equally many:
        ``for inputs, targets in itertools.islice(loader, optimizer.common_steps(len(loader)))``.
        """
        check_count(own, "the number of steps")
        numbers = torch.zeros(len(self._neighbourhood.parts), dtype=torch.float64)
        numbers[self._neighbourhood.agents.start] = own
        self._meet()
        return int(self._neighbourhood.sum(numbers).min())

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Go on from a state that this agent has saved. All agents must come here together."""
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        saved = [state_dict["state"].get(number, {}) for number in numbers]
        if [_shapes(entries) for entries in saved] != [_shapes(self.state.get(each, {})) for each in self._given]:
            raise ValueError(f"the state was not saved by {self._name} with the same parameters")
        super().load_state_dict(state_dict)
        for name, rows in self._rows.items():
            rows.copy_(_flat([self.state[parameter][name] for parameter in self._params]))
        self._show_rows()
        self._neighbourhood.agree({"number of steps behind them": str(self._k)})

    @property
    def _given(self) -> list[Tensor]:
        """All parameters, the frozen ones too."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @property
    def _k(self) -> int:
        """The steps made; kept in the groups, which torch saves."""
        return int(self.param_groups[0]["k"])

    def _meet(self) -> None:
        """Before agents do something together between two steps: one that makes another step is found out at once."""
        self._neighbourhood.k = self._k
        self._neighbourhood.meet(_flat(self._params).expand(self._method.facts.vectors, 1, -1))

    def _alphas(self, k: int) -> Number:
        """α_k = lr · alpha(k): one number or, where groups differ, one for each coordinate."""
        alpha, rates = float(self._alpha(k)), [float(group["lr"]) for group in self.param_groups]
        each = [rate * alpha for rate in rates]
        for number, (rate, α) in enumerate(zip(rates, each, strict=True)):
            if not 0 < α <= 1:
                raise ValueError(
                    f"{self._name}: lr · alpha({k}) must lie in (0, 1]; for group {number} it is "
                    f"{rate:g} · {alpha:g} = {α:g}"
                )
        if len(set(each)) == 1:
            return each[0]
        parts = [self._params[0].new_full((1, 1, size), α) for size, α in zip(self._sizes, each, strict=True)]
        return torch.cat(parts, dim=-1)

    def _gradients(self) -> list[Tensor]:
        """What backward() has left, for every parameter that is trained."""
        gradients = []
        for number, parameter in enumerate(self._given):
            if parameter.requires_grad != (number in self._trained):
                raise ValueError(
                    f"{_named(number, parameter)} was {'un' * parameter.requires_grad}frozen after the optimizer was "
                    "made; agents exchange the parameters that they began with; make a new optimizer for others"
                )
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                raise ValueError(
                    f"{_named(number, parameter)} has no gradient in step {self._k}: call backward() before step(), "
                    "and freeze parameters that are not trained, by requires_grad_(False), before the optimizer is made"
                )
            if parameter.grad.layout is not torch.strided:
                raise ValueError(f"{_named(number, parameter)} has a sparse gradient; nn.Embedding has sparse=False")
            gradients.append(parameter.grad)
        return gradients

    def _agent(self, gradient: Tensor) -> Agents:
        # It has those verbs that these methods use.
        return cast("Agents", _Agent(gradient, self._regularizer, self._neighbourhood))

    def _views(self, rows: Tensor) -> list[Tensor]:
        parts = torch.split(rows.view(-1), [parameter.numel() for parameter in self._params])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._params, strict=True)]

    @torch.no_grad()
    def _write(self, x: Tensor) -> None:
        for parameter, view in zip(self._params, self._views(x), strict=True):
            parameter.copy_(view)

    def _show_rows(self) -> None:
        """Views of our rows as the states of parameters, which torch saves."""
        for name, rows in self._rows.items():
            for parameter, view in zip(self._params, self._views(rows), strict=True):
                self.state[parameter][name] = view


@final
class ProxDASA(Decentralised):
    """Prox-DASA as an optimizer.

        y = prox_γ(x − γ z)
        x = mix[(1 − α) x + α y]
        z = mix[(1 − α) z + α g]          g is what backward() has left at the old x

    The arguments are those of `Decentralised`.
    """

    method = algorithms.ProxDASA


@final
class ProxDASAGT(Decentralised):
    """Prox-DASA-GT as an optimizer, for agents whose data differ.

        y = prox_γ(x − γ z)
        ũ = u + g − v                     g is what backward() has left at the old x
        x = mix[(1 − α) x + α y]
        z = mix[(1 − α) z + α ũ];   u = mix[ũ];   v = g

    The arguments are those of `Decentralised`.
    """

    method = algorithms.ProxDASAGT


@dataclass(frozen=True)
class _Agent:
    """The verbs of one agent whose gradient is there already."""

    gradient: Tensor
    regularizer: Regularizer
    neighbourhood: Neighbourhood

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:  # noqa: ARG002
        """The gradient at x, which is where the model was."""
        return self.gradient

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """Each group's own."""
        return self.regularizer.prox(x, gamma)

    def mix(self, *tensors: Tensor) -> Any:
        """By messages; what is not finite is not sent, as no neighbour would get rid of it."""
        # A sum that is finite has finite terms, and is cheaper to look at.
        if not all(bool(x.sum().isfinite()) or bool(x.isfinite().all()) for x in tensors):
            agent, k = self.neighbourhood.agents.start, self.neighbourhood.k
            words = f"agent {agent} met a value that is not finite in step {k}; a smaller gamma or alpha may help"
            self.neighbourhood.fail(words)
            raise NonFiniteError(words)
        return unpack(self.neighbourhood.mix(tensors))


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    """One row ``[1, 1, d]``, of one trial and one agent."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).view(1, 1, -1)


def _shapes(entries: dict[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, "shape", None) for name, value in entries.items()}


def _named(number: int, parameter: Tensor) -> str:
    return f"parameter {number}, of shape {list(parameter.shape)},"


def _check_network(network: object) -> None:
    if not isinstance(network, Network):
        raise TypeError(f"network must be a network, such as networks.ring(8); got {network!r}")


def _check_alike(params: Mapping[int, Tensor]) -> None:
    """Refuse what does not fit in one row."""
    if not params:
        raise ValueError("there are no parameters to train: all that are given are frozen, with requires_grad = False")
    origin, first = next(iter(params.items()))
    for number, parameter in params.items():
        if parameter.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{_named(number, parameter)} is {parameter.dtype}; accepted: float32 or float64")
        if (parameter.dtype, parameter.device) != (first.dtype, first.device):
            raise TypeError(
                f"{_named(number, parameter)} is {parameter.dtype} on {parameter.device}, but parameter {origin} "
                f"{first.dtype} on {first.device}; accepted: one type and device for all"
            )


def _side_by_side(sizes: Sequence[int], regularizers: Sequence[Regularizer]) -> Regularizer:
    """Each group's regularizer on its coordinates."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    parts = zip(ends, sizes, regularizers, strict=True)
    return Blocks([(end - size, end, regularizer) for end, size, regularizer in parts if size])


def _bound(alpha: Alpha, network: Network, iterations: int | None, dtype: torch.dtype) -> Alpha:
    """The step size, bound to n and K."""
    if not isinstance(alpha, Schedule):
        return alpha
    if any(isinstance(value, Tensor) for value in alpha.parameters.values()):
        raise ValueError("alpha has one value per trial, but an optimizer has no trials; give it one number")
    if iterations is not None:
        check_count(iterations, "iterations")
    elif "iterations" in alpha.needs:
        raise ValueError(f"schedules.{alpha.name} depends on the number K of steps; give iterations=K")
    return alpha.bind(network.n, iterations, dtype)


def _connected(network: Network, processes: Transport | None) -> Transport:
    """As many processes as the network has agents."""
    if processes is None:
        if dist.is_available() and dist.is_initialized():
            raise ValueError(
                "torch.distributed is connected already; let engines.connect() do that, once, and give what it "
                "returns: processes=..."
            )
        processes = connect() or Alone()
    if processes.size != network.n:
        raise ValueError(
            f"network: {network.label} has {network.n} agents, but the number of processes, each of which is one "
            f"agent, is {processes.size}; start the script by torchrun --standalone --nproc-per-node {network.n}, or "
            f"take a network of {processes.size}, such as networks.ring({processes.size})"
        )
    return processes
