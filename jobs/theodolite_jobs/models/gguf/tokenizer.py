"""Build a tokenizer from the metadata of a GGUF file: byte-level merges, or the pieces of a SentencePiece model."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theodolite.errors import ModelError, UnsupportedModelError, choices_text
from theodolite_jobs.models.gguf.header import Header
from theodolite_jobs.models.gguf.pre_tokenizers import SPLITTINGS, Splitting, pre_tokenizer

if TYPE_CHECKING:  # a file may be refused by its header
    from tokenizers import AddedToken, Tokenizer

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 2, 3, 4, 5
"""Types of tokens."""

_SPACE = "\u2581"
"""SentencePiece's mark for a space."""

_PADDING = re.compile(r"\[PAD\d+\]")
"""The names of rows of the embedding that belong to no token."""

_SPECIAL = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator", "mask": "mask"}
"""Special tokens of transformers, and the format's spelling of their keys."""

# What the format knows and what does not change how text becomes tokens: other special tokens, and their old names.
_NOT_READ = re.compile(
    r"tokenizer\.ggml\.((eot|eom|cls|fim_\w+|prefix|suffix|middle|fsep)_(token_)?id|add_sep_token|token_type_count"
    r"|remove_extra_whitespaces)|tokenizer\.(chat_template\.\w+|huggingface\.json)"
)


def check_tokenizer(header: Header) -> None:
    """Raise UnsupportedModelError if the tokenizer of a file cannot be built, or ModelError if it is damaged."""
    _Vocabulary(header)


def write_tokenizer(header: Header, folder: Path) -> None:
    """Write the tokenizer and the chat templates of a file into a folder; raises like `check_tokenizer`."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = _Vocabulary(header)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=vocabulary.tokenizer(),
        clean_up_tokenization_spaces=False,
        **{f"{name}_token": vocabulary.special(name) for name in _SPECIAL if vocabulary.special(name) is not None},
    )
    if templates := chat_templates(header.metadata):
        tokenizer.chat_template = templates["default"] if templates.keys() == {"default"} else templates
    tokenizer.save_pretrained(folder)


def chat_templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates of a file by name; the unnamed one is `default`."""
    prefix = "tokenizer.chat_template"
    templates = {key.removeprefix(f"{prefix}."): text for key, text in metadata.items() if key.startswith(f"{prefix}.")}
    return {"default": metadata[prefix], **templates} if prefix in metadata else templates


