"""A model behind a page and a JSON interface: `mixtura serve`."""

from mixtura.serve.app import Limits, check_port, create_app, run

__all__ = ["Limits", "check_port", "create_app", "run"]
