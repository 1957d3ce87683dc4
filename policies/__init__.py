"""flashrt_policies: the networks, as captured graphs over static buffers, and their weights."""
