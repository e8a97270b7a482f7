"""The planner: a model's spec and a memory budget to a pool of pages, explained to the byte.

Exact integers only; no float on the way to a byte count. Knows no device and allocates nothing.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, get_args

from octavo.dtypes import DType
from octavo.dtypes import dtype as find_dtype
from octavo.errors import BudgetTooSmall, PlanError
from octavo.geometry import Order, TensorPlan, arena_bytes, lay_out, row_bytes
from octavo.lifetimes import FULL, Lifetime, lifetime_of
from octavo.spec import Attention, LayerKind, ModelSpec, State, check_int

if TYPE_CHECKING:
    from fractions import Fraction

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_MAX_PAGES = 2**31 - 1
_MAX_BYTES = 2**63 - 1
_DIGITS = 40  # of a memory given as text: more than any number of bytes has


class Budget(NamedTuple):
    """Where every byte of the memory goes; the parts sum to ``total``.

    Attributes:
        total: bytes given.
        payload: bytes of usable pages.
        padding: bytes between tensors, for alignment.
        null_page: bytes of page 0, which is never handed out.
        scales: bytes of quantisation scales.
        reserved: bytes set aside for a draft model.
        remainder: bytes too few for another page.
    """

    total: int
    payload: int
    padding: int
    null_page: int
    scales: int
    reserved: int
    remainder: int


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Layers that keep tokens for equally long and share one page table.

    Attributes:
        name: full, window_W, window_W_sS, chunked_C, state, cross, or the engine's own.
        layers: indices in the model.
        page_bytes: bytes of one page over all its layers.
        lifetime: how long it keeps what it holds.
        pages_per_parent: K: its pages in a parent of a packed plan; 1 where all groups share pages.
        parts: pages one state takes; 1 for groups that keep tokens.
    """

    name: str
    layers: tuple[int, ...] = ()
    page_bytes: int = 0
    lifetime: Lifetime = FULL
    pages_per_parent: int = 1
    parts: int = 1

    def steady_pages(self, length: int, page_size: int) -> int:
        """Pages of a sequence of ``length`` tokens, cross inputs left out. O(1)."""
        if self.lifetime.form == "tokens":
            return self.lifetime.steady_pages(length, page_size)
        return self.parts if self.lifetime.form == "state" else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A pool's geometry and capacity; made by `plan` or `Plan.from_pages`.

    Attributes:
        page_size: tokens a page holds.
        num_pages: physical pages, the null page 0 included.
        groups: group name to its GroupPlan.
        max_length: longest sequence in tokens; None: bounded by the pages alone.
        spec: the model, or None for a plan without bytes.
        dtype: element type of keys and values, or None for a plan without bytes.
        order: ``token`` or ``head``: which axis of a page comes first.
        budget: where the bytes go, or None for a plan without bytes.
        tensors: the tensors of the arena; empty for a plan without bytes.
        packed: whether groups number their pages each for itself, within parents.
    """

    page_size: int
    num_pages: int
    groups: Mapping[str, GroupPlan]
    max_length: int | None = None
    spec: ModelSpec | None = None
    dtype: DType | None = None
    order: Order = "token"
    budget: Budget | None = None
    tensors: tuple[TensorPlan, ...] = field(default=(), repr=False)
    packed: bool = False

    @classmethod
    def from_pages(
        cls,
        num_pages: int,
        page_size: int,
        groups: Mapping[str, LayerKind] | None = None,
        *,
        max_length: int | None = None,
        pages_per_parent: Mapping[str, int] | None = None,
        parts: Mapping[str, int] | None = None,
        page_bytes: Mapping[str, int] | None = None,
    ) -> "Plan":
        """A plan of page numbers only, for an engine with its own storage.

        Args:
            num_pages: physical pages, the null page counted: one less can be used.
            page_size: tokens a page holds.
            groups: group name to the kind of its layers; None: one full group.
            max_length: longest sequence in tokens; None: as many as fit.
            pages_per_parent: makes the plan packed: ``num_pages - 1`` parents, each cut into this
                many pages of the group it is bound to; a group not named gets 1.
            parts: pages one state takes, for state groups that are cut; a group not named takes 1.
            page_bytes: bytes of one page of a group, where something is bounded in bytes.

        Raises:
            LengthError: a number out of range, or pages too few for one of ``max_length``.

        Cost: O(1).
        """
        page_size = check_int("page_size", page_size, 1)
        num_pages = check_int("num_pages", num_pages, 2, _MAX_PAGES, "page 0 is the null page")
        kinds = {"full": Attention(1, 1, 1)} if groups is None else groups
        if not kinds:
            raise PlanError("groups", groups, "a plan has at least one group")
        per_parent, cut, sizes = pages_per_parent or {}, parts or {}, page_bytes or {}
        for name in (*per_parent, *cut, *sizes):
            if name not in kinds:
                raise PlanError("group", name, f"the plan's groups are {', '.join(kinds)}")
        for name, kind in kinds.items():
            if not isinstance(kind, LayerKind):
                raise PlanError(f"groups[{name!r}]", kind, "it must be Attention, State or Cross")
            if name in cut and not isinstance(kind, State):
                raise PlanError(f"parts[{name!r}]", cut[name], "only states are cut into parts")
        plans = {
            name: GroupPlan(
                name,
                page_bytes=check_int("page_bytes", sizes.get(name, 0), 0),
                lifetime=lifetime_of(kind),
                pages_per_parent=check_int("pages_per_parent", per_parent.get(name, 1), 1),
                parts=check_int("parts", cut.get(name, 1), 1),
            )
            for name, kind in kinds.items()
        }
        for group in plans.values():
            ids = 1 + (num_pages - 1) * group.pages_per_parent
            if ids * page_size > 2**31:
                right = f"slots must be int32: at most {2**31} for pages x page_size of a group"
                raise PlanError("num_pages", num_pages, right)
        packed = pages_per_parent is not None
        made = cls(page_size, num_pages, MappingProxyType(plans), max_length, packed=packed)
        if max_length is not None:
            max_length = check_int("max_length", max_length, 1, _MAX_PAGES)
            made = replace(made, max_length=max_length)
            need = 1 + made.pages(max_length)
            why = f"the null page and one sequence of {max_length} tokens"
            check_int("num_pages", num_pages, need, _MAX_PAGES, why)
        return made

    @property
    def usable_pages(self) -> int:
        """Pages that can be handed out: all but the null page."""
        return self.num_pages - 1

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers; 0 for a plan without bytes."""
        return sum(group.page_bytes for group in self.groups.values())

    @property
    def bytes_per_token(self) -> int:
        """Bytes one token adds, over all layers."""
        return self.page_bytes // self.page_size

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence all usable pages could hold. O(groups)."""
        return self._longest(1)

    @property
    def arena_bytes(self) -> int:
        """Bytes to allocate for all tensors; 0 for a plan without bytes."""
        b = self.budget
        return 0 if b is None else b.total - b.remainder - b.reserved

    def pages(self, length: int) -> int:
        """Pages (packed: parents) that one sequence of ``length`` tokens takes. O(groups).

        Windows count as they are when it runs token by token; cross inputs are left out.
        """
        return self._parents(1, length)

    def max_sequences(self, length: int) -> "Fraction":
        """Sequences of ``length`` tokens that fit at once, exactly. O(groups).

        Raises:
            LengthError: ``length`` is less than 1.
        """
        from fractions import Fraction  # here: it costs a tenth of importing octavo

        steady = self._steady(check_int("length", length, 1))
        return self.usable_pages / sum((Fraction(n, k) for n, k in steady), Fraction(0))

    def max_length_for(self, sequences: int) -> int:
        """Longest length at which ``sequences`` of them fit at once, 0 for none. O(groups).

        Raises:
            LengthError: ``sequences`` is less than 1.
        """
        length = self._longest(check_int("sequences", sequences, 1))
        return length if self.max_length is None else min(length, self.max_length)

    def _steady(self, length: int) -> list[tuple[int, int]]:
        """(pages, pages a parent) of each group for one sequence of ``length`` tokens."""
        return [
            (group.steady_pages(length, self.page_size), group.pages_per_parent)
            for group in self.groups.values()
        ]

    def _parents(self, sequences: int, length: int) -> int:
        return sum(-(-sequences * n // k) for n, k in self._steady(length))

    def _longest(self, sequences: int) -> int:
        """By bisection; 2**31 - 1 where nothing grows with the length."""
        low, high = 0, _MAX_PAGES
        while low < high:
            middle = (low + high + 1) // 2
            if self._parents(sequences, middle) <= self.usable_pages:
                low = middle
            else:
                high = middle - 1
        return low

    def explain(self) -> str:
        """The plan in words, with the arithmetic. O(layers)."""
        from octavo.explain import explain_plan

        return explain_plan(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data; names are stable. O(groups)."""
        longest = self.max_length or self.tokens
        return {
            "model": self.spec.name if self.spec else None,
            "layout": "component",
            "order": self.order,
            "dtype": self.dtype.name if self.dtype else None,
            "page_size": self.page_size,
            "max_length": longest,
            "pool": {
                "parents": self.num_pages,
                "parent_bytes": self.page_bytes,
                "null_bytes": self.page_bytes,
            },
            "page_bytes": self.page_bytes,
            "bytes_per_token": self.bytes_per_token,
            "sequence_bytes": self.pages(longest) * self.page_bytes,
            "max_sequences": int(self.max_sequences(longest) * 100) / 100,
            "tokens": self.tokens,
            "groups": [
                {
                    "name": group.name,
                    "layers": list(group.layers),
                    "pages": self.num_pages,
                    "usable_pages": self.usable_pages,
                    "page_bytes": group.page_bytes,
                }
                for group in self.groups.values()
            ],
            "budget": self.budget._asdict() if self.budget else None,
        }


