"""Requests told as texts: prompts, and conversations whose answers end a request each.

Texts are counted without a tokenizer, and are equal as far as their bytes are.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from octavo.simulation.fields import BadLine, Entry, Fields, first, short, text, token_ids, whole
from octavo.simulation.requests import LONGEST, Ints

BYTES_A_TOKEN = 4
PROMPTS = ("prompt", "text_input")
CONVERSATIONS = ("conversations", "conversation", "messages")
_LENGTHS = ("output_tokens", "output_length", "output_len", "max_tokens")
_ASKS = ("human", "user", "system", "developer", "tool", "function", "observation")
_ANSWERS = ("gpt", "assistant", "chatgpt", "bing", "bard", "model", "function_call")


def is_prompt(line: Fields) -> bool:
    """Whether a line is one request, of a prompt as text; else its answers are texts, too."""
    return first(line, *PROMPTS) in line or ("messages" in line and first(line, *_LENGTHS) in line)


def prompt(line: Fields) -> Entry:
    """A prompt as text, as ids or as all its messages, and the length of its answer if told."""
    if "messages" in line:
        tokens = text_tokens("".join(said for _, said in _messages(line, "messages")))
    else:
        name = first(line, *PROMPTS)
        given = isinstance(line[name], list) and line[name][:1] and type(line[name][0]) is int
        tokens = token_ids(line, name) if given else text_tokens(text(line, name))
    if not tokens.size:
        raise BadLine("prompt is empty")
    name = first(line, *_LENGTHS)
    return Entry(tokens.size, whole(line, name, 0) if name in line else None, tokens=tokens)


def turns(line: Fields, session: object) -> list[Entry]:
    """A conversation: each answer ends a request, whose own tokens are all since the last one."""
    found, asked = list[Entry](), ""
    for answers, said in _messages(line, first(line, *CONVERSATIONS)):
        if not answers or not (asked or found):
            asked += said
            continue
        own, output = text_tokens(asked), text_tokens(said)
        if own.size + output.size:
            found.append(Entry(own.size, output.size, tokens=own, output=output, session=session))
        asked = ""
    return found


def parts_without_text(line: Fields) -> int:
    """Images, recordings and the like among the parts of a line's messages. O(parts)."""
    lists = (line.get(name) for name in CONVERSATIONS)
    listed = [message for each in lists if isinstance(each, list) for message in each]
    contents = (each.get("content") for each in listed if isinstance(each, dict))
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return sum(isinstance(part, dict) and part.get("text") is None for part in parts)


def _messages(line: Fields, name: str) -> Iterator[tuple[bool, str]]:
    """Whether each message is an answer, and its text; without roles every second one is."""
    listed: Any = line[name]
    if not isinstance(listed, list):
        raise BadLine(f"{name} must be a list of messages")
    for place, message in enumerate(listed):
        if not isinstance(message, dict):
            raise BadLine(f"{name} must be a list of messages, each a JSON object")
        who = message.get("from", message.get("role"))
        if who is None:
            who = (_ASKS, _ANSWERS)[place % 2][0]
        if who not in _ASKS and who not in _ANSWERS:
            right = f"one of {', '.join(_ASKS + _ANSWERS)}"
            raise BadLine(f"the role of a message is {short(who)}; it must be {right}")
        yield who in _ANSWERS, _said(message)


def _said(message: Fields) -> str:
    """The text of a message, and the tools it calls."""
    calls = message.get("tool_calls")
    name = "value" if "value" in message else "content"
    empty = message.get(name) is None and (calls or name in message)
    return ("" if empty else text(message, name)) + (json.dumps(calls) if calls else "")


def text_tokens(text: str) -> Ints:
    """A token for every four bytes of UTF-8: about as many as tokenizers make of English. O(bytes).

    Texts that begin alike have equal ids there, to the token; texts that differ have others, but
    for the highest bit of a fourth byte.
    """
    raw = text.encode("utf-8", "surrogatepass")
    raw += b"\0" * (-len(raw) % BYTES_A_TOKEN)
    return (np.frombuffer(raw, "<i4") & LONGEST).astype(np.int32)
