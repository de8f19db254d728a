"""One agent as a method sees it, in a training loop that has computed the gradient already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from proxdasa.contracts import NonFiniteError, Regularizer, unpack
from proxdasa.engines.checked_answers import proximal_step
from proxdasa.engines.messages.neighbourhood import Neighbourhood
from proxdasa.schedules import Number


@dataclass(frozen=True)
class LocalAgent:
    """The methods of `contracts.Agents` that Prox-DASA and Prox-DASA-GT use."""

    gradient: Tensor
    regularizer: Regularizer
    neighbourhood: Neighbourhood

    def grad(self, x: Tensor, k: int, sample: int = 0) -> Tensor:  # noqa: ARG002
        """The gradient that ``backward()`` left; it was computed at x, the model's parameters."""
        return self.gradient

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step, with each parameter group's own regularizer."""
        return proximal_step(self.regularizer, x, gamma)

    def mix(self, *tensors: Tensor) -> Any:
        """Mix with the neighbours by messages; raise `NonFiniteError` instead of sending NaN or infinity."""
        # A neighbour could never get rid of a non-finite value. A finite sum has finite terms, and is cheaper to check.
        if not all(bool(x.sum().isfinite()) or bool(x.isfinite().all()) for x in tensors):
            agent, k = self.neighbourhood.agents.start, self.neighbourhood.k
            reason = f"agent {agent} met a value that is not finite in step {k}; a smaller gamma or alpha may help"
            self.neighbourhood.fail(reason)
            raise NonFiniteError(reason)
        return unpack(self.neighbourhood.mix(tensors))
