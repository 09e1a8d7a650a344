"""Tiny tokenizers of bytes with special tokens, and chat templates of the kinds that models have."""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
OF_PARTS = (
    "{% for m in messages %}{{ m['role'] }}: {% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}"
    "{% endif %}{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
SYSTEM_TEXT_USER_PARTS = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}{% else %}"
    "{% for c in m['content'] %}{{ c['text'] }}{% endfor %}{% endif %}|{% endfor %}"
)
THINKING = CHATML + (
    "{% if add_generation_prompt and enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}"
)


def byte_tokenizer(template: Any = CHATML, merges: Sequence[tuple[str, str]] = (), **options: Any) -> Any:
    """Return a tokenizer with a token for each byte, the special tokens of ChatML, and `<think>` as a usual token.

    `merges` are pairs of letters of the byte alphabet that become one token.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [*alphabet, *map("".join, merges)]
    inner = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=list(merges)))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    inner.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        eos_token="<|im_end|>",
        chat_template=template,
        **options,
    )
