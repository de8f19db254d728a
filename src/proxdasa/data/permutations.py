"""Random permutations of rows: pure functions of a seed and a stream, like everything in `proxdasa.samples`."""

from __future__ import annotations

from torch import Tensor

from proxdasa import samples

# These streams are distinct from those of iterations and from the others of `proxdasa.samples`.
SPLIT, SHUFFLE, SHARDS, ROWS_OF_CLASSES, PROPORTIONS = (samples.DATA + i for i in range(5))


def permutation(count: int, seed: int, stream: int) -> Tensor:
    """The numbers 0, ..., count − 1 in the order that (seed, stream) names.

    They are sorted by one random word each; equal words, which are rare, leave their order as it is.
    """
    return samples.words(seed, stream, 0, 0, count).argsort(stable=True)
