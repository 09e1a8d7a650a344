"""The survey of one sentence with the model of a finished run: it computes the sentence's trajectory."""

from pathlib import PurePath
from typing import Any

from theodolite.errors import SpecError
from theodolite.model_aliases import MODEL_ALIASES
from theodolite.sites import Site
from theodolite.spec import SurveySpec
from theodolite.spec_parts import NOUNS
from theodolite.store.runs import RunRecord

_STATES = (Site.RESID_PRE, Site.RESID_MID, Site.RESID_MID_SUM, Site.RESID_POST)
_SHOWN = 60  # characters of the sentence in the label of the survey


def sentence_spec(record: RunRecord, sentence: str) -> SurveySpec:
    """Return the spec of a small survey whose only sentence is `sentence`.

    It has the run's model, at the revision that the run captured, and its captured states. The states of all layers are
    captured, also if the run captured fewer.

    Args:
        record: the content of run.json; its sites are those that the model has.
        sentence: the sentence, with at least one character.

    Raises:
        SpecError: the run's model is a local folder whose name is also that of a model on the hub.
        ValidationError: the sentence is empty or too long.
    """
    spec, model = record.spec, record.model.pinned(record.spec.model)
    adapter = record.model.adapter
    is_local = {"id": model.revision is None, "adapter": adapter is not None and adapter.kind != "hub"}
    for field, name in {"id": model.id, "adapter": model.adapter or ""}.items():
        if is_local[field] and _looks_like_hub(name):
            raise SpecError(
                f"model.{field}: {name!r} was a local folder when the run was captured, and on the cluster it would be "
                f"the one of this name on the hub; submit a survey whose model.{field} is an absolute path"
            )
    sites = [site for site in spec.capture.sites if site in _STATES] or [Site.RESID_PRE]
    content: dict[str, Any] = {
        "name": f"“{_shortened(sentence)}” in the model of {record.run_id}",
        "model": model.model_dump(mode="json", exclude_defaults=True),
        # A survey without prompts surveys only the weights, so one prompt is captured with the sentence.
        "prompts": {NOUNS: {"source": f"builtin:{NOUNS}", "limit": 1}},
        "capture": {"sites": sites},
        "analyses": ["words"],
        # The analysis `words` also decodes the vectors of heads and the nouns: as few as possible.
        "heads": {"vectors": 1},
        "words": {"sentences": [sentence], "tokens": 1, "nouns": NOUNS},
    }
    return SurveySpec.model_validate(content)


def _looks_like_hub(name: str) -> bool:
    return name not in MODEL_ALIASES and len(PurePath(name).parts) == 2 and not name.startswith(("/", "."))


def _shortened(sentence: str) -> str:
    line = " ".join(sentence.split())
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…"
