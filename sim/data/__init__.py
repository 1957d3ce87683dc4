"""Episodes on disk: demonstrations, rollouts, the LeRobot layout, what a trainer reads."""
