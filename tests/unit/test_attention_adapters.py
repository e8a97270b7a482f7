"""The adapters to FlashAttention and FlashInfer, with modules that compute from their arguments.

Each stand-in has the names and arguments of the library's own functions, works out from nothing
else which query sees which key, and lets the oracle attend.
"""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import octavo
from octavo import index
from octavo.attention import Attended, backend
from octavo.attention.kernels import flash_attn, flashinfer
from octavo.attention.kernels.oracle import attend, merge
from octavo.testing import check_kernel


def attended(query, keys, values, *, causal, left, right, scale, softcap):
    """Attention of one row: causal from the bottom right, a window as both libraries count it."""
    queries, at = np.arange(len(query))[:, None] + len(keys) - len(query), np.arange(len(keys))
    seen = np.ones((len(query), len(keys)), bool)
    if causal:
        seen &= at <= queries
    if left >= 0:
        seen &= at >= queries - left
    if right >= 0:
        seen &= at <= queries + right
    arrays = (np.asarray(tensor.double()) for tensor in (query, keys, values))
    used = seen.any(axis=0)  # a kernel multiplies no masked value
    query, keys, values = arrays
    return attend(query, keys[used], values[used], seen[:, used], scale, softcap=softcap or None)


def rows_of(cache, tables, lengths, page_size):
    """Each row's keys or values in order, of a token-major cache."""
    for table, length in zip(tables, lengths, strict=True):
        at = torch.arange(int(length))
        yield cache[table[at // page_size].long(), at % page_size]


class FlashAttn(SimpleNamespace):
    """Stands in for the package flash_attn."""

    def flash_attn_varlen_func(
        self, q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
        softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        """Computes from exactly these arguments, and keeps the last call's."""
        self.call = {name: value for name, value in locals().items() if name != "self"}
        for ints in (cu_seqlens_q, cu_seqlens_k, block_table):
            assert ints.dtype == torch.int32
            assert ints.is_contiguous()
        counts, lengths = cu_seqlens_q.diff(), cu_seqlens_k.diff()
        assert (int(counts.max()), int(lengths.max())) == (max_seqlen_q, max_seqlen_k)
        assert (counts > 0).all()
        if causal and window_size[0] >= 0:
            assert window_size[1] == 0
        parts = [
            attended(
                *(query, keys, values),
                causal=causal,
                left=window_size[0],
                right=window_size[1],
                scale=softmax_scale,
                softcap=softcap,
            )
            for query, keys, values in zip(
                q.split(counts.tolist()),
                rows_of(k, block_table, lengths, k.shape[1]),
                rows_of(v, block_table, lengths, k.shape[1]),
                strict=True,
            )
        ]
        out = torch.from_numpy(np.concatenate([part.out for part in parts])).to(q.dtype)
        lse = np.concatenate([part.lse for part in parts]).T
        lse = torch.from_numpy(np.where(np.isneginf(lse), np.inf, lse)).float()
        return (out, lse, None) if return_attn_probs else out


class PagedWrapper:
    """What both of FlashInfer's wrappers stand on: a plan, and runs by it."""

    made = 0

    def __init__(self, float_workspace_buffer, kv_layout="NHD", use_tensor_cores=False):
        assert float_workspace_buffer.dtype == torch.uint8
        assert use_tensor_cores in (False, True)
        self.layout, self.plans = kv_layout, 0
        type(self).made += 1

    def keep(self, starts, indptr, indices, last, *sizes, causal, **options):
        """Checks and keeps a plan."""
        assert all(ints.dtype == torch.int32 for ints in (starts, indptr, indices, last))
        assert ((1 <= last) & (last <= sizes[3])).all()
        self.starts, self.indptr, self.indices, self.last = starts, indptr, indices, last
        self.sizes, self.causal, self.options, self.plans = sizes, causal, options, self.plans + 1

    def run(self, q, paged_kv_cache, *, return_lse=False):
        """Computes from the plan and these arguments; lse to base 2."""
        heads, kv_heads, dim, page_size = self.sizes
        assert q.shape[1:] == (heads, dim)
        assert q.dtype == self.options["q_data_type"] == self.options["kv_data_type"]
        caches = paged_kv_cache
        if self.layout == "HND":
            caches = [cache.transpose(1, 2) for cache in caches]
        assert caches[0].shape[1:] == (page_size, kv_heads, dim)
        pages = self.indptr.diff()
        lengths = torch.where(pages > 0, (pages - 1) * page_size + self.last, 0)
        tables = self.indices.split(pages.tolist())
        parts = [
            attended(
                *(query, keys, values),
                causal=self.causal,
                left=self.options["window_left"],
                right=-1,
                scale=self.options["sm_scale"],
                softcap=self.options["logits_soft_cap"],
            )
            for query, keys, values in zip(
                q.split(self.starts.diff().tolist()),
                rows_of(caches[0], tables, lengths, page_size),
                rows_of(caches[1], tables, lengths, page_size),
                strict=True,
            )
        ]
        out = torch.from_numpy(np.concatenate([part.out for part in parts])).to(q.dtype)
        lse = torch.from_numpy(np.concatenate([part.lse for part in parts]) / np.log(2)).float()
        return (out, lse) if return_lse else out


class Prefill(PagedWrapper):
    """Stands in for BatchPrefillWithPagedKVCacheWrapper."""

    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, *, causal=False, pos_encoding_mode="NONE",
        sm_scale=None, window_left=-1, logits_soft_cap=None, q_data_type="float16",
        kv_data_type=None,
    ):  # fmt: skip
        """Plans a step."""
        assert pos_encoding_mode == "NONE"
        self.keep(
            *(qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len),
            *(num_qo_heads, num_kv_heads, head_dim_qk, page_size),
            causal=causal,
            sm_scale=sm_scale,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
        )


class Decode(PagedWrapper):
    """Stands in for BatchDecodeWithPagedKVCacheWrapper: one query a row sees all its keys."""

    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *,
        pos_encoding_mode="NONE", sm_scale=None, window_left=-1, logits_soft_cap=None,
        q_data_type="float16", kv_data_type=None,
    ):  # fmt: skip
        """Plans a step."""
        assert pos_encoding_mode == "NONE"
        self.keep(
            *(torch.arange(len(last_page_len) + 1, dtype=torch.int32), indptr, indices),
            *(last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size),
            causal=False,
            sm_scale=sm_scale,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
        )


@pytest.fixture
def flash(monkeypatch):
    """The stand-in as ``flash_attn``."""
    module = FlashAttn()
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    return module


@pytest.fixture
def wrappers(monkeypatch):
    """The stand-ins as ``flashinfer``, with no wrapper made yet and a small workspace."""
    module = SimpleNamespace(
        BatchPrefillWithPagedKVCacheWrapper=Prefill, BatchDecodeWithPagedKVCacheWrapper=Decode
    )
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(flashinfer, "WORKSPACE_BYTES", 64)
    monkeypatch.setattr(Prefill, "made", 0)
    monkeypatch.setattr(Decode, "made", 0)
    flashinfer._wrapper.cache_clear()
    yield module
    flashinfer._wrapper.cache_clear()
    flashinfer._workspace.cache_clear()


def test_flash_attn_conforms(flash, monkeypatch):
    """FlashAttention's arguments mean what the oracle computes, over the whole grid it can do."""
    monkeypatch.setattr(flash_attn, "PAGE_MULTIPLE", 1)  # 256 tokens a page make the grid slow
    report = check_kernel(
        flash_attn.paged_attention,
        to=torch.from_numpy,
        page_sizes=(3, 16),
        orders=("token",),
        dtypes=("fp16",),
        heads=((4, 4), (8, 2)),
        dims=((16, 16),),
    )

    words = ("latent attention", "sink_tokens", "kv_dtype")
    assert all(any(word in why for word in words) for why in report.refused)
    assert report.cases == 2 * 4 * 18


def test_flashinfer_conforms(wrappers):
    """FlashInfer's arguments mean what the oracle computes, over the whole grid it can do."""
    report = check_kernel(
        flashinfer.paged_attention,
        to=torch.from_numpy,
        page_sizes=(3, 16),
        dtypes=("fp16",),
        heads=((4, 4), (8, 2)),
        dims=((16, 16),),
    )

    words = ("latent attention", "sink_tokens", "kv_dtype")
    assert all(any(word in why for word in words) for why in report.refused)
    assert report.cases == 2 * 4 * 18
    assert Prefill.made
    assert Decode.made


@pytest.mark.parametrize("kernels", [flash_attn, flashinfer], ids=["flash_attn", "flashinfer"])
@pytest.mark.parametrize("return_lse", [True, False])
def test_nan_that_a_kernel_spreads(flash, wrappers, monkeypatch, pages, kernels, return_lse):
    """Where a kernel's answer is NaN, each query has what it sees, and its lse says so."""
    del flash, wrappers
    plain = attended

    def spreading(*arrays, **options):
        found = plain(*arrays, **options)
        if not np.isnan(found.out).any():
            return found
        return Attended(np.full_like(found.out, np.nan), np.full_like(found.lse, -np.inf))

    monkeypatch.setattr(sys.modules[__name__], "attended", spreading)
    monkeypatch.setattr(flash_attn, "PAGE_MULTIPLE", 1)
    rng = np.random.default_rng(0)
    case = pages([(5, 20), (40, 1)], 16, 1, 8, 8, "token", rng)
    case.keys[case.step.group().table[0, 0], 15] = np.nan  # seen from position 15 on
    query = rng.standard_normal((21, 2, 8))
    arrays = [torch.from_numpy(each).half() for each in (query, case.keys, case.values)]
    found = kernels.paged_attention(*arrays, case.step, return_lse=return_lse)
    seeing = np.repeat((np.arange(21) >= 10) & (np.arange(21) < 20), 2).reshape(21, 2)

    for each in found if return_lse else [found[..., 0]]:
        array = each.numpy() if each.ndim == 2 else each[..., 0].numpy()
        np.testing.assert_array_equal(seeing, np.isnan(array))
        assert np.isfinite(array[~seeing]).all()


def real_step(counts):
    """A step of a real cache after a first one of ``counts``, and its plan, pages of 256 tokens."""
    plan = octavo.Plan.from_pages(20, 256)
    cache = octavo.Cache(plan)
    sequences = [cache.admit(list(range(n + 600)), limit=n + 700) for n in counts]
    cache.commit(cache.extend(sequences, counts))
    return plan, cache, sequences


def arrays_for(step, pages=20, page_size=256, dtype=torch.float16):
    """A query of 2 heads and caches of one, of zeros."""
    tokens = int(step.query_start[-1])
    cache = torch.zeros(pages, page_size, 1, 8, dtype=dtype)
    return torch.zeros(tokens, 2, 8, dtype=dtype), cache, torch.zeros_like(cache)


@pytest.mark.parametrize("counts", [[1, 1], [7, 300]])
def test_flash_attn_takes_what_the_index_emits(flash, counts):
    """Lengths, sums and block table are those of `octavo.index.flash`."""
    plan, cache, sequences = real_step([300, 600])
    step = cache.extend(sequences, counts)
    flash_attn.paged_attention(*arrays_for(step), step)

    emitted = index.flash(step, plan=plan)
    for name in ("cu_seqlens_q", "cu_seqlens_k", "block_table"):
        np.testing.assert_array_equal(flash.call[name], getattr(emitted, name))
    for name in ("max_seqlen_q", "max_seqlen_k"):
        assert flash.call[name] == getattr(emitted, name)


@pytest.mark.parametrize("counts", [[1, 1], [7, 300]])
def test_flashinfer_takes_what_the_index_emits(wrappers, counts):
    """Running sums, pages and last lengths are those of `octavo.index.flashinfer`."""
    plan, cache, sequences = real_step([300, 600])
    step = cache.extend(sequences, counts)
    prepared = flashinfer.prepare(step, page_size=256, device="cpu")

    emitted = index.flashinfer(step, plan=plan)
    np.testing.assert_array_equal(prepared.query_starts, emitted.qo_indptr)
    lists = (emitted.kv_indptr, emitted.kv_indices, emitted.kv_last_page_len)
    for mine, expected in zip(prepared.pages, lists, strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_rows_that_sit_out_are_left_out(flash):
    """Where every other row has one query, the kernel for decode gets one query a row."""
    _, cache, sequences = real_step([300, 600, 20])
    step = cache.extend(sequences, [1, 0, 1])
    flash_attn.paged_attention(*arrays_for(step), step)

    assert [0, 1, 2] == flash.call["cu_seqlens_q"].tolist()
    assert [0, 301, 322] == flash.call["cu_seqlens_k"].tolist()


def test_a_plan_serves_all_layers_of_a_step(wrappers):
    """Layers that attend alike share one plan; the next step makes another, in the same wrapper."""
    _, cache, sequences = real_step([300, 600])
    step = cache.extend(sequences, 1)
    arrays = arrays_for(step)
    prepared = flashinfer.prepare(step, page_size=256, device="cpu")
    for window in (None, 9, None, 9):
        flashinfer.paged_attention(*arrays, prepared, window=window)
    assert Decode.made == 2

    cache.commit(step)
    later = flashinfer.prepare(cache.extend(sequences, 1), page_size=256, device="cpu")
    flashinfer.paged_attention(*arrays, later)
    layers = [flashinfer._wrapper.cache_info().currsize, Decode.made]
    assert [2, 2] == layers
    again = flashinfer.paged_attention(*arrays, prepared)
    assert torch.equal(again, flashinfer.paged_attention(*arrays, prepared))


def test_lse_merges_with_other_keys(flash, wrappers):
    """Both give natural logarithms: halves of a row's keys merge to the whole."""
    _, cache, sequences = real_step([600])
    step = cache.extend(sequences, 1)
    rng = np.random.default_rng(0)
    query, keys, values = (
        torch.from_numpy(rng.standard_normal(tensor.shape)).half() for tensor in arrays_for(step)
    )
    whole = attended(
        query, *(next(rows_of(c, torch.tensor(step.group().table), [601], 256))
                 for c in (keys, values)),
        causal=True, left=-1, right=-1, scale=8**-0.5, softcap=None,
    )  # fmt: skip
    for attend_paged in (flash_attn.paged_attention, flashinfer.paged_attention):
        found = attend_paged(query, keys, values, step, return_lse=True)
        np.testing.assert_allclose(found.lse, whole.lse, atol=1e-3)
        sinks = torch.tensor([1.0, -2.0])
        with_sinks = attend_paged(query, keys, values, step, sink_logits=sinks)
        expected = merge([whole], sinks.numpy())
        np.testing.assert_allclose(with_sinks.float(), expected.out, atol=5e-3)


def test_step_without_queries(pages, flash, wrappers):
    """Rows that all sit out give an empty output and call nothing."""
    step = pages([(5, 0)], 256, 1, 8, 8, "token", np.random.default_rng(1)).step
    for each in (flash_attn, flashinfer):
        found = each.paged_attention(*arrays_for(step), step, return_lse=True)
        assert found.out.shape == (0, 2, 8)
        assert found.lse.shape == (0, 2)
    assert not vars(flash)
    assert not Decode.made + Prefill.made


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("flash_attn", {"page_size": 16}, "page_size 16 in the flash_attn backend: .* 256"),
        ("flash_attn", {"order": "head"}, "order head in the flash_attn backend"),
        ("flash_attn", {"latent": True}, "latent attention in the flash_attn backend"),
        ("flash_attn", {"dim": 12}, "k_dim 12 and v_dim 12 in the flash_attn backend"),
        ("flash_attn", {"v_dim": 16}, "k_dim 8 and v_dim 16 in the flash_attn backend"),
        ("flash_attn", {"window": 4, "sink_tokens": 2}, "sink_tokens 2 in the flash_attn backend"),
        ("flash_attn", {"dtype": torch.float32}, "dtype of query is 'torch.float32'"),
        ("flash_attn", {"kv_dtype": "fp8"}, "kv_dtype fp8: the flash_attn backend"),
        ("flashinfer", {"latent": True}, "latent attention in the flashinfer backend"),
        ("flashinfer", {"v_dim": 16}, "values of shape .* in the flashinfer backend"),
        ("flashinfer", {"window": 4, "sink_tokens": 2}, "sink_tokens 2 in the flashinfer backend"),
        ("flashinfer", {"dtype": torch.float32}, "dtype of query is 'torch.float32'"),
        ("flashinfer", {"kv_dtype": "int8"}, "kv_dtype int8: the flashinfer backend"),
    ],
)
def test_refusals_name_the_option(flash, wrappers, name, change, message):
    """What the kernels lack is refused before they are called, by name."""
    _, cache, sequences = real_step([300])
    step = cache.extend(sequences, 1)
    dim, dtype = change.get("dim", 8), change.get("dtype", torch.float16)
    shape = (20, change.get("page_size", 256), 1)
    query = torch.zeros(1, 2, dim, dtype=dtype)
    keys = torch.zeros(*shape, dim, dtype=dtype)
    values = torch.zeros(*shape, change.get("v_dim", dim), dtype=dtype)
    caches = (keys[:, :, 0], None) if change.get("latent") else (keys, values)
    known = ("order", "window", "sink_tokens", "kv_dtype")
    options = {key: change[key] for key in known if key in change}
    if change.get("latent"):
        options["v_dim"] = dim

    with pytest.raises(octavo.OctavoError, match=message):
        {"flash_attn": flash_attn, "flashinfer": flashinfer}[name].paged_attention(
            query, *caches, step, **options
        )
    assert not vars(flash)


@pytest.mark.parametrize("name", ["flash_attn", "flashinfer"])
def test_says_why_it_does_not_work(name):
    """The registry names the missing package, or the missing device."""
    reason = backend(name).missing

    if not torch.cuda.is_available():
        assert reason in (f"{name} is not installed", "there is no CUDA device")
