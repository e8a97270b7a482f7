"""What a prompt must be to be served: checked when it is submitted, in the thread that does.

Reads the plan alone, so that no thread that runs the engine is disturbed.
"""

from collections.abc import Sequence
from typing import Any

from octavo.cache.cache import Cache
from octavo.checks import Ints, Tokens, check_tokens
from octavo.errors import CapacityError, LengthError, NeverFits, TokenError
from octavo.planner import pools
from octavo.planner.request import Plan


def check_prompt(tokens: Tokens, vocabulary: int) -> Ints:
    """A copy of a prompt's ids as int32. O(tokens).

    Raises:
        LengthError: there are none. TokenError: one is no token id below ``vocabulary``.
    """
    ids = check_tokens(tokens).copy()
    if not ids.size:
        raise LengthError("len(tokens)", 0, 1, None, "a prompt has at least one token")
    if int(ids.max()) >= vocabulary:
        index = int((ids >= vocabulary).argmax())
        raise TokenError(index, int(ids[index]), vocabulary - 1)
    return ids


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
        raise NeverFits(need, plan.usable_pages, _shortage(plan, limit))
    if limit > cache.max_length:
        raise CapacityError("limit", limit, cache.max_length, "max_length of the plan")
    return limit


def _shortage(plan: Plan, length: int) -> dict[str, int]:
    """Pages (packed: parents) that an empty pool lacks, by group: the first take what there is."""
    short, left = {}, plan.usable_pages
    for name, group in plan.groups.items():
        pages = -(-group.steady_pages(length, plan.page_size) // group.pages_per_parent)
        short[name] = max(0, pages - left)
        left = max(0, left - pages)
    return short


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
