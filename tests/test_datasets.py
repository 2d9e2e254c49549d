"""Data: the generators have the statistics they promise, and the loader finds, checks and keeps."""

import dataclasses
import io
import os
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.utils import Bunch

from mixtura.datasets import (
    generators,
    list_datasets,
    load_dataset,
    loading,
    make_checkerboard,
    make_hmm_sequences,
    make_lobes,
    make_ripley,
    make_spirals,
    make_waveform,
    mnist_variant,
    spirals_bayes_rate,
    variants,
)
from mixtura.datasets.registry import REGISTRY
from mixtura.exceptions import FileFormatError, InvalidInputError

GENERATORS = [
    make_spirals,
    make_ripley,
    make_checkerboard,
    make_lobes,
    make_hmm_sequences,
    make_waveform,
]

# Rows, features or channels, rows of each class, official splits, missing values.
EXPECTED = {
    "adult": (48842, 14, [37155, 11687], 1, 6465),
    "annealing": (898, 38, [8, 99, 684, 67, 40], 1, 22175),
    "arrowhead": (211, 251, [81, 65, 65], 1, 0),
    "asl_words": (888, 6, None, 1, 0),
    "auslan": (6648, 8, None, 0, 0),
    "banana": (5300, 2, [2924, 2376], 100, 0),
    "breast_cancer_ljubljana": (286, 9, [201, 85], 0, 9),
    "breast_cancer_raetsch": (277, 9, [196, 81], 10, 0),
    "breast_cancer_wisconsin": (699, 9, [458, 241], 0, 16),
    "character_trajectories_100": (100, 3, [5] * 20, 0, 0),
    "coffee": (56, 286, [29, 27], 1, 0),
    "colon": (62, 2000, [22, 40], 0, 0),
    "digits": (1797, 64, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180], 0, 0),
    "fashion_mnist": (70000, 784, [7000] * 10, 1, 0),
    "free_spoken_digits": (3000, 13, [300] * 10, 0, 0),
    "glass": (214, 9, [70, 76, 17, 13, 9, 29], 0, 0),
    "gunpoint": (200, 150, [100, 100], 1, 0),
    "hepatitis": (155, 19, [32, 123], 0, 167),
    "horse_colic": (368, 21, [136, 232], 1, 1925),
    "iris": (150, 4, [50, 50, 50], 0, 0),
    "italy_power_demand": (1096, 24, [547, 549], 1, 0),
    "japanese_vowels": (640, 12, [61, 65, 118, 74, 59, 54, 70, 80, 59], 1, 0),
    "jasper_ridge": (10000, 198, [3493, 3326, 2428, 753], 0, 0),
    "labor": (57, 16, [20, 37], 0, 326),
    "leukemia": (72, 7129, [47, 25], 1, 0),
    "mammographic": (961, 5, [516, 445], 0, 162),
    "mnist": (70000, 784, [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958], 1, 0),
    "mushroom": (8124, 22, [4208, 3916], 0, 2480),
    "peterson_barney": (1520, 4, [152] * 10, 0, 0),
    "phoneme_esl": (4509, 256, [695, 1022, 757, 1163, 872], 1, 0),
    "pickup_gesture": (100, 1, [10] * 10, 1, 0),
    "pima": (768, 8, [500, 268], 0, 0),
    "pima_missing": (768, 8, [500, 268], 0, 652),
    "pima_ripley": (532, 7, [355, 177], 1, 0),
    "pima_ripley_missing": (632, 7, [417, 215], 1, 114),
    "ripley_synth": (1250, 2, [625, 625], 1, 0),
    "sonar": (208, 60, [111, 97], 0, 0),
    "synthetic_control": (600, 60, [100] * 6, 0, 0),
    "titanic": (2201, 3, [1490, 711], 10, 0),
    "waveform": (5000, 21, [3353, 1647], 10, 0),
    "wdbc": (569, 30, [212, 357], 0, 0),
    "wine": (178, 13, [59, 71, 48], 0, 0),
}


