"""Optimizers for one agent of a network, whose steps are those of the methods in `proxdasa.algorithms`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, cast, final, overload

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, ParamsT

from proxdasa import algorithms, schedules
from proxdasa.checks import check_count, check_positive_number, check_regularizer
from proxdasa.contracts import Agents, Algorithm, Mixing, Regularizer
from proxdasa.descriptions import describe
from proxdasa.engines import Transport
from proxdasa.engines.messages.neighbourhood import Neighbourhood
from proxdasa.mixing import Gossip
from proxdasa.networks import Network
from proxdasa.optim.arguments import bind_alpha, check_network, check_protocol, find_processes, join_regularizers
from proxdasa.optim.buffers import Buffers
from proxdasa.optim.local_agent import LocalAgent
from proxdasa.optim.parameters import AGENT, check_owner, check_trained, flatten, forms_of, name_of
from proxdasa.regularizers import Zero
from proxdasa.regularizers.penalty_weights import weights_within
from proxdasa.running_statistics import Policy
from proxdasa.runs.denormals import flushed_denormals
from proxdasa.schedules import Alpha, Number

REMEDY = "unequal numbers of steps? optimizer.common_steps(len(loader)) gives one number for all agents"
"""The usual cause of a missing message in a training loop, and what to do about it."""
OF_GROUPS = frozenset({"params", "lr", "regularizer", "initial_lr"})
"""The keys that a group of parameters may have; torch's schedulers add the last one."""
CHANGED = "agents exchange the parameters that they began with; make a new optimizer for others"
"""Why the set of trained parameters must not change."""


