"""The core of a cache, put together from its plan.

The core counts tokens: rows that stand for several of them come and go with their tokens' pages.
"""

from math import lcm

from octavo.cache.policies import Policy, find_policy
from octavo.checks import check_int
from octavo.core.arena import Arena
from octavo.core.commits import Core
from octavo.core.groups import Group
from octavo.core.index import PrefixIndex
from octavo.core.pages import PagePool
from octavo.core.rows import Places
from octavo.core.sequences import NEVER, Parts
from octavo.errors import PlanError
from octavo.model.lifetimes import Chunked, Window
from octavo.planner.plan import Plan
from octavo.planner.pools import GroupPlan

_LEAST = -(2**63)


def assemble(
    plan: Plan, policy: str | Policy, rows: int, rollback: int, *, publishes: bool
) -> Core:
    """An empty core of ``rows`` rows. O(1): memory is touched when it is used.

    Raises:
        PlanError: no such policy, more slots than int32 has, or pages that part a row's tokens.
        LengthError: the policy's lanes are out of range.
    """
    plans = list(plan.groups.values())
    every = lcm(*(group.every for group in plans))
    if plan.page_size % every:
        right = f"rows stand for up to {every} tokens: pages of {every}, or a multiple, hold them"
        raise PlanError("page_size", plan.page_size, right)
    ids, places = Arena(rows, 2 * plan.num_pages * plan.page_size), Places(rows)
    index = PrefixIndex(plan.page_size, len(plans), ids, plan.num_pages - 1)
    pool = _make_pool(plan, plans, index, find_policy(policy))
    if (max(space.size for space in pool.spaces) + 1) * plan.page_size > NEVER:
        right = f"pages of {plan.page_size} tokens have at most {NEVER} slots"
        raise PlanError("num_pages", plan.num_pages, right)
    groups = [
        _make_group(number, group, plan.page_size, rows, rollback, pool, places)
        for number, group in enumerate(plans)
    ]
    names = list(plan.groups)
    size = plan.page_size
    return Core(Parts(size, rows, index, pool, groups, ids, places, rollback, publishes, names))


def _make_pool(plan: Plan, plans: list[GroupPlan], index: PrefixIndex, policy: Policy) -> PagePool:
    lanes = check_int("lanes", policy.lanes, 1, 100)
    first, again = (
        check_int("lane", policy.lane(reused=reused), 1, lanes) for reused in (False, True)
    )
    per_parent = [group.pages_per_parent for group in plans] if plan.packed else []
    parents = plan.num_pages - 1

    def excess(lane: int, waiting: int) -> int:
        answer = policy.excess(lane, waiting, parents)
        return max(0, min(waiting, check_int("excess", answer, _LEAST)))

    return PagePool(parents, per_parent, len(plans), index, lanes + 1, first, again, excess)


def _make_group(
    number: int,
    plan: GroupPlan,
    size: int,
    rows: int,
    rollback: int,
    pool: PagePool,
    places: Places,
) -> Group:
    lifetime = plan.lifetime
    window = min(lifetime.window, NEVER) if isinstance(lifetime, Window) else 0
    chunk = min(lifetime.chunk, NEVER) if isinstance(lifetime, Chunked) else 0
    sinks = min(-(-lifetime.sinks // size), NEVER)
    keeps, units = "tokens" if plan.grows else lifetime.form, rollback + 1
    parts = plan.parts if keeps == "state" else 1
    return Group(number, keeps, window, chunk, sinks, parts, units, size, rows, pool, places)
