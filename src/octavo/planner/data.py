"""A plan as JSON-ready data; names are stable and told in docs/sizing.md."""

from typing import Any

from octavo.planner.plan import GroupPlan, Plan


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as numbers, strings, lists and dicts. O(groups + tensors)."""
    longest = plan.max_length or plan.tokens
    elements = plan.elements
    return {
        "model": plan.spec.name if plan.spec else None,
        "layout": plan.layout,
        "order": plan.order,
        "dtype": elements.kv.name if elements else None,
        "scales": elements.scales if elements else None,
        "state_dtype": elements.recurrent.name if elements else None,
        "conv_dtype": elements.conv.name if elements else None,
        "page_size": plan.page_size,
        "max_length": longest,
        "tp": plan.tp,
        "pp": max(1, len(plan.stages)),
        "rank": plan.rank,
        "pool": {
            "parents": plan.usable_pages,
            "parent_bytes": plan.page_bytes,
            "null_bytes": plan.budget.null_page if plan.budget else 0,
        },
        "page_bytes": plan.page_bytes,
        "bytes_per_token": plan.bytes_per_token,
        "bytes_per_token_beyond_windows": plan.bytes_per_token_beyond_windows,
        "fixed_bytes_per_sequence": plan.fixed_bytes_per_sequence,
        "sequence_bytes": plan.sequence_bytes(longest),
        "sequence_bytes_without_windows": plan.bytes_per_token * longest
        + plan.fixed_bytes_per_sequence,
        "max_sequences": int(plan.max_sequences(longest) * 100) / 100,
        "max_sequences_in_flight": plan.max_sequences_in_flight(longest),
        "tokens": plan.tokens,
        "in_flight_bytes": plan.in_flight_bytes,
        "max_step_tokens": plan.max_step_tokens,
        "depth_bytes_per_sequence": plan.depth_bytes,
        "prefix_reuse": {
            "tokens": plan.reuse_tokens,
            "state_bytes": plan.state_bytes,
            "state_tokens": plan.state_tokens,
        },
        "groups": [_group(group, plan) for group in plan.groups.values()],
        "memory": plan.memory._asdict() if plan.memory else None,
        "budget": plan.budget._asdict() if plan.budget else None,
    }


def _group(group: GroupPlan, plan: Plan) -> dict[str, Any]:
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
        "sequence_pages": group.steady_pages(plan.max_length or plan.tokens, plan.page_size),
        "kept_bytes": group.kept_bytes,
        "window": getattr(group.lifetime, "window", None),
        "sink_tokens": group.lifetime.sinks,
        "chunk": getattr(group.lifetime, "chunk", None),
        "max_addressable_pages": min(reach, default=None),
    }
