"""What circuits leave out is said, and families without any are refused; test_every_family.py tests each family's."""

import pytest
from support import tiny
from support.each import each
from support.errors import only_line
from support.tiny_configs import CONFIGS

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import notes_on, read_circuits


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("hunyuan_v1_dense", "it normalises queries and keys after their rotation"),
        ("hunyuan_v1_moe", "it normalises queries and keys after their rotation"),
    ],
)
def test_heads_whose_scores_are_no_fixed_form_are_refused_with_the_reason(tmp_path, family, reason):
    tiny.tiny_model(family).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError) as caught:
        read_circuits(Weights(tmp_path, CONFIGS[family]), 0)
    assert f"the heads of '{family}' have no circuits: {reason}" in only_line(caught)


@each(
    "family, said",
    [
        ("gpt2", ["not folded"]),
        ("llama", ["not folded", "one offset between"]),
        ("bloom", ["not folded", "the terms that ALiBi positions add"]),
        ("mpnet", ["reads the stream directly", "the terms that learned and relative positions add"]),
        ("deberta", ["reads the stream directly", "the terms that relative positions add"]),
        ("qwen3", ["not folded", "queries and keys are normalised", "one offset between"]),
        ("ministral3", ["not folded", "1 + 0.3·log(1 + ⌊p/16⌋)", "one offset between"]),
        ("olmo-clipped", ["not folded", "clipped to ±0.8", "one offset between"]),
        ("gpt_oss", ["not folded", "QK leaves this sink out", "one offset between"]),
        ("llama4", ["not folded", "queries and keys are", "1 + 0.1·log(1 + ⌊(p + 1)/8192⌋)", "one offset between"]),
        (
            "qwen3_next",
            ["not folded", "2 of 5 blocks", "are normalised", "OV leaves the gate out", "one offset between"],
        ),
        ("gemma2", ["not folded", "attention's output is normalised", "50·tanh(score/50)", "one offset between"]),
        (
            "gemma4",
            [
                "not folded",
                "the width of heads differs: 16 (layers 0, 1, 3) and 24 (layers 2, 4);",
                "the keys and values of layer 3 are those of layer 1",
                "the keys and values of layer 4 are those of layer 2",
                "queries and keys are normalised",
                "values are normalised",
                "attention's output is normalised",
                "one offset between",
            ],
        ),
        (
            "gemma4_text-experts",
            [
                "not folded",
                "the width of heads differs",
                "in layers 2, 4, values are the keys before their norm",
                "queries and keys are normalised",
                "values are normalised",
                "attention's output is normalised",
                "one offset between",
            ],
        ),
    ],
)
def test_notes_list_what_circuits_leave_out(tmp_path, family, said):
    tiny.model_with_head(family).save_pretrained(tmp_path)
    notes = notes_on(Weights(tmp_path, CONFIGS[family]), fold_norm=False)
    assert len(notes) == len(said)
    for note, part in zip(notes, said, strict=True):
        assert part in note
    if said[0] == "not folded":
        assert "folded into the weights" in notes_on(Weights(tmp_path, CONFIGS[family]), fold_norm=True)[0]
