"""What a prompt must be to be served: checked when it is submitted, in the thread that does.

Reads the plan alone, so that no thread that runs the engine is disturbed.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

from octavo.cache.cache import Cache
from octavo.checks import Ints, Tokens, check_number, check_tokens, has_entries
from octavo.errors import CapacityError, LengthError, NeverFits, PlanError, TokenError
from octavo.planner import pools
from octavo.planner.request import Plan


def check_prompt(tokens: Tokens, vocabulary: int) -> Ints:
    """A copy of a prompt's ids as int32. O(tokens).

    Raises:
        LengthError: there are none. TokenError: one is no token id below ``vocabulary``.
    """
    try:
        ids = check_tokens(tokens).copy()
    except TokenError as error:
        name, right = ("tokens" if error.value is tokens else None), _encoded(tokens)
        known = vocabulary - 1
        raise TokenError(error.index, error.value, known, name=name, right=right) from error
    if not ids.size:
        raise LengthError("len(tokens)", 0, 1, None, "a prompt has at least one token")
    if int(ids.max()) >= vocabulary:
        index = int((ids >= vocabulary).argmax())
        raise TokenError(index, int(ids[index]), vocabulary - 1)
    return ids


def check_prompts(prompts: Any) -> list[Any]:
    """The prompts of `Engine.generate`, each of which `check_prompt` looks at. O(prompts).

    Raises:
        TokenError: they are one prompt, or what is to be encoded yet.
    """
    right = "it must be a list of prompts, each a list of token ids"
    if has_entries(prompts):
        items = list(prompts)
        if not items or has_entries(items[0]) or not isinstance(items[0], SupportsIndex):
            return items
        right += ": [tokens] for one"
    else:
        right = _encoded(prompts) or right
        right += ", in a list of prompts" if isinstance(prompts, str) else ""
    raise TokenError(0, prompts, name="prompts", right=right)


def _encoded(given: Any) -> str:
    """What to do with a text, or with what a tokenizer made of it; empty: it is neither."""
    if isinstance(given, str):
        return "encode it: tokenizer(text).input_ids"
    return "give its input_ids" if isinstance(given, Mapping) else ""


def check_limit(cache: Cache, prompt: int, max_tokens: int) -> int:
    """Most tokens of a request: what it asks for, within the model's context. O(groups).

    Raises:
        CapacityError: the context has no room behind the prompt, or the cache holds none so long.
        NeverFits: not even an empty pool could hold it.
    """
    plan, limit = cache.plan, prompt + max_tokens
    if plan.spec is not None and plan.spec.max_length is not None:
        limit = min(limit, plan.spec.max_length)
    if limit <= prompt and max_tokens:
        why = "the model's context must hold the prompt and one token"
        raise CapacityError("len(tokens)", prompt, limit - 1, why)
    need = pools.pages(plan, limit)
    if need > plan.usable_pages:
        asked = f"a prompt of {prompt:,} tokens + max_tokens {max_tokens:,}"
        asked += "" if limit == prompt + max_tokens else f", at most the model's {limit:,}"
        why = f"{asked}; {_longest(plan, limit):,} together would fit"
        raise NeverFits(need, plan.usable_pages, _shortage(plan, limit), why)
    if limit > cache.max_length:
        raise CapacityError("limit", limit, cache.max_length, "max_length of the plan")
    return limit


def _longest(plan: Plan, limit: int) -> int:
    """Most tokens below ``limit`` that an empty pool holds. O(groups log limit)."""
    fits = range(limit)
    return bisect_right(fits, plan.usable_pages, key=lambda length: pools.pages(plan, length)) - 1


def _shortage(plan: Plan, length: int) -> dict[str, int]:
    """Pages (packed: parents) that an empty pool lacks, by group: the first take what there is."""
    short, left = {}, plan.usable_pages
    for name, group in plan.groups.items():
        pages = -(-group.steady_pages(length, plan.page_size) // group.pages_per_parent)
        short[name] = max(0, pages - left)
        left = max(0, left - pages)
    return short


def check_deadline(seconds: object) -> float:
    """Seconds from now; 0: before the next step. O(1).

    Raises:
        PlanError: they are no finite number, or below 0.
    """
    number = check_number("deadline", seconds)
    if number < 0:
        raise PlanError("deadline", seconds, "it must be at least 0: seconds from now")
    return number


def one_per_prompt(name: str, given: Any, count: int) -> list[Any]:
    """What `Engine.generate` is given for all prompts, or for each; one for each. O(count).

    Raises:
        LengthError: it is a list of another length.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        return [given] * count
    if len(given) != count:
        raise LengthError(f"len({name})", len(given), count, count, "one per prompt")
    return list(given)
