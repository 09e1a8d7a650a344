"""Terms of the glossary as links in the sentences of a report."""

from theodolite_jobs.report.glossary import Linked, anchor, terms


def test_statistics_are_terms_and_everyday_words_are_not():
    assert {"AUROC", "debiased cosine", "participation ratio", "family-wise p", "verdict"} <= terms().keys()
    assert not {"layer", "URL", "cache", "direction", "step", "commit record"} & terms().keys()
    assert all(meaning and not set("`*") & set(meaning) for meaning in terms().values())
    assert len({anchor(term) for term in terms()}) == len(terms())


def test_the_first_occurrence_in_all_texts_is_a_link_with_the_meaning():
    linked = Linked()
    first, second = linked.texts(["An AUROC of 1, and AUROCs of 0.", "The AUROC and the Accuracy."])
    assert first.startswith(f'An <a class="term" href="#term-auroc" title="{terms()["AUROC"]}">AUROC</a> of 1')
    assert first.endswith("and AUROCs of 0.")
    assert second.startswith('The AUROC and the <a class="term" href="#term-accuracy"')
    assert second.endswith(">Accuracy</a>.")
    assert list(linked.meanings()) == ["accuracy", "AUROC"]
    assert 'href="#term-auroc"' in linked.texts(["AUROC"])[0], "each list of texts links its own terms"


def test_the_longest_term_wins_and_parts_of_words_do_not_count():
    (text,) = Linked().texts(["A path length over displacement, a path length, an inaccuracy."])
    assert text.count("<a ") == 2
    assert text.startswith('A <a class="term" href="#term-path-length-over-displacement"')
    assert text.endswith("</a>, an inaccuracy.")


def test_what_users_wrote_stays_text():
    (text,) = Linked().texts(["<b>AUROC</b> & more"])
    assert text.startswith("&lt;b&gt;<a ")
    assert text.endswith("</a>&lt;/b&gt; &amp; more")
