"""The command line, as `python -m promptlimit`."""

from promptlimit.cli import main

if __name__ == "__main__":
    main()
