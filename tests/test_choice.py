"""What "auto" chooses, the rows it holds back for that, holes in training, and the clock."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import approx_fprime, minimize
from scipy.special import logit
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, make_classification

from mixtura import (
    BoostedMixtureClassifier,
    MixtureClassifier,
    MixtureDensity,
    MixtureNetworkClassifier,
    MixtureNetworkRegressor,
    SequenceMixtureClassifier,
    load,
)
from mixtura.data import Scaling, Table
from mixtura.densities import DiagonalGaussian, Full, LowRank
from mixtura.engines import LocalEngine, PunchedEngine
from mixtura.models.calibration import Calibration
from mixtura.progress import Progress
from mixtura.selection.chooser import Chooser
from mixtura.selection.held_out import Answers, Losses
from mixtura.solvers import EBW, EM, LBFGS, SOLVERS, Adam, LinkedEM

#: Nothing is left open, so that nothing is compared.
FIXED = {"density": "diag", "tradeoff": 0.5, "n_components": 1}


def engine_of(X, y):
    table = Table(X, y, scaling=Scaling.identity(X.shape[1]), device=torch.device("cpu"))
    return LocalEngine(table)


# -- rows with holes ---------------------------------------------------------------------------


def test_every_row_stands_beside_a_copy_with_holes(iris, generator):
    """Whole rows first; copies lose the stated share; the two share the row's weight."""
    X, y = iris
    engine = PunchedEngine(engine_of(X, y), 0.3, generator)
    (batch,) = engine.chunks(10**6)
    n = len(X)
    assert len(batch) == 2 * n
    np.testing.assert_array_equal(batch.x[:n], X)
    assert batch.observed[:n].all()
    hidden = ~batch.observed[n:]
    assert 0.2 < hidden.double().mean() < 0.4
    assert (batch.x[n:][hidden] == 0).all()
    np.testing.assert_array_equal(batch.x[n:][~hidden], torch.from_numpy(X.copy())[~hidden])
    assert float(batch.weight.sum()) == pytest.approx(n)


def test_passes_repeat_their_holes_and_minibatches_do_not(iris, generator):
    """A sum over all rows is one function of the model; minibatches see ever new holes."""
    engine = PunchedEngine(engine_of(*iris), 0.3, generator)
    first, second = (torch.cat([b.observed for b in engine.chunks(64)]) for _ in range(2))
    assert torch.equal(first, second)
    index = torch.arange(50)
    assert not torch.equal(engine.batch(index).observed, engine.batch(index).observed)


def test_natural_holes_stay(holey_iris, generator):
    """What is missing already is missing in both copies."""
    X, y = holey_iris
    (batch,) = PunchedEngine(engine_of(X, y), 0.2, generator).chunks(10**6)
    missing = torch.from_numpy(np.isnan(X))
    assert not batch.observed[: len(X)][missing].any()
    assert not batch.observed[len(X) :][missing].any()


@pytest.mark.parametrize("solver", ["lbfgs", "adam", "ebw"])
def test_training_with_holes_changes_the_model(solver, wine):
    """The option does something with every discriminative solver, and the model stays good."""
    settings = {**FIXED, "solver": SOLVERS[solver](5), "calibrate": False, "random_state": 0}
    plain, holed = (MixtureClassifier(holes=h, **settings).fit(*wine) for h in (0.0, 0.4))
    assert not np.allclose(plain.means_, holed.means_)
    assert holed.score(*wine) > 0.9


# -- rows held back ----------------------------------------------------------------------------


def test_folds_hold_every_labeled_row_back_once(iris, generator):
    """Disjoint, complete, in proportion to the classes; unlabeled rows always train."""
    X, y = iris
    some = np.where(np.arange(len(y)) % 5 == 0, -1, y)
    engine = engine_of(np.column_stack([X, np.arange(len(X))]), some)
    held = []
    fold = engine.fold_numbers(4, generator)
    for train, back in (engine.split(fold == number) for number in range(4)):
        rows, others = back.all_rows(), train.all_rows()
        assert (rows.y >= 0).all()
        assert len(rows) + len(others) == len(X)
        counts = np.bincount(rows.y)
        assert counts.max() - counts.min() <= 1
        held += rows.x[:, -1].tolist()
    assert sorted(held) == np.flatnonzero(some >= 0).tolist()


