"""`python -m mixtura` is the command `mixtura`."""

from mixtura.cli import main

if __name__ == "__main__":
    main()
