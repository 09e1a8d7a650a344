"""Named positions from the spec to the service: given answers, words and means, in a survey of a tiny model."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from chaos.processes import capture_without_ray
from support.chat_tokenizers import byte_tokenizer
from support.damages import repair_again
from support.serving import assert_problem, client_of
from support.short_reports import short_reports
from support.tiny_survey import EFFECTS, save_model
from transformers import AutoModelForCausalLM

from theodolite import compare, open_run
from theodolite.errors import SpecError
from theodolite.overview.facts import read_overview
from theodolite.run_reader import RunReader
from theodolite.sections.catalogue import section_items
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_spec
from theodolite.store.result_reader import read_group
from theodolite.stored_runs import stored_run
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

POSITIONS = [
    -1,
    {"name": "answer", "role": "assistant", "turn": -1, "token": "mean"},
    {"name": "word", "text": "me", "token": "first"},
    {"name": "asked"},
]
TOOLS = ["hammer", "saw", "screwdriver", "axe", "chisel", "plane", "drill", "file", "vice", "clamp"]


def conversations(form: str) -> list[Any]:
    return [
        [{"role": "user", "content": f"Show me {n}"}, {"role": "assistant", "content": form.format(tool)}]
        for n, tool in enumerate(TOOLS)
    ]


def spec_of(model: Path, positions: Any, **changes: Any) -> SurveySpec:
    forms = {"long": "You may want a {} today", "short": "A {}"}
    return parse_spec(
        {
            "model": {"id": str(model)},
            "prompts": {name: {"source": "inline", "texts": conversations(form)} for name, form in forms.items()},
            "capture": {"shard_prompts": 4, "batch_tokens": 200, "positions": positions},
            "contrasts": {"length": {"positive": "long", "negative": "short", "paired": True}},
            "analyses": ["curves", "separation"],
            "words": {"sentences": []},
            **changes,
        }
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_model(tmp_path_factory.mktemp("named") / "model")
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def run(model: Path) -> RunReader:
    return surveyed(model.parent, spec_of(model, POSITIONS))


def surveyed(store: Path, spec: SurveySpec) -> RunReader:
    with capture_without_ray(), short_reports():
        settings = Settings(store=str(store), replicas=1, gpus_per_replica=0)
        return open_run(str(store), survey(spec, Path(), settings, Console()).id)


def test_every_kind_of_position_equals_an_unpadded_run_with_offsets_by_hand(run: RunReader, model: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    stored = run.activations("long", "resid_pre")
    assert stored["position"].values.tolist() == ["answer", "word", "asked", "-1"]
    tokens = pd.read_parquet(f"{run.url}/runs/{run.id}/prompts/long.tokens.parquet")
    for sample in range(10):
        ids = tokens[tokens["sample"] == sample]["token_id"].tolist()
        asked = 6 + len(f"Show me {sample}")  # a token for each special token and for each byte
        spans = {"answer": (asked + 13, len(ids)), "word": (11, 12), "asked": (asked - 1, asked), "-1": (-1, None)}
        with torch.inference_mode():
            hidden = plain(torch.tensor([ids]), output_hidden_states=True).hidden_states[:-1]
        for label, (start, stop) in spans.items():
            expected = np.stack([state[0, start:stop].mean(dim=0).numpy() for state in hidden])
            found = stored.sel(position=label)
            np.testing.assert_allclose(found.values[sample], expected, rtol=1e-4, atol=1e-5, err_msg=label)
            token = -1 if label == "answer" else ids[start]
            assert found["token_id"].values[sample] == token
        marked = tokens[(tokens["sample"] == sample) & tokens["at_answer"]]["index"].tolist()
        assert marked == list(range(asked + 13, len(ids)))


def test_results_and_reading_take_labels_as_texts_and_numbers(run: RunReader) -> None:
    assert run.labels()["position"] == ["answer", "word", "asked", "-1"]
    np.testing.assert_array_equal(run.direction("length", "resid_mid", 1, -1), run.direction("length", "resid_mid", 1))
    np.testing.assert_array_equal(
        run.curves("auroc", position=-1)["value"].values, run.curves("auroc", position="-1")["value"].values
    )
    assert np.isfinite(run.curves("variance_mean", set="long", position="answer")["value"]).all()
    for name in ("curves", "prompt_scores"):
        assert set(run.table(name)["position"]) <= {"answer", "word", "asked", "-1"}, name
    assert run.prompts("long", position="answer")["score"].notna().all()
    with pytest.raises(SpecError, match="no 'gone'; it has answer, word, asked, -1"):
        run.direction("length", "resid_mid", 1, "gone")


def test_the_service_and_the_page_name_positions(run: RunReader, model: Path) -> None:
    client, path = client_of(model.parent), f"/v1/runs/{run.id}"
    (curve,) = client.get(f"{path}/curves?statistic=auroc&site=resid_mid&position=answer").json()["items"]
    assert curve["position"] == "answer"
    assert client.get(f"{path}/prompts/long?position=-1").json()["place"]["position"] == "-1"
    assert client.get(f"{path}/export/length?position=answer&format=json").json()["position"] == "answer"
    assert_problem(client.get(f"{path}/prompts/long?position=gone"), 422, "gone", "asked")
    stored = stored_run(run.id, str(model.parent))
    titles = [section["title"] for section in section_items(stored, "curves")]
    assert ["position answer" in title for title in titles] == [False, False, False, True]
    assert [badge.label for badge in read_overview(stored, "length").badges][1] == "last token"
    frame = compare([run.id], position="answer", statistic="auroc", store=str(model.parent))
    assert frame is not None


def test_a_mean_alone_is_shown_and_a_damaged_table_is_repaired(model: Path, tmp_path: Path) -> None:
    spec = spec_of(model, [POSITIONS[1]], analyses=["curves", "separation"])
    made = stored_run(surveyed(tmp_path, spec).id, str(tmp_path))
    badges = {badge.label: badge.text for badge in read_overview(made, "length").badges}
    assert "mean over the tokens" in badges["position answer"]
    table = tmp_path / "runs" / made.id / "prompts" / "long.tokens.parquet"
    content = table.read_bytes()
    table.unlink()
    with capture_without_ray(), short_reports():
        assert repair_again(table.parents[1], spec) == []
    assert table.read_bytes() == content
    assert read_group(made, "curves")["position"].values.tolist() == ["answer"]


@pytest.mark.nightly
def test_effects_are_of_single_tokens_and_tables_have_labels(model: Path, tmp_path: Path) -> None:
    options: Any = {"analyses": ["curves", "travel", "gram", "logit_lens", "effects"], "effects": EFFECTS}
    run = surveyed(tmp_path, spec_of(model, POSITIONS, **options))
    effects = run.group("effects", "n_used")["n_used"].sel(contrast="length", prompt_side="positive")
    assert effects.values.tolist() == [0, 10, 10, 10]
    for name in ("direction_tokens", "prompt_effects", "growth"):
        assert {"asked", "-1"} <= set(run.table(name)["position"]) <= {"answer", "word", "asked", "-1"}, name
    with pytest.raises(SpecError, match="'length' have only means in common"):
        spec_of(model, [POSITIONS[1]], **options)


@pytest.mark.nightly
def test_effects_are_shown_at_the_last_single_token(model: Path, tmp_path: Path) -> None:
    options: Any = {"analyses": ["curves", "separation", "effects"], "effects": EFFECTS}
    run = stored_run(surveyed(tmp_path, spec_of(model, [POSITIONS[3], POSITIONS[1]], **options)).id, str(tmp_path))
    (section,) = section_items(run, "effects")
    assert "position asked" in section["title"]
    overview = read_overview(run, "length")
    assert (overview.position, overview.tiles[3].rule) == ("answer", "a mean over tokens is no state to change")
