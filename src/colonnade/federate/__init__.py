"""A federation of organisations: who belongs to it, how they join, and the agents that they run."""
