"""A language model of the Qwen3.5 family as captured graphs over static buffers."""
