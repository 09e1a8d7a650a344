"""The survey of one sentence with the model of a finished run: it computes the sentence's trajectory."""

from typing import Any

from theodolite.sites import Site
from theodolite.spec import SurveySpec
from theodolite.spec_parts import NOUNS

_STATES = (Site.RESID_PRE, Site.RESID_MID, Site.RESID_MID_SUM, Site.RESID_POST)
_SHOWN = 60  # characters of the sentence in the label of the survey


def sentence_spec(run_id: str, spec: SurveySpec, sentence: str) -> SurveySpec:
    """Return the spec of a small survey whose only sentence is `sentence`.

    It has the model, the captured states and the option `umap` of the run. The states of all layers are captured, also
    if the run captured fewer.

    Args:
        run_id: id of the run, for the label.
        spec: the spec that the run recorded; its sites are those that the model has.
        sentence: the sentence, with at least one character.

    Raises:
        ValidationError: the sentence is empty or too long.
    """
    sites = [site for site in spec.capture.sites if site in _STATES] or [Site.RESID_PRE]
    content: dict[str, Any] = {
        "name": f"“{_shortened(sentence)}” in the model of {run_id}",
        "model": spec.model.model_dump(mode="json", exclude_defaults=True),
        # A survey without prompts surveys only the weights, so one prompt is captured with the sentence.
        "prompts": {NOUNS: {"source": f"builtin:{NOUNS}", "limit": 1}},
        "capture": {"sites": sites},
        "analyses": ["words"],
        # The group `words` also decodes the vectors of heads and the nouns: as few as possible.
        "heads": {"vectors": 1},
        "words": {"sentences": [sentence], "tokens": 1, "nouns": NOUNS, "umap": spec.words.umap},
    }
    return SurveySpec.model_validate(content)


def _shortened(sentence: str) -> str:
    line = " ".join(sentence.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
