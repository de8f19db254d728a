"""The public name of the listener that writes curves for TensorBoard."""

from proxdasa.runs.tensorboard_curves import TensorBoard

__all__ = ["TensorBoard"]
