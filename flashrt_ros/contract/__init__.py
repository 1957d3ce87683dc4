"""The contract: named static buffers, captured graphs and plans over them, one backend per device kind."""