def given_file(name):
    """The file of a data set in the user's data folder; without it the test is skipped."""
    folder = os.environ.get("MIXTURA_DATA")
    if not folder:
        pytest.skip("MIXTURA_DATA is not set")
    path = Path(folder, REGISTRY[name].file)
    if not path.is_file():
        pytest.skip(f"MIXTURA_DATA has no {REGISTRY[name].file}")
    return path


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """An empty data folder and an empty cache, and no way to OpenML."""
    for variable in ("MIXTURA_DATA", "MIXTURA_CACHE"):
        (tmp_path / variable).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / variable))

    def offline(**kwargs):
        raise OSError("no network")

    monkeypatch.setattr(loading, "fetch_openml", offline)
    return tmp_path / "MIXTURA_DATA", tmp_path / "MIXTURA_CACHE"


def write(folder, name, **arrays):
    """A file of the data set in the folder."""
    path = folder / REGISTRY[name].file
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return path


# -- generators --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", GENERATORS)
def test_generators_repeat_themselves(make):
    """The same seed gives the same rows, another seed others."""
    first, again, other = (
        make(30, random_state=1),
        make(30, random_state=1),
        make(30, random_state=2),
    )
    rows = [np.concatenate(list(bunch.data)) for bunch in (first, again, other)]
    np.testing.assert_array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(first.target, again.target)
    assert rows[0].shape != rows[2].shape or not np.allclose(rows[0], rows[2])
    assert len(first.data) == len(first.target)
    assert set(first.target) == set(range(len(first.target_names)))
    assert first.DESCR


def test_spirals_lie_on_their_arms():
    """Without noise the radius tells the angle, and the second arm is the first one turned."""
    bunch = make_spirals(200, noise=0.0, random_state=0)
    arms = bunch.data * (1 - 2 * bunch.target[:, None])
    t = np.linalg.norm(arms, axis=1) / 13.0
    expected = 13.0 * t[:, None] * np.stack([np.cos(4 * np.pi * t), np.sin(4 * np.pi * t)], 1)
    np.testing.assert_allclose(arms, expected, atol=1e-9)
    assert bunch.data.shape == (400, 2)


@pytest.mark.parametrize(("radius", "noise"), [(13.0, 1.0), (6.0, 0.5), (0.0, 1.0)])
def test_spirals_bayes_rate_is_that_of_the_true_densities(radius, noise):
    """Quadrature agrees with classifying a large sample by the densities themselves."""
    bunch = make_spirals(2500, radius=radius, noise=noise, random_state=0)
    t = (np.arange(800) + 0.5) / 800
    arm = radius * t[:, None] * np.stack([np.cos(4 * np.pi * t), np.sin(4 * np.pi * t)], 1)
    kernel = [
        np.exp(-0.5 * (((bunch.data[:, None] - sign * arm) / noise) ** 2).sum(-1)).sum(1)
        for sign in (1, -1)
    ]
    correct = np.mean((kernel[1] > kernel[0]) == bunch.target)
    assert spirals_bayes_rate(radius, noise) == pytest.approx(correct, abs=0.015)


def test_spirals_bayes_rate_knows_its_limits():
    """Chance when the arms vanish, certainty when the noise does, and the default of the docs."""
    assert spirals_bayes_rate(0.0) == pytest.approx(0.5)
    assert spirals_bayes_rate(1000.0, 1.0) > 0.995
    assert spirals_bayes_rate() == pytest.approx(0.875, abs=5e-4)
    with pytest.raises(InvalidInputError, match="noise must be positive"):
        spirals_bayes_rate(1.0, 0.0)


def ripley_errors(bunch):
    """Which rows the true densities get wrong."""
    offset = bunch.data[:, None, None] - generators.RIPLEY_CENTERS
    joint = logsumexp(-0.5 * (offset**2).sum(-1) / generators.RIPLEY_VARIANCE, axis=2)
    return joint.argmax(1) != bunch.target


def test_ripley_has_its_bayes_error():
    """8.9 % under the true densities, from two equal halves of each class."""
    bunch = make_ripley(20_000, random_state=0)
    assert ripley_errors(bunch).mean() == pytest.approx(0.089, abs=0.005)
    assert np.mean(bunch.component) == pytest.approx(0.5, abs=0.02)


def test_ripley_is_the_published_problem():
    """Its true densities have the known 8 % on the published test rows."""
    given_file("ripley_synth")
    published = load_dataset("ripley_synth")
    assert ripley_errors(published)[published.splits[0][1]].mean() == pytest.approx(0.08)


