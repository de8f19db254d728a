"""Compression of messages: compressors, and mixings that use one."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor


class Part(NamedTuple):
    """One of the tensors that a compressor reduces a row to.

    Examples:
        >>> compressors.QSGD(4).parts(100, torch.float32)  # a hundred levels of 4 bits, and a norm
        (Part(numbers=100, dtype=torch.int32, bits=4), Part(numbers=1, dtype=torch.float32, bits=None))
    """

    numbers: int
    """How many numbers it has."""
    dtype: torch.dtype
    """Their type."""
    bits: int | None = None
    """How many bits of each number are sent, for whole numbers from 0 on; None if all are."""


class Compressor(Protocol):
    """C with E‖C(x) − x‖² ≤ (1 − δ)‖x‖², row by row: `reduce` makes what is sent, and `restore` makes C(x) from that.

    Examples:
        >>> class Head:  # the first coordinates only: no contraction, so this is an example of the form alone
        ...     receiver_draws = False
        ...
        ...     def words(self, d):
        ...         return 0
        ...
        ...     def contraction(self, d):
        ...         return 0.0
        ...
        ...     def parts(self, d, dtype):
        ...         return (contracts.Part(2, dtype),)
        ...
        ...     def reduce(self, rows, words):
        ...         return (rows[..., :2].clone(),)
        ...
        ...     def restore(self, parts, d, words):
        ...         return torch.nn.functional.pad(parts[0], (0, d - 2))
        >>> Head().restore(Head().reduce(torch.ones(1, 4), None), 4, None)
        tensor([[1., 1., 0., 0.]])
    """

    receiver_draws: ClassVar[bool]
    """Whether `restore` needs the sender's random words; the receiver then draws them by the sender's name."""

    def words(self, d: int) -> int:
        """How many random 32-bit words a row of d coordinates takes."""

    def contraction(self, d: int) -> float:
        """δ for rows of d coordinates, in the worst case."""

    def parts(self, d: int, dtype: torch.dtype) -> tuple[Part, ...]:
        """What a row of d coordinates is reduced to."""

    def reduce(self, rows: Tensor, words: Tensor | None) -> tuple[Tensor, ...]:
        """The parts ``[..., numbers]`` of rows ``[..., d]``, with random words ``[..., words(d)]`` if it takes any."""

    def restore(self, parts: tuple[Tensor, ...], d: int, words: Tensor | None) -> Tensor:
        """C(x) ``[..., d]`` from its parts, element by element, so that sender and receiver get the same bits."""


class Compression(Protocol):
    """How a mixing compresses messages; a mixing that does so has an attribute ``compression`` of this type."""

    @property
    def compressor(self) -> Compressor:
        """C."""

    def step_of(self, number: int | None) -> float:
        """γ of the vector with this number among those that an iteration mixes, or of one mixed before the first."""
