"""A policy that gets better by its own episodes: collect, value, relabel, fine-tune, evaluate."""
