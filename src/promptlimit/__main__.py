"""`python -m promptlimit` is the command line."""

from promptlimit.cli import main

if __name__ == "__main__":
    main()
