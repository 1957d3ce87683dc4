"""Best of N from the middle of an episode, and what it is worth beside whole episodes."""
