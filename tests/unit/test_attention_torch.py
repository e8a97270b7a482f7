"""Rows of one query that the torch backend attends to together, beside others and alone."""

import numpy as np
import pytest
import torch

from octavo.attention.kernels import oracle
from octavo.attention.kernels import torch as backend
from octavo.attention.parameters import Seen
from octavo.cache.step import Step

DECODES = [(past, 1) for past in (0, 2, 3, 4, 30, 33, 37, 39, 40, 41, 47, 63, 64, 70, 79, 80)]
"""Rows of 1 to 21 pages of 4 slots, whose last page is full or not."""
SHORT = 100
"""Slots of a row that may share a tile."""


def attend(case, query, order, **rule):
    """What the backend gives for Pages."""
    keys, values = (torch.from_numpy(array).to(query.dtype) for array in (case.keys, case.values))
    return backend.paged_attention(query, keys, values, case.step, order=order, **rule)


def alone(step, row):
    """One decode row of a step of nothing else."""
    view = step.group()._replace(table=step.group().table[[row]], base=step.group().base[[row]])
    start = np.array([0, 1], np.int32)
    return Step(groups={"full": view}, query_start=start, context=step.context[[row]])


@pytest.mark.parametrize("order", ["token", "head"])
@pytest.mark.parametrize(
    "rule", [{}, {"window": 9}, {"softcap": 3.0}, {"return_lse": True}, {"causal": False}]
)
def test_rows_together_are_as_the_oracle_has_them(pages, order, rule):
    """Decode rows of many lengths, with chunks between them and NaN in every unowned slot."""
    rng = np.random.default_rng(0)
    spans = [*DECODES[:5], (0, 9), (6, 3), *DECODES[5:], (0, 0), *DECODES]
    case = pages(spans, 4, 2, 8, 8, order, rng)
    query = torch.from_numpy(rng.standard_normal((int(case.step.query_start[-1]), 6, 8)))
    found = attend(case, query, order, **rule)
    expected = oracle.paged_attention(
        query.numpy(), case.keys, case.values, case.step, order=order, **rule
    )
    pairs = zip(found, expected, strict=True) if "return_lse" in rule else [(found, expected)]

    for mine, truth in pairs:
        np.testing.assert_allclose(mine.numpy(), truth, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_a_row_is_the_same_alone(pages, dtype, tolerance):
    """Rows that share tiles give what each gives in a tile of its own."""
    rng = np.random.default_rng(1)
    case = pages(DECODES, 4, 2, 8, 8, "head", rng)
    query = torch.from_numpy(rng.standard_normal((len(DECODES), 6, 8))).to(dtype)
    together = attend(case, query, "head")
    for row in range(len(DECODES)):
        lone = case._replace(step=alone(case.step, row))
        found = attend(lone, query[row : row + 1], "head")

        torch.testing.assert_close(together[row : row + 1], found, rtol=0, atol=tolerance)


@pytest.mark.parametrize("seen", [Seen(), Seen(window=9), Seen(causal=False)])
def test_tiles_cover_every_query_once(pages, seen):
    """Whatever shares a tile, each query is in one."""
    case = pages(
        [*DECODES, (0, 9), *DECODES, (70, 5)], 4, 1, 2, 2, "head", np.random.default_rng(2)
    )
    step = backend.TorchStep(case.step, page_size=4)
    tokens = torch.arange(step.tokens)
    covered = torch.cat([tokens[tile.tokens] for tile in step.tiles.of(seen, short=SHORT)])

    assert torch.equal(covered.sort().values, tokens)


def test_tiles_of_several_rows_are_few_and_bounded(pages):
    """Rows share tiles of up to 16 and at most a quarter more slots than their pages have."""
    spans = [(past, 1) for past in range(3, 200, 2)]
    case = pages(spans, 4, 1, 2, 2, "head", np.random.default_rng(3))
    step = backend.TorchStep(case.step, page_size=4)
    tiles = step.tiles.of(Seen(), short=SHORT)
    shared = [tile for tile in tiles if len(tile.starts) > 1]

    assert len(shared) < 0.4 * sum(len(tile.starts) for tile in shared)
    for tile in shared:
        held = np.array([-(-(spans[row][0] + 1) // 4) for row in tile.starts])
        assert tile.pages.shape[0] <= 16
        assert tile.keys == 4 * tile.pages.shape[1] <= SHORT
        assert (tile.pages.shape[1] <= 1.25 * held).all()
    assert all(len(tile.starts) == 1 for tile in tiles if tile.keys > SHORT)
