"""The command line: the only package that prints, exits, reads arguments or sets jax's flags.

Commands parse their options, call the library and emit the result. They import the library when
they run, so that `--help` stays fast.
"""

from promptlimit.cli._app import main as main
