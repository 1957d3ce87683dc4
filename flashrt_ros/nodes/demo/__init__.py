"""The demo: what happens in it, what is measured, and the pictures."""
