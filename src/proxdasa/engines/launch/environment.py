"""Environment variables by which our own launcher informs the processes that it starts."""

RENDEZVOUS = "PROXDASA_RENDEZVOUS"
"""The file by which the processes find each other."""
START = "PROXDASA_START"
"""How often the launcher has started them, this time included."""
LIFELINE = "PROXDASA_LIFELINE"
"""A file descriptor that reads as closed once the launcher has ended."""
