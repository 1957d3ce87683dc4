"""Training of the shipped planner: words, instructions, robot states, network, loop, measures."""
