"""The command ``python -m reproduction``."""

from reproduction.command import main

if __name__ == "__main__":
    main()
