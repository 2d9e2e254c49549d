"""How tests are run; fixtures are those of `shared.py`."""

import gc

gc.disable()  # while packages are imported: what they make is there to stay


def pytest_configure(config):
    """A process that hands out tests to others needs no fixtures, and imports nothing for them."""
    if not config.getoption("numprocesses", None):
        config.pluginmanager.import_plugin("shared")


def pytest_collection_finish():
    gc.freeze()
    gc.enable()
