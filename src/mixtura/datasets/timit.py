"""Frames of TIMIT, for whoever has a copy: it is licensed, and comes with no package."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy.fft import dct
from sklearn.utils import Bunch

from mixtura.exceptions import FileFormatError

#: Broad classes, and the labels of TIMIT that are of each: affricates are among fricatives, flaps
#: among nasals and stops, and "q", a glottal stop, is of none.
BROAD = {
    "vowel": "iy ih eh ey ae aa aw ay ah ao oy ow uh uw ux er ax ix axr ax-h",
    "semivowel": "l r w y hh hv el",
    "nasal": "m n ng em en eng nx",
    "fricative": "s sh z zh f th v dh jh ch",
    "stop": "b d g p t k dx",
    "silence": "bcl dcl gcl pcl tcl kcl pau epi h#",
}
_CLASS = {label: place for place, names in enumerate(BROAD.values()) for label in names.split()}
#: Samples per second, of a window and from one to the next; length of the transform.
_RATE, _WINDOW, _STEP, _LENGTH = 16_000, 400, 160, 512
#: Triangular filters along the mel scale, cepstral coefficients, and frames on either side that
#: slopes are of.
_FILTERS, _COEFFICIENTS, _SIDE = 26, 10, 2


def load_timit(folder: str | Path) -> Bunch:
    """Every frame of a copy of TIMIT, and the broad class of the sound that it is in the middle of.

    A frame of 25 ms begins every 10 ms, and has ten mel cepstral coefficients (without that of the
    loudness) and their slopes. The two sentences that all speakers read (SA) are left out, as is
    usual.

    Parameters
    ----------
    folder : the one that has TRAIN and TEST, with a folder per dialect and in it one per speaker;
        upper or lower case. Audio is NIST's or RIFF, 16 bits at 16 kHz.

    Returns
    -------
    Bunch
        ``data`` (n, 20) float64, ``target`` (n,) of ``target_names`` (vowel, semivowel, nasal,
        fricative, stop, silence), ``phone`` (n,) TIMIT's own label, ``speaker`` (n,), whose first
        letter says F or M, and ``splits``: one pair of training and test rows.

    Raises
    ------
    FileNotFoundError
        The folder has no labeled sentences, or a sentence no audio.
    FileFormatError
        A file is not what its name says.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    for path in _sentences(Path(folder)):
        data, phone = _frames(path)
        kept = np.isin(phone, list(_CLASS))
        whose = np.array([path.parent.name.upper(), path.parts[-4].upper()])
        parts.append((data[kept], phone[kept], np.tile(whose, (int(kept.sum()), 1))))
    if not parts:
        raise FileNotFoundError(
            f"{folder} has no TRAIN/*/*/*.PHN, nor TEST: name the folder of a copy of TIMIT."
        )
    data, phone, whose = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Bunch(
        data=data,
        target=np.array([_CLASS[label] for label in phone]),
        target_names=np.array([*BROAD]),
        phone=phone,
        speaker=whose[:, 0],
        splits=[tuple(np.flatnonzero(whose[:, 1] == part) for part in ("TRAIN", "TEST"))],
        name="timit",
        source="LDC93S1, licensed by the Linguistic Data Consortium.",
    )


def _sentences(folder: Path) -> Iterator[Path]:
    """The files of labels, in order."""
    for path in sorted(folder.glob("*/*/*/*")):
        known = path.suffix.upper() == ".PHN" and path.parts[-4].upper() in ("TRAIN", "TEST")
        if known and not path.stem.upper().startswith("SA"):
            yield path


def _frames(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(T, 20) features of a sentence, and (T,) the labels at their middles."""
    beside = path.parent.glob(f"{path.stem}.*")
    audio = [each for each in beside if each.suffix.upper() == ".WAV"]
    if not audio:
        raise FileNotFoundError(f"{path} has no {path.stem}.WAV beside it.")
    features = cepstra(_samples(audio[0]))
    try:
        lines = [line.split() for line in path.read_text("ascii").splitlines()]
        ends, labels = np.array([int(end) for _, end, _ in lines]), [name for *_, name in lines]
    except ValueError as error:
        raise FileFormatError(
            f"{path} is no file of labels: lines are to have a first and last sample, and a label."
        ) from error
    place = np.searchsorted(ends, np.arange(len(features)) * _STEP + _WINDOW // 2, side="right")
    inside = place < len(labels)
    return features[inside], np.array(labels)[place[inside]]


def _samples(path: Path) -> np.ndarray:
    """(n,) of NIST's format, whose header says how long it is, or of RIFF."""
    content = path.read_bytes()
    if content[:8] == b"NIST_1A\n":
        return np.frombuffer(content[int(content[8:16]) :], "<i2").astype(np.float64)
    try:
        with wave.open(io.BytesIO(content)) as sound:
            if (sound.getframerate(), sound.getsampwidth(), sound.getnchannels()) == (_RATE, 2, 1):
                return np.frombuffer(sound.readframes(sound.getnframes()), "<i2").astype(np.float64)
    except (wave.Error, EOFError):
        pass
    raise FileFormatError(f"{path} is no audio of NIST or RIFF, one channel, 16 bits and 16 kHz.")


def cepstra(sound: np.ndarray) -> np.ndarray:
    """(T, 20) mel cepstral coefficients of frames of a sound (n,) at 16 kHz, and their slopes."""
    if len(sound) < _WINDOW:
        return np.zeros((0, 2 * _COEFFICIENTS))
    risen = np.append(sound[0], sound[1:] - 0.97 * sound[:-1])
    frames = np.lib.stride_tricks.sliding_window_view(risen, _WINDOW)[::_STEP]
    power = np.abs(np.fft.rfft(frames * np.hamming(_WINDOW), _LENGTH)) ** 2
    loudness = np.log(np.maximum(power @ mel_filters().T, 1e-10))
    found = dct(loudness, norm="ortho")[:, 1 : 1 + _COEFFICIENTS]
    padded = np.pad(found, ((_SIDE, _SIDE), (0, 0)), mode="edge")
    steps = np.arange(-_SIDE, _SIDE + 1)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _SIDE + 1, axis=0)
    return np.column_stack([found, windows @ (steps / (steps**2).sum())])


def mel_filters() -> np.ndarray:
    """(26, 257) weights of frequencies: triangles, evenly spaced along the mel scale."""
    top = 2595.0 * np.log10(1.0 + 0.5 * _RATE / 700.0)
    edges = 700.0 * (10.0 ** (np.linspace(0.0, top, _FILTERS + 2) / 2595.0) - 1.0)
    frequency = np.fft.rfftfreq(_LENGTH, 1.0 / _RATE)
    low, middle, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    return np.maximum(
        np.minimum((frequency - low) / (middle - low), (high - frequency) / (high - middle)), 0.0
    )
