"""A plan as JSON-ready data; docs/sizing.md explains the names, which are stable."""

from typing import Any

from octavo.planner import sizes
from octavo.planner.notes import notes_of
from octavo.planner.pools import GroupPlan, PoolPlan, max_sequences, max_sequences_in_flight
from octavo.planner.solve import longest_alone


def plan_as_dict(plan: PoolPlan) -> dict[str, Any]:
    """The plan as numbers, strings, lists and dicts. O(groups + tensors)."""
    longest = plan.max_length or longest_alone(plan)
    elements = plan.elements
    return {
        "model": plan.spec.name if plan.spec else None,
        "layout": plan.layout,
        "order": plan.order,
        "dtype": elements.kv.name if elements else None,
        "scales": elements.scales if elements else None,
        "state_dtype": elements.recurrent.name if elements else None,
        "conv_dtype": elements.conv.name if elements else None,
        "indexer_dtype": elements.indexer.name if elements else None,
        "page_size": plan.page_size,
        "max_length": longest,
        "tp": plan.tp,
        "pp": max(1, len(plan.stages)),
        "rank": plan._rank,
        "pool": {
            "parents": plan.usable_pages,
            "parent_bytes": plan.page_bytes,
            "null_bytes": plan.budget.null_page if plan.budget else 0,
        },
        "page_bytes": plan.page_bytes,
        "bytes_per_token": sizes.bytes_per_token(plan),
        "bytes_per_token_beyond_windows": sizes.bytes_per_token_beyond_windows(plan),
        "fixed_bytes_per_sequence": sizes.fixed_bytes_per_sequence(plan),
        "buffer_bytes_per_sequence": sizes.buffer_bytes(plan),
        "sequence_bytes": sizes.sequence_bytes(plan, longest),
        "sequence_bytes_without_windows": sizes.bytes_per_token(plan) * longest
        + sizes.fixed_bytes_per_sequence(plan),
        "max_sequences": int(max_sequences(plan, longest) * 100) / 100,
        "max_sequences_in_flight": max_sequences_in_flight(plan, longest),
        "tokens": longest_alone(plan),
        "in_flight_bytes": sizes.in_flight_bytes(plan),
        "max_step_tokens": plan.max_step_tokens,
        "depth_bytes_per_sequence": sizes.depth_bytes(plan),
        "prefix_reuse": {
            "tokens": plan.page_size,
            "state_bytes": sizes.state_bytes(plan),
            "state_tokens": sizes.state_tokens(plan),
        },
        "groups": [_group(group, plan) for group in plan.groups.values()],
        "notes": notes_of(plan),
        "memory": plan.memory._asdict() if plan.memory else None,
        "budget": plan.budget._asdict() if plan.budget else None,
    }


def _group(group: GroupPlan, plan: PoolPlan) -> dict[str, Any]:
    usable = plan.usable_pages * group.pages_per_parent
    reach = [t.max_addressable_pages for t in plan.tensors if t.group == group.name]
    return {
        "name": group.name,
        "form": group.lifetime.form,
        "layers": list(group.layers),
        "pages": usable + 1,
        "usable_pages": usable,
        "page_bytes": group.page_bytes,
        "pages_per_parent": group.pages_per_parent,
        "parts": group.parts,
        "sequence_pages": group.steady_pages(
            plan.max_length or longest_alone(plan), plan.page_size
        ),
        "kept_bytes": group.kept_bytes,
        "window": getattr(group.lifetime, "window", None),
        "sink_tokens": group.lifetime.sinks,
        "chunk": getattr(group.lifetime, "chunk", None),
        "every": group.every,
        "max_addressable_pages": min(reach, default=None),
    }
