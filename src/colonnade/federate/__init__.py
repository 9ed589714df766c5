"""A federation of organisations: its members, how they join, their agents, and the hub's side."""
