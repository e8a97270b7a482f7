"""The conformance suite: right kernels pass, wrong ones are caught and named."""

from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

import octavo
from octavo import index
from octavo.attention.kernels import oracle
from octavo.attention.parameters import KV_DTYPES
from octavo.testing import KernelMismatch, check_kernel
from octavo.testing.conformance import FEATURES, TOLERANCES
from octavo.testing.conformance.cases import SCENES, Grid
from octavo.testing.conformance.components import rounded
from octavo.testing.conformance.scenes import build_scene, rows_of
from octavo.testing.conformance.trials import build_trial

QUICK = {"page_sizes": (2,), "heads": ((4, 2),), "dims": ((8, 4),)}


def seen(position, keys, causal, window, sink_tokens):
    """Which keys a query sees."""
    found = (keys <= position) if causal else np.ones(keys.size, bool)
    if window is not None:
        found &= (keys > position - window) | (keys < sink_tokens)
    return found


def cap(products, factor, softcap):
    """Scores of products."""
    scores = products * factor
    return scores if softcap is None else softcap * np.tanh(scores / softcap)


def weigh(scores, total):
    """Weights of scores; none where nothing is seen."""
    return np.exp(scores - np.where(np.isneginf(total), 0, total))


RIGHT = {
    "past": lambda step, row: step.past[row],
    "length": lambda step, row, page_size: step.context[row],
    "table": lambda table, row, nth: table[row],
    "flat": lambda cache: cache.reshape(-1, *cache.shape[2:]),
    "seen": seen,
    "kv_head": lambda head, heads, kv_heads: head // (heads // kv_heads),
    "scale": lambda scale, k_dim: k_dim**-0.5 if scale is None else scale,
    "cap": cap,
    "sink": lambda logit, factor: logit,
    "weights": weigh,
    "values": lambda values, sees: np.where(sees[:, None, None], values, 0),
    "lse": lambda sums, logit: sums,
}


