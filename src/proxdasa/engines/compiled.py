"""Steps through `torch.compile`; everything that depends on how torch's compiler works is in this file."""

from __future__ import annotations

from typing import Any

import torch

from proxdasa.contracts import Agents, Step

# Private to torch: without it torch.compile leaves calls of torch.autograd.grad out of the compiled step, and gradients
# are not fused with what uses them. The results are the same; tests/test_compiled.py fails if torch drops the name.
AUTOGRAD = "trace_autograd_ops"


class _Verbs:
    """The agents' verbs as the compiler sees them."""

    def __init__(self, agents: Agents) -> None:
        self.grad, self.prox, self.mix, self.neighbour_sum = agents.grad, agents.prox, agents.mix, agents.neighbour_sum
        self.degrees = agents.degrees
        # Rare, and a loop over all data, which the compiler would unroll.
        self.full_grad = torch.compiler.disable(agents.full_grad)  # type: ignore[no-untyped-call]


def compile_step(step: Step, agents: Agents) -> Step:
    """An algorithm's step on these agents, fused by torch's compiler; the agents it is called with must be the same."""
    from torch._dynamo import config  # noqa: PLC0415 - takes seconds to import

    fused, verbs = torch.compile(step), _Verbs(agents)
    settings: dict[str, Any] = {AUTOGRAD: True} if hasattr(config, AUTOGRAD) else {}

    def run(_: Agents, k: int, state: Any) -> Any:
        with config.patch(settings):
            return fused(verbs, k, state)

    return run
