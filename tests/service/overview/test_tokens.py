"""What the overview of a contrast shows of the tokens that its direction raises and lowers."""

import numpy as np
import pandas as pd
import pytest
from support.finished_runs import cached_run

from theodolite.overview import facts
from theodolite.overview.view import overview_html

AUROC = np.array([[0.5, 0.6, 0.7, 0.6], [0.6, 0.6, 0.95, 0.6]])[:, None, :, None]


def tokens(site, layer):
    """Return eight tokens at each end; the first ones are beyond the limit of 5."""
    texts = {"raised": [" <i>no", " a&b", '"', "\n", "x", "y", "seventh", "z"], "lowered": ["yes"] * 8}
    return pd.DataFrame(
        [
            {"site": site, "layer": layer, "end": end, "place": place, "token": token}
            | {"change": sign * (1.25 - place / 10), "z": sign * (9.0 - 2 * place)}
            for end, sign in (("raised", 1), ("lowered", -1))
            for place, token in enumerate(texts[end])
        ]
    )


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    def drawn(table=tokens, groups=(), **place):
        values = {"curves": {}, "directions": {}, "separation": {"auroc": AUROC, "n_used": [20, 21]}}
        run = cached_run(tmp_path, values | {name: {} for name in groups}, attributes={"limit": 5.0})
        scores = pd.DataFrame(columns=["set", "sample", "side", "score", "margin", "text"])
        monkeypatch.setattr(facts, "_scores", lambda *_: scores)
        if groups:
            monkeypatch.setattr(facts, "read_direction_tokens", lambda *at: table(*at[3:]))
        return str(overview_html(run, facts.read_overview(run, **place)))

    return drawn


def test_the_first_tokens_of_both_ends_stand_with_their_z(drawn):
    html = drawn(groups=["logit_lens"])
    assert html.count("<li") == 12  # no more than six of each end
    assert "seventh" not in html
    raised, lowered = html.index("the direction raises"), html.index("the direction lowers")
    assert raised < html.index("·a&amp;b") < lowered < html.index("<b>yes</b>")
    assert '<li title="+1.2 nats, z = 9.0"><b>·&lt;i&gt;no</b> <small>9.0</small></li>' in html
    assert "<i>no" not in html
    assert "<b>⏎</b>" in html
    # A |z| of 9 and 7 is beyond the limit; the other four of each end are pale.
    assert html.count("class=faint") == 8
    assert '<li class=faint title="+1.1 nats, z = 5.0"><b>&#34;</b> <small>5.0</small></li>' in html


def test_the_tokens_are_those_of_the_selected_depth(drawn):
    asked = []

    def table(site, layer):
        asked.append((site, layer))
        return tokens(site, layer)

    html = drawn(table, ["logit_lens"])
    assert "Tokens by the logit lens at layer 2 mid" in html
    drawn(table, ["logit_lens"], site="resid_pre", layer=1)
    assert asked == [("resid_mid", 2), ("resid_pre", 1)]


def test_a_missing_z_is_pale_and_leaves_no_nan(drawn):
    html = drawn(lambda *at: tokens(*at).assign(z=np.nan), ["logit_lens"])
    assert html.count("class=faint") == 12
    assert ">nan<" not in html
    assert "z = unknown" in html


def test_without_the_analysis_or_at_a_depth_without_tokens_nothing_is_shown(drawn):
    assert "the direction raises" not in drawn()
    assert "logit lens" not in drawn(lambda *at: tokens(*at).iloc[:0], ["logit_lens"])
