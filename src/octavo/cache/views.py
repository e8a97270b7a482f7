"""What a Step hands out, part by part: addresses of a group, copies, changes, unknown ids."""

from typing import NamedTuple

import numpy as np

from octavo.arrays import NDArray

Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]


class GroupView(NamedTuple):
    """One token group's addresses in a step of n rows and T tokens.

    Attributes:
        slots: int32[T], where each new token's KV goes.
        table: int32[n, width], physical page of each column; 0, the null page, where none is held.
        base: int32[n], first position the table's column 0 stands for: 0 in the steps a cache
            makes; index functions may emit others.
    """

    slots: Ints
    table: Ints
    base: Ints


class StateView(NamedTuple):
    """One state group's addresses in a step of n rows.

    Attributes:
        source: int32[n, parts], pages of the state to start from.
        table: int32[n, 1 + rollback, parts]: [i, j] is where the state after the row's last
            position but j goes; as many of them as the row has new positions are written.
        has_state: bool[n], whether ``source`` holds a state; else start from zeros.
    """

    source: Ints
    table: Ints
    has_state: Bools


class CrossView(NamedTuple):
    """One cross group's addresses in a step of n rows.

    Attributes:
        table: int32[n, width], physical pages of each row's cross input.
        lengths: int32[n], its tokens; 0: the row has none.
        fresh: bool[n], whether the row's step must write it.
    """

    table: Ints
    lengths: Ints
    fresh: Bools


View = GroupView | StateView | CrossView


class Delta(NamedTuple):
    """Entries of a batch's table that changed since its last step, for device tables and mirrors.

    Attributes:
        rows, columns, pages: int32[k] each; a later entry for the same place counts.
    """

    rows: Ints
    columns: Ints
    pages: Ints


class Copies(NamedTuple):
    """Pages to copy, int32[k] each: ``target[i]`` becomes what ``source[i]`` is.

    No target stands twice. A page may be both: read all sources before writing any target.
    """

    source: Ints
    target: Ints


class Unknown(NamedTuple):
    """Token ids a cache did not know when it made a step, k of them; ``input_ids`` has 0 there.

    Attributes:
        at: int32[k], their places in ``input_ids``, ascending.
        back: int32[k], which step samples it: 1 the one extended before this, 2 the one before
            that; 0 none: a draft, which only the engine knows.
        rows: int32[k], the row of that step whose token it is; -1 for drafts.
    """

    at: Ints
    back: Ints
    rows: Ints
