"""Damaged and forged model files: each is refused by our own error, or answers as it should.

A file whose bytes changed on its way must be refused or give the same answers to the bit. One that
somebody forged, checksum included, is any model it likes, but one that answers: finite
probabilities, in bounded time and memory. `make fuzz` tries MIXTURA_FUZZ files instead of a few,
other ones every time.
"""

import hashlib
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from sequence_checks import toy_sequences

import mixtura
from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    PairwiseClassifier,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
    runtime,
)
from mixtura.exceptions import FileFormatError, InvalidInputError, UnsupportedError
from mixtura.solvers import EM, LBFGS, LinkedEM

LONG = "MIXTURA_FUZZ" in os.environ
N_FILES = int(os.environ.get("MIXTURA_FUZZ", 100))
#: CPU seconds that a file may take; outside of `make fuzz` the machine may be slow.
MOST_SECONDS = 2.0 if LONG else 8.0
MOST_BYTES = 2**27
LOADERS = [pytest.param(mixtura.load, id="load"), pytest.param(runtime.load, id="runtime")]


def mixed_table(rng):
    """45 rows of three classes: two numbers with holes, a category and a name."""
    y = np.arange(45) % 3
    table = np.empty((45, 4), dtype=object)
    table[:, :2] = rng.normal(size=(45, 2)) + y[:, None]
    table[:, 2] = np.array(["u", "v", "w"])[(y + rng.integers(0, 2, 45)) % 3]
    table[:, 3] = rng.random(45) < 0.5
    table[rng.random(45) < 0.2, 0] = None
    return table, np.array(["x", "y", "z"])[y]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The content of a file of every kind of model, and rows to ask it about."""
    rng = np.random.default_rng(0)
    mixed, names = mixed_table(rng)
    numbers, chains = rng.normal(size=(60, 3)) + np.arange(60)[:, None] % 2, toy_sequences()
    full = MixtureClassifier(2, density="full", objective="likelihood", random_state=0)
    low_rank = MixtureClassifier(
        2, density="low_rank", missingness="informative", solver=LBFGS(2), random_state=0
    )
    grown = {"n_stages": 2, "solver": EM(2), "early_stopping": False, "calibrate": False}
    grown |= {"density": "diag", "missingness": "ignore"}
    embedded = {"embedding": "posterior", "calibrate": False, "init": EM(5, 0.01)}
    embedded |= {"solver": LinkedEM(5, end_to_end=False)}
    hidden = {"init": EM(2), "early_stopping": False, "random_state": 0}
    fits = [
        (full, numbers, np.arange(60) % 2),
        (low_rank, mixed, names),
        (MixtureDensity(2, random_state=0), numbers, None),
        (SparseMixtureClassifier(2, random_state=0), numbers, np.arange(60) % 2),
        (BoostedMixtureClassifier(**grown, random_state=0), mixed, names),
        (BoostedMixtureClassifier(method="adaboost", **grown, random_state=0), mixed, names),
        (MixtureNetworkClassifier(2, **embedded), mixed, names),
        (PairwiseClassifier(clone_of(full)), numbers, np.arange(60) % 3),
        (SequenceMixtureClassifier(2, method="ml", **hidden), *chains),
    ]
    path, found = tmp_path_factory.mktemp("files") / "model", []
    for model, X, y in fits:
        model.fit(X, y).save(path)
        found.append((path.read_bytes(), X))
    return found


@pytest.fixture
def rng():
    """The same numbers in every run of the tests, others in every run of `make fuzz`."""
    seed = np.random.SeedSequence().entropy if LONG else 0
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def clone_of(model):
    """The same settings with one component."""
    return type(model)(**{**model.get_params(), "n_components": 1})


def answer(model, X):
    """Probabilities, or log densities where there are no classes."""
    return getattr(model, "predict_proba", getattr(model, "score_samples", None))(X)


# -- damage -------------------------------------------------------------------------------------


def header_of(content):
    """The length of the header of a safetensors file."""
    return struct.unpack("<Q", content[:8])[0]


def flip(content, rng):
    """A bit here and there."""
    damaged = bytearray(content)
    for place in rng.integers(0, len(content), rng.integers(1, 4)):
        damaged[place] ^= 1 << int(rng.integers(8))
    return bytes(damaged)


def flip_in_header(content, rng):
    """A bit of the description."""
    end = 8 + header_of(content)
    return flip(content[:end], rng) + content[end:]


def cut(content, rng):
    """The end is missing."""
    return content[: rng.integers(0, len(content))]


def cut_out(content, rng):
    """A piece in the middle is missing."""
    start, stop = sorted(rng.integers(0, len(content), 2))
    return content[:start] + content[stop:]


def swap(content, rng):
    """Two blocks have changed places."""
    size = int(rng.integers(1, 1 + len(content) // 4))
    i, j = sorted(rng.integers(0, len(content) - size, 2))
    j = max(j, i + size)
    return (
        content[:i]
        + content[j : j + size]
        + content[i + size : j]
        + content[i : i + size]
        + (content[j + size :])
    )


def blank(content, rng):
    """A stretch of zeros, as a full disk leaves it."""
    start, stop = sorted(rng.integers(0, len(content), 2))
    return content[:start] + bytes(int(stop - start)) + content[stop:]


def append(content, rng):
    """Something follows."""
    return content + rng.bytes(int(rng.integers(1, 100)))


def foreign(content, rng):
    """Another format's first bytes."""
    heads = [b"PK\x03\x04", b"\x80\x04\x95", b"\x89HDF\r\n", b"\x93NUMPY", b"\x1f\x8b", b"{}", b""]
    return heads[rng.integers(len(heads))] + content[8 * rng.integers(2) :]