def test_a_class_with_one_row_always_trains(generator):
    """Otherwise a fold would have no model of it."""
    y = np.array([0] * 10 + [1])
    engine = engine_of(np.arange(11.0)[:, None], y)
    fold = engine.fold_numbers(3, generator)
    for train, _ in (engine.split(fold == number) for number in range(3)):
        assert 1 in train.y


def test_some_rows_keep_rare_classes(generator):
    """A part of a large table has its rare classes and as many unlabeled rows as labeled."""
    y = np.concatenate([np.zeros(5000), np.ones(20), np.full(3000, -1)]).astype(np.int64)
    part = engine_of(np.arange(8020.0)[:, None], y).sample(500, generator)
    assert (part.y == 1).sum() >= 2
    assert 450 <= int((part.y >= 0).sum()) <= 550
    assert int((part.y < 0).sum()) == 500


# -- the chooser -------------------------------------------------------------------------------


@dataclass
class Way:
    """Models of known losses: of each stage, one number for all folds or one per fold."""

    name: str
    losses: Any
    met: list = field(default_factory=list)

    @property
    def settings(self):
        return {"name": self.name, "kind": Full(0.5)}

    def stages(self, engine, generator, progress):
        number = len(self.met)
        self.met.append((engine.all_rows().x[:, -1].tolist(), draw(generator), progress))
        stages = np.atleast_1d(self.losses)
        if stages.ndim == 2:
            stages = stages[number]
        return ((self, loss) for loss in stages[~np.isnan(stages)])


def draw(generator):
    return float(torch.rand(1, generator=generator))


def judge(model, held_out, generator):
    """Losses around the known one, of each row and its copy; what was judged goes to the way."""
    way, loss = model
    way.met[-1] += (held_out.all_rows().x[:, -1].tolist(), draw(generator))
    weight = held_out.weight.numpy().repeat(2)
    return Losses(weight, np.arange(len(weight)) % 2 == 1, np.full(len(weight), loss))


def numbered(n, n_classes=2, weight=None):
    """Rows that hold their numbers, in classes that take turns."""
    rows, y = np.arange(float(n))[:, None], np.arange(n) % n_classes
    options = {"scaling": Scaling.identity(1), "device": torch.device("cpu")}
    return LocalEngine(Table(rows, y, weight, **options))


def make_chooser(engine, n_ways=1, watch=None, **options):
    generator = torch.Generator().manual_seed(0)
    return Chooser(engine, judge, generator, watch or Progress(), n_ways=n_ways, **options)


def trials(*ways):
    return [len(way.met) for way in ways]


@pytest.mark.parametrize(
    ("n_rows", "expected"), [(100, [1, 2, 4]), (420, [1, 2, 2]), (796, [1, 2, 2]), (800, [1, 1, 1])]
)
def test_who_leaves_a_race_when(n_rows, expected):
    """Two survive the first fold, one the second; 200 judged rows are enough."""
    ways = poor, good, better = Way("poor", 3.0), Way("good", 2.0), Way("better", 1.0)
    best = make_chooser(numbered(n_rows), 3).race(ways)
    assert best.way is better
    assert best.loss() == 1.0
    assert trials(poor, good, better) == expected


def test_a_race_is_decided_by_all_folds_that_both_have_met():
    """The better one of the first fold may lose by the second; what is no number never wins."""
    early, late, broken = Way("early", [[1.0], [4.0]]), Way("late", 2.0), Way("broken", np.inf)
    best = make_chooser(numbered(100), 3).race([broken, early, late])
    assert best.way is late
    assert trials(broken, early, late) == [1, 2, 4]


