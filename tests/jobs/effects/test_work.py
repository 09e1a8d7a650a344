"""The work of an analysis of effects: its parts."""

from theodolite.sites import Site
from theodolite_jobs.effects.work import PART_PROMPTS, EffectsWork, Question

QUESTION = Question((Site.RESID_PRE,), (0, 2), (-1.0, 1.0), (1,), (2,), is_paired=True, has_parts=True)


def test_parts_cover_all_prompts_and_divide_no_pair():
    work = EffectsWork("d", {"a@-1": [(1, 2)] * 20}, {"a@-1": QUESTION})
    parts = work.parts("a@-1")
    assert [(part.start, part.stop) for part in parts] == [(0, 8), (8, 16), (16, 20)]
    assert PART_PROMPTS % 2 == 0
