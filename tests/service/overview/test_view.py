"""The HTML of an overview: every number and text of it, escaped, without the texts of prompts if they are withheld."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from support.finished_runs import cached_run, merged
from support.overview_cases import AUROC, RESULTS, estimate, overview_run, twin_difference

from theodolite.overview.facts import Badge, read_overview
from theodolite.overview.tiles import Tile
from theodolite.overview.view import overview_html, overview_style

HOSTILE = '<script>alert(1)</script>" onload="x'


def scored(*scores, text="a prompt", names=("harmful", "harmless")):
    """Return scores of both sets; those of the negative set have the opposite sign."""
    sides = zip(("positive", "negative"), names, (1, -1), strict=True)
    rows = [
        {
            "set": name,
            "sample": sample,
            "side": side,
            "score": sign * score,
            "margin": score,
            "text": f"{text} {sample}",
        }
        for side, name, sign in sides
        for sample, score in enumerate(scores)
    ]
    return pd.DataFrame(rows)


def html_of(run, scores=None, **options):
    overview = read_overview(run)
    return str(overview_html(run, overview if scores is None else replace(overview, scores=scores), **options))


@pytest.fixture
def run(tmp_path):
    return overview_run(tmp_path)


def test_the_tiles_the_badges_and_the_sentence_are_there_with_the_depth(run):
    overview, html = read_overview(run), html_of(run)
    texts = [one for tile in overview.tiles for one in (tile.question, tile.answer, tile.number, tile.rule)]
    texts += [one for badge in overview.badges for one in (badge.label, badge.text)]
    shown = re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", html))
    for text in [*texts, overview.sentence, "held-out prompts at layer 2 pre"]:
        assert re.sub(r"\s+", " ", text) in shown.replace("&#39;", "'"), text
    assert 'data-contrast="refusal" data-site="resid_pre" data-layer="2"' in html
    assert f'data-places="{overview.place_names}"' in html
    assert "No scores of single prompts are stored" in html


class Balanced(HTMLParser):
    """Collects the tags that are open."""

    def __init__(self):
        super().__init__()
        self.open, self.handlers = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_every_value_is_escaped_and_all_tags_are_closed(tmp_path, run):
    for shown in (html_of(run), html_of(run, scored(2.0, -1.0, text=HOSTILE, names=(HOSTILE, "harmless")))):
        parser = Balanced()
        parser.feed(shown)
        assert parser.open == parser.handlers == []
        assert "<script" not in shown
    assert "&lt;script&gt;alert(1)" in shown
    tile, badge = Tile(HOSTILE, HOSTILE, HOSTILE, HOSTILE), Badge(HOSTILE, HOSTILE)
    hostile = overview_html(run, replace(read_overview(run), sentence=HOSTILE, tiles=[tile], badges=[badge]))
    assert "<script" not in hostile
    assert hostile.count("&lt;script&gt;") == 1 + 6 + 2


def test_the_most_misplaced_prompts_are_named_with_their_texts(run):
    html = html_of(run, scored(2.0, -0.5, -1.5))
    listed = re.findall(r'<li><span class="(\w+)">(\w+ \d)</span> ([+-][\d.]+): (.*)</li>', html)
    assert listed == [
        ("positive", "harmful 2", "-1.5", "a prompt 2"),
        ("negative", "harmless 2", "+1.5", "a prompt 2"),
        ("positive", "harmful 1", "-0.5", "a prompt 1"),
    ]
    assert html.count("2 of 3 on the other side") == 2
    assert "most wrongly placed" not in html_of(run, scored(2.0, 1.0))
    long = html_of(run, scored(-1.0, text="word " * 100))
    assert max(map(len, re.findall(r"word [^<]*", long))) < 115


def test_texts_are_left_out_on_request_and_those_of_the_built_in_harmful_prompts_are_folded(run):
    scores = scored(2.0, -0.5, -1.5, text="secret")
    assert "secret" not in html_of(run, scores, texts="none")
    assert "harmful 2" in html_of(run, scores, texts="none")
    spec = run.record.spec
    harmful = spec.sets["harmful"].model_copy(update={"source": "builtin:harmful"})
    spec = spec.model_copy(update={"prompts": {**spec.prompts, "harmful": harmful}})
    built_in = html_of(replace(run, record=run.record.model_copy(update={"spec": spec})), scores)
    assert "<details><summary>text</summary>secret 2</details>" in built_in
    assert ": secret" in built_in, "those of the other set are not"
    assert not re.search(r"harmful \d</span> [+-][\d.]+: secret", built_in)


def paths(html, kind):
    return re.findall(rf'<path class="{kind}" d="([^"]*)"', html)


def test_the_curve_stands_before_chance_words_and_the_untrained_twin(tmp_path, monkeypatch, run):
    html = html_of(run)
    for text in ("AUROC", "95 % of chance, all depths", "token counts alone", "cosine of means (debiased)"):
        assert text in html
    assert "untrained twin<" not in html
    main = html[html.index("data-depths") : html.index('class="three"')]
    assert len(paths(main, "area chance")) == len(paths(main, "area band")) == len(paths(main, "area interval")) == 1
    assert main.index("area chance") < main.index("line limit") < main.index("line main")
    assert paths(main, "line main")[0].count("L") == 7
    assert paths(main, "dots main")[0].count("h0") == 4, "filled from layer 2 on"
    assert paths(main, "dots hole")[0].count("h0") == 4
    assert main.count('class="bracket"') == main.count('class="unreliable"') == 1
    assert main.count('class="strip"') == 8
    facts = run.record.model.model_copy(update={"name": "tiny (random weights)", "weights": "random", "seed": 3})
    twin = {"auroc": estimate(np.array([0.5, 0.55, 0.6, 0.6]), 0.02, 0.05)}
    overview_run(tmp_path, "tiny-random-weights-0", facts, separation=twin)
    monkeypatch.setattr("theodolite.query.twin.auroc_difference", twin_difference({}))
    assert '<span class="end control"' in html_of(run)
    assert "untrained twin<" in html_of(run)


def test_missing_numbers_are_gaps_and_never_written(tmp_path):
    gaps = {name: np.where(np.arange(4) == 1, np.nan, ends) for name, ends in AUROC.items()}
    without_band = {"band_low": np.nan, "band_high": np.nan, "low": np.nan, "high": np.nan}
    cases = [
        {"separation": {"auroc": gaps}},
        {"separation": {"auroc": without_band}, "permutations": None, "effects": None},
        {"separation": {"auroc": dict.fromkeys(AUROC, np.nan)}, "directions": {"reliability": np.nan}},
        {"curves": {"variance_mean": {"raw": 0.0}, "variance_max": {"raw": np.array([0.0, 1, 2, np.nan])}}},
    ]
    for number, changes in enumerate(cases):
        html = html_of(overview_run(tmp_path / str(number), **changes))
        assert not re.search(r"\bnan\b|\binf\b", html.lower()), number
    assert paths(html_of(overview_run(tmp_path / "0", run_id="again-0", **cases[0])), "line main")[0].count("M") == 2


def test_scores_without_spread_lie_at_the_ends(run):
    """At a depth where no prompt differs from its set, the scores are infinitely many deviations away."""
    html = html_of(run, scored(np.inf, np.inf, 1.0))
    points = paths(html, "dots positive")[-1]
    assert points.count("M991.7") == 2


def test_two_lines_that_coincide_are_drawn_as_their_ratio(tmp_path):
    rise = np.array([1.0, 10.0, 100.0, 1000.0])
    sets = lambda ratio: {"raw": {"harmful": rise, "harmless": rise / ratio}}  # noqa: E731
    html = html_of(overview_run(tmp_path, curves={"variance_mean": sets(1.01), "variance_max": sets(50.0)}))
    assert "mean variance, ratio of sets" in html
    assert "largest variance</p>" in html
    assert len(paths(html, "line positive")) == len(paths(html, "line negative")) == 1


def test_a_run_of_one_layer_has_an_overview(tmp_path):
    groups = {name: merged(of, {}) for name, of in RESULTS.items() if name in ("curves", "directions")}
    groups["directions"]["reliability"] = 0.9
    groups["separation"] = {"auroc": {"value": 0.8, "low": 0.7, "high": 0.9}, "n_used": 20}
    html = html_of(cached_run(tmp_path, groups, layers=[2], sites=["resid_mid"]))
    assert "0.800 AUROC, layer 2 mid" in html
    assert "nan" not in html


def test_the_style_needs_nothing_else(run):
    assert "url(" not in overview_style()
    assert "@import" not in overview_style()