@pytest.mark.parametrize(
    ("losses", "n_judged", "chosen"),
    [
        ([3.0, 2.0, 2.5, 2.0, 4.0, 0.0], 5, 1),  # three in a row are no better
        ([3.0, 4.0, 4.0, 2.0, 4.0, 1.0], 6, 5),
        ([np.inf, 2.0], 2, 1),
    ],
)
def test_growth_ends_when_stages_gain_nothing(losses, n_judged, chosen):
    """What comes later is not trained."""
    best = make_chooser(numbered(900)).race([Way("grown", losses)])
    assert len(best.parts[0]) == n_judged
    assert best.stage() == chosen


def champion_of(engine, loss=2.0):
    chooser = make_chooser(engine)
    return chooser, chooser.race([Way("champion", loss)])


@pytest.mark.parametrize(
    ("losses", "n_trials", "wins"),
    [
        (1.0, 4, True),
        (2.0, 2, False),  # no better is behind
        ([[1.0], [3.5], [0.0], [0.0]], 2, False),  # behind after two folds, whatever would follow
        ([[3.0], [0.5], [1.0], [1.0]], 4, True),  # one fold decides nothing
        ([[1.0], [1.0], [1.0], [6.0]], 4, False),  # all folds count
        ([[1.0], [1.0], [1.0], [np.inf]], 4, False),
    ],
)
def test_a_challenge(losses, n_trials, wins):
    """Who is behind after two folds leaves; the others meet all folds of the champion."""
    chooser, champion = champion_of(numbered(100))
    challenger = Way("challenger", losses)
    best = chooser.challenge(champion, [challenger])
    assert trials(challenger) == [n_trials]
    assert (best is champion) != wins
    assert (best.way is challenger) == wins


def test_a_glimpse_compares_the_same_folds():
    """The champion's later folds say nothing of a challenger that has not met them."""
    chooser, champion = champion_of(numbered(100), [[1.0], [1.0], [5.0], [5.0]])
    challenger = Way("challenger", 2.0)
    assert chooser.challenge(champion, [challenger]) is champion
    assert trials(challenger) == [2]


def test_a_challenger_meets_no_more_folds_than_the_champion_has():
    """Where enough rows ended the race, they also end the challenge."""
    chooser, champion = champion_of(numbered(900))
    challenger = Way("challenger", 1.0)
    assert chooser.challenge(champion, [challenger]).way is challenger
    assert trials(champion.way, challenger) == [1, 1]


def test_the_rule_of_a_challenge_looks_at_all_rows_of_both():
    """It is asked once per challenger that met all folds, which the next one has to beat."""
    asked = []

    def beats(one, other):
        asked.append((len(one), len(other), one.loss, other.loss))
        return one.loss < other.loss - 0.5

    chooser, champion = champion_of(numbered(100))
    ways = [Way(str(loss), loss) for loss in (1.75, 1.0, 1.25, 0.75, 0.25)]
    assert chooser.challenge(champion, ways, beats).way.name == "0.25"
    expected = [(1.75, 2.0), (1.0, 2.0), (0.75, 1.0), (0.25, 1.0)]
    assert asked == [(200, 200, *pair) for pair in expected]


def test_all_ways_meet_the_same_rows_holes_and_seeds():
    """Fold by fold; each fold has its own, and holds every row out once."""
    ways = [Way("first", 2.0), Way("second", 1.0), Way("third", 0.5)]
    chooser = make_chooser(numbered(100), 3)
    chooser.challenge(chooser.race(ways[:2]), ways[2:])
    trained, seeds, _, held_out, judges = zip(*ways[2].met, strict=True)
    for way in ways[:2]:
        for mine, other in zip(way.met, ways[2].met, strict=False):
            assert mine[:2] + mine[3:] == other[:2] + other[3:]
    assert sorted(row for part in held_out for row in part) == list(range(100))
    for part, rest in zip(trained, held_out, strict=True):
        assert sorted(part + rest) == list(range(100))
    assert len({*seeds, *judges}) == 8