def test_lobes_defeat_one_gaussian_per_class():
    """A single Gaussian loses the crucial lobe; the true densities lose next to nothing."""
    bunch = make_lobes(5000, random_state=0)
    single = QuadraticDiscriminantAnalysis().fit(bunch.data, bunch.target)
    wrong = single.predict(bunch.data) != bunch.target
    assert wrong[bunch.lobe == 2].mean() > 0.9
    centers = np.outer([1, -1], generators.LOBE_CENTERS)
    scaled = (bunch.data[:, :, None] - centers) / generators.LOBE_DEVIATIONS
    weights = generators.LOBE_WEIGHTS / generators.LOBE_DEVIATIONS
    joint = (weights * np.exp(-0.5 * scaled**2)).sum(-1)
    assert np.mean(joint.argmax(1) != bunch.target) < 0.01
    assert np.mean(bunch.lobe == 0) == pytest.approx(0.7, abs=0.02)


def forward(sequence, means, stay):
    """Log density of a sequence under one of the true models."""
    transition = np.log([[stay, 1 - stay], [1 - stay, stay]])
    emission = -0.5 * ((sequence[:, None] - means) ** 2).sum(-1) - np.log(2 * np.pi)
    alpha = np.log(0.5) + emission[0]
    for row in emission[1:]:
        alpha = logsumexp(alpha[:, None] + transition, axis=0) + row
    return logsumexp(alpha)


def test_hmm_sequences_are_hard_but_not_hopeless():
    """The true models tell the classes apart; the frames alone do so only for the easy half."""
    bunch = make_hmm_sequences(25, random_state=0)
    models = [
        list(zip(*pair, strict=True))
        for pair in zip(generators.HMM_MEANS, generators.HMM_STAY, strict=True)
    ]
    density = [[logsumexp([forward(x, *m) for m in pair]) for pair in models] for x in bunch.data]
    assert np.mean(np.argmax(density, axis=1) != bunch.target) <= 0.02
    means = np.array([x.mean(0) for x in bunch.data])
    side = means[:, 0] > 0
    assert (side == bunch.target)[~bunch.hard].all()
    assert np.mean((side == bunch.target)[bunch.hard]) < 0.7
    assert {x.shape[1] for x in bunch.data} == {2}
    assert all(40 <= len(x) <= 60 for x in bunch.data)


def test_waveform_has_breimans_means():
    """Class means are averages of two triangles; extra features are noise."""
    bunch = make_waveform(30_000, n_noise=19, random_state=0)
    assert bunch.data.shape == (30_000, 40)
    i = np.arange(1, 22)
    h1, h2, h3 = (np.maximum(6 - np.abs(i - peak), 0) for peak in (11, 15, 7))
    for label, pair in enumerate([(h1, h2), (h1, h3), (h2, h3)]):
        rows = bunch.data[bunch.target == label]
        np.testing.assert_allclose(rows[:, :21].mean(0), sum(pair) / 2, atol=0.08)
        np.testing.assert_allclose(rows[:, 21:].std(0), 1.0, atol=0.05)


# -- variants of MNIST -------------------------------------------------------------------------


@pytest.fixture
def few_digits(folders):
    """A file in the layout of MNIST: bright ellipses off the center."""
    rows, columns = np.mgrid[:28, :28]
    center = 13.5 + 3 * np.random.default_rng(0).normal(size=(120, 2, 1, 1))
    distance = ((rows - center[:, 0]) / 3) ** 2 + ((columns - center[:, 1]) / 5) ** 2
    images = (255 * np.exp(-distance)).astype(np.uint8)
    y = np.arange(120) % 10
    write(folders[0], "mnist", X_train=images[:100], y_train=y[:100], X_test=images, y_test=y)
    photos = np.random.default_rng(1).integers(256, size=(4, 3072), dtype=np.uint8)
    write(folders[0], "cifar10", X_train=photos, y_train=y[:4], X_test=photos, y_test=y[:4])


