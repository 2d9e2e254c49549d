"""A value for each of very many rows."""

from __future__ import annotations

from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np

#: Values from which on they go into a file.
_MANY = 2**24


class Kept:
    """Values (n,) that come in parts, in memory; very many in a file without a name, mapped.

    Pages of that file are no memory of the process: the system drops those that nobody looks at.
    """

    def __init__(self) -> None:
        self._found: list[np.ndarray] = []  # those of smaller types, as a rule none
        self._parts: list[np.ndarray] = []
        self._file: BinaryIO | None = None
        self._dtype: np.dtype | None = None
        self._count = 0

    def add(self, part: np.ndarray) -> None:
        """Values that follow; they may need a larger type than those before."""
        before = self._dtype or part.dtype
        self._dtype = np.promote_types(before, part.dtype)
        if before != self._dtype:
            self._end(before)
        self._parts.append(part.astype(self._dtype, copy=False))
        self._count += len(part)
        if self._count > _MANY:
            self._write()

    def whole(self) -> np.ndarray:
        """(n,) all values."""
        self._end(self._dtype or np.dtype(np.uint8))
        return self._found[0] if len(self._found) == 1 else np.concatenate(self._found)

    def _write(self) -> None:
        try:
            self._file = self._file or TemporaryFile()  # noqa: SIM115  the mapping outlives this
            for part in self._parts:
                self._file.write(part.tobytes())
            self._file.flush()
        except OSError as error:
            raise OSError(
                f"labels or weights of more than {_MANY:,} rows go into a temporary file, and none "
                f"can be written ({error}): make room where temporary files are, or name another "
                "folder for them by the environment variable TMPDIR."
            ) from error
        self._parts.clear()

    def _end(self, dtype: np.dtype) -> None:
        """These are all values of a type."""
        if self._file is None:
            self._found.append(np.concatenate([np.empty(0, dtype), *self._parts]))
        else:
            self._found.append(np.asarray(np.memmap(self._file, dtype, "r+")))
        self._parts, self._file = [], None
