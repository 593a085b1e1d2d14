"""The command ``python -m reproduction``."""

from reproduction.cli.commands import main

if __name__ == "__main__":
    main()