def hostile_length(content, rng):
    """A header that claims to be as long as memory."""
    lengths = [0, 1, len(content), 10**8, 10**8 + 1, 2**31, 2**40, 2**63, 2**64 - 1]
    return struct.pack("<Q", lengths[rng.integers(len(lengths))]) + content[8:]


def hostile_tensors(content, rng):
    """Shapes, offsets, types and names of tensors that do not fit the bytes."""
    end = 8 + header_of(content)
    header = json.loads(content[8:end])
    names = [name for name in header if name != "__metadata__"]
    name = names[rng.integers(len(names))]
    key, values = [
        ("shape", [[10**12], [-1], [2**63], [0], [], [1] * 500, [2**32, 2**32], "x", None]),
        ("data_offsets", [[0, 10**12], [10**12, 0], [-8, 0], [0, 0], [0], [2**64, 2**65], {}]),
        ("dtype", ["F64", "BF16", "I8", "BOOL", "F4", "C64", "object", 7, None]),
    ][rng.integers(3)]
    header[name][key] = values[rng.integers(len(values))]
    if rng.random() < 0.2:
        header["../../" + name] = header.pop(name)
    return packed(json.dumps(header), content[end:])


def deep(content, rng):
    """A header of brackets."""
    depth = 10 ** int(rng.integers(3, 6))
    return packed('{"__metadata__":' + "[" * depth + "]" * depth + "}", b"")


def packed(header, rest):
    """Header and tensors as one file."""
    encoded = header.encode()
    return struct.pack("<Q", len(encoded)) + encoded + rest


BY_CHANCE = [flip, flip_in_header, cut, cut_out, swap, blank, append]
DAMAGE = [*BY_CHANCE, foreign, hostile_length, hostile_tensors, deep]

# -- forgery ------------------------------------------------------------------------------------


def opened(content, path):
    """Metadata and tensors of a file."""
    path.write_bytes(content)
    with safe_open(path, framework="pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def signed(metadata, model, tensors):
    """A file whose checksum is right."""
    total = hashlib.sha256(model.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.numpy().tobytes())
    return save(tensors, {**metadata, "model": model, "sha256": total.hexdigest()})


def places(value, path=()):
    """The paths to all values inside a JSON value."""
    yield path
    items = enumerate(value) if isinstance(value, list) else ()
    for key, inner in value.items() if isinstance(value, dict) else items:
        yield from places(inner, (*path, key))


def nested(depth):
    """A list in a list in a list."""
    value = []
    for _ in range(depth):
        value = [value]
    return value


HOSTILE = [
    None,
    True,
    -1,
    0,
    10**12,
    10**400,
    -(10**30),
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "../../etc/passwd",
    "<U1000000000",
    "V1000000000",
    "<f4",
    "MixtureClassifier",
    "ABC",
    [],
    [-1, 4],
    [10**12],
    {},
    {"kind": "tensor", "name": "nothing"},
    {"kind": "list", "items": nested(400)},
    {"kind": "array", "dtype": "<U99999999", "scalar": 1},
    {"kind": "objects", "dtype": "<U99999999", "shape": [10**10], "items": ["a", "b"]},
    {"kind": "device", "name": "cuda:99"},
]


def forge_description(model, tensors, rng):
    """One value of the description becomes another, or disappears."""
    ways = [path for path in places(model) if path]
    *way, last = ways[rng.integers(len(ways))]
    inside = model
    for key in way:
        inside = inside[key]
    if rng.random() < 0.15:
        del inside[last]
    else:
        inside[last] = HOSTILE[rng.integers(len(HOSTILE))]


def forge_tensor(model, tensors, rng):
    """One tensor has other values, another shape or type, or is another."""
    names = list(tensors)
    name, other = (names[i] for i in rng.integers(0, len(names), 2))
    value = tensors[name]
    changes = [
        lambda: torch.full_like(value, float("nan") if value.is_floating_point() else -7),
        lambda: torch.full_like(value, float("-inf") if value.is_floating_point() else 10**9),
        lambda: torch.full_like(value, -1),
        lambda: value.flatten(),
        lambda: value[:0],
        lambda: value[..., None],
        lambda: value.repeat_interleave(2, 0) if value.ndim else value,
        lambda: value.int(),
        lambda: value.half(),
        lambda: value != 0,
        lambda: tensors[other].clone(),
    ]
    tensors[name] = changes[rng.integers(len(changes))]().contiguous()


FORGERY = [forge_description, forge_tensor]


# -- what becomes of them -----------------------------------------------------------------------


def read(load, content, X, path):
    """The model's answers, or None for a file that is refused; in bounded time."""
    path.write_bytes(content)
    begin = time.process_time()
    try:
        model = load(path)
    except FileFormatError:
        model = None
    except UnsupportedError:  # a class that the runtime does not know
        assert load is runtime.load
        model = None
    assert time.process_time() - begin < MOST_SECONDS
    if model is None:
        return None
    try:
        return answer(model, X)
    except InvalidInputError as error:
        if "device=" not in str(error):  # which may be there on another machine
            raise
        return None


@pytest.mark.parametrize("load", LOADERS)
def test_damaged_files_are_refused_or_the_same(load, files, tmp_path, rng):
    """Whatever happens to the bytes, no other model comes out of them."""
    path = tmp_path / "model"
    for number in range(N_FILES):
        content, X = files[number % len(files)]
        damaged = DAMAGE[number % len(DAMAGE)](content, rng)
        found = read(load, damaged, X, path)
        if found is not None:
            path.write_bytes(content)
            np.testing.assert_array_equal(found, answer(load(path), X))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("load", LOADERS)
def test_forged_files_are_refused_or_answer(load, files, tmp_path, rng):
    """A right checksum does not make a model of nonsense."""
    path = tmp_path / "model"
    for number in range(N_FILES):
        content, X = files[number % len(files)]
        metadata, tensors = opened(content, path)
        model = json.loads(metadata["model"])
        FORGERY[number % len(FORGERY)](model, tensors, rng)
        found = read(load, signed(metadata, json.dumps(model), tensors), X, path)
        if found is not None:
            assert np.isfinite(found).all()
            if found.ndim == 2:
                np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-9)


