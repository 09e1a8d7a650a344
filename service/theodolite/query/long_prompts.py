"""Sentences about prompts that had more tokens than the model's context."""

from collections.abc import Iterator


def long_prompt_notes(
    prompt_set: str, n_prompts: int, context_length: int, n_skipped: int = 0, n_truncated: int = 0
) -> Iterator[str]:
    """Yield how many prompts of a set were left out and how many were cut; `n_prompts` is the number of those left."""
    context = f"the model's context of {context_length} tokens"
    if n_skipped:
        yield (
            f"{n_skipped} of the {n_prompts + n_skipped} prompts of the set “{prompt_set}” are left out: they, or "
            f"their partners in a paired contrast, are longer than {context}"
        )
    if n_truncated:
        yield (
            f"{n_truncated} of the {n_prompts} prompts of the set “{prompt_set}” are cut to fit into {context}; the "
            "run stores the rest of each prompt"
        )
