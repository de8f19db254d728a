"""MNIST for a perceptron: each image is a row of 784 pixels from 0 to 1, of which four in five are 0."""

from dataclasses import replace

from proxdasa import data


def flat_mnist(images: int = 60_000) -> data.Dataset:
    """The first images of MNIST as rows, and all test images; not normalised, so that background pixels are 0."""
    full = data.mnist(normalise=False)
    assert full.test_x is not None
    x, y = full.x[:images].flatten(1), full.y[:images]
    return replace(full, name="flat_mnist", x=x, y=y, test_x=full.test_x.flatten(1))
