"""What a verb may be asked: arguments checked, and capacity, before anything is changed.

Reads the ledger and what is promised; changes neither.
"""

import numpy as np

from octavo.cache.admission import Admission, Pinned
from octavo.cache.identity import Identity
from octavo.cache.ledger import Ledger
from octavo.cache.promises import Promises, lost_columns, open_page_shared
from octavo.cache.sequence import Sequence
from octavo.checks import Ints, Tokens, check_int, check_tokens
from octavo.errors import CapacityError, LengthError, PlanError


class Guards:
    """The checks of one cache.

    Args:
        ledger: what the cache owns.
        promises: what it owes.
        admission: knows what a sequence needs over its life.
        max_length: longest sequence in tokens.
    """

    def __init__(
        self, ledger: Ledger, promises: Promises, admission: Admission, max_length: int
    ) -> None:
        self._ledger, self._promises = ledger, promises
        self._admission, self._max_length = admission, max_length
        self._possible = 0  # tokens a sequence was found to have room for

    @staticmethod
    def prompt(tokens: Tokens) -> Ints:
        """A prompt's ids. O(len(tokens)).

        Raises:
            TokenError: an entry is no token id. LengthError: there are none.
        """
        ids = check_tokens(tokens)
        if not ids.size:
            raise LengthError("len(tokens)", 0, 1, None, "a prompt has at least one token")
        return ids

    def limit(self, length: int, limit: int | None, identity: Identity, *, guarantee: bool) -> int:
        """Most tokens a sequence may come to know. O(groups).

        Raises:
            NeverFits: not even an empty pool could hold it.
            CapacityError: beyond ``max_length``, or below the prompt.
            PlanError: a cross input that no group can keep.
        """
        if identity.cross is not None and not self._ledger.cross_groups:
            raise PlanError("cross", identity.cross, "the plan has no cross group")
        bound = self._max_length if limit is None else check_int("limit", limit, 1)
        least = length if limit is None and not guarantee else bound
        if guarantee or identity.cross is not None:
            needs = self._admission.lifetime_needs(least, identity, all_at_once=guarantee)
            self._admission.require_possible(needs)
        elif least > self._possible:
            self._admission.require_possible(self._admission.lifetime_needs(least, identity))
            self._possible = least
        if bound > self._max_length:
            raise CapacityError("limit", bound, self._max_length, "max_length of the cache")
        if length > bound:
            raise CapacityError("len(tokens)", length, bound, "the limit of the sequence")
        return bound

    def promise(self, limit: int, identity: Identity, pinned: Pinned) -> None:
        """Raise OutOfPages unless all up to ``limit`` can be promised beside what is."""
        need = self._admission.lifetime_needs(limit, identity, all_at_once=True)
        for group in self._ledger.token_groups:
            need[group] -= pinned.hit.boundary
        for group in self._ledger.cross_groups:
            need[group] -= pinned.pages[group].size
        self._ledger.require(need, self._promises.owed(), pinned.pages)

    def exclusive(self, sequence: Sequence, length: int) -> None:
        """Raise LengthError if pages from ``length`` on are published or shared. O(columns)."""
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        for group in ledger.token_groups:
            pages = rows.tables[group][row]
            refs, published = ledger.pool.state(group)
            shared = np.flatnonzero((published[pages] | (refs[pages] > 1)) & (pages > 0))
            if shared.size and (int(shared[-1]) + 1) * ledger.page_size > length:
                low = (int(shared[-1]) + 1) * ledger.page_size
                why = f"pages of group {ledger.names[group]} before {low} are published or shared"
                raise LengthError("length", length, low, sequence.length, why)

    def cut(self, sequence: Sequence, computed: int) -> None:
        """A guaranteed sequence must not lose pages others keep, unless as many are there.

        Raises:
            OutOfPages: what is promised to it could not be kept.
        """
        if not sequence._promised:
            return
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        keep, held = ledger.columns(computed), ledger.columns(sequence.scheduled)
        lost = [0] * len(ledger.groups)
        for group in ledger.token_groups:
            refs, published = ledger.pool.state(group)
            cut = rows.tables[group][row, keep:held]
            if not ledger.state_groups:  # with states, both are promised already
                lost[group] = int((cut == 0).sum()) + int((refs[cut] > 1).sum())
            if computed % ledger.page_size:
                page = int(rows.tables[group][row, keep - 1])
                lost[group] += bool(refs[page] > 1 or published[page])
        ledger.require(lost, self._promises.owed())

    def fork(self, sequence: Sequence, n: int) -> None:
        """Room for the states of ``n`` children, and for the copy a guaranteed parent may need.

        Raises:
            OutOfPages: there is not.
        """
        ledger, rows, row = self._ledger, sequence._rows, sequence._row
        need = [0] * len(ledger.groups)
        for group in ledger.state_groups:
            if rows.tables[group][row, 0]:
                need[group] = n * ledger.units[group]
        owed = self._promises.owed()
        if owed is not None and sequence._promised:
            shared = lost_columns(ledger, sequence)
            for group in ledger.token_groups:
                if sequence.scheduled % ledger.page_size:
                    owed[group] += not open_page_shared(ledger, sequence, group)
                if ledger.state_groups:
                    owed[group] += ledger.columns(sequence.scheduled) - shared[group]
        ledger.require(need, owed)
