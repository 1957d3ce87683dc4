"""One HTML page from a recording: what happened, how fast, and what the cameras saw."""
