"""flashrt_sim: simulated robots with exact get and set of their whole state, and rollouts."""
