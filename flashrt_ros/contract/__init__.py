"""The contract: static buffers, captured graphs and plans, one backend per device kind."""
