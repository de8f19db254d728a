"""A run from its settings to its results: set-up, loop, stopping, checkpoints, records, tuning."""
