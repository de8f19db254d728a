"""The networks of the paper's experiments."""

from __future__ import annotations

from torch import nn

from proxdasa import memory_budget


def mlp(inputs: int = 123, hidden: int = 64, outputs: int = 2) -> nn.Sequential:
    """The two-layer perceptron of the a9a experiment: 123 → 64 tanh → 2, d = 8,066.

    Examples:
        >>> problems.models.mlp(inputs=4, hidden=8, outputs=3)
        Sequential(
          (0): Linear(in_features=4, out_features=8, bias=True)
          (1): Tanh()
          (2): Linear(in_features=8, out_features=3, bias=True)
        )
    """
    size = 8 * hidden * (inputs + outputs)  # bytes in double precision
    memory_budget.check(size, f"a perceptron {inputs} → {hidden} → {outputs}", "fewer units need less")
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def lenet() -> nn.Sequential:
    """The LeNet of the MNIST experiment, for 28 × 28 images of one channel, d = 25,010.

    Examples:
        >>> problems.models.lenet()(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 10])
    """
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 84),
        nn.Tanh(),
        nn.Linear(84, 10),
    )


ALL = (mlp, lenet)