def test_the_best_stage_is_that_of_all_folds_together(rng):
    """By weight; where a fold has fewer stages, its last one stands for those that it lacks."""
    losses = rng.normal(size=(4, 3))
    losses[1, 2] = losses[3, 1] = losses[3, 2] = np.nan  # fewer stages
    weight = rng.uniform(1.0, 3.0, size=42)
    way = Way("staged", losses)
    best = make_chooser(numbered(42, weight=weight)).race([way])
    folds = [[int(row) for row in meeting[3]] for meeting in way.met]
    mass = np.array([weight[fold].sum() for fold in folds])
    filled = losses.copy()
    filled[1, 2], filled[3, 1:] = losses[1, 1], losses[3, 0]
    expected = mass @ filled / mass.sum()
    assert best.stage() == expected.argmin()
    assert best.loss() == pytest.approx(expected.min())
    expected = mass[:2] @ filled[:2] / mass[:2].sum()
    assert best.stage(2) == expected.argmin()
    assert best.loss(2) == pytest.approx(expected.min())


def of_targets(n, known):
    y = np.where(np.arange(n) < known, 0.5, np.nan)
    options = {"scaling": Scaling.identity(1), "device": torch.device("cpu")}
    return LocalEngine(Table(np.arange(float(n))[:, None], y, **options))


@pytest.mark.parametrize(
    ("engine", "few"),
    [
        (None, True),
        (numbered(19), True),
        (numbered(20), False),
        (numbered(29, n_classes=10), True),
        (numbered(30, n_classes=10), False),
        (of_targets(50, 19), True),
        (of_targets(50, 20), False),
    ],
)
def test_with_too_few_rows_first_choices_are_taken(engine, few):
    """Nothing is tried, and nothing held out; that is not the clock's doing."""
    first, second, third = Way("first", 3.0), Way("second", 2.0), Way("third", 1.0)
    chooser = make_chooser(engine, 3)
    best = chooser.challenge(chooser.race([first, second]), [third])
    assert best.way is (first if few else third)
    assert (best.held_out() is None) == few
    assert np.isinf(best.loss()) == few
    assert (sum(trials(first, second, third)) == 0) == few
    assert not chooser.cut_short
    if few:
        assert {(row["rows"], row["loss"]) for row in chooser.table()} == {(0, None)}


def test_no_trial_begins_after_its_time(clock):
    """The best so far is taken; challengers that did not meet all folds do not win."""
    clock.tick = 0.0

    class Slow(Way):
        def stages(self, engine, generator, progress):
            clock.now += 0.1
            return super().stages(engine, generator, progress)

    poor, good, better = Slow("poor", 3.0), Slow("good", 2.0), Slow("better", 1.0)
    watch = Progress(max_time=1.0)
    chooser = make_chooser(numbered(100), 3, watch, until=0.47)
    best = chooser.race([poor, good])
    assert (best.way, trials(poor, good), chooser.cut_short) == (good, [2, 3], True)
    assert watch.hurried
    watch = Progress(max_time=1.0)
    chooser = make_chooser(numbered(100), 2, watch, until=0.47)
    champion = chooser.race([Way("champion", 2.0)])
    assert not chooser.cut_short
    clock.now += 0.25
    assert chooser.challenge(champion, [better]) is champion
    assert (trials(better), chooser.cut_short) == ([3], True)


def test_no_time_at_all(clock):
    """First choices, without a trial."""
    watch = Progress(max_time=1e-3)
    chooser = make_chooser(numbered(100), 2, watch)
    first, other = Way("first", 2.0), Way("other", 1.0)
    best = chooser.challenge(chooser.race([first]), [other])
    assert (best.way, trials(first, other), chooser.cut_short) == (first, [0, 0], True)
    assert best.held_out() is None


