"""`python -m promptlimit.cli` is the `promptlimit` command."""

from promptlimit.cli import main

main()