class _Vocabulary:
    """The tokens of a file with their types, and how it splits text."""

    def __init__(self, header: Header) -> None:
        self._header, self._file = header, header.files[0]
        self._metadata = header.metadata
        self.kind = str(self._metadata.get("tokenizer.ggml.model"))
        known = {"model", "pre", "tokens", "scores", "token_type", "merges", "add_bos_token", "add_eos_token"}
        known |= {"add_space_prefix", *(f"{name}_token_id" for name in _SPECIAL.values())}
        allowed = {"tokenizer.chat_template", "tokenizer.chat_templates", *(f"tokenizer.ggml.{one}" for one in known)}
        for key in self._metadata.keys() - allowed:
            if key.startswith("tokenizer.") and not _NOT_READ.fullmatch(key):
                raise self._unsupported(f"states {key}, which this version does not understand")
        if self.kind not in ("gpt2", "llama"):
            raise self._unsupported(f"has a tokenizer of the kind {self.kind!r}; supported: gpt2 (byte-level), llama")
        self.tokens: list[str] = self._list("tokens", str)
        is_typed = "tokenizer.ggml.token_type" in self._metadata
        self._types = self._list("token_type", int) if is_typed else [1] * len(self.tokens)
        self._scores = self._list("scores", float) if self.kind == "llama" else [0.0] * len(self.tokens)
        self._merges = [tuple(merge.split(" ")) for merge in self._list("merges", str)] if self.kind == "gpt2" else []
        self._check_sizes()
        for name in _SPECIAL:
            self.special(name)
        self._splitting()

    def _check_sizes(self) -> None:
        """Raise ModelError if the parts of the tokenizer do not fit each other and the embedding."""
        count, embedding = len(self.tokens), self._header.tensors.get("token_embd.weight")
        problem = None
        if {len(self._types), len(self._scores)} != {count}:
            problem = f"{count} tokens, {len(self._types)} types and {len(self._scores)} scores of tokens"
        elif len(set(self.tokens)) != count:
            problem = f"a token twice among its {count} tokens"
        elif not all(len(merge) == 2 for merge in self._merges):
            problem = "a merge that is no pair of tokens"
        elif embedding is not None and count > embedding.shape[0]:
            problem = f"{count} tokens and an embedding of {embedding.shape[0]}"
        if problem:
            raise ModelError(f"{self._file} has {problem}; download it again, or use another file of the model")
        if not all(isinstance(text, str) for text in chat_templates(self._metadata).values()):
            raise ModelError(f"{self._file} has a chat template that is no text; use another file of the model")

    def _list(self, key: str, kind: type) -> list[Any]:
        values = self._metadata.get(f"tokenizer.ggml.{key}")
        if not isinstance(values, list) or not values or not all(isinstance(one, kind) for one in values):
            raise ModelError(f"{self._file} lacks tokenizer.ggml.{key}, a part of its tokenizer; use another file")
        return values

    def _unsupported(self, problem: str) -> UnsupportedModelError:
        return UnsupportedModelError(f"{self._file} {problem}; use the model's safetensors files and tokenizer")

    def _splitting(self) -> Splitting:
        if self.kind == "llama":
            return Splitting(adds_bos=True)
        name = self._metadata.get("tokenizer.ggml.pre")
        if name not in SPLITTINGS:
            stated = f"splits text by the rule {name!r} (tokenizer.ggml.pre)" if name else "lacks tokenizer.ggml.pre"
            raise UnsupportedModelError(f"{self._file} {stated}; {choices_text(str(name), SPLITTINGS)}")
        return SPLITTINGS[name]

    def special(self, name: str) -> str | None:
        """Return a special token, or None; raises ModelError."""
        index = self._metadata.get(f"tokenizer.ggml.{_SPECIAL[name]}_token_id")
        if index is None:
            return None
        if type(index) is not int or not 0 <= index < len(self.tokens):
            raise ModelError(f"{self._file}: the {name} token is {index!r}, and there are {len(self.tokens)} tokens")
        return str(self.tokens[index])

    def tokenizer(self) -> "Tokenizer":
        """Return the tokenizer with its special tokens."""
        tokenizer = self._pieces() if self.kind == "llama" else self._byte_level()
        for added, is_special in self._added():
            (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)([added])
        self._add_ends(tokenizer)
        return tokenizer

    def _ids(self) -> dict[str, int]:
        """Return the id of each token, without the rows of the embedding that belong to none."""
        return {
            token: index
            for index, (token, kind) in enumerate(zip(self.tokens, self._types, strict=True))
            if not (kind == _UNUSED and _PADDING.fullmatch(token))
        }

    def _byte_level(self) -> "Tokenizer":
        from tokenizers import Tokenizer, decoders, models, normalizers

        splitting = self._splitting()
        model = models.BPE(vocab=self._ids(), merges=self._merges, ignore_merges=splitting.whole_words)
        tokenizer = Tokenizer(model)
        if splitting.normal_form:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizer(splitting)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _pieces(self) -> "Tokenizer":
        """Return a tokenizer of SentencePiece's pieces; its merges follow from the pieces, the best first."""
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
        from transformers.tokenization_utils_base import generate_merges

        architecture = str(self._metadata.get("general.architecture"))
        is_gemma = architecture.startswith("gemma")
        # llama.cpp stores tokens of several spaces as spaces.
        ids = {_SPACE * len(token) if not token.strip(" ") else token: index for token, index in self._ids().items()}
        # The scores of Gemma do not follow the order of its merges, but the ids do.
        ranks = [-index for index in range(len(self.tokens))] if is_gemma else self._scores
        scores = {token: float(ranks[index]) for token, index in ids.items()}
        unknown = self.special("unk") or next(
            (self.tokens[i] for i, k in enumerate(self._types) if k == _UNKNOWN), None
        )
        model = models.BPE(
            vocab=ids, merges=generate_merges(ids, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True
        )
        tokenizer = Tokenizer(model)
        prefix = self._metadata.get("tokenizer.ggml.add_space_prefix", True)
        replace = normalizers.Replace(" ", _SPACE)
        strip = [decoders.Strip(content=" ", left=1)] if prefix else []
        if prefix and ("[INST]", _CONTROL) in zip(self.tokens, self._types, strict=True):
            # Mistral's third vocabulary, unlike the earlier ones, puts no space behind special tokens.
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="first", split=False)
        elif prefix:  # as in llama.cpp, also behind each special token
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace])
        else:
            tokenizer.normalizer = replace
            tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return tokenizer

    def _added(self) -> "list[tuple[AddedToken, bool]]":
        """Return the tokens that are never split, and whether they are special."""
        from tokenizers import AddedToken

        strips = self.kind == "llama" and self._metadata.get("general.architecture") == "phi3"
        keep_space = {"<unk>", "<s>", "<|endoftext|>"}
        return [
            (
                # Phi-3's own tokens swallow the white space behind them, which no file states.
                AddedToken(
                    token, normalized=False, special=kind != _USER_DEFINED, rstrip=strips and token not in keep_space
                ),
                kind != _USER_DEFINED,
            )
            for token, kind in zip(self.tokens, self._types, strict=True)
            if kind == _CONTROL or (kind == _USER_DEFINED and (self.kind == "gpt2" or token.strip(" ")))
        ]

    def _add_ends(self, tokenizer: "Tokenizer") -> None:
        """Let the tokenizer add its first and last token, if the file says so."""
        from tokenizers.processors import TemplateProcessing

        bos = self.special("bos") if self._flag("add_bos_token", self._splitting().adds_bos) else None
        eos = self.special("eos") if self._flag("add_eos_token", False) else None
        if bos is None and eos is None:
            return
        ends = [(token, self.tokens.index(token)) for token in dict.fromkeys([bos, eos]) if token is not None]
        one, two = (" ".join(filter(None, [bos, f"${part}", eos])) for part in ("A", "B"))
        tokenizer.post_processor = TemplateProcessing(single=one, pair=f"{one} {two}", special_tokens=ends)

    def _flag(self, key: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{key}", default)
        if not isinstance(value, bool):
            raise ModelError(f"{self._file}: tokenizer.ggml.{key} is {value!r}, and must be true or false")
        return value
