"""Races and challenges on held-out rows, of models whose losses are known."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from mixtura.data.scaling import Scaling
from mixtura.densities import Full
from mixtura.engines import Engine
from mixtura.progress import Progress
from mixtura.selection.chooser import Chooser
from mixtura.selection.held_out import Losses


@dataclass
class Way:
    """Models of known losses: of each stage, one number for all folds or one per fold.

    Those of single rows lie around it, `spread` apart.
    """

    name: str
    losses: Any
    spread: float = 8.0
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
    off = np.arange(len(held_out)) - 0.5 * (len(held_out) - 1)
    np.random.default_rng(list(way.name.encode())).shuffle(off)
    values = loss + way.spread * off.repeat(2)
    return Losses(weight, np.arange(len(weight)) % 2 == 1, values)


def numbered(n, n_classes=2, weight=None):
    """Rows that hold their numbers, in classes that take turns."""
    rows, y = np.arange(float(n))[:, None], np.arange(n) % n_classes
    options = {"scaling": Scaling.identity(1), "device": torch.device("cpu")}
    return Engine(rows, y, weight, **options)


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


@pytest.mark.parametrize(("errors", "n_trials"), [(4.3, 1), (3.7, 2)])
def test_a_way_far_behind_leaves_after_one_fold(errors, n_trials):
    """Four standard errors of the mean of 25 rows, whose losses are evenly spread."""
    spread = 2.0 / errors / np.sqrt((25**2 - 1) / 12 / 25)
    bad, good, worse = Way("bad", 3.0, spread), Way("good", 1.0, 0.0), Way("worse", 3.0, spread)
    chooser = make_chooser(numbered(100), 3)
    champion = chooser.race([bad, good])
    assert champion.way is good
    assert chooser.challenge(champion, [worse]) is champion
    assert trials(bad, good, worse) == [n_trials, 4, n_trials]


def test_models_are_compared_row_by_row():
    """Each has its rows and copies in an order of its own, by chunks; few rows tell little."""
    rng = np.random.default_rng(0)
    whole, copies, weight = rng.normal(size=(3, 40)) ** 2
    mine = Losses(np.tile(weight, 2), np.arange(80) >= 40, np.concatenate([whole, copies]))
    values = np.column_stack([whole, copies]).reshape(-1) + rng.normal(0.5, 0.1, size=80)
    theirs = Losses(weight.repeat(2), np.arange(80) % 2 == 1, values)
    assert theirs.far_behind(mine)
    assert mine.clearly_beats(theirs)
    assert mine.surely_beats(theirs)
    assert not mine.far_behind(theirs)
    assert not theirs.surely_beats(mine)
    few = Losses(theirs.weight[:48], theirs.punched[:48], values[:48])
    better = replace(few, values=values[:48] - 9.0)
    assert better.surely_beats(few)
    assert not few.far_behind(better)
    lost = replace(theirs, values=np.full(80, np.inf))
    assert lost.far_behind(mine)
    assert not mine.far_behind(lost)
    assert not lost.far_behind(lost)


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
    way = Way("staged", losses, spread=0.0)
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
    return Engine(np.arange(float(n))[:, None], y, **options)


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


def test_a_race_that_time_ends_compares_folds_that_all_have_met(clock):
    """The second fold, which is harder, would speak against who met it."""
    clock.tick = 0.0

    class Slow(Way):
        def stages(self, engine, generator, progress):
            clock.now += 0.1
            return super().stages(engine, generator, progress)

    better, worse = Slow("better", [[1.0], [9.0], [9.0]]), Slow("worse", 2.0)
    chooser = make_chooser(numbered(100), 2, Progress(max_time=1.0), until=0.27)
    assert chooser.race([better, worse]).way is better
    assert trials(better, worse) == [2, 1]


@pytest.mark.parametrize(
    ("losses", "n_trials", "won"),
    [(1.9, 2, True), (2.0, 2, True), (2.1, 1, False), ([[1.0], [4.0]], 2, False)],
)
def test_a_way_with_units_of_its_own_leaves_where_it_is_behind(losses, n_trials, won):
    """The one beside which it is to stand; every fold has units that its rows had no part in."""
    chooser = make_chooser(numbered(420), 2)
    first, way, shown = chooser.race([Way("first", 2.0)]), Way("found", losses), []

    def units(engine):
        shown.append(engine.all_rows().x[:, -1].tolist())
        return Scaling.identity(1)

    found = chooser.try_found(way, units, beside=first)
    assert (trials(way), found.won, len(found.units)) == ([n_trials], won, n_trials)
    for rows, (trained, _, _, judged, _) in zip(shown, way.met, strict=True):
        assert rows == trained
        assert not set(rows) & set(judged)
    alone = Way("alone", losses)
    assert chooser.try_found(alone, units).won
    assert trials(alone) == [2]


@pytest.mark.parametrize("n_rows", [100, 900])
def test_a_model_of_a_fold_is_none_of_all_rows(n_rows):
    """One that cannot be trained together with others has one model per trial."""

    class Alone(Way):
        together = False

        def trials(self, engine, folds, generator, progress):
            self.met.append(())
            return [(self, 1.0)]

    contender = make_chooser(numbered(n_rows)).try_out(Alone("alone", 1.0))
    assert contender.won
    assert contender.whole is None


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
