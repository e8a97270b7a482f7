"""Tokenizers of GGUF files as transformers' fast ones, or refused.

Two kinds are known. Byte-level BPE, which a file calls ``gpt2``, has merges, and a name for how
text is cut before merging. SentencePiece's BPE, which it calls ``llama``, has a score per token: of
all neighbours that make up a token those with the best score are merged first. Knows no weights.
"""

from pathlib import Path
from typing import Any

import transformers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from octavo.errors import ModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "llama-bpe": rf"{_CONTRACTIONS}|\p{{N}}{{1,3}}{_REST}",
    "qwen2": rf"{_CONTRACTIONS}|\p{{N}}{_REST}",
}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # token types of the format
_SPACE = "\u2581"  # how SentencePiece writes a space
_OWN_IDS = {
    "gpt2": {},
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
}
"""Tokens of each kind of tokenizer, by role, where the file does not say them."""


def special_ids(fields: dict[str, Any]) -> dict[str, int | None]:
    """Ids of a file's ``bos``, ``eos``, ``padding`` and ``unknown`` tokens; None: it has none."""
    own = _OWN_IDS.get(fields.get("tokenizer.ggml.model", ""), {})
    return {
        role: fields.get(f"tokenizer.ggml.{role}_token_id", own.get(role))
        for role in ("bos", "eos", "padding", "unknown")
    }


def tokenizer_of(path: Path, fields: dict[str, Any], vocab_size: int, longest: int) -> Any:
    """A fast tokenizer from the vocabulary of a file.

    Args:
        path: the file.
        fields: its metadata by key.
        vocab_size: rows of the model's embedding.
        longest: the model's context in tokens.

    Raises:
        ModelError: something in it is not understood.
    """
    kind = fields.get("tokenizer.ggml.model")
    if kind not in _OWN_IDS:
        known = ", ".join(_OWN_IDS)
        raise ModelError(
            path, f"tokenizer {kind!r} in a GGUF file is not understood; known: {known}"
        )
    tokens, pieces = fields["tokenizer.ggml.tokens"], kind == "llama"
    if len(set(tokens)) != len(tokens) or len(tokens) > vocab_size:
        what = f"{len(tokens)} tokens, {len(set(tokens))} of them different"
        raise ModelError(path, f"{what}, for {vocab_size} embeddings in a GGUF file")
    refused = ["add_eos_token", "add_sep_token"]
    refused += ["remove_extra_whitespaces"] if pieces else ["add_space_prefix"]
    for key in refused:
        if fields.get(f"tokenizer.ggml.{key}"):
            raise ModelError(path, f"tokenizer.ggml.{key} in a GGUF file is not understood")
    backend = _pieces(path, fields) if pieces else _byte_level(path, fields)
    _add_whole_tokens(backend, tokens, fields.get("tokenizer.ggml.token_type", ()))
    ids = special_ids(fields)
    names = {"bos": "bos", "eos": "eos", "padding": "pad"} | ({"unknown": "unk"} if pieces else {})
    special = {
        f"{name}_token": tokens[index]
        for role, name in names.items()
        if (index := ids[role]) is not None
    }
    begins = pieces or fields.get("tokenizer.ggml.pre") == "llama-bpe"  # as in llama.cpp
    if fields.get("tokenizer.ggml.add_bos_token", begins):
        bos = special["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, ids["bos"])]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=fields.get("tokenizer.chat_template"),
        model_max_length=longest,
        clean_up_tokenization_spaces=False,
        **special,
    )


def _byte_level(path: Path, fields: dict[str, Any]) -> Tokenizer:
    """BPE over bytes, by the file's merges."""
    pre = fields.get("tokenizer.ggml.pre")
    vocabulary = {token: i for i, token in enumerate(fields["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    whole = pre == "llama-bpe"  # llama.cpp: a piece that is a token is not merged
    backend = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole))
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(path, pre)
    backend.decoder = decoders.ByteLevel()
    return backend


def _pre_tokenizer(path: Path, name: str | None) -> Any:
    """How text is cut before merging; a wrong cut gives tokens the model was not trained on."""
    if name == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name not in _SPLITS:
        known = ", ".join(("gpt-2", "smollm", *_SPLITS))
        raise ModelError(path, f"pre-tokenizer {name!r} is not understood; known: {known}")
    split = pre_tokenizers.Split(Regex(_SPLITS[name]), behavior="isolated")
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, whole])


def _pieces(path: Path, fields: dict[str, Any]) -> Tokenizer:
    """SentencePiece's BPE, by the scores of the file's tokens.

    Text is not cut. A space is prefixed to it, and after each token that is matched whole, as
    llama.cpp does; a character that is no token becomes its bytes.
    """
    pre = fields.get("tokenizer.ggml.pre", "default")
    if pre != "default":
        raise ModelError(path, f"pre-tokenizer {pre!r} is not understood; known: default")
    tokens, scores = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.scores"]
    types = fields["tokenizer.ggml.token_type"]
    if not len(tokens) == len(scores) == len(types):
        counts = f"{len(tokens)} tokens, {len(scores)} scores and {len(types)} types"
        raise ModelError(path, f"{counts} in a GGUF file; they must be as many")
    vocabulary = {token: i for i, token in enumerate(tokens)}
    scored = zip(tokens, scores, types, strict=True)
    merges = _merges(vocabulary, [(t, score) for t, score, kind in scored if kind == _NORMAL])
    unknown = tokens[special_ids(fields)["unknown"]]
    backend = Tokenizer(
        models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    spaces: Any = normalizers.Replace(" ", _SPACE)
    decode = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if fields.get("tokenizer.ggml.add_space_prefix", True):
        spaces = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces])
        decode.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = spaces
    backend.decoder = decoders.Sequence(decode)
    return backend


def _merges(vocabulary: dict[str, int], scored: list[tuple[str, float]]) -> list[tuple[str, str]]:
    """Each pair of tokens that makes up another, those of the best score first. O(characters)."""
    best_first = sorted(scored, key=lambda item: -item[1])
    return [
        (token[:cut], token[cut:])
        for token, _ in best_first
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]


def _add_whole_tokens(backend: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Tokens that are matched whole in the text: control tokens, and those a user defined."""
    for token, kind in zip(tokens, types, strict=False):
        if kind in (_CONTROL, _UNKNOWN):
            backend.add_special_tokens([AddedToken(token, normalized=False, special=True)])
        elif kind == _USER_DEFINED:
            backend.add_tokens([AddedToken(token, normalized=False)])
