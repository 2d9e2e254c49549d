"""What a user passes becomes tensors: tables, sequences, schemas and labels.

What `mixtura.runtime` reads rows and units by needs neither PyTorch nor scikit-learn: `schema`,
`columns`, `matrix`, `scaling`, `curves`, `atoms` and `indicators`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mixtura.data.scaling import Scaling as Scaling
    from mixtura.data.tables import Table as Table


def __getattr__(name: str) -> object:
    if name not in ("Scaling", "Table"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(import_module(f"{__name__}.tables"), name)
