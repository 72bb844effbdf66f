"""The command line: the only package that prints, exits, reads `sys.argv` or sets flags of jax.

A command parses its options, calls the library and emits the result. It imports the library when it
runs, so that `--help` is fast.
"""

from promptlimit.cli._app import main as main
