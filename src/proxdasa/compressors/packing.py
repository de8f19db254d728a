"""Packs the parts of compressed rows into bytes and unpacks them; the number of bytes is known beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxdasa.contracts import Part


def size(parts: Sequence[Part]) -> int:
    """The bytes of one packed row."""
    return sum(map(_bytes, parts))


def pack(tensors: Sequence[Tensor], parts: Sequence[Part]) -> Tensor:
    """Parts ``[..., numbers]`` of rows as bytes ``[..., size]``."""
    packed = [
        tensor.contiguous().view(torch.uint8) if part.bits is None else _pack_bits(tensor, part.bits)
        for tensor, part in zip(tensors, parts, strict=True)
    ]
    return torch.cat(packed, dim=-1)


def unpack(message: Tensor, parts: Sequence[Part]) -> tuple[Tensor, ...]:
    """The parts from bytes ``[..., size]``."""
    pieces = torch.split(message, [_bytes(part) for part in parts], dim=-1)
    return tuple(
        piece.clone(memory_format=torch.contiguous_format).view(part.dtype)
        if part.bits is None
        else _unpack_bits(piece, part.numbers, part.bits).to(part.dtype)
        for piece, part in zip(pieces, parts, strict=True)
    )


def _bytes(part: Part) -> int:
    bits = 8 * part.dtype.itemsize if part.bits is None else part.bits
    return (part.numbers * bits + 7) // 8


def _form(bits: int) -> str:
    """NumPy's name of the smallest unsigned, big-endian type with this many bits."""
    return f">u{next(size for size in (1, 2, 4) if 8 * size >= bits)}"


def _pack_bits(numbers: Tensor, bits: int) -> Tensor:
    """Whole numbers from 0, with ``bits`` bits each, side by side."""
    whole: NDArray[np.uint8] = numbers.numpy().astype(_form(bits)).view(np.uint8).reshape(*numbers.shape, -1)
    digits = np.unpackbits(whole, axis=-1)[..., -bits:]
    return torch.from_numpy(np.packbits(digits.reshape(*numbers.shape[:-1], -1), axis=-1))


def _unpack_bits(packed: Tensor, count: int, bits: int) -> Tensor:
    form = np.dtype(_form(bits))
    digits = np.unpackbits(packed.numpy(), axis=-1, count=count * bits).reshape(*packed.shape[:-1], count, bits)
    whole = np.zeros((*digits.shape[:-1], 8 * form.itemsize), dtype=np.uint8)
    whole[..., -bits:] = digits
    return torch.from_numpy(np.packbits(whole, axis=-1).view(form)[..., 0].astype(np.int64))
