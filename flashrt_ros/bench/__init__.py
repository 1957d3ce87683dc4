"""Benchmarks: what `flashrt bench NAME` measures, and how it is written down."""