def test_trials_share_their_time(clock):
    """All together may take no more than their share of what there is."""
    clock.tick = 0.0
    ways = [Way("first", 2.0), Way("second", 1.0), Way("third", 0.5)]
    chooser = make_chooser(numbered(100), 3, Progress(max_time=12.0), until=0.5)
    chooser.race(ways)
    limits = [meeting[2].max_time for way in ways for meeting in way.met]
    np.testing.assert_allclose(limits, 0.5 * 12.0 / (4 * 3))
    way = Way("free", 1.0)
    make_chooser(numbered(100)).race([way])
    assert not way.met[0][2].limited


def test_the_table_tells_what_was_compared():
    """Settings in plain words, rows, losses, and which one was chosen; a row counts once."""
    chooser = make_chooser(numbered(100), 4)
    best = chooser.race([Way("poor", 3.0), Way("good", 2.0)], "which")
    best = chooser.challenge(best, [Way("worse", 2.5), Way("best", 1.0)], question="another")
    asked = ["which"] * 2 + ["another"] * 2
    expected = [("poor", 50, 3.0), ("good", 100, 2.0), ("worse", 50, 2.5), ("best", 100, 1.0)]
    assert chooser.table() == [
        {
            "question": asked[at],
            "name": name,
            "kind": repr(Full(0.5)),
            "rows": rows,
            "loss": loss,
            "chosen": at in (1, 3),
        }
        for at, (name, rows, loss) in enumerate(expected)
    ]


# -- what estimators choose --------------------------------------------------------------------


def of_choice(model, **chosen):
    """The rows of `choice_` that were chosen; all are found sound, and the last is as told."""
    assert all(np.isfinite(row["loss"]) for row in model.choice_ if row["rows"] > 0)
    assert all(row["loss"] is None for row in model.choice_ if row["rows"] == 0)
    found = [row for row in model.choice_ if row["chosen"] and row["question"] != "marginals"]
    assert len({row["question"] for row in found}) == len(found)
    told = {name: found[-1][name] for name in chosen}
    assert told == chosen
    return found


#: What a classifier asks held-out rows.
QUESTIONS = ("density", "tradeoff", "missingness", "unlabeled rows", "marginals")
#: Training is cut short, and unlabeled rows are told of.
UNSETTLED = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def flowers_with_holes(holey_iris):
    """36 flowers of two kinds, two thirds of them labeled."""
    X, y = holey_iris[0][32:68], holey_iris[1][32:68]
    return X, [None if at % 3 == 0 else int(label) for at, label in enumerate(y)]


@UNSETTLED
def test_what_a_classifier_compared(flowers_with_holes):
    """Structures, trade-offs, holes and curves in one comparison, unlabeled rows in another."""
    brief = {"solver": LBFGS(2), "init": EM(2), "prior_rows": 0.0, "random_state": 0}
    model = MixtureClassifier(1, **brief).fit(*flowers_with_holes)
    kept = {"tradeoff": model.tradeoff_, "missingness": model.missingness_}
    kept["density"] = repr(model.density_)
    first, second = of_choice(model, unlabeled_weight=model.unlabeled_weight_, **kept)[-2:]
    assert {name: first[name] for name in kept} == kept
    asked = {name: [row for row in model.choice_ if row["question"] == name] for name in QUESTIONS}
    maps, (without, beside) = asked.pop("marginals"), asked.pop("unlabeled rows")
    candidates = [row for rows in asked.values() for row in rows]
    assert [(row["marginals"], row["chosen"]) for row in maps] == [("power", True), ("ranks", True)]
    assert len({row["density"] for row in candidates}) > 1
    assert {row["tradeoff"] for row in candidates} == {0.9, 0.5}
    chosen = {row["missingness"] for row in candidates if row["chosen"]}
    assert chosen == {"ignore"}  # holes tell nothing
    assert {row["unlabeled_weight"] for row in candidates} == {None}
    assert (without["unlabeled_weight"], beside["unlabeled_weight"]) == (0.0, 0.5)
    assert (first["rows"], second["rows"]) == (24, 24)


