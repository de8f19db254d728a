"""Samples are named, not drawn.

The sample ξ that agent i of trial t sees at iteration k is a pure function of (seed, stream, t, i, k): a run of words
of the counter-based generator Philox whose key is (seed, stream) and whose counter is (position, block of iterations,
trial). Engines therefore agree on every sample however rows are spread over processes, a run resumes at any k
without saved generator state, and an agent's samples do not depend on how many agents or trials there are.

Words are fetched for a block of iterations at once, so the cost per iteration is that of a slice. Normals come from the
words by the Box-Muller transform in float32, which uses a fixed number of words (rejection methods would not) and was
measured at about a quarter of the time of NumPy's ``standard_normal`` on the same generator; a run in float64 sees
the same values.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxdasa.contracts import Problem

BLOCK = 16
"""Iterations whose words are fetched together; part of the naming, so changing it changes every sample."""

# Streams: small numbers are the independent samples of one iteration; these are kept apart from them.
START, EVALUATION, GROUND_TRUTH, RANDOM_ITERATE = (2**32 + i for i in range(4))


def words(seed: int, stream: int, trial: int, block: int, agents: range, count: int) -> NDArray[np.int32]:
    """Uniform 32-bit words ``[len(agents), count]`` of consecutive agents; ``count`` is a multiple of 8.

    Agent i starts at counter position i · count/8 (Philox yields eight words per position), so consecutive agents are
    one contiguous stretch and one call.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed must be a whole number from 0 to 2^64 - 1; got {seed}")
    generator = np.random.Philox(
        key=np.array([seed, stream], dtype=np.uint64),
        counter=np.array([agents.start * (count // 8), block, trial, 0], dtype=np.uint64),
    )
    drawn = np.random.Generator(generator).integers(
        0, 2**64 - 1, size=(len(agents), count // 2), dtype=np.uint64, endpoint=True
    )
    return drawn.view(np.int32)


def normals(words: Tensor) -> Tensor:
    """Independent standard normals, one per int32 word along an even last axis, in float32.

    Box-Muller: √(−2 log u) (cos 2πv, sin 2πv). Taking u from the word's magnitude keeps small u exact, so the tails
    reach 6.6 standard deviations and log never sees zero.
    """
    half = words.shape[-1] // 2
    contiguous = torch.contiguous_format  # halves of short rows are slow to work on in place
    radius = words[..., :half].to(torch.float32, memory_format=contiguous)
    angle = words[..., half:].to(torch.float32, memory_format=contiguous)
    radius.abs_().add_(0.5).mul_(2.0**-31).log_().mul_(-2.0).sqrt_()
    angle.mul_(math.pi * 2.0**-31)
    drawn = torch.empty(words.shape)
    torch.mul(angle.cos(), radius, out=drawn[..., :half])
    torch.mul(angle.sin_(), radius, out=drawn[..., half:])
    return drawn


def uniforms(words: Tensor) -> Tensor:
    """Uniform numbers in (0, 1), one per word, in float64."""
    return (words.to(torch.float64) + 2.0**31 + 0.5) * 2.0**-32


def even(count: int) -> int:
    """The next even number: normals come in pairs."""
    return count + count % 2


class Samples:
    """The samples of a problem's agents at iteration k, as ``[trials, agents, ?]``, fetched a block at a time."""

    def __init__(self, problem: Problem, seed: int, trials: int, agents: range) -> None:
        self.problem, self.seed, self.trials, self.agents = problem, seed, trials, agents
        self._held: dict[int, tuple[int, Tensor]] = {}

    def __call__(self, k: int, stream: int = 0) -> Tensor:
        """The sample named (seed, stream, trial, agent, k) of every trial and agent here."""
        block, offset = divmod(k, BLOCK)
        held = self._held.get(stream)
        if held is None or held[0] != block:
            held = self._held[stream] = (block, self._fetch(block, stream))
        return held[1][offset]

    def _fetch(self, block: int, stream: int) -> Tensor:
        count = self.problem.words
        shape = (self.trials, len(self.agents), BLOCK, count)
        fetched = np.empty(shape, dtype=np.int32)
        for trial in range(self.trials) if count else ():
            drawn = words(self.seed, stream, trial, block, self.agents, BLOCK * count)
            fetched[trial] = drawn.reshape(shape[1:])
        # Iterations come first, so that a step's slice is contiguous.
        return self.problem.sample(torch.from_numpy(fetched).permute(2, 0, 1, 3).contiguous())
