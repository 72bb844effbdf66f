"""The command line: the only package that prints, exits, reads arguments or sets jax's flags.

A command parses its options, calls the library and emits the result. It imports the library when it
runs, so that `--help` is fast.
"""

from promptlimit.cli._app import main as main
