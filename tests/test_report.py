"""A fitted estimator as HTML: in notebooks, and as a file."""

import html
import re
import sys
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import norm
from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    log_loss,
    precision_score,
    r2_score,
    recall_score,
)
from sklearn.pipeline import make_pipeline

from mixtura import (
    MixtureClassifier,
    MixtureDensity,
    MixtureImputer,
    MixtureNetworkRegressor,
    MixtureRegressor,
    PairwiseClassifier,
    SequenceMixtureClassifier,
    SparseMixtureClassifier,
)
from mixtura.datasets import make_hmm_sequences
from mixtura.densities import Full
from mixtura.exceptions import InvalidInputError
from mixtura.report.portrait import describe
from mixtura.report.subject import in_time
from mixtura.solvers import EM

pd = pytest.importorskip("pandas")

X, Y = load_iris(return_X_y=True)
HOSTILE = "<script>alert('x')</script>"
VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """What a page consists of; elements that are not closed, or wrongly, are an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.text, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def check_safe(page):
    """No scripts, no handlers of events, nothing from elsewhere."""
    assert not {"script", "iframe", "object", "embed", "link", "form"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on")
        if name in ("src", "href", "xlink:href"):
            assert value.startswith("#")


# -- notebooks ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hostile():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:, 1:], columns=[HOSTILE, "b & c", '"quoted"'])
    frame["word"] = np.where(X[:, 3] > 1, HOSTILE, "plain")
    labels = np.array([HOSTILE, "<b>bold", "c\u202e\x00\ud800"])[Y]
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    return model.fit(frame, labels), frame, labels


def test_a_notebook_shows_what_a_model_is(hostile):
    shown = hostile[0]._repr_html_()
    assert shown == hostile[0]._repr_mimebundle_()["text/html"]
    assert len(shown) < 8_000
    page = Page(shown)
    check_safe(page)
    assert HOSTILE in page.words
    assert "<b>bold (0.33)" in page.words
    for what in ("MixtureClassifier", "training rows", "150", "3 of numbers, 1 of categories"):
        assert what in page.words


@pytest.mark.filterwarnings("ignore:1 column.* constant")
def test_a_notebook_says_that_components_are_wider_than_clusters():
    """Beside the log densities that rows were drawn from, which a lower floor finds."""
    rng = np.random.default_rng(0)
    centers, kind = rng.uniform(size=(6, 2)), np.arange(300) % 6
    rows = centers[kind] + 0.005 * rng.normal(size=(300, 2))
    true = norm.logpdf(rows, centers[kind], 0.005).sum(1) - np.log(6)
    table, seen = (np.insert(rows, 2, value, axis=1) for value in (1.0, np.nan))
    for floor, said in ((0.01, True), (1e-6, False)):
        model = MixtureClassifier(3, density=Full(floor), objective="likelihood", prior_rows=0)
        model.set_params(random_state=0).fit(table, kind % 2)
        assert ("67% of their variances are held at the floor" in model._repr_html_()) == said
        assert (model.score_samples(seen).mean() < true.mean() - 2.0) == said


def test_a_notebook_shows_what_was_compared():
    page = Page(MixtureDensity(1, random_state=0).fit(X)._repr_html_())
    assert "4 candidate(s) compared on held-out rows" in page.words
    assert page.words.count("chosen") == 1
    assert "Diagonal(floor=0.01)" in page.words


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (SparseMixtureClassifier(1, random_state=0), "weights that are left"),
        (PairwiseClassifier(MixtureClassifier(1, objective="likelihood")), "pairs of classes 3"),
        (MixtureImputer(1, random_state=0), "components 1"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_every_estimator_has_something_to_show(model, told):
    plain = Page(model.fit(X, Y)._repr_html_())
    check_safe(plain)
    assert told in plain.words


def test_what_is_not_fitted_keeps_the_diagram_of_scikit_learn(hostile):
    model = hostile[0]
    assert "sk-top-container" in clone(model)._repr_html_()
    assert f"/api/mixtura.{type(model).__name__}.html" in clone(model)._repr_html_()
    assert "sk-top-container" in make_pipeline(model)._repr_html_()
    with config_context(display="text"):
        assert not hasattr(model, "_repr_html_")
        assert set(model._repr_mimebundle_()) == {"text/plain"}


# -- a report ----------------------------------------------------------------------------------

SECTIONS = ["data", "model", "quality", "confusion", "features", "classes", "rows", "next", "card"]


@pytest.fixture(scope="module")
def report(hostile, tmp_path_factory):
    pytest.importorskip("matplotlib")
    model, frame, labels = hostile
    path = tmp_path_factory.mktemp("report") / "report.html"
    holed = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.1)
    model.report(path, holed, labels, max_time=60.0)
    return path.read_text(encoding="utf-8"), model, holed, labels


def cells(page, about):
    """The rows of the table with a caption, as text."""
    (found,) = re.findall(rf"<table><caption>{about}.*?</table>", page, re.DOTALL)
    lines = re.findall(r"<tr>(.*?)</tr>", found, re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in lines]


def test_a_report_is_one_safe_file_that_all_can_read(report):
    text = report[0]
    assert text.startswith("<!doctype html>")
    assert len(text) < 600_000
    page = Page(text)
    check_safe(page)
    assert "@import" not in text
    assert not re.findall(r"url\((?!#)", text)
    allowed = r"(?<!xmlns=\")(?<!xmlns:xlink=\")https?://"
    assert not re.findall(allowed, text)
    named = dict(page.attributes)
    assert named["lang"] == "en"
    assert "width=device-width" in text
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text
    headings = [int(tag[1]) for tag in page.tags if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert [each for each in ids if each in SECTIONS] == SECTIONS
    assert page.tags.count("svg") == page.tags.count("figcaption") >= 5
    assert text.count('role="img" aria-label="') == page.tags.count("svg")
    assert "#000000" not in text


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_a_report_in_a_browser(report, browser, tmp_path, width, scheme):
    """It fits the screen, asks for nothing else, and its colors can be read."""
    (tmp_path / "report.html").write_text(report[0], encoding="utf-8")
    page, said = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme), []
    page.on("console", lambda message: said.append(message.text))
    page.on("request", lambda request: said.append(request.url))
    page.goto((tmp_path / "report.html").as_uri())
    assert said == [(tmp_path / "report.html").as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ink, paper = (
        page.evaluate(f"getComputedStyle(document.body).{name}")
        for name in ("color", "backgroundColor")
    )
    assert page.evaluate("getComputedStyle(document.querySelector('svg')).color") == ink
    light, dark = sorted(map(luminance, (ink, paper)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) > 7.0
    assert (luminance(paper) < 0.1) == (scheme == "dark")
    page.close()


def luminance(color):
    """Of a color such as "rgb(0, 0, 0)", as the guidelines on accessibility have it."""
    share = np.array(re.findall(r"\d+", color), dtype=float) / 255.0
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_a_report_shows_hostile_names_as_they_are(report):
    page = Page(report[0])
    for name in (HOSTILE, "<b>bold", "b & c", '"quoted"', "c\ufffd\ufffd\ufffd"):
        assert name in page.words


def test_a_report_agrees_with_scikit_learn(report):
    text, model, rows, labels = report
    proba, said = model.predict_proba(rows), model.predict(rows)
    error = 1.0 - accuracy_score(labels, said)
    first = cells(text, "Errors, whole and with entries missing")[1]
    loss = log_loss(labels, proba, labels=model.classes_)
    assert first[:4] == ["0.0 %", "150", f"{100 * error:.1f} %", f"{loss:.4f}"]
    found = np.array([row[1:] for row in cells(text, "Confusion matrix")[1:]], dtype=int)
    np.testing.assert_array_equal(found, confusion_matrix(labels, said))
    each = [row[1:] for row in cells(text, "Each class")[1:]]
    precision = precision_score(labels, said, average=None)
    recall = recall_score(labels, said, average=None)
    assert [row[1:] for row in each] == [
        [f"{100 * p:.1f} %", f"{100 * r:.1f} %"] for p, r in zip(precision, recall, strict=True)
    ]
    missing = [row[3] for row in cells(text, "Columns")[1:]]
    assert missing == [f"{100 * share:.1f} %" for share in rows.isna().mean()]


def test_a_report_orders_columns_by_what_they_tell(report):
    text, model, rows, _ = report
    nats = model.next_feature(rows.iloc[:1].map(lambda value: None), random_state=1)[0]
    first = cells(text, "Which measurement to take first")[1]
    assert html.unescape(first[0]) == rows.columns[nats.argmax()]
    assert float(first[1]) == pytest.approx(nats.max(), abs=0.02)


def test_components_are_described_by_what_sets_them_apart():
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    words = np.where(labels == 1, "often", "never")
    rows = np.empty((200, 3), dtype=object)
    rows[:, 0], rows[:, 1], rows[:, 2] = 6.0 * labels + rng.normal(size=200), rng.random(200), words
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    low, high = describe(model.fit(rows, labels).model_, ["size", "noise", "word"])
    assert re.search(r"size low \(-?0\.\d+; all rows (2\.9|3\.)", low)
    assert re.search(r"size high \((5\.9|6\.)", high)
    assert "word = often in 9" in high
    assert "noise" not in low + high


def test_answers_end_when_time_is_up(monkeypatch):
    now = iter(np.arange(0.0, 100.0))
    monkeypatch.setattr("mixtura.report.subject.time.perf_counter", lambda: next(now))
    assert len(in_time(10_000, 3.5, lambda rows: rows)) < 500
    now = iter(np.zeros(1000))
    np.testing.assert_array_equal(in_time(10_000, 1.0, lambda rows: rows), np.arange(10_000))


def test_strange_rows_are_found_and_said_to_be_many(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    for part in ("quality", "portrait"):
        monkeypatch.setattr(f"mixtura.report.{part}.picture", lambda *rest: "")
    monkeypatch.setattr(
        "mixtura.report.portrait.next_feature", lambda _, rows, *rest: np.zeros((len(rows), 2))
    )
    labels = np.arange(60) % 2
    rows = np.random.default_rng(0).normal(size=(60, 2)) + labels[:, None]
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    model.fit(rows, labels)
    odd, all_odd = rows.copy(), rows + 30.0
    odd[7], odd[9, 0] = 30.0, np.nan
    text = {}
    for name, given in {"odd": odd, "all odd": all_odd}.items():
        model.report(tmp_path / "strange.html", given, labels, max_time=60.0)
        text[name] = (tmp_path / "strange.html").read_text()
    assert cells(text["odd"], "The least likely rows")[1][:2] == ["7", "1"]
    assert "7" not in [row[0] for row in cells(text["odd"], "The likeliest row of each class")]
    said = "these rows are not like those of training"
    assert (said in text["odd"], said in text["all odd"]) == (False, True)
    assert len(cells(text["odd"], "What to measure next, of 1 rows")) == 1  # names alone


def test_many_rows_are_sampled_and_it_says_so(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("mixtura.report.subject._MOST_ROWS", 250)
    for part in ("quality", "portrait"):
        monkeypatch.setattr(f"mixtura.report.{part}.picture", lambda *rest: "")
    monkeypatch.setattr("mixtura.report.subject.in_time", lambda *given: given[2](np.arange(32)))
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(16), 20)
    rows = labels[:, None] + 0.3 * rng.normal(size=(320, 2))
    model = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    model.fit(rows, labels)
    marked = np.where(np.arange(320) < 10, -1, labels)
    model.report(tmp_path / "many.html", rows, marked, max_time=60.0)
    page = Page((tmp_path / "many.html").read_text())
    assert "32 rows of 16 classes, drawn at random from 310" in page.words
    assert "250 of the 310 labeled rows were looked at" in page.words
    assert "Time allowed predictions for 32 of these rows" in page.words
    assert "10 rows without a label are left out" in page.words
    assert "Classes that are confused most often" in page.words


def test_models_without_a_density_of_rows_have_a_shorter_report(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("mixtura.report.quality.picture", lambda *rest: "")
    short = ["data", "model", "quality", "confusion", "card"]
    sequences = make_hmm_sequences(3, random_state=0)
    settings = {"method": "ml", "init": EM(max_iter=2), "calibrate": False, "random_state": 0}
    one = MixtureClassifier(1, density="diag", objective="likelihood", random_state=0)
    for model, rows, labels in (
        (SparseMixtureClassifier(1, random_state=0), X, Y),
        (SequenceMixtureClassifier(1, **settings), sequences.data, sequences.target),
        (one, X, np.zeros(150)),
    ):
        model.fit(rows, labels).report(tmp_path / "short.html", rows, labels)
        text = (tmp_path / "short.html").read_text()
        found = [value for name, value in Page(text).attributes if name == "id"]
        assert [each for each in found if each in SECTIONS] == short


def test_bad_input_is_refused_before_work_and_leaves_the_old_file(hostile, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    model, frame, labels = hostile
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(type(model), "predict_proba", None)  # work would fail otherwise
    for rows, told, options in (
        (frame, np.where(labels == HOSTILE, "unknown", labels), {}),
        (frame, labels[:-1], {}),
        (frame, [None] * 150, {}),
        (frame.rename(columns={"word": "other"}), labels, {}),
        (frame.iloc[:0], labels[:0], {}),
        (frame, labels, {"max_time": 0.0}),
    ):
        with pytest.raises(ValueError, match=r"y |no label|match|sample|max_time"):
            model.report(path, rows, told, **options)
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        model.report(tmp_path / "nowhere" / "report.html", frame, labels)
    with pytest.raises(InvalidInputError, match=r"report.pdf: .*end in .html or .md"):
        model.report(tmp_path / "report.pdf", frame, labels)
    with pytest.raises(InvalidInputError, match="is a folder"):
        model.report(tmp_path, frame, labels)
    with pytest.raises(NotFittedError):
        clone(model).report(path, frame, labels)
    with pytest.raises(TypeError):  # while it works
        model.report(path, frame, labels)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"mixtura\[plot\]"):
        model.report(path, frame, labels)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.fixture(scope="module")
def regressor():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"length": rng.normal(size=90), "<b>kind": ["a", "b", "c"] * 30})
    y = 3.0 * frame["length"].to_numpy() + (frame["<b>kind"] == "a") + rng.normal(size=90)
    return MixtureRegressor(1, marginals="linear", random_state=0).fit(frame, y), frame, y


def test_a_report_on_a_regressor_agrees_with_scikit_learn(regressor, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("mixtura.report.numbers._SHARES", (0.0,))
    monkeypatch.setattr("mixtura.report.numbers._EXPLAINED", 4)
    model, frame, y = regressor
    model.report(tmp_path / "report.html", frame, np.append(y[:-1], np.nan), random_state=0)
    text = (tmp_path / "report.html").read_text()
    page = Page(text)
    check_safe(page)
    assert f"R² {r2_score(y[:-1], model.predict(frame[:-1])):.3f}" in page.words
    low, high = model.predict_interval(frame[:-1]).T
    covered = np.mean((low <= y[:-1]) & (y[:-1] <= high))
    assert f"{100 * covered:.1f} %" in page.words
    found = [value for name, value in page.attributes if name == "id"]
    sections = ["data", "model", "quality", "features", "rows", "card"]
    assert [each for each in found if each in sections] == sections


def test_a_card_is_a_file_of_its_own(regressor, hostile, tmp_path, monkeypatch):
    for module in ("numbers._SHARES", "subject.SHARES"):
        monkeypatch.setattr(f"mixtura.report.{module}", (0.0,))
    for model, frame, y in (regressor, hostile):
        model.report(tmp_path / "card.md", frame, y, max_time=60.0)
        text = (tmp_path / "card.md").read_text()
        assert text.startswith("---\nlibrary_name: mixtura\n")
        assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == [
            *("The model", "What it does", "What it cannot do", "How this was found out"),
        ]
        assert not re.search(r"(?<!\\)[<>&$]", text)
        assert re.search(r"hold \d+ training rows", text)


def test_a_network_regressor_has_a_report(regressor, tmp_path):
    pytest.importorskip("matplotlib")
    _, frame, y = regressor
    model = MixtureNetworkRegressor(2, embedding="log_density", init=EM(max_iter=2), random_state=0)
    model.fit(frame, y).report(tmp_path / "report.html", frame, y, max_time=60.0)
    words = Page((tmp_path / "report.html").read_text()).words
    assert "no intervals without rows" in words
    assert "Which columns matter" in words
    with pytest.raises(InvalidInputError, match="fewer than two rows"):
        model.report(tmp_path / "report.html", frame, np.full(90, np.nan))