def plan(
    spec: ModelSpec,
    memory: int | str,
    *,
    page_size: int = 16,
    dtype: str | DType = "bf16",
    max_length: int | None = None,
    order: Order = "token",
) -> Plan:
    """How many pages of ``spec`` fit into ``memory``, and where each byte goes.

    Args:
        spec: what the model's layers keep.
        memory: bytes, or text such as ``"16GiB"`` (1024s) or ``"16GB"`` (1000s).
        page_size: tokens a page holds, at most the longest sequence.
        dtype: element type of the stored keys and values.
        max_length: longest sequence in tokens, which must fit; None: the model's own, or as many
            tokens as fit if that is less.
        order: ``token``: a page is (page_size, kv_heads, dim); ``head``: (kv_heads, page_size,
            dim).

    Raises:
        PlanError: an argument out of range; it names the argument and what would be right.
        BudgetTooSmall: the memory does not hold the null page and one page, or not one sequence of
            the ``max_length`` asked for; it names every term.

    Cost: O(layers).
    """
    if not isinstance(spec, ModelSpec):
        raise PlanError("spec", spec, "it must be a ModelSpec, as of ModelSpec.from_config")
    if not all(isinstance(layer, Attention) for layer in spec.layers):
        raise PlanError("spec", spec.name, "bytes are planned for layers of Attention alone so far")
    element, total = find_dtype(dtype), parse_memory(memory)
    if order not in get_args(Order):
        raise PlanError("order", order, "it must be 'token' or 'head'")
    wanted = None if max_length is None else _check("max_length", max_length, None)
    _check("page_size", page_size, wanted or spec.max_length)
    rows = row_bytes(spec.layers, element, page_size)
    least = 1 + (1 if wanted is None else -(-wanted // page_size))
    num_pages = _fit(rows, total, least, page_size)
    longest = wanted or min(spec.max_length or _MAX_PAGES, (num_pages - 1) * page_size)
    page_bytes, used = sum(rows), arena_bytes(rows, num_pages)
    budget = Budget(
        total=total,
        payload=(num_pages - 1) * page_bytes,
        padding=used - num_pages * page_bytes,
        null_page=page_bytes,
        scales=0,
        reserved=0,
        remainder=total - used,
    )
    return Plan(
        page_size,
        num_pages,
        _one_group(tuple(range(len(spec.layers))), page_bytes),
        longest,
        spec,
        element,
        order,
        budget,
        tuple(lay_out(spec.layers, element, page_size, num_pages, order)),
    )


def parse_memory(memory: int | str) -> int:
    """Bytes of ``memory``: an int, or text such as ``512MiB``, ``1.5 GiB``, ``80GB``. O(1).

    Raises:
        PlanError: negative, 2**63 bytes or more, or not understood.
    """
    right = "give bytes as an int, or text such as '16GiB' or '16GB'"
    if isinstance(memory, str):
        found = (
            None
            if len(memory) > _DIGITS
            else re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", memory, re.ASCII)
        )
        unit = _UNITS.get(found[2].lower()) if found else None
        if found is None or unit is None:
            raise PlanError("memory", memory, right)
        from fractions import Fraction

        size = int(Fraction(found[1]) * unit)
    elif _is_int(memory) and memory >= 0:
        size = memory
    else:
        raise PlanError("memory", memory, right)
    if size > _MAX_BYTES:
        raise PlanError("memory", memory, f"it must be at most {_MAX_BYTES} bytes")
    return size


def _fit(rows: list[int], total: int, least: int, page_size: int) -> int:
    """Most pages whose aligned tensors fit into ``total`` bytes."""
    pages = min(total // sum(rows), _MAX_PAGES)
    while pages and arena_bytes(rows, pages) > total:
        pages -= 1
    if pages < least:
        need = arena_bytes(rows, least)
        terms = f"{least} pages (the null page and {least - 1}) of {page_size} tokens"
        raise BudgetTooSmall(need, total, f"{terms}, {sum(rows)} bytes each, and alignment")
    return pages


def _check(name: str, value: object, high: int | None) -> int:
    upper = "" if high is None else f" and at most {high}, the longest sequence"
    if not _is_int(value) or value < 1 or (high is not None and value > high):
        raise PlanError(name, value, f"it must be an int of at least 1{upper}")
    return value


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_group(layers: tuple[int, ...], page_bytes: int) -> Mapping[str, GroupPlan]:
    return MappingProxyType({"full": GroupPlan("full", layers, page_bytes)})
