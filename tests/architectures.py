"""Networks of the usual kinds, small: for the tests, the benchmark and the table in docs/own-model.md."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from proxdasa import data
from proxdasa.problems import Supervised, cross_entropy, models

WORDS, LENGTH, CLASSES = 11, 6, 3


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells, self.out = kind(4, 8, batch_first=True), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cells(x)[0][:, -1])


class Encoder(nn.Module):
    """A transformer of whole numbers: an embedding, positions as a buffer, a mask as a buffer, attention."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        angles = torch.arange(LENGTH)[:, None] / 100 ** (torch.arange(4) / 4)
        self.register_buffer("positions", torch.cat([angles.sin(), angles.cos()], dim=1))
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1), persistent=False)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.words(x) + self.positions, self.mask).mean(1))


class Residual(nn.Module):
    """A block of a ResNet, with the given normalisation."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem, self.first, self.second = nn.Conv2d(2, 4, 1), *(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2))
        self.norms, self.out = nn.ModuleList(norm() for _ in range(2)), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        h = h + self.second(torch.relu(self.norms[1](self.first(torch.relu(self.norms[0](h))))))
        return self.out(h.mean((2, 3)))


class Tied(nn.Module):
    """A language model whose last layer has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden, self.out = nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Linear(8, WORDS)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(self.words(x).mean(1))))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.classes, self.size = nn.Linear(7, 8), nn.Linear(8, CLASSES), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        h = torch.tanh(self.body(x))
        return self.classes(h), {"size": self.size(h)}


def two_losses(outputs: tuple[Tensor, dict[str, Tensor]], targets: Tensor) -> Tensor:
    return cross_entropy(outputs[0], targets) + outputs[1]["size"].squeeze(-1).square()


class LastState(nn.LSTM):
    """What nn.LSTM returns itself, (outputs, (h, c)); h and c do not begin with the axis of examples."""


def loss_of_state(outputs: tuple[Tensor, tuple[Tensor, Tensor]], targets: Tensor) -> Tensor:
    return cross_entropy(outputs[1][0][0], targets)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(7, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(functional.dropout(torch.relu(self.hidden(x)), 0.3, self.training))


def frozen_chain() -> nn.Module:
    chain = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, CLASSES))
    chain[0].requires_grad_(False)
    return chain


def kept_statistics() -> nn.Module:
    """A backbone with batch normalisation whose statistics stay as they are."""
    backbone = nn.Sequential(nn.Linear(7, 8), nn.BatchNorm1d(8)).eval()
    nn.init.normal_(backbone[1].running_mean)
    return nn.Sequential(backbone, nn.Tanh(), nn.Linear(8, CLASSES))


class Architecture(NamedTuple):
    model: Callable[[], nn.Module]
    inputs: str
    path: str
    loss: Callable[..., Tensor] = cross_entropy
    buffers: str | None = None


ALL = {
    "perceptron": Architecture(lambda: models.mlp(7, 16, CLASSES), "numbers", "chain"),
    "convolutions and pooling": Architecture(
        lambda: nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES)
        ),
        "images", "chain",
    ),
    "frozen layers": Architecture(frozen_chain, "numbers", "chain"),
    "ResNet block, GroupNorm": Architecture(lambda: Residual(lambda: nn.GroupNorm(2, 4)), "images", "vmap"),
    "ResNet block, BatchNorm": Architecture(
        lambda: Residual(lambda: nn.BatchNorm2d(4)), "images", "vmap", buffers="average"
    ),
    "perceptron, BatchNorm": Architecture(
        lambda: nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, CLASSES)),
        "numbers", "vmap", buffers="average",
    ),
    "transformer, embedding, positions": Architecture(lambda: Encoder(0.0), "words", "vmap"),
    "tied weights": Architecture(Tied, "words", "vmap"),
    "two outputs, a custom loss": Architecture(TwoHeads, "numbers", "vmap", two_losses),
    "BatchNorm with kept statistics": Architecture(kept_statistics, "numbers", "vmap"),
    "BatchNorm and dropout": Architecture(
        lambda: nn.Sequential(nn.Linear(7, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, CLASSES)),
        "numbers", "loop", buffers="local",
    ),
    "RNN": Architecture(lambda: Recurrent(nn.RNN), "series", "loop"),
    "GRU": Architecture(lambda: Recurrent(nn.GRU), "series", "loop"),
    "LSTM": Architecture(lambda: Recurrent(nn.LSTM), "series", "loop"),
    "LSTM's own output tuple, a custom loss": Architecture(
        lambda: LastState(4, CLASSES, batch_first=True), "series", "loop", loss_of_state
    ),
    "dropout layers": Architecture(
        lambda: nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, CLASSES)), "numbers", "loop"
    ),
    "functional dropout": Architecture(Functional, "numbers", "loop"),
    "transformer with dropout": Architecture(lambda: Encoder(0.1), "words", "loop"),
}  # fmt: skip


def problem(name: str, agents: int = 3, rows: int = 48, **settings: object) -> Supervised:
    """The architecture on made-up examples; a third of them are for testing."""
    made = ALL[name]
    random = torch.Generator().manual_seed(0)
    shapes = {"numbers": (7,), "images": (2, 8, 8), "series": (LENGTH, 4)}
    if made.inputs == "words":
        x = torch.randint(WORDS, (rows, LENGTH), generator=random)
    else:
        x = torch.randn(rows, *shapes[made.inputs], generator=random)
    y = torch.randint(CLASSES, (rows,), generator=random)
    few = rows // 3
    examples = data.from_tensors(x[few:], y[few:], x[:few], y[:few])
    own = {"batch_size": 4, "loss": made.loss, "dtype": torch.float64, "path": made.path, "buffers": made.buffers}
    return Supervised(made.model, examples, agents, **own | settings)  # type: ignore[arg-type]
