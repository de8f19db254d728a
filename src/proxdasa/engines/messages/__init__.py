"""Messages between agents that live in different processes: who needs which rows, and the ways they travel."""
