"""Regularisers made of regularisers: a multiple of one, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from torch import Tensor

from proxdasa.checks import check_positive_number, check_regularizer, check_step_size, check_whole, invalid
from proxdasa.contracts import Regularizer, is_separable
from proxdasa.regularizers.norms import Zero
from proxdasa.regularizers.penalty_weights import Weight, check_weight, scale, weight_like
from proxdasa.schedules import Number


@final
@dataclass(frozen=True)
class Scaled:
    """The multiple c Ψ of a regulariser, c > 0, with prox_γ(c Ψ) = prox_{γ c}(Ψ).

    Examples:
        >>> regularizers.Scaled(regularizers.L1(1.0), 2.0).prox(torch.tensor([3.0, -2.0]), gamma=0.5)
        tensor([ 2., -1.])
    """

    regularizer: Regularizer
    factor: Weight

    def __post_init__(self) -> None:
        check_regularizer(self.regularizer, "Scaled.regularizer")
        object.__setattr__(self, "factor", check_weight(self.factor, "Scaled.factor", check_positive_number))

    @property
    def separable(self) -> bool:
        """Whether Ψ is separable."""
        return is_separable(self.regularizer)

    def value(self, x: Tensor) -> Tensor:
        """The multiple c Ψ(x)."""
        return scale(self.factor, self.regularizer.value(x), x, "Scaled")

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """The proximal step of Ψ with c γ in place of γ."""
        return self.regularizer.prox(x, check_step_size(gamma, x) * weight_like(self.factor, x, "Scaled"))


@final
@dataclass(frozen=True)
class Blocks:
    """A regulariser for each of some ranges of coordinates, and none for the others.

        Ψ(x) = Σ_b Ψ_b(x[start_b:stop_b]),   prox_γ(Ψ)(x)[start_b:stop_b] = prox_γ(Ψ_b)(x[start_b:stop_b])

    A part is (start, stop, regulariser), counted from 0, with the stop excluded; a stop of None means the end.
    Parts are kept in the order of their coordinates. ``Blocks([(0, 784, L1(1e-4))])`` leaves what follows,
    say the biases, unpenalised.

    Examples:
        >>> psi = regularizers.Blocks([(0, 2, regularizers.L1(1.0)), (3, None, regularizers.NonNegative())])
        >>> psi.prox(torch.tensor([3.0, 0.5, -7.0, -1.0]), gamma=1.0)
        tensor([ 2.,  0., -7.,  0.])
    """

    parts: Sequence[tuple[int, int | None, Regularizer]]

    def __post_init__(self) -> None:
        parts = []
        for number, part in enumerate(self.parts):
            if not isinstance(part, tuple | list) or len(part) != 3:
                raise invalid(f"Blocks.parts[{number}]", "(start, stop, regulariser)", part)
            start, stop, regularizer = part
            start = check_whole(start, f"the start of Blocks.parts[{number}]", least=0)
            if stop is not None:
                stop = check_whole(stop, f"the stop of Blocks.parts[{number}]", least=start + 1)
            check_regularizer(regularizer, f"the last entry of Blocks.parts[{number}]")
            parts.append((start, stop, regularizer))
        if not parts:
            raise ValueError("Blocks.parts is empty; give at least one (start, stop, regulariser), or use Zero()")
        parts.sort(key=lambda part: part[0])
        for (start, stop, _), (following, *_) in pairwise(parts):
            if stop is None or stop > following:
                end = "end" if stop is None else stop
                raise ValueError(f"Blocks.parts overlap: {start}:{end} and the one that starts at {following}")
        object.__setattr__(self, "parts", tuple(parts))

    def _pieces(self, x: Tensor) -> list[tuple[Tensor, Regularizer]]:
        """All of x in order, cut where parts start and stop, and the regulariser of each piece."""
        d = x.shape[-1]
        pieces: list[tuple[Tensor, Regularizer]] = []
        end = 0
        for start, stop, regularizer in self.parts:
            if start >= d or (stop is not None and stop > d):
                raise ValueError(f"Blocks: the part {start}:{stop or 'end'} is beyond x, which has {d} coordinates")
            if end < start:
                pieces.append((x[..., end:start], Zero()))
            end = d if stop is None else stop
            pieces.append((x[..., start:end], regularizer))
        if end < d:
            pieces.append((x[..., end:], Zero()))
        return pieces

    def value(self, x: Tensor) -> Tensor:
        """The sum Σ_b Ψ_b(x[start_b:stop_b])."""
        return torch.stack([regularizer.value(piece) for piece, regularizer in self._pieces(x)]).sum(0)

    def prox(self, x: Tensor, gamma: Number) -> Tensor:
        """Each part's own proximal step."""
        gamma = check_step_size(gamma, x)
        return torch.cat([regularizer.prox(piece, gamma) for piece, regularizer in self._pieces(x)], dim=-1)
