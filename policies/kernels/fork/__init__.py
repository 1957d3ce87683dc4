"""Kernels of forked decisions: a flat stream of trunks and branches."""
