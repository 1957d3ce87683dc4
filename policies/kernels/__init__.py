"""Kernels the policies share: operations that are safe inside a captured graph."""
