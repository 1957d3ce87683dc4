"""Subcommands of `flashrt`: each module has `add_parser(subparsers)` and `run(args)`."""
