"""Commands, models and agents that propose changes: the protocol with them, and the gate of their answers."""
