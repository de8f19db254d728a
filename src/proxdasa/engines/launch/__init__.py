"""Processes of a run: how they are started, find each other, and are asked to stop."""
