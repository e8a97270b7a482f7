"""Between text and tokens: prompts in, answers out piece by piece.

Wraps a Hugging Face tokenizer: applies its chat template, and turns a growing list of tokens into a
growing text that never shows half a character and whose pieces add up to the text of all the
tokens. Knows nothing of models or pages.
"""

from itertools import cycle
from typing import Any

from octavo.errors import UnsupportedModel

UNFINISHED = "\ufffd"
"""What a decoder shows for the start of a character."""

_HELD = 32  # tokens held back before some of them are tried as certain after all
_TAIL = 4  # tokens behind a cut: an unfinished character of UTF-8 has at most 3 bytes


def has_chat_template(tokenizer: Any) -> bool:
    """Whether the tokenizer knows how its model wants a conversation written."""
    return bool(getattr(tokenizer, "chat_template", None))


def encode_chat(tokenizer: Any, *turns: str, system: str | None = None) -> list[int]:
    """Token ids of a conversation in the model's chat format, up to where the answer starts.

    Args:
        turns: what the user and the model said in turn; the first and the last are the user's.
        system: text of a system turn; None: the template's own default.

    Raises:
        UnsupportedModel: the tokenizer has no chat template, or its template refuses the turns.
    """
    if not has_chat_template(tokenizer):
        raise UnsupportedModel("chat", "this model has no chat template; give it raw text")
    written = [{"role": "system", "content": system}] if system is not None else []
    for role, content in zip(cycle(("user", "assistant")), turns, strict=False):
        written.append({"role": role, "content": content})
    try:
        text = tokenizer.apply_chat_template(written, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template is a program of the model's author: anything may come
        raise UnsupportedModel("chat", f"the model's chat template failed: {error}") from error
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def encode_raw(tokenizer: Any, prompt: str) -> list[int]:
    """Token ids of ``prompt`` as it stands, with a start token where the model wants one."""
    return list(tokenizer(prompt).input_ids)


def decode(tokenizer: Any, tokens: list[int]) -> str:
    """The text of ``tokens`` without control tokens; half a character at the end becomes U+FFFD."""
    return str(
        tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


class Detokenizer:
    """Text of a growing list of tokens: ``push`` a token, get the text that is certain by now.

    The pieces, with ``finish`` as the last, add up to ``decode`` of all tokens. Each call
    decodes only the tokens since the last certain text and a few before them, because some
    decoders treat the start of a text differently: O(1) a token, also where bytes never make a
    character or tokens show nothing at all.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._context = 0  # [context, certain) is shown already and decoded again as left context
        self._certain = 0

    def push(self, token: int) -> str:
        """Add one token; the text it makes certain, empty while a character is unfinished."""
        self._tokens.append(token)
        piece = self._pending()
        if piece and not piece.endswith(UNFINISHED):
            return self._accept(piece, len(self._tokens))
        held = len(self._tokens) - self._certain
        return self._settle(piece, held) if held >= _HELD else ""

    def finish(self) -> str:
        """The text still held back: an unfinished character, shown as U+FFFD."""
        return self._accept(self._pending(), len(self._tokens))

    def _pending(self, stop: int | None = None) -> str:
        """Text of the tokens from ``certain`` to ``stop``."""
        shown = decode(self._tokenizer, self._tokens[self._context : self._certain])
        return decode(self._tokenizer, self._tokens[self._context : stop])[len(shown) :]

    def _accept(self, piece: str, stop: int) -> str:
        if piece:
            self._context, self._certain = self._certain, stop
        return piece

    def _settle(self, piece: str, held: int) -> str:
        """Let go of most of the tokens held: those that show nothing, or bytes that never will.

        A cut is good when the text before it and the text after it make up the whole; where a
        decoder judges all bytes of a run together there may be none, and then all is shown.
        """
        if not piece:
            del self._tokens[self._certain :]
            return ""
        end, context, certain = len(self._tokens), self._context, self._certain
        for cut in range(end - _TAIL, end - 2 * _TAIL, -1):
            first = self._accept(self._pending(cut), cut)
            if first and first + self._pending() == piece:
                return first
            self._context, self._certain = context, certain
        return self._accept(piece, end) if held >= 4 * _HELD else ""
