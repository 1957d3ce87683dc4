"""Kernels of policies from pretrained families: few rows, many Euler steps."""
