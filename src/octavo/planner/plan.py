"""`Plan`: what a user holds of a pool, and how one of page numbers alone is made.

Answers what fits and where it lies; `octavo.planner.sizes` and `octavo.planner.pools` have further
figures. Knows no device and allocates nothing.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from octavo.checks import check_int, check_mapping
from octavo.errors import PlanError
from octavo.model.layers import Attention, LayerKind, State
from octavo.model.lifetimes import lifetime_of
from octavo.planner import pools, sizes
from octavo.planner.pools import MAX_PAGES, GroupPlan, PoolPlan

if TYPE_CHECKING:
    from fractions import Fraction

__all__ = ["GroupPlan", "Plan", "as_plan"]


@dataclass(frozen=True, slots=True)
class Plan(PoolPlan):
    """A pool's geometry and capacity; made by `plan` or `Plan.from_pages`.

    Its attributes are those of `octavo.planner.pools.PoolPlan`.
    """

    stages: tuple["Plan", ...] = field(default=(), repr=False)

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
            page_size: tokens per page.
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
        num_pages = check_int("num_pages", num_pages, 2, MAX_PAGES, "page 0 is the null page")
        kinds = {"full": Attention(1, 1, 1)}
        if groups is not None:
            kinds = dict(check_mapping("groups", groups))
        given = {"pages_per_parent": pages_per_parent, "parts": parts, "page_bytes": page_bytes}
        per_parent, cut, sized = (
            {} if value is None else check_mapping(name, value) for name, value in given.items()
        )
        _check_groups(kinds, cut, [*per_parent, *cut, *sized])
        plans = {
            name: GroupPlan(
                name,
                page_bytes=check_int("page_bytes", sized.get(name, 0), 0),
                lifetime=lifetime_of(kind),
                pages_per_parent=check_int("pages_per_parent", per_parent.get(name, 1), 1),
                parts=check_int("parts", cut.get(name, 1), 1),
            )
            for name, kind in kinds.items()
        }
        layout = "component" if pages_per_parent is None else "packed"
        made = cls(page_size, num_pages, MappingProxyType(plans), layout=layout)  # type: ignore[arg-type]
        if any(made.ids(name) * page_size > 2**31 for name in plans):
            right = f"slots must be int32: at most {2**31} for pages x page_size of a group"
            raise PlanError("num_pages", num_pages, right)
        return made if max_length is None else _with_length(made, max_length)

    @property
    def bytes_per_token(self) -> int:
        """Bytes one token adds while every layer keeps it, without padding. O(groups)."""
        return sizes.bytes_per_token(self)

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence that fits alone: the most that ``max_length`` may be.

        A packed plan for that length may cut its parents otherwise than this one; where no length
        is known at all it is what this one holds. Cost: some plans where it is packed, else
        O(groups).
        """
        from octavo.planner.solve import longest_alone  # here: most users need none of it

        return longest_alone(self)

    def max_sequences(self, length: int | None = None) -> "Fraction":
        """Sequences of ``length`` tokens, by default the longest, that fit at once. O(groups).

        The steady state: one state each and no snapshot, and windows as they are when sequences
        run token by token; what a step holds in flight is not taken off (see
        `octavo.planner.pools.max_sequences_in_flight`). The whole part can be held with each group
        in parents of its own. The fraction is ``(parents - (groups cut from parents - 1)) /
        parents a sequence takes``, as each such group but one may leave a parent half full, or the
        whole part where that is more.

        Raises:
            LengthError: ``length`` is less than 1.
            PlanError: there is nothing but cross inputs, of unknown length.
        """
        longest = self.max_length or self.tokens if length is None else length
        return pools.max_sequences(self, longest)

    def explain(self) -> str:
        """The answer in three sentences, then the arithmetic behind each figure. O(layers)."""
        from octavo.planner.explain import explain_plan

        return explain_plan(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data; names are stable. O(groups)."""
        from octavo.planner.data import plan_as_dict

        return plan_as_dict(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Figures that an earlier release had here, for this one."""
            found: Callable[..., Any] | None = _FIGURES.get(name)
            if found is None:
                raise AttributeError(f"a Plan has no attribute {name!r}", name=name, obj=self)
            text = f"Plan.{name} is now {found.__module__}.{name}(plan)"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
            return found(self) if found.__code__.co_argcount == 1 else partial(found, self)


_FIGURES = {
    figure.__name__: figure
    for figure in (
        pools.dtype,
        pools.pages,
        pools.parents,
        pools.longest_of,
        pools.max_length_for,
        pools.max_sequences_in_flight,
        sizes.arena_bytes,
        sizes.fixed_bytes_per_sequence,
        sizes.bytes_per_token_beyond_windows,
        sizes.state_bytes,
        sizes.state_tokens,
        sizes.saved_states,
        sizes.depth_bytes,
        sizes.cost,
        sizes.kept_bytes,
        sizes.kept_in,
        sizes.sequence_bytes,
        sizes.in_flight_bytes,
    )
}


def as_plan(pool: PoolPlan) -> Plan:
    """The plan of a pool that was solved. O(stages)."""
    data: dict[str, Any] = {each.name: getattr(pool, each.name) for each in fields(pool)}
    return Plan(**data | {"stages": tuple(map(as_plan, pool.stages))})


def _check_groups(kinds: Mapping[str, LayerKind], cut: Mapping[str, int], named: list[str]) -> None:
    """Refuse groups of no known kind, parts of what is no state, and sizes of unknown groups."""
    if not kinds:
        raise PlanError("groups", kinds, "a plan has at least one group")
    for name in kinds:
        if not isinstance(name, str) or not name:
            raise PlanError("groups", name, "the name of a group must be text")
    for name in named:
        if name not in kinds:
            raise PlanError("group", name, f"the plan's groups are {', '.join(kinds)}")
    for name, kind in kinds.items():
        if not isinstance(kind, LayerKind):
            raise PlanError(f"groups[{name!r}]", kind, "it must be Attention, State or Cross")
        if name in cut and not isinstance(kind, State):
            raise PlanError(f"parts[{name!r}]", cut[name], "only states are cut into parts")


def _with_length(made: Plan, max_length: object) -> Plan:
    """The plan, bounded by a length of which one sequence fits."""
    longest = check_int("max_length", max_length, 1, MAX_PAGES)
    why = f"the null page and one sequence of {longest} tokens"
    check_int("num_pages", made.num_pages, 1 + pools.pages(made, longest), MAX_PAGES, why)
    return replace(made, max_length=longest)