def small(**wrong):
    """A plain kernel whose parts can be made wrong one at a time."""
    part = SimpleNamespace(**{**RIGHT, **wrong})

    def attend(
        query,
        key_cache,
        value_cache,
        step,
        *,
        group=None,
        order="token",
        scale=None,
        causal=True,
        softcap=None,
        window=None,
        sink_tokens=0,
        sink_logits=None,
        return_lse=False,
    ):
        if order == "head":
            key_cache, value_cache = key_cache.swapaxes(1, 2), value_cache.swapaxes(1, 2)
        page_size, kv_heads, v_dim = value_cache.shape[1:]
        tokens, heads, k_dim = query.shape
        out, lse = np.zeros((tokens, heads, v_dim)), np.full((tokens, heads), -np.inf)
        factor = part.scale(scale, k_dim)
        logits = np.full(heads, -np.inf) if sink_logits is None else part.sink(sink_logits, factor)
        kv = [part.kv_head(head, heads, kv_heads) for head in range(heads)]
        for nth, row in enumerate(np.flatnonzero(step.counts)):
            keys = np.arange(part.length(step, row, page_size))
            table = part.table(step.group(group).table, row, nth)
            at = table[keys // page_size] * page_size + keys % page_size
            every = [part.flat(c)[at][:, kv].astype(float) for c in (key_cache, value_cache)]
            first, last = step.query_start[row : row + 2]
            for number, token in enumerate(range(first, last)):
                products = np.einsum("hd,khd->hk", query[token], every[0])
                scores = part.cap(products, factor, softcap)
                position = part.past(step, row) + number
                sees = part.seen(position, keys, causal, window, sink_tokens)
                scores = np.where(sees, scores, -np.inf)
                sums = np.logaddexp.reduce(scores, axis=1)
                weights = part.weights(scores, np.logaddexp(sums, logits)[:, None])
                values = part.values(every[1], sees)
                out[token] = np.einsum("hk,khd->hd", weights, values)
                lse[token] = part.lse(sums, logits)
        return (out, lse) if return_lse else out

    return attend


def flat_as_if_together(cache):
    """Slots of a cache whose pages are taken to lie next to each other."""
    shape = (cache.shape[0] * cache.shape[1], *cache.shape[2:])
    return np.lib.stride_tricks.as_strided(cache, shape, cache.strides[1:])


def to_page(step, row, page_size):
    """A context rounded up to whole pages."""
    return -(-step.context[row] // page_size) * page_size


WRONG = {
    "sees 2 keys where the window is 1": {
        "seen": lambda p, k, c, w, s: seen(p, k, c, w and w + 1, s)
    },
    "sees 1 key where the window is 2": {
        "seen": lambda p, k, c, w, s: seen(p, k, c, w and max(1, w - 1), s)
    },
    "ignores the window": {"seen": lambda p, k, c, w, s: seen(p, k, c, None, 0)},
    "ignores the sink tokens": {"seen": lambda p, k, c, w, s: seen(p, k, c, w, 0)},
    "counts the sink tokens within the window": {
        "seen": lambda p, k, c, w, s: seen(p, k, c, w and max(1, w - s), s)
    },
    "is not causal: queries see later keys": {
        "seen": lambda p, k, c, w, s: seen(p, k, False, w, s)
    },
    "is causal where it must not be": {"seen": lambda p, k, c, w, s: seen(p, k, True, w, s)},
    "does not let a query see its own key": {
        "seen": lambda p, k, c, w, s: seen(p, k, c, w, s) & (k != p)
    },
    "counts positions from the first query": {"past": lambda step, row: 0},
    "reads slots that are in no row's context and sees its last page whole": {
        "length": to_page,
        "seen": lambda p, k, c, w, s: np.ones(k.size, bool),
    },
    "reads slots that are in no row's context and weighs them by 0": {
        "length": to_page,
        "values": lambda values, sees: values,
    },
    "reads the page table of the row before": {"table": lambda table, row, nth: table[row - 1]},
    "reads the page table of the row behind": {
        "table": lambda table, row, nth: table[(row + 1) % len(table)]
    },
    "does not skip the page tables of rows that sit out": {
        "table": lambda table, row, nth: table[nth]
    },
    "reads a row's pages in the wrong order": {
        "table": lambda table, row, nth: table[row][table[row] > 0][::-1]
    },
    "reads the first row's page table for every row": {"table": lambda table, row, nth: table[0]},
    "takes a row's pages for consecutive": {
        "table": lambda table, row, nth: table[row, 0] + np.arange(table.shape[1])
    },
    "lets query head h read key/value head h % kv_heads": {"kv_head": lambda h, heads, kv: h % kv},
    "does not scale the scores": {"scale": lambda scale, k_dim: 1.0},
    "scales the scores twice": {"scale": lambda scale, k_dim: (scale or k_dim**-0.5) ** 2},
    "takes the scale from v_dim": {"scale": lambda scale, k_dim: scale or 0.5},
    "ignores the scale it is given": {"scale": lambda scale, k_dim: k_dim**-0.5},
    "ignores the softcap": {"cap": lambda products, factor, softcap: products * factor},
    "caps the scores before it scales them": {
        "cap": lambda products, factor, softcap: cap(products, 1.0, softcap) * factor
    },
    "ignores the sink logits": {"sink": lambda logits, factor: np.full(logits.shape, -np.inf)},
    "scales the sink logits": {"sink": lambda logits, factor: logits * factor},
    "counts the sink logits in the lse": {"lse": np.logaddexp},
    "gives the lse to base 2": {"lse": lambda sums, logits: sums / np.log(2)},
    "takes pages to lie next to each other": {"flat": flat_as_if_together},
    "gives an lse of 0, not -inf, where a query sees no key": {
        "lse": lambda sums, logits: np.where(np.isneginf(sums), 0, sums)
    },
    "loses NaN that a query sees": {
        "cap": lambda products, factor, softcap: np.nan_to_num(
            cap(products, factor, softcap), nan=-np.inf
        )
    },
    "lets NaN reach queries that do not see it": {"values": lambda values, sees: values},
    "gives NaN where a query sees no key": {"weights": lambda scores, sums: np.exp(scores - sums)},
}


def test_right_kernel_passes():
    """A right kernel of few lines passes everything, and the report says what was tried."""
    report = check_kernel(small(), **QUICK)

    assert report.cases == 24 * len(SCENES)  # rules and scenes
    assert ("kv_dtype", "v_dim") == report.left_out
    assert str(report).startswith(f"{report.cases} cases agree; largest error: fp32 ")


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_kernel_is_caught_and_named(fault):
    """Each fault is found, and the message names it."""
    orders = ("token",) if "next to each other" in fault else ("token", "head")
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(small(**WRONG[fault]), orders=orders, **QUICK)

    assert fault in (caught.value.fault or ""), str(caught.value)
    assert fault in str(caught.value)


def test_message_says_where():
    """The message names row, kind, position, head, the keys seen and their pages, and the case."""
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(small(**WRONG["sees 2 keys where the window is 1"]), **QUICK)
    wrong = caught.value
    place = (wrong.what, wrong.row, wrong.token, wrong.head, wrong.position)

    assert ("out", 0, 0, 0, 4) == place
    assert abs(wrong.expected - wrong.actual) > 1e-10
    assert (
        f"row 0 (decode, context 5, page size 2, window 1): out of the query at position 4, head 0 "
        f"is {wrong.actual:.6g} and should be {wrong.expected:.6g}; it may see 1 key: 4 on page "
        f"{wrong.page} (offset 0).\nThe kernel sees 2 keys where the window is 1"
    ) in str(wrong)
    assert str(wrong).endswith(f"case: {wrong.case}")


QUIET = {"page_sizes": (2,), "heads": ((2, 1),), "dims": ((8, 4),), "without": ("kv_dtype",)}


def refuses_caps(query, key_cache, value_cache, step, *, softcap=None, **options):
    """The oracle, without a softcap."""
    if softcap is not None:
        raise NotImplementedError("no softcap")
    return oracle.paged_attention(query, key_cache, value_cache, step, **options)


def test_refused_cases_are_counted():
    """Cases that the kernel refuses by NotImplementedError are counted, not failed."""
    report = check_kernel(refuses_caps, **QUIET)

    assert {"no softcap": 4 * len(SCENES)} == report.refused
    assert "16 cases refused: no softcap" in str(report)


@pytest.mark.parametrize(
    ("without", "cases"),
    [
        ((), 12),
        (("prefill",), 6),
        (("strided", "return_lse"), 12),
        (("keyless",), 8),
        (("nan", "keyless"), 4),
    ],
)
def test_features_can_be_left_out(without, cases):
    """Options without a parameter, and features named in ``without``, are not tried."""
    calls = []

    def plain(query, key_cache, value_cache, step):
        calls.append((int(step.counts.max()), key_cache.flags.c_contiguous))
        return oracle.paged_attention(query, key_cache, value_cache, step)

    report = check_kernel(plain, **QUIET | {"without": without})

    assert cases == report.cases
    assert (without != ("prefill",)) == any(most > 1 for most, _ in calls)
    assert {"window", "softcap", "return_lse", *without} <= set(report.left_out)
    if "strided" in without:
        assert all(together for _, together in calls)


def test_kernels_without_an_order_are_token_major():
    """Without the parameter head-major pages are left out; alone they are refused."""
    shapes = set()

    def plain(query, key_cache, value_cache, step):
        shapes.add(key_cache.shape[1:])
        return oracle.paged_attention(query, key_cache, value_cache, step)

    assert "order" in check_kernel(plain, **QUIET).left_out
    assert {(2, 1, 8)} == shapes
    with pytest.raises(octavo.PlanError, match=r"orders is \('head',\); .*it is token-major"):
        check_kernel(plain, orders=("head",), **QUIET)


def test_page_sizes_that_the_index_refuses():
    """A page size ONNX Runtime's kernel does not take is refused by name, and the rest is tried."""

    def emitted(step, group=None, **options):
        assert index.onnxruntime(step, group, **options)
        return step

    def plain(query, key_cache, value_cache, step):
        return oracle.paged_attention(query, key_cache, value_cache, step)

    report = check_kernel(plain, index=emitted)
    why = "index refuses: page_size is {}; onnxruntime takes a power of two of at least 16 tokens"

    assert 16 == report.cases
    assert {why.format(1): 8, why.format(3): 8} == report.refused


def test_message_about_a_query_without_keys():
    """It says that the query may see no key, and which rows have such queries."""
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(small(**WRONG["gives NaN where a query sees no key"]), **QUICK)
    wrong = caught.value

    assert (0, -3, 0) == (wrong.row, wrong.position, wrong.page)
    assert 0 == wrong.expected
    assert "row 0 (queries before any key, context 2, page size 2): out of the query" in str(wrong)
    assert "should be 0; it may see no key.\nThe kernel gives NaN where" in str(wrong)
    assert "queries without keys" in str(wrong.case)


@pytest.mark.parametrize("name", ["vllm", "flash", "flashinfer", "dense"])
def test_kernels_that_take_index_arrays(name):
    """With ``index`` a kernel is given what that function makes of the step, and no group."""
    emit = getattr(index, name)
    kinds = set()

    def plain(query, key_cache, value_cache, at, *, window=None):
        kinds.add(type(at))
        raise NotImplementedError(f"window {window is not None}")

    with pytest.raises(octavo.PlanError, match="nothing is left to try; refused"):
        check_kernel(plain, index=emit, **QUIET)
    assert 1 == len(kinds)
    assert kinds.pop().__name__.lower() == name


def test_errors_of_a_kernel_fail():
    """A kernel that raises fails with the case, and nothing of it stays."""
    with pytest.raises(KernelMismatch, match="it raised ZeroDivisionError: division") as caught:
        check_kernel(lambda query, key_cache, value_cache, step: 1 / 0, **QUIET)

    assert caught.value.row is None
    assert check_kernel(oracle.paged_attention, **QUIET)


def changed(**wrong):
    """The oracle with some keywords replaced where they are given."""

    def attend(query, key_cache, value_cache, step, **options):
        options |= {name: change(options) for name, change in wrong.items() if name in options}
        return oracle.paged_attention(query, key_cache, value_cache, step, **options)

    return attend


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"key_scale": lambda options: 1.0}, "ignores key_scale"),
        ({"value_scale": lambda options: 1.0}, "ignores value_scale"),
        ({"value_scale": lambda o: o["key_scale"]}, "takes key_scale for value_scale"),
        ({"key_scale": lambda o: o["value_scale"]}, "takes value_scale for key_scale"),
    ],
)
def test_faults_of_quantised_caches_are_named(wrong, fault):
    """Scales that are forgotten or taken for each other are found."""
    with pytest.raises(KernelMismatch, match=fault):
        check_kernel(changed(**wrong), page_sizes=(2,), heads=((4, 2),), dims=((8, 8),))