class Decentralised(Optimizer, ABC):
    """One agent's part of a method: the base of `ProxDASA` and `ProxDASAGT`, which take the same arguments.

    Args:
        params: the model's parameters, or groups of them as in any torch optimizer. Those that are trained must be all
            float32 or all float64.
        network: the graph and its weights W; each process is one agent.
        gamma: the proximal step γ.
        alpha: α_k for groups whose ``lr`` is 1: a number in (0, 1], or one of `proxdasa.schedules`.
        regularizer: Ψ for the groups without a regularizer of their own; none by default.
        mixing: how W is applied in each step; one round of gossip by default.
        iterations: the number K of steps; needed by schedules that depend on it.
        processes: what `engines.connect` returned; by default the processes that this one was started with.
        module: the model, if it has buffers. Those that forward passes change are running statistics, such as those
            of batch normalisation, for which ``buffers`` must then be chosen.
        buffers: what the model has within `averaged`: with "average" the means of the agents' running statistics (of
            counters the maxima), with "local" the agent's own, so that the model scores differently in each process.

    Examples:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = optim.ProxDASA(
        ...     [{"params": [model.weight], "regularizer": regularizers.L1(0.1)}, {"params": [model.bias]}],
        ...     networks.ring(1),
        ...     gamma=0.1,
        ...     alpha=schedules.horizon(),
        ...     iterations=100,
        ... )
        >>> optimizer.common_steps(7)
        7
        >>> with optimizer.averaged():
        ...     output = model(torch.zeros(3))
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
        module: nn.Module | None = None,
        buffers: Policy | None = None,
    ) -> None:
        check_network(network)
        check_protocol(mixing, network)
        self._name, self._complete, self._at_mean = type(self).__name__, False, 0
        self._default, self._regularizers = regularizer, list[Regularizer]()
        super().__init__(params, {"lr": 1.0, "k": 0})
        self._complete = True
        self._trained = {number: each for number, each in enumerate(self._given) if each.requires_grad}
        self._params = list(self._trained.values())
        check_trained(self._trained)
        self._buffers = Buffers(module, buffers, self._params)
        x = flatten(self._params)
        shapes = [[each.shape for each in group["params"] if each.requires_grad] for group in self.param_groups]
        self._sizes = [sum(shape.numel() for shape in group) for group in shapes]
        self._regularizer = join_regularizers(self._sizes, self._regularizers)
        self._schedule = schedules.as_schedule(alpha, "alpha")
        self._alpha = bind_alpha(self._schedule, network, iterations, x.dtype)
        self._alphas(0)
        self._method = self.method(check_positive_number(gamma, f"{self._name}: gamma"), self._alphas)
        self._neighbourhood = Neighbourhood(network, mixing, find_processes(network, processes), x.dtype, remedy=REMEDY)
        self._neighbourhood.agree(
            {
                "method": self._name,
                "parameters": str([[list(shape) for shape in group] for group in shapes]),
                "floating-point type": str(x.dtype),
                "gamma": str(gamma),
                "alpha": str((describe(self._schedule), iterations)),
                "regularizer": str(describe(self._regularizer)),
                "mixing": str(describe(mixing)),
                "buffers": self._buffers.claims(),
            }
        )
        first = self._method.init(self._agent(torch.zeros_like(x)), x)
        self._rows = {name: rows for name, rows in first._asdict().items() if name != "x"}
        self._owner = f"agent {self._neighbourhood.agents.start} of {network.n}"
        self._show_rows()

    @property
    @abstractmethod
    def method(self) -> Callable[[float, Alpha], Algorithm]:
        """The class of the method, called with γ and α."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group while the optimizer is being created; torch's constructor calls this.

        Raises:
            ValueError: if called later, when the agents have agreed on what they exchange.
        """
        if self._complete:
            raise ValueError(CHANGED)
        if unknown := set(param_group) - OF_GROUPS:
            raise ValueError(
                f"{self._name}: group {len(self.param_groups)} has {min(unknown)!r}, which would have no effect; "
                "groups may have params, lr and regularizer, and all share gamma and alpha"
            )
        regularizer = param_group.get("regularizer", self._default)
        check_regularizer(regularizer, f"{self._name}: the regularizer of group {len(self.param_groups)}")
        if name := next((name for name, _ in weights_within(regularizer, "regularizer")), None):
            raise ValueError(f"{self._name}: {name} has one value per trial, but an optimizer has no trials")
        self._regularizers.append(regularizer)
        super().add_param_group({name: value for name, value in param_group.items() if name != "regularizer"})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Make step k of the method with the gradient that ``backward()`` left, perhaps in the closure.

        Args:
            closure: computes the loss and calls ``backward()``, as in other torch optimizers.
        """
        if self._at_mean:
            raise ValueError("step() within averaged() would be lost: the agent's own parameters come back after it")
        with torch.enable_grad():
            loss = None if closure is None else closure()
        self._buffers.check()
        k = self._neighbourhood.k = self._k
        with torch.no_grad(), flushed_denormals():
            agent = self._agent(flatten(self._gradients()))
            state = self._method.step(agent, k, self._method.State(flatten(self._params), **self._rows))
            self._write(state.x)
            for name, rows in self._rows.items():
                rows.copy_(getattr(state, name))
        self._note("k", k + 1)
        return loss

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Context manager in which the parameters are x̄, the mean over all agents, for measuring or saving.

        All agents must enter it after the same step. With ``buffers="average"`` running statistics are averaged too;
        otherwise buffers stay the agent's own.
        """
        self._buffers.check()
        self._meet()
        own, agents = flatten(self._params), len(self._neighbourhood.parts)
        total = self._neighbourhood.sum(own.to("cpu", copy=True))
        with self._buffers.averaged(self._neighbourhood.agents.start, agents, self._neighbourhood.sum):
            self._write(total / agents)
            self._at_mean += 1
            try:
                yield
            finally:
                self._write(own)
                self._at_mean -= 1

    def common_steps(self, own: int) -> int:
        """The smallest ``own`` of all agents, such as the smallest number of batches in an epoch, ``len(loader)``.

        All agents must call it after the same step. It lets them take equally many steps:
        ``for inputs, targets in itertools.islice(loader, optimizer.common_steps(len(loader)))``.
        """
        check_count(own, "the number of steps")
        numbers = torch.zeros(len(self._neighbourhood.parts), dtype=torch.float64)
        numbers[self._neighbourhood.agents.start] = own
        self._meet()
        return int(self._neighbourhood.sum(numbers).min())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state that this agent saved. All agents must call it together."""
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        saved = [state_dict["state"].get(number, {}) for number in numbers]
        if [forms_of(entries) for entries in saved] != [forms_of(self.state.get(each, {})) for each in self._given]:
            raise ValueError(f"the state was not saved by {self._name} with the same parameters")
        check_owner(state_dict, self._owner, self._neighbourhood.fail)
        super().load_state_dict(state_dict)
        for name, rows in self._rows.items():
            rows.copy_(flatten([self.state[parameter][name] for parameter in self._params]))
        self._show_rows()
        self._neighbourhood.agree({"number of steps behind them": str(self._k)})

    def __getstate__(self) -> NoReturn:
        """Refuse copies, whose steps would lack the neighbours."""
        raise TypeError(f"{self._name} cannot be copied or pickled; save its state_dict() and load it into a new one")

    @property
    def _given(self) -> list[Tensor]:
        """All parameters, including the frozen ones."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    @property
    def _k(self) -> int:
        """The number of steps made. It is noted in the groups because torch saves those."""
        return int(self.param_groups[0]["k"])

    def _note(self, name: str, value: object) -> None:
        for group in self.param_groups:
            group[name] = value

    def _meet(self) -> None:
        """Make sure that all agents are between the same two steps; raise at once if one takes a step instead."""
        self._neighbourhood.k = self._k
        self._neighbourhood.meet(flatten(self._params).expand(self._method.facts.vectors, 1, -1))
        rates = str([float(group["lr"]) for group in self.param_groups])
        self._neighbourhood.agree({"lr of all groups (a scheduler must not go by an agent's own loss)": rates})

    def _alphas(self, k: int) -> Number:
        """α_k = lr · alpha(k): one number or, where groups have different ``lr``, one for each coordinate."""
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
        """The gradients that ``backward()`` left, one for each trained parameter."""
        gradients = []
        for number, parameter in enumerate(self._given):
            if parameter.requires_grad != (number in self._trained):
                raise ValueError(
                    f"{name_of(number, parameter)} was {'un' * parameter.requires_grad}frozen after the optimizer was "
                    f"made; {CHANGED}"
                )
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:
                raise ValueError(
                    f"{name_of(number, parameter)} has no gradient in step {self._k}: call backward() before step(), "
                    "and freeze parameters that are not trained, requires_grad_(False), before the optimizer is made"
                )
            if parameter.grad.layout is not torch.strided:
                raise ValueError(f"{name_of(number, parameter)} has a sparse gradient; nn.Embedding has sparse=False")
            gradients.append(parameter.grad)
        return gradients

    def _agent(self, gradient: Tensor) -> Agents:
        # It lacks the methods of `Agents` that neither algorithm calls.
        return cast("Agents", LocalAgent(gradient, self._regularizer, self._neighbourhood))

    def _views(self, rows: Tensor) -> list[Tensor]:
        parts = torch.split(rows.view(-1), [parameter.numel() for parameter in self._params])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self._params, strict=True)]

    @torch.no_grad()
    def _write(self, x: Tensor) -> None:
        for parameter, view in zip(self._params, self._views(x), strict=True):
            parameter.copy_(view)

    def _show_rows(self) -> None:
        """Put views of our rows into the parameters' states, which torch saves, and note the agent in the groups."""
        self._note(AGENT, self._owner)
        for name, rows in self._rows.items():
            for parameter, view in zip(self._params, self._views(rows), strict=True):
                self.state[parameter][name] = view