@pytest.mark.usefixtures("few_digits")
def test_rotation_moves_digits_and_keeps_their_mass():
    """Quarter turns are exact, no turn changes nothing, any turn keeps the ink."""
    images = load_dataset("mnist").data
    angles = np.full(len(images), np.pi / 2)
    quarter = variants._rotate(images, angles).reshape(-1, 28, 28).astype(float)
    exact = np.rot90(images.reshape(-1, 28, 28), axes=(1, 2)).astype(float)
    assert np.abs(quarter - exact).max() <= 1
    np.testing.assert_array_equal(variants._rotate(images, 0 * angles), images)
    turned = variants._rotate(images, np.linspace(0, 6, len(images)))
    ratio = turned.sum(1, dtype=float) / images.sum(1, dtype=float)
    assert np.median(np.abs(ratio - 1)) < 0.02
    assert not np.allclose(turned, images, atol=50)


@pytest.mark.usefixtures("few_digits")
@pytest.mark.parametrize("kind", variants.VARIANTS)
def test_mnist_variants(kind):
    """Shapes, one split, repeatable, digits on top of the noise."""
    bunch, again = (mnist_variant(kind, n_train=60, n_test=40, random_state=3) for _ in range(2))
    plain = mnist_variant("basic", n_train=60, n_test=40, random_state=3)
    np.testing.assert_array_equal(bunch.data, again.data)
    np.testing.assert_array_equal(bunch.target, plain.target)
    assert (bunch.data.shape, bunch.data.dtype) == ((100, 784), np.uint8)
    [(train, test)] = bunch.splits
    assert (len(train), len(test)) == (60, 40)
    assert "our own generation" in bunch.DESCR
    if "background" in kind:
        assert 110 < bunch.data[plain.data == 0].mean() < 145
    if kind == "background_random":
        assert (bunch.data >= plain.data).all()


@pytest.mark.usefixtures("few_digits")
def test_mnist_variant_refuses_nonsense():
    """An unknown kind, or more rows than there are."""
    with pytest.raises(InvalidInputError, match="rotated_background_random"):
        mnist_variant("upside_down")
    with pytest.raises(InvalidInputError, match="between 0 and 220"):
        mnist_variant("basic")


# -- the sets themselves -----------------------------------------------------------------------


def test_every_set_is_expected():
    """A new entry of the registry gets a line in the table above."""
    assert list_datasets() == sorted([*EXPECTED, "cifar10"])  # which has tests of its own


@pytest.mark.parametrize("name", EXPECTED)
def test_real_sets(name):
    """Shapes, class counts, splits and missing values are the published ones."""
    if REGISTRY[name].embedded is None:
        given_file(name)
    bunch = load_dataset(name)
    n, width, counts, n_splits, n_missing = EXPECTED[name]
    assert len(bunch.data) == len(bunch.target) == n
    assert {row.shape[-1] for row in bunch.data} == {width}
    assert len(bunch.feature_names) == len(bunch.categorical) == len(bunch.categories) == width
    assert bunch.target.dtype == np.int64
    assert set(bunch.target) == set(range(len(bunch.target_names)))
    assert counts is None or np.bincount(bunch.target).tolist() == counts
    assert len(bunch.splits) == n_splits
    for train, test in bunch.splits:
        assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(n))
    assert sum(int(np.isnan(rows).sum()) for rows in bunch.data) == n_missing
    assert bunch.name == name
    assert bunch.source in bunch.DESCR


@pytest.mark.parametrize("name", ["adult", "mushroom", "annealing", "labor"])
def test_categories_are_codes_of_their_levels(name):
    """Every code of a categorical column has a level, numeric columns have none."""
    given_file(name)
    bunch = load_dataset(name)
    for column, discrete, levels in zip(
        bunch.data.T, bunch.categorical, bunch.categories, strict=True
    ):
        assert discrete == (levels is not None)
        if discrete:
            assert set(column[~np.isnan(column)]) <= set(range(len(levels)))


def test_what_a_set_comes_with():
    """Speakers and the like have one entry per row; the pima variants are the file's own."""
    path = given_file("pima")
    np.testing.assert_array_equal(load_dataset("pima_missing").data, np.load(path)["X_missing"])
    for name in ("phoneme_esl", "peterson_barney", "auslan", "asl_words", "jasper_ridge"):
        given_file(name)
        bunch = load_dataset(name)
        assert REGISTRY[name].extras
        assert all(len(bunch[key]) == len(bunch.target) for key in REGISTRY[name].extras)
    phonemes = load_dataset("phoneme_esl")
    train, test = ({tag.split(".")[2] for tag in phonemes.speaker[i]} for i in phonemes.splits[0])
    assert not train & test