@UNSETTLED
def test_what_a_boosted_classifier_compared(flowers_with_holes):
    """Whether holes tell something."""
    model = BoostedMixtureClassifier(n_stages=2, solver=EM(2), random_state=0)
    model.fit(*flowers_with_holes)
    (found,) = of_choice(model, missingness=model.missingness_)
    assert [row["missingness"] for row in model.choice_] == ["ignore", "informative"]
    assert found["rows"] == 24


def test_what_a_sequence_classifier_compared():
    """How many states; and then which method, with as many."""
    rng = np.random.default_rng(0)
    y = np.arange(20) % 2
    X = [rng.normal(size=(6, 1)) + label * np.sin(np.arange(6.0))[:, None] for label in y]
    settings = {"representation": "states", "n_stages": 2, "solver": EBW(2), "init": EM(2)}
    model = SequenceMixtureClassifier("auto", **settings, random_state=0).fit(X, y)
    first, second = of_choice(model, n_states=model.n_states_)
    assert first["n_states"] == model.n_states_
    assert first["method"] == "ml"
    assert len({row["method"] for row in model.choice_}) > 2
    assert second["rows"] == 20


BRIEF = {"solver": LinkedEM(2, end_to_end=False), "init": EM(2, 0.01), "random_state": 0}


@UNSETTLED
def test_what_a_network_classifier_compared(flowers_with_holes):
    """Embeddings and holes; and then unlabeled rows."""
    model = MixtureNetworkClassifier(2, **BRIEF).fit(*flowers_with_holes)
    kept = {"embedding": model.embedding_, "missingness": model.missingness_}
    *_, first, second = of_choice(model, unlabeled_weight=model.unlabeled_weight_, **kept)
    assert {name: first[name] for name in kept} == kept
    assert [row["embedding"] for row in model.choice_[:2]] == ["posterior", "log_density"]
    assert [row["missingness"] for row in model.choice_[1:3]] == ["ignore", "informative"]
    assert [row["unlabeled_weight"] for row in model.choice_] == [0.0] * 4 + [0.5]
    assert (first["rows"], second["rows"]) == (24, 24)


@UNSETTLED
def test_what_a_network_regressor_compared(holey_iris):
    """Embeddings and holes, by the squared error of rows that have a target."""
    X, y = holey_iris
    target = np.where(np.arange(150) % 3 == 0, np.nan, y + 0.5)
    model = MixtureNetworkRegressor(2, **BRIEF).fit(X, target)
    (found,) = of_choice(model, embedding=model.embedding_, missingness=model.missingness_)
    assert len(model.choice_) == 3
    assert found["rows"] == 100


@UNSETTLED
def test_what_a_density_compared(holey_iris):
    """Structures, and whether holes tell something; it needs no labels."""
    model = MixtureDensity(2, solver=EM(5), random_state=0).fit(holey_iris[0])
    *_, found = of_choice(model, missingness=model.missingness_, density=repr(model.density_))
    assert [row["missingness"] for row in model.choice_] == [*["ignore"] * 4, "informative"]
    assert len({row["density"] for row in model.choice_}) == 4
    assert found["rows"] == 150


def test_what_auto_chose_is_published_and_kept(tmp_path):
    """Diagonal for independent features, low rank for correlated ones; files remember."""
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=400)
    mixing = rng.normal(size=(6, 6)) + 2.0
    X = (rng.normal(size=(400, 6)) + y[:, None] * [1, 0, 0, 0, 0, 0]) @ mixing
    model = MixtureClassifier(random_state=0).fit(X, y)
    assert isinstance(model.density_, LowRank)
    assert model.density_.floor in (0.01, 0.1)
    assert model.tradeoff_ in (0.9, 0.5)
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    assert again.choice_ == model.choice_
    before = (model.density_, model.tradeoff_)
    model.set_params(warm_start=True).fit(X, y)
    assert (model.density_, model.tradeoff_) == before


