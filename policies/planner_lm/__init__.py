"""The planner's decisions: questions put to a state, the shipped planner, how it is trained."""
