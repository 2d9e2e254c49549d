"""Which mixtura this is."""

from importlib import metadata


def version() -> str:
    """That of the installed package."""
    try:
        return metadata.version("mixtura")
    except metadata.PackageNotFoundError:  # run from a source tree that was not installed
        return "0+unknown"
