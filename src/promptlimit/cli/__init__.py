"""The command line: the only place that prints, exits, reads arguments or sets jax's switches.

Commands import what they need when they run, so that asking for help stays instant.
"""

from promptlimit.cli._app import main as main
