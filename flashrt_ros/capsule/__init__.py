"""Capsules: the whole state of a robot brain as one object that can be kept and put back."""