def jpeg(shade):
    """A JPEG file of one color, and its pixel."""
    image = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    image.new("RGB", (32, 32), shade).save(file, "JPEG", quality=95)
    return np.frombuffer(file.getvalue(), dtype=np.uint8)


def test_jpeg_images_become_color_planes(folders):
    """Red, green and blue one after the other; training rows first."""
    files = [jpeg((250, 10, 10)), jpeg((10, 250, 10))]
    arrays = {}
    for part, file in zip(("train", "test"), files, strict=True):
        arrays |= {f"jpeg_{part}": file, f"off_{part}": [0, len(file)], f"y_{part}": [0]}
    write(folders[0], "cifar10", **arrays, class_names=["red"])
    bunch = load_dataset("cifar10")
    assert bunch.data.dtype == np.uint8
    planes = bunch.data.reshape(2, 3, 1024).mean(2)
    np.testing.assert_allclose(planes, [[250, 10, 10], [10, 250, 10]], atol=4)
    assert len(bunch.splits) == 1


def test_first_real_photographs(tmp_path, monkeypatch):
    """The first images of the real file decode to the colors CIFAR-10 has."""
    with np.load(given_file("cifar10")) as real:
        arrays = {"class_names": real["class_names"]}
        for part in ("train", "test"):
            ends = real[f"off_{part}"][:201]
            arrays |= {f"jpeg_{part}": real[f"jpeg_{part}"][: ends[-1]], f"off_{part}": ends}
            arrays[f"y_{part}"] = real[f"y_{part}"][:200]
    write(tmp_path, "cifar10", **arrays)
    monkeypatch.setenv("MIXTURA_DATA", str(tmp_path))
    bunch = load_dataset("cifar10")
    assert bunch.data.shape == (400, 3072)
    red, _, blue = bunch.data.reshape(400, 3, 1024).mean((0, 2))
    assert blue > red  # aeroplanes fly in the sky


# -- where files come from ---------------------------------------------------------------------

GLASS = {"X": [[1.0, 2.0], [3.0, 4.0]], "class_names": ["a", "b"]}


def test_given_folder_goes_before_the_cache(folders):
    """MIXTURA_DATA first, then the cache."""
    given, cache = folders
    write(cache, "glass", y=[1, 1], **GLASS)
    assert load_dataset("glass").target.tolist() == [1, 1]
    write(given, "glass", y=[0, 1], **GLASS)
    assert load_dataset("glass").target.tolist() == [0, 1]


def test_cache_folder_follows_the_environment(monkeypatch):
    """Ours, else the desktop's, else the usual place."""
    monkeypatch.setenv("MIXTURA_CACHE", "ours")
    monkeypatch.setenv("XDG_CACHE_HOME", "theirs")
    assert loading._cache_folder() == Path("ours")
    monkeypatch.delenv("MIXTURA_CACHE")
    assert loading._cache_folder() == Path("theirs", "mixtura")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert loading._cache_folder() == Path.home() / ".cache" / "mixtura"


def test_embedded_sets_need_no_file(folders):
    """What scikit-learn brings works anywhere."""
    assert load_dataset("iris").data.shape == (150, 4)


def test_unknown_name_says_which_exist():
    """And which was probably meant."""
    with pytest.raises(InvalidInputError, match=r"Did you mean 'mnist'\? Known: adult, "):
        load_dataset("mnits")


@pytest.mark.parametrize(
    ("name", "reason"), [("colon", "cannot be fetched"), ("glass", "no network.*connect")]
)
def test_missing_file_says_what_to_do(folders, name, reason):
    """The file, both folders, and the remedy."""
    given, cache = map(str, folders)
    with pytest.raises(FileNotFoundError, match=reason) as caught:
        load_dataset(name)
    for part in (REGISTRY[name].file, given, cache, "Set MIXTURA_DATA"):
        assert part in str(caught.value)


@pytest.mark.parametrize("keep", [0, 10, 300, -40])
def test_truncated_file_is_named(folders, keep):
    """Wherever the file was cut."""
    noise = np.random.default_rng(0).normal(size=(100, 5))
    path = write(folders[0], "glass", X=noise, y=np.zeros(100))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(FileFormatError, match=r"glass\.npz is damaged"):
        load_dataset("glass")


