"""A convolutional network on images of digits, trained by agents that talk only to their neighbours.

torchrun --standalone --nproc-per-node 4 examples/train_cnn.py     four agents on a ring
python examples/train_cnn.py                                       one agent
"""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from proxdasa import data, engines, networks, optim
from proxdasa.regularizers import L1, Zero

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
epochs = parser.parse_args().epochs

processes = engines.connect() or engines.Alone()
digits = data.digits()
images, labels = digits.x.view(-1, 1, 8, 8), digits.y
own = data.Shuffled()(labels, processes.size)[processes.rank]  # the examples of this agent

torch.manual_seed(0)  # the same start in every process
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(64, 10),
)  # fmt: skip
weights = [p for p in model.parameters() if p.ndim > 1]
biases = [p for p in model.parameters() if p.ndim == 1]

optimizer = optim.ProxDASAGT(
    [{"params": weights}, {"params": biases, "regularizer": Zero()}],
    networks.ring(processes.size),
    regularizer=L1(2e-3),
    gamma=1.0,
    alpha=0.3,
    processes=processes,
)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)  # halves α after ten epochs
batches = torch.Generator().manual_seed(processes.rank)
for _ in range(epochs):
    # The same number of batches for every agent, although some may have one example more.
    for rows in torch.randperm(len(own), generator=batches)[: len(labels) // processes.size].split(16):
        optimizer.zero_grad()
        cross_entropy(model(images[own[rows]]), labels[own[rows]]).backward()
        optimizer.step()
    scheduler.step()

with optimizer.averaged(), torch.no_grad():  # the mean of all agents' models
    right = model(digits.test_x.view(-1, 1, 8, 8)).argmax(-1) == digits.test_y
    density = torch.cat([p.flatten() for p in weights]).abs().gt(1e-6).float().mean()
    if processes.rank == 0:
        print(f"accuracy {right.float().mean():.3f}, density of the weights {density:.3f}")
processes.close()