@final
class ProxDASA(Decentralised):
    """Prox-DASA as a torch optimizer.

        y = prox_γ(x − γ z)
        x = mix[(1 − α) x + α y]
        z = mix[(1 − α) z + α g]          g is what backward() left at the old x

    The arguments are those of `Decentralised`.

    Examples:
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = optim.ProxDASA(model.parameters(), networks.ring(1), gamma=0.5, alpha=0.3)
        >>> inputs, targets = torch.eye(3), torch.tensor([[1.0], [2.0], [3.0]])
        >>> for _ in range(100):
        ...     optimizer.zero_grad()
        ...     loss = (model(inputs) - targets).square().mean()
        ...     loss.backward()
        ...     optimizer.step()
        >>> loss.item() < 1e-3
        True
    """

    method = algorithms.ProxDASA


@final
class ProxDASAGT(Decentralised):
    """Prox-DASA-GT as a torch optimizer, for agents whose data differ.

        y = prox_γ(x − γ z)
        ũ = u + g − v                     g is what backward() left at the old x
        x = mix[(1 − α) x + α y]
        z = mix[(1 − α) z + α ũ];   u = mix[ũ];   v = g

    The arguments are those of `Decentralised`.

    Examples:
        >>> processes = engines.connect() or engines.Alone()  # those that torchrun or mpiexec has started
        >>> model = torch.nn.Linear(3, 1)
        >>> optimizer = optim.ProxDASAGT(
        ...     model.parameters(), networks.ring(processes.size), gamma=0.1, alpha=0.3, processes=processes
        ... )
        >>> model(torch.ones(2, 3)).square().mean().backward()
        >>> optimizer.step()
        >>> sorted(optimizer.state[model.weight])
        ['u', 'v', 'z']
    """

    method = algorithms.ProxDASAGT
