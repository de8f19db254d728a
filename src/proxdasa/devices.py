"""The devices on which runs compute: which of them exist, what they need, and how tensors get there.

Random words are drawn, and samples made from them, on the host, so every device sees the same samples. Everything else
is on the device of the state's rows. A new tensor is created on the device of its inputs; what comes from the host is
moved by `send`, in blocks, or kept in a `Movable`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from proxdasa.checks import invalid

CPU = torch.device("cpu")
CHOICES: dict[str, Callable[[], bool]] = {
    "cpu": lambda: True,
    "cuda": torch.cuda.is_available,
    "mps": torch.backends.mps.is_available,
}
"""The devices by name, and whether this machine has them."""
NAMES = {"cuda": "CUDA", "mps": "MPS"}
NEEDS = {
    "cuda": "an NVIDIA GPU with its driver, and a build of PyTorch for CUDA (or for ROCm, with an AMD GPU)",
    "mps": "a Mac with an Apple GPU, and its build of PyTorch",
}


def available() -> list[str]:
    """The names of the devices that this PyTorch finds on this machine."""
    return [name for name, there in CHOICES.items() if there()]


def check_device(name: object) -> None:
    """Refuse an unknown device, or one that this machine does not have."""
    if not isinstance(name, str) or name not in CHOICES:
        raise invalid("device", " or ".join(map(repr, CHOICES)), name)
    if not CHOICES[name]():
        raise ValueError(
            f"device: this PyTorch has no {NAMES[name]} device; that needs {NEEDS[name]}. Here there is "
            f"{' and '.join(available())}"
        )


def send(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host, which must not change later, on a device; the host does not wait for the copy.

    CUDA copies asynchronously from pinned memory. Other devices share their memory with the host, or wait.
    """
    if device == CPU:
        return x
    if device.type == "cuda" and x.numel():
        return x.contiguous().pin_memory().to(device, non_blocking=True)  # an expanded tensor cannot be pinned
    return x.to(device)


def wait(device: torch.device) -> None:
    """Wait until a device has finished its work."""
    if device.type in NAMES:
        torch.accelerator.synchronize(device)


def form(rows: Tensor) -> str:
    """The shape, the type and, unless it is the CPU, the device of a tensor, as text."""
    where = "" if rows.device == CPU else f" on {rows.device}"
    return f"{list(rows.shape)} of {rows.dtype}{where}"


def widest(device: torch.device) -> torch.dtype:
    """The floating-point type with the most digits that a device has."""
    return torch.float32 if device.type == "mps" else torch.float64


class Movable:
    """A constant tensor with its copies in other types and on other devices, so that each is made only once."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self._kept = tensor, dict[tuple[torch.dtype, torch.device], Tensor]()

    def __len__(self) -> int:
        return len(self._tensor)

    def __reduce__(self) -> Any:
        return Movable, (self._tensor,)  # copies and pickles need not keep the rest

    def beside(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on the device of x, in its own type or another one."""
        dtype = dtype or self._tensor.dtype
        found = self._kept.get((dtype, x.device))
        if found is None:
            found = self._tensor.to(dtype).to(x.device)
            if type(found) is Tensor:  # and not a stand-in that a compiler traces
                self._kept[dtype, x.device] = found
        return found

    def like(self, x: Tensor) -> Tensor:
        """The tensor in the type and on the device of x."""
        return self.beside(x, x.dtype)