def test_a_named_structure_is_not_compared(iris):
    """Who names the structure has chosen."""
    model = MixtureClassifier(1, density="full", solver=LBFGS(3), calibrate=False).fit(*iris)
    assert (model.density_, model.tradeoff_) == (Full(0.01), 0.9)


def test_a_warm_start_from_a_generative_fit_discriminates(iris):
    """The likelihood's trade-off of one is not taken for a choice."""
    settings = {**FIXED, "tradeoff": "auto", "random_state": 0, "warm_start": True}
    model = MixtureClassifier(objective="likelihood", **settings).fit(*iris)
    assert model.tradeoff_ == 1.0
    model.set_params(objective="margin", solver=LBFGS(5)).fit(*iris)
    assert model.tradeoff_ == 0.9


def test_with_a_handful_of_labels_classes_share_a_covariance(iris):
    """From eight labels on, probabilities go by those that are held out; fewer stay modest."""
    X, y = iris
    few = np.where(np.arange(len(y)) % 10 == 0, y, -1)
    model = MixtureClassifier(1, solver=LBFGS(5), random_state=0).fit(X, few)
    assert model.density_ == Full(0.3)
    np.testing.assert_allclose(*model.covariances_[:2], atol=0.02)
    assert model.predict_proba(X).max() > 0.9
    np.testing.assert_allclose(model.scaling_.scale, X.std(0))  # units are those of all rows
    few[np.arange(len(y)) % 50 > 10] = -1
    model.fit(X, few)
    assert (model.temperature_, model.doubt_) == (5.0, 20 / (40 + 6))
    assert model.predict_proba(X).max() <= 0.79


# -- calibration -------------------------------------------------------------------------------


def test_probabilities_with_holes_are_calibrated():
    """With a third of the features missing, the mean confidence is near the accuracy."""
    X, y = load_breast_cancer(return_X_y=True)
    model = MixtureClassifier(random_state=0).fit(X[::2], y[::2])
    rest, truth = X[1::2].copy(), y[1::2]
    rest[np.random.default_rng(0).random(rest.shape) < 1 / 3] = np.nan
    proba = model.predict_proba(rest)
    right = (proba.argmax(1) == truth).mean()
    assert abs(proba.max(1).mean() - right) < 0.05


def test_the_temperature_fades_with_the_features():
    """Whole rows have all of it, empty ones none."""
    joint = np.array([[0.0, 8.0]] * 3)
    missing = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
    found = Calibration(4.0, 0.0, 1.0).log_proba(torch.from_numpy(joint), missing)
    expected = [8.0 / 4.0, 8.0 / 2.0, 8.0]
    np.testing.assert_allclose(found[:, 1] - found[:, 0], expected)


# -- what must not matter --------------------------------------------------------------------


HOLDS_OUT = {
    "mixture": MixtureClassifier(1, density="diag", solver=LBFGS(10), random_state=0),
    "boosted": BoostedMixtureClassifier(n_stages=3, solver=EM(20), random_state=0),
    "network": MixtureNetworkClassifier(
        2,
        embedding="log_density",
        solver=LinkedEM(10, end_to_end=False),
        init=EM(10, 0.01),
        random_state=0,
    ),
}


@pytest.mark.parametrize("name", HOLDS_OUT)
def test_copies_and_order_of_rows_do_not_matter(name, iris, rng):
    """Also where rows are held out: copies of a row are one row of their weight."""
    rows = np.unique(np.column_stack(iris), axis=0)[::2]
    X, y = rows[:, :-1], rows[:, -1].astype(int)
    count, order = rng.integers(1, 4, len(y)), rng.permutation(len(y))
    weighted, repeated, permuted = (
        clone(HOLDS_OUT[name]).fit(*data, sample_weight=weight)
        for data, weight in (
            ((X, y), count),
            ((X.repeat(count, 0), y.repeat(count)), None),
            ((X[order], y[order]), count[order]),
        )
    )
    assert weighted.temperature_ != 1.0  # held-out rows had a say
    for other in (repeated, permuted):
        np.testing.assert_allclose(other.predict_proba(X), weighted.predict_proba(X), atol=1e-6)


