"""What our own launcher tells the processes that it starts, by the environment."""

RENDEZVOUS = "PROXDASA_RENDEZVOUS"
"""The environment variable with the file by which the processes of our own launcher find each other."""
START = "PROXDASA_START"
"""And that with how often it has started them."""
LIFELINE = "PROXDASA_LIFELINE"
"""And that with the file descriptor from which reading ends when it does."""