def test_faults_of_latent_caches_are_named():
    """Values taken from the wrong end of a latent row are found."""

    def attend(query, key_cache, value_cache, step, *, v_dim=None, order="token", scale=None):
        if value_cache is not None:
            options = {"order": order, "scale": scale}
            return oracle.paged_attention(query, key_cache, value_cache, step, **options)
        keys = key_cache[:, :, None]
        return oracle.paged_attention(query, keys, keys[..., -v_dim:], step, scale=scale)

    with pytest.raises(KernelMismatch, match="takes values from the end of a latent row"):
        check_kernel(attend, **QUIET)


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "fp16", "bf16"])
def test_dtypes_are_judged_by_their_own_tolerance(dtype):
    """An error of half of what a dtype allows passes, one of twice that fails."""

    def off(by):
        def attend(*arguments):
            out = oracle.paged_attention(*arguments)
            return out + by * (1 + abs(out))

        return attend

    allowed = TOLERANCES[dtype]
    options = {**QUIET, "dtypes": (dtype,), "orders": ("token",)}
    report = check_kernel(off(allowed / 2), **options)

    assert pytest.approx(allowed / 2, rel=1e-3) == report.errors[dtype]
    with pytest.raises(KernelMismatch) as caught:
        check_kernel(off(2 * allowed), **options)
    assert caught.value.fault is None
    assert check_kernel(off(2 * allowed), tolerance=3 * allowed, **options)