def test_few_different_rows_with_many_copies_are_calibrated():
    """Copies of a row with one label are not held out together, as if that were never seen."""
    X = np.repeat([[0.0], [1.0], [2.0]], 40, axis=0)
    y = np.concatenate([np.arange(40) < 10, np.arange(40) < 12, np.arange(40) < 30])
    proba = clone(HOLDS_OUT["mixture"]).fit(X, y).predict_proba(X[::40])[:, 1]
    np.testing.assert_allclose(proba, [0.25, 0.3, 0.75], atol=0.1)


# -- the clock ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver", [LBFGS(100_000), Adam(100_000, early_stopping=False), EBW(100_000)], ids=str
)
def test_max_time_ends_a_fit(solver, clock):
    """A fit that would go on and on ends at its time with a usable model."""
    X, y = make_classification(1000, 30, n_informative=20, n_classes=4, random_state=0)
    settings = {**FIXED, "n_components": 4, "solver": solver, "init": EM(tol=0.0)}
    settings |= {"calibrate": False}
    model = MixtureClassifier(max_time=0.4, **settings).fit(X, y)
    assert 0.4 <= clock.now < 0.6
    assert not model.converged_
    assert model.score(X, y) > 0.4


def test_max_time_of_the_density(wine, clock):
    """The unsupervised estimator has a clock too."""
    model = MixtureDensity(5, max_time=0.1, solver=EM(10**6, 0.0)).fit(wine[0])
    assert 0.1 <= clock.now < 0.3
    assert not model.converged_
    assert model.score(wine[0]) > MixtureDensity(1).fit(wine[0]).score(wine[0])


def test_the_clock_of_a_part(clock):
    """Work on the side gets a share of what is left; no limit stays no limit."""
    assert Progress().part(0.5).time_spent == 0.0
    begun = Progress(max_time=1.0)
    clock.now += 0.5 - 2 * clock.tick
    assert begun.part(0.5).time_spent == pytest.approx(clock.tick / 0.25, rel=0.1)
    clock.now += 0.5
    assert begun.time_spent >= 1.0
    assert begun.part(0.5).step({"objective": 0.0})


def test_engines_agree_where_nothing_is_punched(iris, generator):
    """A share of zero leaves every sum as it was."""
    plain = engine_of(*iris)
    density = DiagonalGaussian.from_clusters(
        plain.all_rows().x, torch.ones(150, 1).double(), 1e-3, generator
    )
    sums = [
        engine.sum(lambda b: {"x": (b.x * b.weight[:, None]).sum(0)}, density)["x"]
        for engine in (plain, PunchedEngine(plain, 0.0, generator))
    ]
    torch.testing.assert_close(*sums)


def test_calibration_is_where_the_slope_vanishes(rng):
    """The derivatives are those of finite differences, and no other start finds less."""
    y, missing = rng.integers(3, size=60), np.repeat([0.0, 0.4], 30)
    joint = 8.0 * rng.normal(size=(60, 3))
    joint[np.arange(60), y] += 12.0 * (rng.random(60) < 0.8)
    evidence = rng.normal(size=(60, 3))
    answers = Answers(rng.uniform(0.5, 2.0, 60), missing > 0.0, joint, missing, y, evidence)

    def loss(point):
        return answers._loss_and_slope(point)[0]

    for point in np.array([[0.0, 1.0, -3.0], [1.5, 0.3, -1.0], [-1.0, 2.5, 1.0]]):
        slope = approx_fprime(point, loss, 1e-7)
        np.testing.assert_allclose(answers._loss_and_slope(point)[1], slope, 1e-4, 1e-4)
    found = answers.calibration
    point = [np.log(found.temperature), found.fade, logit(found.doubt / 0.5)]
    least = loss(np.array(point))
    plain = minimize(loss, [1.0, 1.0, -2.0], method="Nelder-Mead", options={"maxiter": 2000})
    assert least <= plain.fun + 1e-6
