"""Messages between agents that live in different processes: which rows go where, and how they travel."""