def test_damage_inside_is_noticed(folders):
    """A file whose directory is whole and whose content is not."""
    noise = np.random.default_rng(0).normal(size=(100, 5))
    path = write(folders[0], "glass", X=noise, y=np.zeros(100))
    content = bytearray(path.read_bytes())
    content[500:600] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=r"glass\.npz is damaged"):
        load_dataset("glass")


def test_foreign_file_is_named(folders):
    """A whole file that holds something else, or is something else."""
    path = write(folders[0], "glass", rows=[1, 2])
    with pytest.raises(FileFormatError, match=r"glass\.npz has no array 'X'"):
        load_dataset("glass")
    with path.open("wb") as file:
        np.save(file, [1, 2])
    with pytest.raises(FileFormatError, match=r"glass\.npz is damaged"):
        load_dataset("glass")


# -- OpenML ------------------------------------------------------------------------------------


@pytest.fixture
def openml(folders, monkeypatch):
    """Answers instead of OpenML; counts the questions."""
    pandas = pytest.importorskip("pandas")
    asked = []

    def answer(data, target):
        def fetch(*, data_id, **kwargs):
            asked.append(data_id)
            labels = pandas.Series(target, dtype="category")
            return Bunch(data=pandas.DataFrame(data), target=labels, details={"license": "Public"})

        monkeypatch.setattr(loading, "fetch_openml", fetch)
        return asked

    return answer


def test_openml_frame_becomes_our_layout(openml, folders):
    """Codes, levels, missing values of both kinds; fetched once, then read from the cache."""
    import pandas

    colors = pandas.Categorical(["red", None, "blue"], categories=["red", "blue"])
    asked = openml(
        {"size": [1.5, np.nan, 3.0], "color": colors, "made": ["x", "y", None], "n": [1, 2, 3]},
        ["good", "bad", "good"],
    )
    for _ in range(2):
        bunch = load_dataset("labor")
        np.testing.assert_array_equal(
            bunch.data, [[1.5, 0, 0, 1], [np.nan, np.nan, 1, 2], [3.0, 1, np.nan, 3]]
        )
        assert bunch.categorical.tolist() == [False, True, True, False]
        assert [None if c is None else c.tolist() for c in bunch.categories] == [
            None,
            ["red", "blue"],
            ["x", "y"],
            None,
        ]
        assert bunch.target.tolist() == [1, 0, 1]
        assert bunch.target_names.tolist() == ["bad", "good"]
        assert bunch.feature_names == ["size", "color", "made", "n"]
        assert bunch.source == "OpenML data set 4, license: Public."
        assert bunch.splits == []
    assert asked == [4]
    assert [path.name for path in folders[1].rglob("*") if path.is_file()] == ["labor.npz"]


def test_openml_pixels_stay_bytes_and_training_rows_come_first(openml, monkeypatch):
    """Whatever their place over there."""
    entry = dataclasses.replace(REGISTRY["mnist"], openml_train=slice(2, None))
    monkeypatch.setitem(loading.REGISTRY, "mnist", entry)
    openml({"pixel": [1, 2, 3, 4, 5]}, list("00111"))
    bunch = load_dataset("mnist")
    assert bunch.data.dtype == np.uint8
    assert bunch.data.ravel().tolist() == [3, 4, 5, 1, 2]
    assert bunch.target.tolist() == [1, 1, 1, 0, 0]
    assert [rows.tolist() for rows in bunch.splits[0]] == [[0, 1, 2], [3, 4]]


def test_pimas_share_what_was_fetched(openml):
    """The variant with missing values is made from the rows, not read."""
    asked = openml(np.zeros((2, 8)), ["neg", "pos"])
    assert np.isnan(load_dataset("pima_missing").data).sum() == 10
    assert not np.isnan(load_dataset("pima").data).any()
    assert asked == [37]


def test_nothing_half_written_is_left(openml, folders, monkeypatch):
    """A write that fails leaves the cache as it was, and the next try succeeds."""
    openml({"x": [1.0, 2.0]}, ["a", "b"])
    save = np.savez_compressed

    def fail(file, **arrays):
        file.write(b"PK")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="disk full"):
        load_dataset("glass")
    assert not [path for path in folders[1].rglob("*") if path.is_file()]
    monkeypatch.setattr(np, "savez_compressed", save)
    assert load_dataset("glass").data.tolist() == [[1.0], [2.0]]