def test_bf16_numbers_are_bfloat16s():
    """In bf16 the query is float32 that bfloat16 holds exactly, rounded to even as it does."""
    numbers = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-7, np.nan, 3.0e38])
    expected = [1.0, 1.0, 1 + 2**-6, -1 - 2**-7, np.nan]

    np.testing.assert_array_equal(expected, rounded(numbers, "bf16")[:5])
    assert not (rounded(numbers, "bf16").view(np.uint32) & 0xFFFF).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"without": ("magic",)},
            "without is 'magic'; it must be one of causal, keyless, kv_dtype",
        ),
        ({"dtypes": ("int8",)}, "dtypes is 'int8'; it must be one of bf16, fp16, fp32, fp64"),
        ({"kv_dtypes": ("int2",)}, "kv_dtypes is 'int2'; it must be one of fp8, int4, int8"),
        ({"page_sizes": ()}, "nothing is left to try"),
    ],
)
def test_refusals_say_what_would_be_right(options, message):
    """Unknown names are refused with those that are known, and so is a grid without cases."""
    with pytest.raises(octavo.OctavoError, match=message):
        check_kernel(oracle.paged_attention, **options)


def test_scenes_have_what_makes_them_hard():
    """Pages are shared, scattered and used before; rows sit out; contexts end anywhere."""
    for size in (1, 3, 16):
        mixed = build_scene(rows_of("mixed", size, 300), size, None, 0, seed=0)
        table, context = mixed.step.group().table, mixed.step.context
        held = [row[: -(-length // size)] for row, length in zip(table, context, strict=True)]
        pages = np.concatenate(held)

        assert len(set(pages.tolist())) < pages.size
        assert any((np.diff(row) < 0).any() or (np.diff(row) > 1).any() for row in held)
        assert {1, 2, 3, 4} & set(pages.tolist())
        assert {0} < set(mixed.step.counts.tolist())
        assert 0 in context
        assert {size, size + 1, 2 * size, 2 * size + 1} <= set(context.tolist())
        assert mixed.step.past.tolist() == [row.past for row in mixed.rows]


def test_answers_of_the_oracle_are_numbers():
    """There is NaN in what a kernel should answer where it is on purpose alone, in every type."""
    shapes = ((4, 2),), ((8, 4),), KV_DTYPES
    for case in Grid((3,), ("token", "head"), ("fp16", "bf16"), *shapes, FEATURES, 1).cases():
        answer = build_trial(case).reference()

        if case.rule.nan:
            odd = [np.isnan(each) for each in answer]
            assert odd[0].any()
            assert not odd[0].all()
            continue
        assert np.isfinite(answer.out).all()
        assert (np.isfinite(answer.lse) | case.rule.keyless).all()
        assert not np.isnan(answer.lse).any()


def test_rounds_try_other_combinations():
    """A second round has as many cases, of other heads, orders, dtypes and layouts."""

    def grid(rounds):
        pairs = ((4, 4), (4, 2), (4, 1)), ((8, 8), (8, 4)), ()
        return list(
            Grid((4,), ("token", "head"), ("fp32", "fp64"), *pairs, FEATURES, rounds).cases()
        )

    one, two = grid(1), grid(2)
    assert two[: len(one)] == one
    assert 2 * len(one) == len(two)
    assert one[0][:3] == two[len(one)][:3]
    assert [case[3:-1] for case in one] != [case[3:-1] for case in two[len(one) :]]


BADLY_FORMED = [
    (lambda out, lse: (out, out), "it gave tuple of 2, and only out was asked"),
    (lambda out, lse: out.tolist(), "it gave list of "),
    (lambda out, lse: out.astype(complex), "its out is ndarray of complex128, and no floats"),
    (lambda out, lse: out.astype(object), "its out is ndarray of object, and no floats"),
    (lambda out, lse: out.astype(str), "its out is ndarray of str"),
    (lambda out, lse: out.astype("datetime64[s]"), "its out is ndarray of datetime64"),
    (lambda out, lse: out.astype(int), "its out is ndarray of int64, and no floats"),
    (lambda out, lse: None, "its out is NoneType of object, and no floats"),
    (lambda out, lse: "out", "its out is str of "),
    (lambda out, lse: out[0], "out is of shape"),
]
BADLY_FORMED_WITH_LSE = [
    (lambda out, lse: (out[:1], lse), "out is of shape .1, 2, 4. and should be .21, 2, 4."),
    (lambda out, lse: (out, lse[:, :1]), "lse is of shape .21, 1. and should be .21, 2."),
    (lambda out, lse: [out, lse], "with return_lse it gave list, not .out, lse."),
    (lambda out, lse: out, "with return_lse it gave ndarray, not .out, lse."),
    (lambda out, lse: (out, [[1.0], [1.0, 2.0]]), "its lse, list, is no array"),
    (lambda out, lse: (out, lse + 0j), "its lse is ndarray of complex128"),
    (lambda out, lse: (out, lse, lse), "with return_lse it gave tuple"),
]


@pytest.mark.parametrize(
    ("with_lse", "change", "message"),
    [
        *((False, *row) for row in BADLY_FORMED),
        *((True, *row) for row in BADLY_FORMED_WITH_LSE),
    ],
)
def test_badly_formed_answers_fail(with_lse, change, message):
    """An answer that is no array of floats of the right shape, or no pair, is described."""

    def answers(*arguments, return_lse=False, **options):
        attended = oracle.paged_attention(*arguments, return_lse=True, **options)
        return change(*attended) if return_lse == with_lse else attended.out

    lacks = ("kv_dtype",) if with_lse else ("kv_dtype", "return_lse")
    with pytest.raises(KernelMismatch, match=message):
        check_kernel(answers, orders=("token",), **{**QUIET, "without": lacks})


WRITES = {
    "key_cache": lambda k, v, step, options: k.fill(0),
    "value_cache": lambda k, v, step, options: v.fill(0),
    "sink_logits": lambda k, v, step, options: options["sink_logits"].fill(9),
    "key_scale": lambda k, v, step, options: options["key_scale"].fill(9),
    "value_scale": lambda k, v, step, options: options["value_scale"].fill(9),
    "step.context": lambda k, v, step, options: step.context.fill(1),
    "step.input_ids": lambda k, v, step, options: step.input_ids.fill(9),
    "step.wants_token": lambda k, v, step, options: np.logical_not(
        step.wants_token, out=step.wants_token
    ),
    "the slots of group full": lambda k, v, step, options: step.groups["full"].slots.fill(9),
    "the page table of group window": lambda k, v, step, options: step.groups["window"].table.fill(
        9
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_nothing_that_is_given_may_be_written(name):
    """All inputs and the whole step are compared, and the right answer is known before the call."""

    def writes(*arguments, **options):
        found = oracle.paged_attention(*arguments, **options)
        with suppress(KeyError, AttributeError):  # not in every case
            WRITES[name](*arguments[1:], options)
        return found

    with pytest.raises(KernelMismatch, match=f"it has written into {name}, which") as caught:
        check_kernel(writes, page_sizes=(2,), heads=((4, 2),), dims=((8, 4),))
    assert caught.value.row is None
    assert check_kernel(oracle.paged_attention, **QUIET)  # nothing of it stays


@pytest.mark.parametrize("error", [NotImplementedError, ValueError, KernelMismatch])
def test_diagnosis_never_hides_the_difference(error):
    """A kernel that fails when it is asked again, to explain a difference, still differs."""
    calls = []

    def nan_once(*arguments, **options):
        calls.append(1)
        if len(calls) > 1:
            raise error(*["no"] * (3 if error is KernelMismatch else 1))
        return oracle.paged_attention(*arguments, **options) * np.nan

    with pytest.raises(KernelMismatch, match="is nan and should be") as caught:
        check_kernel(nan_once, without=("kv_dtype", "return_lse"), page_sizes=(2,))
    assert "out" == caught.value.what


def test_a_kernel_may_answer_in_the_same_memory():
    """What the diagnosis asks for later does not change the answer it explains."""
    memory = {}

    def reuses(*arguments, **options):
        out = oracle.paged_attention(*arguments, **options)
        kept = memory.setdefault(out.shape, out)
        kept[...] = out + 1
        return kept

    with pytest.raises(KernelMismatch) as caught:
        check_kernel(reuses, without=("kv_dtype", "return_lse"), page_sizes=(2,))
    assert pytest.approx(1) == caught.value.actual - caught.value.expected


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tolerance", [float("nan"), float("inf"), -1, True, "a", [1.0]]),
        (
            "heads",
            [
                None,
                3,
                ((3, 2),),
                ((0, 1),),
                ((1, 0),),
                (4, 2),
                ((4, 2, 1),),
                ((-4, 2),),
                ((4.0, 2),),
            ],
        ),
        ("dims", [None, (8, 8), ((0, 8),), ((8, -1),), ((8,),), "88"]),
        ("page_sizes", [None, 3, (0,), (-1,), (2.0,), ("2",), ((2,),)]),
        (
            "orders",
            [None, 3, ("page",), "token", (None,), (["token"],), (np.array(["head", "token"]),)],
        ),
        ("dtypes", [None, "fp32", (["fp32"],), (np.float32,)]),
        ("kv_dtypes", [None, "int8", (["int8"],)]),
        ("without", [None, "window", (["window"],)]),
        ("rounds", [None, 0, -1, 1.0, True]),
        ("index", [3, "vllm"]),
        ("to", [None, 3]),
        ("back", [None, "numpy"]),
    ],
)
def test_nonsense_is_refused_by_its_name(name, values):
    """No argument of another form is taken, and none ends in an untyped error."""
    for value in values:
        with pytest.raises(octavo.OctavoError, match=f"^{name} is "):
            check_kernel(oracle.paged_attention, **{name: value})
    with pytest.raises(octavo.PlanError, match="^fn is None"):
        check_kernel(None)


def test_only_what_was_compared_is_reported():
    """An element type that the kernel refuses has no error in the report."""

    def single(query, key_cache, value_cache, step):
        if query.dtype != np.float32:
            raise NotImplementedError("float32 alone")
        return oracle.paged_attention(query, key_cache, value_cache, step)

    report = check_kernel(single, orders=("token",), rounds=3, **QUIET)
    assert {"fp32"} == set(report.errors)
