"""The flex backend: what it gathers, which blocks it reads, and what it refuses."""

import numpy as np
import pytest
import torch

from octavo.attention.kernels import flex as backend
from octavo.attention.kernels import oracle
from octavo.attention.parameters import Seen


def query_and_caches(pages, spans, page_size=4, order="token", seed=1):
    """A case of rows ``spans``, and its query and caches as tensors in float64."""
    rng = np.random.default_rng(seed)
    case = pages(spans, page_size, 2, 16, 16, order, rng)
    query = rng.standard_normal((int(case.step.query_start[-1]), 4, 16))
    return case, [torch.from_numpy(array) for array in (query, case.keys, case.values)]


def test_bfloat16(pages):
    """In the dtype models run in, results are as near to the oracle's as it allows, and of it."""
    case, arrays = query_and_caches(pages, [(40, 1), (3, 9)])
    found = backend.paged_attention(*(array.bfloat16() for array in arrays), case.step)
    expected = oracle.paged_attention(*map(np.asarray, arrays), case.step)

    assert found.dtype == torch.bfloat16
    np.testing.assert_allclose(found.double(), expected, atol=3e-2)


def test_pages_are_gathered_once(pages):
    """Behind the null page come those that queries see, each once, as rows first name them."""
    case, _ = query_and_caches(pages, [(8, 1), (2, 3)])
    table = case.step.group().table
    table[1, 0] = table[0, 0]  # a prefix both rows have
    prepared = backend.prepare(case.step, page_size=4)

    everything = prepared.picture(Seen())
    assert [0, *table[0, :3], table[1, 1]] == everything.pages.tolist()
    windowed = prepared.picture(Seen(window=2))
    assert [0, *table[0, 1:3], table[0, 0], table[1, 1]] == windowed.pages.tolist()
    assert prepared.picture(Seen(window=2)) is windowed


def test_slots_beyond_contexts_are_stale(pages):
    """Slots of the null page and behind a row's context are named, to be zeros in the copy."""
    case, _ = query_and_caches(pages, [(5, 1), (0, 3)])
    picture = backend.prepare(case.step, page_size=4).picture(Seen())

    assert [0, 1, 2, 3, 10, 11, 15] == picture.stale.tolist()


def test_blocks_without_a_seen_key_are_skipped(pages):
    """Rows read their own blocks: two of 200 keys share the middle one, a third has its own."""
    case, _ = query_and_caches(pages, [(199, 1), (0, 200), (99, 1)], page_size=16)
    mask = backend.prepare(case.step, page_size=16).picture(Seen()).mask

    assert (202 + 127) // 128 == mask.kv_num_blocks.shape[-1]
    dense = mask.to_dense()[0, 0].bool().tolist()
    assert [[True, True, True, False], [False, True, True, True]] == [row[:4] for row in dense]


@pytest.mark.parametrize("order", ["token", "head"])
def test_queries_without_keys(pages, order):
    """A query that sees no key gives exactly 0 and lse -inf, whether some row has keys or none."""
    for spans, blind in (([(4, 1), (-2, 3)], [1, 2]), ([(-2, 2)], [0, 1])):
        case, arrays = query_and_caches(pages, spans, order=order)
        found = backend.paged_attention(*arrays, case.step, order=order, return_lse=True)
        expected = oracle.paged_attention(*map(np.asarray, arrays), case.step, order=order)

        assert (found.out[blind] == 0).all()
        assert torch.isneginf(found.lse[blind]).all()
        np.testing.assert_allclose(found.out, expected, atol=1e-12)


def test_step_without_queries(pages):
    """Rows that all sit out give an empty output."""
    case, arrays = query_and_caches(pages, [(5, 0)])

    assert backend.paged_attention(*arrays, case.step).shape == (0, 4, 16)


def test_prepared_step_serves_every_layer(pages):
    """A FlexStep made once gives what the step gives, for layers of other windows and heads."""
    case, (query, *caches) = query_and_caches(pages, [(9, 1), (3, 4)])
    prepared = backend.prepare(case.step, page_size=4)
    for rule in ({}, {"window": 5}, {"softcap": 2.0}):
        for heads in (2, 4):
            mine = query[:, :heads]
            found = backend.paged_attention(mine, *caches, prepared, **rule)
            assert torch.equal(found, backend.paged_attention(mine, *caches, case.step, **rule))