@pytest.mark.parametrize("load", LOADERS)
def test_arrays_share_no_bytes(load, files, tmp_path):
    """A small file could name the same bytes as often as it likes."""
    content, _ = files[0]
    end = 8 + header_of(content)
    header = json.loads(content[8:end])
    header["again"] = next(entry for name, entry in header.items() if name != "__metadata__")
    (tmp_path / "model").write_bytes(packed(json.dumps(header), content[end:]))
    with pytest.raises(FileFormatError, match="overlap"):
        load(tmp_path / "model")


#: Sizes that nothing in a file has.
HUGE = [10**12, [10**12], "<U1000000000", "V1000000000"]
HUGE += [{"kind": "array", "dtype": "<U99999999", "scalar": 1}]
HUGE += [{"kind": "objects", "dtype": "<U99999999", "shape": [10**10], "items": ["a", "b"]}]

#: Loads a sound file and then the others; then allocates, to show that the measure sees it.
MEASURE = """
import sys, warnings, torch, mixtura
from mixtura.exceptions import FileFormatError, UnsupportedError

def most():
    with open("/proc/self/status") as status:
        return 1024 * next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

warnings.simplefilter("ignore")
sound, *forged = sys.argv[1:]
mixtura.load(sound)
before = most()
for path in forged:
    for load in (mixtura.load, mixtura.runtime.load):
        try:
            load(path)
        except (FileFormatError, UnsupportedError):
            pass
after = most()
torch.ones(2**26)
print(after - before, most() - after)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's peak of memory")
def test_sizes_in_a_file_take_no_memory(files, tmp_path, rng):
    """Peak of resident memory over all of them, torch's included, in a process of its own."""
    paths = [tmp_path / "sound"]
    paths[0].write_bytes(files[0][0])
    for number, (content, _) in enumerate(files):
        metadata, tensors = opened(content, tmp_path / "model")
        ways = [path for path in places(json.loads(metadata["model"])) if path]
        for at in rng.choice(len(ways), len(HUGE), replace=False):
            model = json.loads(metadata["model"])
            *way, last = ways[at]
            inside = model
            for key in way:
                inside = inside[key]
            inside[last] = HUGE[len(paths) % len(HUGE)]
            paths.append(tmp_path / f"{number}-{at}")
            paths[-1].write_bytes(signed(metadata, json.dumps(model), tensors))
        for damage in (hostile_length, hostile_tensors, deep):
            for attempt in range(N_FILES // 25):
                paths.append(tmp_path / f"{number}-{damage.__name__}-{attempt}")
                paths[-1].write_bytes(damage(content, rng))
    measured = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, paths)], capture_output=True, text=True
    )
    assert measured.returncode == 0, measured.stderr
    grown, seen = map(int, measured.stdout.split())
    assert grown < MOST_BYTES
    assert seen > MOST_BYTES / 2
