"""Random samples as functions of their names, without the state of a generator.

The sample ξ that agent i of trial t sees at iteration k is a pure function of (seed, stream, t, i, k): a run of words
of the counter-based generator Philox whose key is (seed, stream) and whose counter is (position, block of iterations,
trial). Engines therefore agree on every sample however rows are spread over processes, a run resumes at any k
without saved generator state, and an agent's samples do not depend on how many agents or trials there are.

Words are fetched for a block of iterations at once, so the cost per iteration is that of a slice. Normals come from
the words by the inverse distribution function in float32: one word each, where rejection methods take a varying number,
and about a third of the time of NumPy's ``standard_normal`` on the same generator. A run in float64 sees the same
values.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from proxdasa.checks import check_seed
from proxdasa.contracts import Problem
from proxdasa.devices import CPU, send

BLOCK = 8
"""Iterations whose words are fetched together; part of the naming, so changing it changes every sample."""

AHEAD, FEW = 8, 2**14
"""How many blocks of samples are made together if these take at most ``FEW`` words: the time to make few samples does
not depend on their number. Not part of the naming."""

# Streams with small numbers are the independent samples of one iteration. All other streams have numbers above those.
START, EVALUATION, GROUND_TRUTH, RANDOM_ITERATE = (2**32 + i for i in range(4))
DATA, COMPRESSION, EVENTS = 2**33, 2**34, 2**35
"""The first streams of data sets, compressed messages and conditions, each with room for the next ones."""


class Words:
    """Random words by name, from one generator whose key and counter are set from the name before every use."""

    def __init__(self) -> None:
        philox = np.random.Philox(key=0)
        self._philox, self._state = philox, philox.state

    def __call__(self, seed: int, stream: int, trial: int, block: int, agents: range, count: int) -> NDArray[np.int32]:
        """Uniform 32-bit words ``[len(agents), count]`` of consecutive agents; ``count`` is a multiple of 8.

        Agent i starts at counter position i · count/8 (Philox yields eight words per position), so consecutive
        agents are one contiguous stretch and one call.
        """
        check_seed(seed)
        if count % 8:
            raise ValueError(f"Philox yields words eight at a time; got {count}")
        place = self._state["state"]
        place["key"][:] = (seed, stream)
        # Drawing moves the first word of the counter only, so the words of a block never run into those of the next
        # block or trial.
        place["counter"][:] = (agents.start * (count // 8), block, trial, 0)
        # This also drops words that the last call has left in the generator's buffer.
        self._philox.state = self._state
        # The words as the generator yields them: NumPy's whole numbers in a range may reject some, and take longer.
        drawn: NDArray[np.uint64] = self._philox.random_raw(len(agents) * count // 2)
        return drawn.view(np.int32).reshape(len(agents), count)


def repeat_names(trials: range, periods: Sequence[int]) -> list[int]:
    """The trials by which the random words of trials are named: their own numbers, modulo each period in turn.

    So the settings of a search, stacked as trials, see the same samples, events and compressed messages.
    """
    return [functools.reduce(operator.mod, periods, trial) for trial in trials]


def words(seed: int, stream: int, trial: int, agent: int, count: int) -> Tensor:
    """Words ``[count]`` of one agent, for use outside the loop; any count will do."""
    return words_of(seed, stream, trial, range(agent, agent + 1), count)[0]


def words_of(seed: int, stream: int, trial: int, agents: range, count: int) -> Tensor:
    """Words ``[len(agents), count]`` of consecutive agents, those that `words` gives each of them."""
    padded = count + -count % 8
    return torch.from_numpy(Words()(seed, stream, trial, 0, agents, padded)[:, :count])


def normals(words: Tensor) -> Tensor:
    """Independent standard normals, one per int32 word, in float32.

    x = √2 erf⁻¹(u) with u uniform in (−1, 1). The largest u is 1 − 2⁻²⁴, so x reaches 5.4 standard deviations, which
    one in 15 million normals would exceed.

    Examples:
        >>> words = torch.tensor([-(2**30), 0, 2**30], dtype=torch.int32)
        >>> samples.normals(words).round(decimals=3)
        tensor([-0.6740,  0.0000,  0.6740])
    """
    u = words.to(torch.float32, memory_format=torch.contiguous_format).mul_(2.0**-31 * (1 - 2.0**-24))
    return u.erfinv_().mul_(math.sqrt(2))


def uniforms(words: Tensor) -> Tensor:
    """Uniform numbers in (0, 1), one per word, in float64.

    Examples:
        >>> words = torch.tensor([-(2**30), 0, 2**30], dtype=torch.int32)
        >>> samples.uniforms(words).round(decimals=3)
        tensor([0.2500, 0.5000, 0.7500], dtype=torch.float64)
    """
    # The half keeps results strictly between 0 and 1: an event of probability 0 never happens, one of 1 always does.
    return (words.to(torch.float64) + 2.0**31 + 0.5) * 2.0**-32


class Samples:
    """The samples of a problem's agents at iteration k, as ``[trials, agents, ?]``, fetched a block at a time.

    They are made on the host, by the same code for every device, and sent to the one that computes.
    """

    def __init__(
        self,
        problem: Problem,
        seed: int,
        trials: int,
        agents: range,
        first_trial: int = 0,
        device: torch.device = CPU,
    ) -> None:
        self.problem, self.seed, self.trials, self.agents = problem, seed, trials, agents
        self._first_trial, self._device = first_trial, device
        self._words = Words()
        self._ahead = AHEAD if AHEAD * BLOCK * trials * len(agents) * problem.words <= FEW else 1
        self._held: dict[int, tuple[int, Tensor]] = {}

    def __call__(self, k: int, stream: int = 0) -> Tensor:
        """The sample named (seed, stream, trial, agent, k) of every trial and agent here."""
        turn, offset = divmod(k, self._ahead * BLOCK)
        held = self._held.get(stream)
        if held is None or held[0] != turn:
            # Only the latest samples of each stream are kept, because iterations ask for them in order.
            words = [self._fetch(turn * self._ahead + number, stream) for number in range(self._ahead)]
            sample = self.problem.sample(torch.cat(words) if self._ahead > 1 else words[0])
            held = self._held[stream] = (turn, send(sample, self._device))
        return held[1][offset]

    def _fetch(self, block: int, stream: int) -> Tensor:
        """The words of a block ``[BLOCK, trials, agents, words]``, as a view: the generator yields iterations last."""
        agents, count = self.agents, self.problem.words
        if self.trials == 1 and count:  # avoids a copy, which would be large for many agents
            words = self._words(self.seed, stream, self._first_trial, block, agents, BLOCK * count)
            return torch.from_numpy(words).view(1, len(agents), BLOCK, count).permute(2, 0, 1, 3)
        fetched = np.empty((self.trials, len(agents), BLOCK * count), dtype=np.int32)
        for trial in range(self.trials) if count else ():
            name = self._first_trial + trial
            fetched[trial] = self._words(self.seed, stream, name, block, agents, BLOCK * count)
        return torch.from_numpy(fetched).view(self.trials, len(agents), BLOCK, count).permute(2, 0, 1, 3)
