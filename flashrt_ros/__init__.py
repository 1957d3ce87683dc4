"""Robot brains that can be frozen, restored, forked and rolled back as one object."""

__version__ = '0.1.0'
