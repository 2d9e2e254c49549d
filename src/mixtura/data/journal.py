"""Sums over many rows, written down: a fit that was interrupted finds them again."""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from mixtura.exceptions import InvalidInputError
from mixtura.files import check_place

_BEGINNING = b"mixtura checkpoint 1\n"
#: Bytes of a hash, and of the length that stands before it.
_HASH, _LENGTH = 32, 8

Sums = dict[str, Tensor]


class Journal:
    """The sums of a fit in their order, in a file.

    What is between two sums is done again when a fit is resumed: it takes no time, and comes to the
    same.
    The file is appended to, entry by entry, each with its hash: whatever a crash leaves of the last
    one is cut off, and what is left are the sums of a fit that was interrupted a little earlier.
    Entries wait until so many seconds are over since the last ones were written.
    """

    def __init__(self, path: str | os.PathLike[str], fit: str, seconds: float = 0.0) -> None:
        """Open the journal of a fit, which `fit` tells from others, or begin it."""
        self._path, self._seconds = Path(path), seconds
        self._waiting, self._written = bytearray(), -math.inf
        check_place(self._path)
        existed = self._path.exists()
        self._file = self._path.open("r+b" if existed else "x+b")
        begun = self._file.read(len(_BEGINNING))
        if not _BEGINNING.startswith(begun):
            self._file.close()
            raise InvalidInputError(f"{path} is no checkpoint: name another file.")
        known = self._entry() if begun == _BEGINNING else None
        if known is None:
            self._file.truncate(0)
            self._file.seek(0)
            self._file.write(_BEGINNING)
            self._append(fit.encode())
        elif known != fit.encode():
            self._file.close()
            raise InvalidInputError(
                f"{path} is the checkpoint of a fit with other rows or parameters, or by another "
                "version of mixtura: delete it, or name another file."
            )

    def next(self, compute: Callable[[], Sums], device: torch.device) -> Sums:
        """The next sums: as they were, or as they are computed now."""
        return self._sums(self._entry(), compute, device)

    def _sums(self, entry: bytes | None, compute: Callable[[], Sums], device: torch.device) -> Sums:
        """The sums of an entry; without one, those that are computed and written down."""
        if entry is not None:
            return {name: value.to(device) for name, value in load(entry).items()}
        sums = compute()
        stored = {name: value.detach().cpu().contiguous() for name, value in sums.items()}
        self._append(save(stored))
        return sums

    def _entry(self) -> bytes | None:
        """The entry that begins here; where none is complete, what there is of it is cut off."""
        at = self._file.tell()
        size = self._file.read(_LENGTH)
        digest, content = self._file.read(_HASH), self._file.read(int.from_bytes(size, "little"))
        if len(size) == _LENGTH and hashlib.sha256(content).digest() == digest:
            return content
        self._file.seek(at)
        self._file.truncate()
        return None

    def _append(self, content: bytes) -> None:
        size = len(content).to_bytes(_LENGTH, "little")
        self._waiting += size + hashlib.sha256(content).digest() + content
        if time.monotonic() >= self._written + self._seconds:
            self._write()

    def _write(self) -> None:
        """Write what waits: once, wherever that is interrupted."""
        waiting, self._waiting = self._waiting, bytearray()
        try:
            self._file.write(waiting)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._written = time.monotonic()
        except OSError as error:  # a full disk, say
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def close(self, finished: bool) -> None:
        """End the fit; what has finished needs no checkpoint."""
        with suppress(OSError):  # what could not be written has been told
            if not finished:
                self._write()
            self._file.close()
        if finished:
            self._path.unlink()
