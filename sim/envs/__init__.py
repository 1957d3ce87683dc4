"""Worlds as gymnasium environments: scenes, the fifty tasks, Fetch; experts and states."""
