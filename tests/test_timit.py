"""Frames of a made-up copy of TIMIT."""

import wave

import numpy as np
import pytest

from mixtura import MixtureClassifier
from mixtura.datasets import load_timit
from mixtura.datasets.timit import cepstra, mel_filters
from mixtura.exceptions import FileFormatError


def _tone(hertz, seconds, rng):
    time = np.arange(int(16_000 * seconds)) / 16_000
    return 3000 * np.sin(2 * np.pi * hertz * time) + 30 * rng.normal(size=len(time))


def _sentence(folder, name, rng, riff=False):
    """Silence, a vowel of 300 Hz, a fricative of 5,000, a glottal stop."""
    folder.mkdir(parents=True, exist_ok=True)
    spans = [("h#", 0, 0.2), ("iy", 300, 0.3), ("s", 5000, 0.3), ("q", 900, 0.2)]
    sound = np.concatenate([_tone(hertz, seconds, rng) for _, hertz, seconds in spans])
    samples, ends = sound.astype("<i2").tobytes(), np.cumsum([16_000 * each[2] for each in spans])
    lines = [
        f"{end - 16_000 * each[2]:.0f} {end:.0f} {each[0]}"
        for each, end in zip(spans, ends, strict=True)
    ]
    (folder / f"{name}.PHN").write_text("\n".join(lines))
    if not riff:
        header = b"NIST_1A\n   1024\nsample_rate -i 16000\nend_head\n"
        (folder / f"{name}.WAV").write_bytes(header.ljust(1024) + samples)
        return
    with wave.open(str(folder / f"{name}.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(samples)


@pytest.fixture
def copy(tmp_path, rng):
    _sentence(tmp_path / "TRAIN" / "DR1" / "FABC0", "SX1", rng)
    _sentence(tmp_path / "TRAIN" / "DR1" / "FABC0", "SA1", rng)  # that all speakers read
    _sentence(tmp_path / "TEST" / "DR2" / "MXYZ0", "SI2", rng, riff=True)
    return tmp_path


def test_frames_have_the_sound_in_their_middle(copy):
    bunch = load_timit(copy)
    names = bunch.target_names[bunch.target]
    wanted = {("h#", "silence"), ("iy", "vowel"), ("s", "fricative")}
    assert set(zip(bunch.phone, names, strict=True)) == wanted
    # Middles are at 12.5, 22.5, ... ms, and there are 19, 30 and 30 until 200, 500 and 800 ms.
    for rows, speaker in zip(bunch.splits[0], ("FABC0", "MXYZ0"), strict=True):
        assert set(bunch.speaker[rows]) == {speaker}
        assert bunch.phone[rows].tolist() == ["h#"] * 19 + ["iy"] * 30 + ["s"] * 30
    train, test = bunch.splits[0]
    model = MixtureClassifier(random_state=0).fit(bunch.data[train], bunch.target[train])
    assert model.score(bunch.data[test], bunch.target[test]) > 0.9


def test_cepstra_are_those_of_the_sums_that_define_them(rng):
    sound = rng.normal(size=1200)
    found = cepstra(sound)
    assert found.shape == (6, 20)
    risen = np.append(sound[0], sound[1:] - 0.97 * sound[:-1])
    wanted = []
    for frame in range(6):
        part = risen[160 * frame : 160 * frame + 400] * np.hamming(400)
        wave_ = np.exp(-2j * np.pi * np.outer(np.arange(257), np.arange(400)) / 512)
        loud = np.log(mel_filters() @ np.abs(wave_ @ part) ** 2)
        cosine = np.cos(np.pi * np.outer(np.arange(1, 11), np.arange(26) + 0.5) / 26)
        wanted.append(np.sqrt(2 / 26) * cosine @ loud)
    np.testing.assert_allclose(found[:, :10], wanted, rtol=1e-9)
    lines = [np.polyfit(np.arange(5), found[t - 2 : t + 3, :10], 1)[0] for t in (2, 3)]
    np.testing.assert_allclose(found[2:4, 10:], lines, atol=1e-12)


def test_filters_are_triangles_whose_sides_meet():
    filters = mel_filters()
    assert filters.shape == (26, 257)
    between = slice(int(filters[0].argmax()) + 1, int(filters[-1].argmax()))
    np.testing.assert_allclose(filters[:, between].sum(0), 1.0)


def test_what_is_no_copy_is_refused(copy, tmp_path):
    with pytest.raises(FileNotFoundError, match="name the folder of a copy of TIMIT"):
        load_timit(tmp_path / "elsewhere")
    (copy / "TRAIN/DR1/FABC0/SX1.WAV").write_bytes(b"shortened")
    with pytest.raises(FileFormatError, match=r"SX1\.WAV is no audio"):
        load_timit(copy)
    (copy / "TRAIN/DR1/FABC0/SX1.WAV").unlink()
    with pytest.raises(FileNotFoundError, match=r"no SX1\.WAV"):
        load_timit(copy)
    (copy / "TRAIN/DR1/FABC0/SX1.PHN").unlink()
    (copy / "TEST/DR2/MXYZ0/SI2.PHN").write_text("0 far iy")
    with pytest.raises(FileFormatError, match=r"SI2\.PHN is no file of labels"):
        load_timit(copy)
