"""index.flex and attention.flexmask: torch's flex attention over pages equals the oracle."""

import numpy as np
import pytest

from octavo import Attention, Cache, LengthError, Plan, PlanError, index
from octavo.attention.kernels.oracle import paged_attention

torch = pytest.importorskip("torch")
from torch.nn.attention.flex_attention import flex_attention  # noqa: E402

from octavo.attention.kernels.flex import block_mask  # noqa: E402

GROUPS = {
    "full": Attention(1, 1, 1),
    "window": Attention(1, 1, 1, window=19),
    "sinks": Attention(1, 1, 1, window=19, sink_tokens=6),
    "chunked": Attention(1, 1, 1, chunk=24),
}
PAGE = 8
COUNTS = [37, 1, 9, 0, 1, 30]


def mixed():
    """Plan and step: prefills, decodes, a row that sits out; prompts that share pages; a fork."""
    plan = Plan.from_pages(240, PAGE, GROUPS)
    cache = Cache(plan)
    shared = list(range(30))
    rows = [cache.admit([*shared, *range(100 * r, 100 * r + 30)]) for r in range(1, 5)]
    for row, count in zip(rows, COUNTS, strict=False):
        while (left := row.length - row.computed - count) > 0:
            cache.commit(cache.extend(row, min(left, 16)))
    rows += cache.fork(rows[1])
    rows.append(cache.admit([*shared, 7] * 2))
    counts = [min(c, row.length - row.computed) for c, row in zip(COUNTS, rows, strict=True)]
    return plan, cache.extend(rows, counts)


def seen_by_position(plan, step, group, causal):
    """bool[T, slots] by definition; dropped columns point to the null page, which nobody sees."""
    seen = np.zeros((step.positions.size, plan.num_pages * plan.page_size), np.bool_)
    view, kind = step.groups[group], GROUPS[group]
    for row, (start, stop) in enumerate(zip(step.query_start, step.query_start[1:], strict=False)):
        q, k = step.positions[start:stop, None], np.arange(step.context[row])
        near = np.ones((stop - start, k.size), np.bool_)
        if kind.window is not None:
            near = (k > q - kind.window) | (k < kind.sink_tokens)
        if kind.chunk is not None:
            near = k // kind.chunk >= q // kind.chunk
        slots = view.table[row, k // plan.page_size] * plan.page_size + k % plan.page_size
        seen[start:stop, slots] |= near & ((k <= q) | (not causal))
    seen[:, : plan.page_size] = False
    return seen


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("query_block", "kv_block"), [(16, 8), (5, 4), (128, 32), (1, 8)])
@pytest.mark.parametrize("group", GROUPS)
def test_blocks_are_exactly_the_live_ones(group, query_block, kv_block, causal):
    """Listed once are the blocks in which a query sees a key; full are those where all see all."""
    plan, step = mixed()
    seen = seen_by_position(plan, step, group, causal)
    found = index.flex(
        step, group, plan=plan, query_block=query_block, kv_block=kv_block, causal=causal
    )
    mod = block_mask(found).mask_mod
    q, k = torch.meshgrid(*map(torch.arange, seen.shape), indexing="ij")
    assert np.array_equal(mod(0, 0, q, k).numpy(), seen)

    for number in range(-(-seen.shape[0] // query_block)):
        block = seen[number * query_block :][:query_block]
        live = [block[:, at : at + kv_block] for at in range(0, seen.shape[1], kv_block)]
        part, full = listed(found, "kv_", number), listed(found, "full_kv_", number)
        assert full == [at for at, keys in enumerate(live) if keys.all()]
        assert part == [at for at, keys in enumerate(live) if keys.any() and not keys.all()]


def listed(found, prefix, number):
    """Key blocks of one block of queries."""
    count = int(getattr(found, f"{prefix}num_blocks")[0, 0, number])
    return getattr(found, f"{prefix}indices")[0, 0, number, :count].tolist()


@pytest.mark.parametrize("kv_block", [8, 4, 32])
@pytest.mark.parametrize("group", ["full", "window", "sinks"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_equals_the_oracle(group, kv_block):
    """torch's function, not compiled, over a finite pool of two key heads and four query heads."""
    plan, step = mixed()
    rng = np.random.default_rng(0)
    query = rng.standard_normal((step.positions.size, 4, 16))
    keys, values = rng.standard_normal((2, plan.num_pages, PAGE, 2, 16))
    kind = GROUPS[group]
    wanted = paged_attention(
        query,
        keys,
        values,
        step,
        group=group,
        window=kind.window,
        sink_tokens=kind.sink_tokens,
    )
    mask = block_mask(index.flex(step, group, plan=plan, query_block=16, kv_block=kv_block))
    pools = (torch.from_numpy(p).flatten(0, 1).transpose(0, 1)[None] for p in (keys, values))
    tokens = torch.from_numpy(query).transpose(0, 1)[None]
    got = flex_attention(tokens, *pools, block_mask=mask, enable_gqa=True)

    np.testing.assert_allclose(got[0].transpose(0, 1).numpy(), wanted, atol=1e-12)


def test_blocks_that_do_not_fit_pages_are_refused():
    """A block of keys is a page, part of one, or several."""
    plan, step = mixed()
    with pytest.raises(PlanError, match="kv_block"):
        index.flex(step, plan=plan, kv_block=12)


def test_a_page_in_two_columns_is_refused():
    """No cache makes such a table, and the mask could not tell the columns apart."""
    plan, step = mixed()
    table = step.group().table.copy()
    table[0, 1] = table[0, 0]
    view = step.group()._replace(table=table)
    with pytest.raises(LengthError, match="column"):
        index.flex(step.replace(groups={"full": view}), plan=plan)
