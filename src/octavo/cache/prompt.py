"""A prompt read once: its ids checked and its extras sorted, for every verb that asks about it.

Knows no cache. What a cache finds of a prompt is the cache's, and remembered there for as long as
nothing changes.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.identity import CrossInput, Extra, read_extras
from octavo.checks import Tokens, check_tokens
from octavo.errors import LengthError


class Prompt:
    """Token ids and the extras their pages depend on; immutable, for any number of caches.

    `octavo.Cache.peek`, `explain_match`, `fits`, `pin` and `admit` take one in place of ids and
    extras. Ids and extras are then read and checked once, and where nothing was published, evicted
    or admitted between two of these verbs, the prompt is matched once.

    Args:
        tokens: the prompt's ids, a list or an int32 array; they are copied.
        extra: Salt, Adapter, Media and CrossInput its pages depend on beside the tokens.
        cross: (digest, length) of the input that cross attention reads, as in `octavo.Cache.admit`.

    Raises:
        LengthError: there are no tokens. TokenError: an entry is no token id.
        IdentityError: extras or cross are malformed.

    Cost: O(len(tokens)).
    """

    __slots__ = ("__weakref__", "_identity", "_ids")

    def __init__(
        self,
        tokens: Tokens,
        extra: Iterable[Extra] = (),
        cross: CrossInput | tuple[str | bytes, int] | None = None,
    ) -> None:
        self._identity = read_extras(extra, cross)
        self._ids: NDArray[np.int32] = np.array(check_tokens(tokens))
        if not self._ids.size:
            raise LengthError("len(tokens)", 0, 1, None, "a prompt has at least one token")

    def __len__(self) -> int:
        """Tokens."""
        return self._ids.size

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32[n], its ids; read-only."""
        shown = self._ids.view()
        shown.flags.writeable = False
        return shown

    @property
    def extra(self) -> tuple[Extra, ...]:
        """What its pages depend on beside the tokens, the cross input too; media by position."""
        return self._identity.root + self._identity.media

    def __repr__(self) -> str:
        return f"<Prompt of {len(self)} tokens>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Prompt, (self._ids, self.extra)
