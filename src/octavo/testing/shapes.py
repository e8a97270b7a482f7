"""Shapes of caches to try: kinds of groups and their mixes, pools and options, all of them small.

Small enough that pages run out, are shared, slide out of windows and are evicted all the time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.model.lifetimes import Lifetime, lifetime_of
from octavo.model.spec import Attention, Compressed, Cross, LayerKind, State
from octavo.planner.request import Plan

_FULL, _STATE, _CROSS = Attention(1, 1, 1), State(1), Cross(1, 1, 1)


@dataclass(frozen=True)
class Shape:
    """One cache to try.

    Attributes:
        name: what it is called in reports.
        groups: group name to layer kind.
        num_pages: physical pages, the null page included; of a packed plan one more than parents.
        page_size: tokens per page.
        per_parent: pages per parent of each group, which makes the plan packed.
        parts: pages one state takes.
        options: further arguments of the cache.
        listens: whether its events are followed and compared.
    """

    name: str
    groups: Mapping[str, LayerKind]
    num_pages: int
    page_size: int
    per_parent: Mapping[str, int] | None = None
    parts: Mapping[str, int] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    listens: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def lifetimes(self) -> dict[str, Lifetime]:
        """Group name to how long it keeps what it holds."""
        return {name: lifetime_of(kind) for name, kind in self.groups.items()}

    def of_form(self, form: str) -> list[str]:
        """Names of the groups that keep ``tokens``, a ``state`` or a ``cross`` input.

        Rows that stand for several tokens come and go as their tokens do.
        """
        as_tokens = ("tokens", "rows") if form == "tokens" else (form,)
        return [name for name, life in self.lifetimes.items() if life.form in as_tokens]

    def plan(self) -> Plan:
        """Page numbers only; a byte each, where something is bounded in bytes."""
        return Plan.from_pages(
            self.num_pages,
            self.page_size,
            self.groups,
            pages_per_parent=self.per_parent,
            parts=self.parts,
            page_bytes=dict.fromkeys(self.groups, 1),
        )


def _window(size: int, sinks: int = 0) -> Attention:
    return Attention(1, 1, 1, window=size, sink_tokens=sinks)


def _chunk(size: int) -> Attention:
    return Attention(1, 1, 1, chunk=size)


def _shape(
    name: str, groups: Mapping[str, LayerKind], pages: int, page_size: int, **options: Any
) -> Shape:
    special = {key: options.pop(key, None) for key in ("per_parent", "parts")}
    listens = options.pop("listens", False)
    return Shape(
        name,
        groups,
        pages,
        page_size,
        options={"max_sequences": 6} | options,
        listens=listens,
        **special,
    )


SHAPES: tuple[Shape, ...] = (
    _shape("full", {"full": _FULL}, 18, 4),
    _shape("full, events", {"full": _FULL}, 26, 4, listens=True),
    _shape("full of 1", {"full": _FULL}, 40, 1),
    _shape("full of 3, slru", {"full": _FULL}, 24, 3, policy="slru", listens=True),
    _shape("full, three steps", {"full": _FULL}, 30, 4, depth=3),
    _shape("full of 1, three steps", {"full": _FULL}, 40, 1, depth=3, listens=True),
    _shape("full, no prefix", {"full": _FULL}, 20, 4, prefix=False),
    _shape("window", {"w": _window(5)}, 16, 2),
    _shape("window, events", {"full": _FULL, "w": _window(7, 3)}, 40, 4, listens=True),
    _shape("window, sinks", {"full": _FULL, "w": _window(6, 2)}, 40, 3, policy="slru"),
    _shape("window, two steps", {"full": _FULL, "w": _window(7)}, 44, 4, rollback=3, depth=2),
    _shape("chunked", {"full": _FULL, "c": _chunk(6)}, 36, 4, listens=True),
    _shape("state", {"full": _FULL, "state": _STATE}, 36, 4),
    _shape("state, events", {"full": _FULL, "state": _STATE}, 50, 4, listens=True),
    _shape("state, grid", {"full": _FULL, "state": _STATE}, 40, 3, snapshots="grid"),
    _shape("state, rollback", {"full": _FULL, "state": _STATE}, 50, 4, rollback=3),
    _shape("state, two steps", {"full": _FULL, "state": _STATE}, 40, 4, depth=2),
    _shape("states alone", {"state": _STATE}, 20, 4, max_length=48),
    _shape("rows", {"w": _window(5), "r2": Compressed(2, 1), "r4": Compressed(4, 1)}, 60, 4),
    _shape(
        "packed, rows", {"w": _window(6), "r": Compressed(2, 1), "state": _STATE}, 24, 4,
        rollback=1, per_parent={"w": 2, "r": 4, "state": 3}, listens=True,
    ),
    _shape("cross", {"full": _FULL, "cross": _CROSS}, 40, 4),
    _shape("packed", {"full": _FULL, "w": _window(7)}, 16, 4, per_parent={"full": 2, "w": 3}),
    _shape(
        "packed, slru", {"full": _FULL, "w": _window(7, 2)}, 16, 4, depth=2, policy="slru",
        per_parent={"full": 3, "w": 2},
    ),
    _shape(
        "packed, state", {"full": _FULL, "state": _STATE}, 18, 4, rollback=1,
        per_parent={"full": 4, "state": 3}, parts={"state": 3},
    ),
    _shape(
        "packed, chunked", {"full": _FULL, "c": _chunk(8)}, 18, 3,
        per_parent={"full": 2, "c": 4}, listens=True,
    ),
    _shape(
        "all", {"full": _FULL, "w": _window(6, 1), "c": _chunk(8), "state": _STATE,
                "cross": _CROSS},
        100, 4, depth=2, rollback=2,
    ),
    _shape(
        "packed, all", {"full": _FULL, "w": _window(6, 1), "c": _chunk(8), "state": _STATE,
                        "cross": _CROSS},
        50, 4, depth=3, rollback=1, policy="slru",
        per_parent={"full": 3, "w": 2, "c": 2, "state": 4, "cross": 1}, parts={"state": 2},
    ),
)  # fmt: skip
"""Every kind of group alone and in mixes, packed and not, one to three steps open."""
