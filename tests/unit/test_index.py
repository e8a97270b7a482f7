"""octavo.index: from a step to the arrays each kernel takes."""

import numpy as np
import pytest

from octavo import (
    Attention,
    Cache,
    CapacityError,
    LengthError,
    Plan,
    PlanError,
    State,
)
from octavo.errors import UnknownGroup
from octavo.index import (
    LatentGeometry,
    cascade,
    check_offsets,
    dense,
    flash,
    flashinfer,
    max_addressable_pages,
    onnxruntime,
    tensorrt,
    vllm,
)
from octavo.testing import freeze

FORMATS = [vllm, flash, flashinfer, onnxruntime, tensorrt, dense]
GROUPS = {
    "full": Attention(1, 1, 1),
    "window": Attention(1, 1, 1, window=21),
    "sinks": Attention(1, 1, 1, window=21, sink_tokens=5),
    "chunked": Attention(1, 1, 1, chunk=32),
}
by_format = pytest.mark.parametrize("emit", FORMATS, ids=lambda emit: emit.__name__)
by_group = pytest.mark.parametrize("group", GROUPS)


def mixed(page_size=16, lengths=(5, 70, 40), counts=(5, 1, 7)):
    """Plan and step: a row that begins, one that decodes and one in the middle of its prompt."""
    plan = Plan.from_pages(1000, page_size, GROUPS)
    cache = Cache(plan)
    rows = [cache.admit([number] * length) for number, length in enumerate(lengths)]
    for row, count in zip(rows, counts, strict=True):
        while row.computed < row.length - count:
            cache.commit(cache.extend(row, min(16, row.length - count - row.computed)))
    return plan, cache.extend(cache.batch(rows), counts)


def tables(emitted, page=16):
    """Kernel pages of each row as lists, whatever the format; 0 where it has none."""
    if hasattr(emitted, "kv_indices"):
        pairs = zip(emitted.kv_indptr[:-1], emitted.kv_indptr[1:], strict=True)
        return [emitted.kv_indices[low:high].tolist() for low, high in pairs]
    if hasattr(emitted, "block_offsets"):
        table, lengths = emitted.block_offsets[:, 0] // 2, emitted.sequence_length
        values = emitted.block_offsets[:, 1]
        assert np.array_equal(np.where(table > 0, table * 2 + 1, 0), values)
    else:
        table = np.maximum(emitted.block_table, 0)
        lengths = keys_of(emitted)
    return [row[: -(-int(keys) // page)].tolist() for row, keys in zip(table, lengths, strict=True)]


def keys_of(emitted):
    """Keys of each row."""
    for name in ("seq_lens", "cache_seqlens", "sequence_length"):
        if hasattr(emitted, name):
            return getattr(emitted, name)
    if hasattr(emitted, "kv_indptr"):
        return np.diff(emitted.kv_indptr) * 16 - 16 + emitted.kv_last_page_len
    return emitted.past_seqlens + np.diff(emitted.cumulative_sequence_length)


def arrays(emitted):
    """The arrays of a format by name."""
    return {name: v for name, v in emitted._asdict().items() if isinstance(v, np.ndarray)}


# -- figures ---------------------------------------------------------------------------------------


def step_of(page_size, *lengths, usable=30):
    """Plan, cache and step of prompts computed whole."""
    plan = Plan.from_pages(usable + 1, page_size)
    cache = Cache(plan)
    rows = [cache.admit([number + 1] * length) for number, length in enumerate(lengths)]
    return plan, cache, cache.extend(rows, list(lengths))


def test_twenty_tokens_in_pages_of_16():
    """Two pages, cu [0, 20], nothing past."""
    plan, _, step = step_of(16, 20)
    found = onnxruntime(step, plan=plan)

    assert (1, 2) == found.block_table.shape
    assert [0, 20] == found.cumulative_sequence_length.tolist()
    assert [0] == found.past_seqlens.tolist()
    assert [20, 20, 20] == found.attention_metadata.tolist()


def test_seventeen_tokens_of_which_one_is_new():
    """Past 16, and the slot is the first of the second page."""
    plan, cache, step = step_of(16, 16)
    cache.commit(step, [7])
    step = cache.extend(step.sequences)
    found = onnxruntime(step, plan=plan)

    assert [16] == found.past_seqlens.tolist()
    assert [found.block_table[0, 1] * 16] == found.slot_mapping.tolist()


def test_five_and_thirty_three():
    """A batch of (5, 33) is three columns wide, cu [0, 5, 38]."""
    plan, _, step = step_of(16, 5, 33)
    found = onnxruntime(step, plan=plan)

    assert (2, 3) == found.block_table.shape
    assert [0, 5, 38] == found.cumulative_sequence_length.tolist()
    assert [0, 0] == found.block_table[0, 1:].tolist()
    assert [33, 33, 33] == found.attention_metadata.tolist()


@pytest.mark.parametrize("page_size", [16, 32, 64])
def test_one_token_more_than_two_pages(page_size):
    """2 * page_size + 1 tokens take three pages; every slot follows from them."""
    count = 2 * page_size + 1
    plan, _, step = step_of(page_size, count)
    found = onnxruntime(step, plan=plan)
    pages = found.block_table[0].tolist()

    assert 3 == len(set(pages))
    slots = [pages[at // page_size] * page_size + at % page_size for at in range(count)]
    assert slots == found.slot_mapping.tolist()


def test_pages_used_again_after_release():
    """What was freed is handed out and emitted for the next sequence."""
    plan, cache, step = step_of(16, 20, usable=2)
    first = vllm(step, plan=plan)
    cache.commit(step)
    cache.release(step.sequences[0])
    cache.reset()
    second = vllm(cache.extend(cache.admit([9] * 20), 20), plan=plan)

    assert set(first.block_table.ravel()) == set(second.block_table.ravel())


def test_eight_emissions_change_nothing():
    """Usage, stats and everything inside are byte for byte what they were."""
    plan, cache, step = step_of(16, 20, 33)
    before = freeze(cache), freeze(step), cache.stats()
    for emit in (*FORMATS, vllm, flash):
        emit(step, plan=plan)

    assert before == (freeze(cache), freeze(step), cache.stats())


# -- laws ------------------------------------------------------------------------------------------


def frozen(step):
    """The step with every array read-only."""

    def shut(value):
        if isinstance(value, np.ndarray):
            value = value.copy()
            value.flags.writeable = False
        return value

    names = ("input_ids", "counts", "past", "context", "last", "wants_token", "query_start")
    plain = {name: shut(getattr(step, name)) for name in (*names, "positions")}
    groups = {name: type(v)(*map(shut, v)) for name, v in step.groups.items()}
    return step.replace(**plain, groups=groups)


@by_group
@by_format
def test_reads_frozen_steps_and_shares_nothing(emit, group):
    """Inputs are never written and never handed out."""
    plan, step = mixed()
    shut = frozen(step)
    before = freeze(shut)
    for form in ("absolute", "compact"):
        for name, array in arrays(emit(shut, group, plan=plan, form=form)).items():
            assert array.flags.writeable, name
            array[...] = 1

    assert before == freeze(shut)


@by_group
@pytest.mark.parametrize("kernel_page", [None, 16])
@pytest.mark.parametrize("form", ["absolute", "compact"])
def test_every_format_has_the_same_pages(group, form, kernel_page):
    """Each converts back to the same tables, and all agree on slots and positions."""
    plan, step = mixed(16 if kernel_page is None else 32)
    options = {"plan": plan, "form": form, "kernel_page": kernel_page}
    emitted = [emit(step, group, **options) for emit in FORMATS]
    first = emitted[0]

    for other in emitted:
        assert tables(first) == tables(other)
        assert keys_of(first).tolist() == keys_of(other).tolist()
        for name in ("slot_mapping", "positions", "logit_rows", "base"):
            assert np.array_equal(getattr(first, name), getattr(other, name)), name


@by_group
@pytest.mark.parametrize("form", ["absolute", "compact"])
def test_slots_follow_from_the_table(group, form):
    """The slot of each (sequence, position) is its page's: for new tokens and for all seen."""
    plan, step = mixed()
    found, lead = vllm(step, group, plan=plan, form=form), 16 * (group == "sinks")
    for row, start in enumerate(step.query_start[:-1]):
        for token in range(start, start + step.counts[row]):
            at = int(found.positions[token])
            key = at if at < lead else at - int(found.base[row])
            slot = found.block_table[row, key // 16] * 16 + key % 16
            assert slot == found.slot_mapping[token]


def test_absolute_tables_are_the_steps():
    """As far as a row's context goes, and null behind it."""
    plan, step = mixed()
    for group in GROUPS:
        table = vllm(step, group, plan=plan).block_table
        for row, context in enumerate(step.context):
            end = -(-int(context) // 16)
            assert np.array_equal(step.group(group).table[row, :end], table[row, :end])
            assert not table[row, end:].any()


@by_group
def test_the_compact_form_has_what_queries_see(group):
    """Pages that a query of the step sees are there in order, those before are not."""
    plan, step = mixed(lengths=(5, 90, 100), counts=(5, 1, 7))
    absolute, compact = (vllm(step, group, plan=plan, form=f) for f in ("absolute", "compact"))
    floors = plan.groups[group].lifetime.floors(step.past.astype(np.int64)) // 16
    lead = group == "sinks"
    for row, first in enumerate(floors):
        pages = absolute.block_table[row].tolist()
        left = max(int(first) - lead, 0)
        assert 16 * left == compact.base[row]
        want = [page for page in pages[:lead] + pages[lead + left :] if page]
        assert want == [page for page in compact.block_table[row].tolist() if page]
    assert (group == "full") == (not compact.base.any())


@by_group
@pytest.mark.parametrize("form", ["absolute", "compact"])
@pytest.mark.parametrize("kernel_page", [16, 4, 1])
def test_the_mask_is_the_rule(group, form, kernel_page):
    """Query q sees key k if k <= q and it is in q's window or chunk, or a sink."""
    plan, step = mixed()
    found = dense(step, group, plan=plan, form=form, kernel_page=kernel_page)
    absolute = dense(step, group, plan=plan, kernel_page=kernel_page)
    lifetime = plan.groups[group].lifetime
    for row, (past, count) in enumerate(zip(step.past, step.counts, strict=True)):
        for j in range(step.max_query):
            q = int(past) + j
            there = range(q + 1 if j < count else 0)
            seen = [k for k in there if k >= lifetime.floor(q) or k < lifetime.sinks]
            pages = absolute.block_table[row]
            slots = [pages[k // kernel_page] * kernel_page + k % kernel_page for k in seen]
            keys = np.flatnonzero(found.mask[row, j])
            table = found.block_table[row]
            got = [table[k // kernel_page] * kernel_page + k % kernel_page for k in keys]
            assert slots == got


def test_kernel_pages_keep_the_slots():
    """A page of 32 is two of 16; slots stay."""
    plan, step = mixed(page_size=32)
    whole, half = (vllm(step, plan=plan, kernel_page=page) for page in (None, 16))
    for row, context in enumerate(step.context):
        for at in range(context):
            first = whole.block_table[row, at // 32] * 32 + at % 32
            assert first == half.block_table[row, at // 16] * 16 + at % 16
    assert np.array_equal(whole.slot_mapping, half.slot_mapping)
    assert 5 == half.block_table.shape[1]


@by_group
@by_format
def test_padding_leaves_nothing_of_a_larger_batch(emit, group):
    """Into buffers of a larger batch: as fresh, and padding as the format has it elsewhere."""
    plan, large = mixed(lengths=(40, 90, 130, 60, 7), counts=(9, 3, 40, 2, 7))
    small = mixed(lengths=(5, 33), counts=(1, 1))[1]
    out = emit(large, group, plan=plan)
    fresh = emit(small, group, plan=plan, rows=5)
    found = emit(small, group, plan=plan, rows=3, out=out)

    for name, array in arrays(found).items():
        assert array is getattr(out, name)
        other = getattr(fresh, name)
        assert np.array_equal(other, array[tuple(map(slice, other.shape))]), name
        pad = {"slot_mapping": -1, "block_table": -1 if emit is dense else 0}.get(name, 0)
        rest = array.copy()
        rest[tuple(map(slice, other.shape))] = pad
        assert np.all(rest == pad), name
    assert np.all(found.slot_mapping[2:] == -1)
    assert [-1, -1, -1] == found.logit_rows[2:].tolist()


@by_format
def test_everything_is_int32(emit):
    """But the mask, which is bool."""
    plan, step = mixed()
    kinds = {name: array.dtype for name, array in arrays(emit(step, plan=plan)).items()}

    assert {name: np.dtype(bool if name == "mask" else np.int32) for name in kinds} == kinds


def test_rows_that_sit_out_have_keys_and_no_query():
    """A row of count 0 stays in the batch."""
    plan, step = mixed(counts=(5, 1, 0))
    found = vllm(step, plan=plan)

    assert [5, 70, 40] == found.seq_lens.tolist()
    assert [0, 5, 6, 6] == found.query_start_loc.tolist()
    assert [4, 5, -1] == found.logit_rows.tolist()


# -- cascade ---------------------------------------------------------------------------------------


def sharing(lengths, kernel_page=None):
    """Cascade and plain CSR of rows that share a prompt of 40 tokens and go on by themselves."""
    plan = Plan.from_pages(60, 16, GROUPS)
    cache = Cache(plan)
    first = cache.admit([1] * 40)
    cache.commit(cache.extend(first, 40), [2])
    rows = [cache.admit([1] * 40 + [number] * more) for number, more in enumerate(lengths)]
    step = cache.extend(rows, [row.length - row.computed for row in rows])
    options = {"plan": plan, "kernel_page": kernel_page}
    return step, cascade(step, **options), flashinfer(step, **options), plan


@pytest.mark.parametrize(("kernel_page", "count"), [(None, 2), (16, 2), (8, 4)])
def test_a_cascade_has_what_all_rows_share_once(kernel_page, count):
    """The published pages of the prompt in one level, all others in the next."""
    step, found, plain, _ = sharing([3, 20, 9], kernel_page)
    rows = np.split(plain.kv_indices, plain.kv_indptr[1:-1])
    own = np.split(found.kv_indices, found.kv_indptr[1:-1])

    assert [0, step.positions.size] == found.shared_qo_indptr.tolist()
    assert [0, count] == found.shared_kv_indptr.tolist()
    assert [kernel_page or 16] == found.shared_kv_last_page_len.tolist()
    for whole, rest in zip(rows, own, strict=True):
        assert whole.tolist() == [*found.shared_kv_indices, *rest]
    assert np.array_equal(plain.kv_last_page_len, found.kv_last_page_len)
    assert np.array_equal(plain.qo_indptr, found.qo_indptr)


def test_a_cascade_shares_only_what_every_query_sees():
    """Nothing of windows; nothing beside a row that begins; of one row all before its query."""
    step, _, _, plan = sharing([3, 20])
    mixed_plan, mixed_step = mixed()
    for found in (cascade(step, "window", plan=plan), cascade(mixed_step, plan=mixed_plan)):
        assert [0, 0] == found.shared_kv_indptr.tolist()
        assert [1] == found.shared_kv_last_page_len.tolist()
        assert 0 == found.shared_kv_indices.size
    assert [0, 2] == sharing([3])[1].shared_kv_indptr.tolist()


def test_cascades_into_buffers_of_larger_ones():
    """Nothing of the larger batch stays."""
    step, large, _, plan = sharing([3, 20, 9])
    step, fresh, _, plan = sharing([3])
    found = cascade(step, plan=plan, out=large)

    assert fresh.shared_kv_indices.tolist() == found.shared_kv_indices.tolist()
    assert [0, 1, 1, 1] == found.kv_indptr.tolist()
    assert [fresh.kv_last_page_len[0], 1, 1] == found.kv_last_page_len.tolist()
    assert not found.kv_indices[1:].any()


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize("page_size", [1, 4, 8, 24, 48])
def test_onnxruntime_takes_powers_of_two_from_16(page_size):
    """Any other page size is refused by the rule; a kernel page may mend it."""
    plan, step = mixed(page_size)
    with pytest.raises(PlanError, match="power of two of at least 16"):
        onnxruntime(step, plan=plan)
    if page_size == 48:
        assert (3, 5) == onnxruntime(step, plan=plan, kernel_page=16).block_table.shape


@pytest.mark.parametrize(
    ("kernel", "page_size", "allowed"),
    [
        ("flash_attn", 16, False),
        ("flash_attn", 256, True),
        ("flash_attn_3", 24, True),
        ("flashinfer", 5, True),
        ("vllm", 24, False),
        ("vllm", 48, True),
        ("vllm_cpu", 16, False),
        ("vllm_cpu", 32, True),
        ("other", 16, False),
    ],
)
def test_pages_by_the_rule_of_a_named_kernel(kernel, page_size, allowed):
    """Refused or taken as the kernel does."""
    plan, step = mixed(page_size)
    if allowed:
        assert 3 == len(flash(step, plan=plan, kernel=kernel).block_table)
    else:
        with pytest.raises(PlanError, match=kernel):
            flash(step, plan=plan, kernel=kernel)


@pytest.mark.parametrize("slot_fill", [-1, 0])
@pytest.mark.parametrize("page_fill", [-1, 0])
@pytest.mark.parametrize("emit", [vllm, flash, onnxruntime, dense])
def test_fills_are_chosen_by_name(emit, slot_fill, page_fill):
    """Padding's slots and every entry without a page have them; the rest stays."""
    plan, step = mixed()
    for group in GROUPS:
        plain = emit(step, group, plan=plan, rows=5)
        found = emit(step, group, plan=plan, rows=5, slot_fill=slot_fill, page_fill=page_fill)
        assert np.all(found.slot_mapping[-2:] == slot_fill)
        assert np.array_equal(plain.slot_mapping[:-2], found.slot_mapping[:-2])
        none = plain.block_table <= 0
        assert np.all(found.block_table[none] == page_fill)
        assert np.array_equal(plain.block_table[~none], found.block_table[~none])


@by_format
@pytest.mark.parametrize("options", [{"slot_fill": -2}, {"page_fill": 1}, {"slot_fill": True}])
def test_other_fills_are_refused(emit, options):
    """A fill is no address."""
    plan, step = mixed()
    with pytest.raises(PlanError, match=next(iter(options))):
        emit(step, plan=plan, **options)


@by_format
def test_bounds_hold_for_every_replay(emit):
    """Named ones are emitted as they are; a step beyond them is refused, with both numbers."""
    plan, step = mixed()
    found = emit(step, plan=plan, max_query_len=8, max_seq_len=100)
    if emit is onnxruntime:
        assert [8, 100, 0] == found.attention_metadata.tolist()
    else:
        assert (8, 100) == found[-2:]
    for name, longest in (("max_query_len", 7), ("max_seq_len", 70)):
        emit(step, plan=plan, **{name: longest})
        with pytest.raises(CapacityError, match=name) as caught:
            emit(step, plan=plan, **{name: longest - 1})
        assert (longest, longest - 1) == (caught.value.value, caught.value.limit)
        with pytest.raises(LengthError, match=name):
            emit(step, plan=plan, **{name: 0})


def test_kinds_of_requests_of_tensorrt():
    """One token behind others generates; all else is context, whose past counts the new tokens."""
    plan, step = mixed(lengths=(5, 70, 40, 1), counts=(5, 1, 7, 1))
    found = tensorrt(step, plan=plan, rows=5)

    assert [0, 1, 0, 0, 0] == found.host_request_types.tolist()
    assert [5, 69, 40, 1, 0] == found.host_past_key_value_lengths.tolist()
    assert [5, 69, 7, 1, 0] == found.context_lengths.tolist()


def test_latent_blocks_of_tensorrt():
    """One block a page and layer is keys and values."""
    plan, step = mixed()
    table = vllm(step, plan=plan).block_table
    offsets = tensorrt(step, plan=plan, layers=3, kv_factor=1).block_offsets

    assert np.array_equal(table * 3, offsets[:, 0])
    assert np.array_equal(table * 3, offsets[:, 1])


def test_tensorrt_takes_powers_of_two():
    """Tokens per block."""
    plan, step = mixed(24)
    with pytest.raises(PlanError, match="power of two"):
        tensorrt(step, plan=plan)


@by_format
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kernel_page": 3}, PlanError),
        ({"kernel_page": 0}, LengthError),
        ({"kernel_page": 64}, LengthError),
        ({"form": "packed"}, PlanError),
        ({"rows": 2}, LengthError),
        ({"rows": 3.0}, LengthError),
        ({"group": "absent"}, UnknownGroup),
        ({"plan": Plan.from_pages(4, 16, {"other": Attention(1, 1, 1)})}, PlanError),
        ({"out": ()}, LengthError),
    ],
)
def test_arguments_are_refused_by_name(emit, options, error):
    """Each wrong argument has its error."""
    plan, step = mixed()
    with pytest.raises(error):
        emit(step, **{"plan": plan} | options)


@by_format
def test_states_have_no_pages(emit):
    """A group of states is no token group."""
    plan = Plan.from_pages(9, 16, {"full": Attention(1, 1, 1), "state": State(1)})
    cache = Cache(plan)
    step = cache.extend(cache.admit([1] * 5), 5)
    with pytest.raises(PlanError, match="keeps tokens"):
        emit(step, "state", plan=plan)


def damaged(step, row, column, page, group="full"):
    """The step with one entry of its table changed."""
    view = step.groups[group]
    table = view.table.copy()
    table[row, column] = page
    return step.replace(groups=step.groups | {group: view._replace(table=table)})


@by_format
def test_missing_pages(emit):
    """Named with the sequence and how many there are."""
    plan, step = mixed()
    name = step.sequences[1].id
    with pytest.raises(LengthError, match=f"pages of sequence {name!r} is 4; .* at least 5"):
        emit(damaged(step, 1, 2, 0), plan=plan)
    with pytest.raises(LengthError, match=f"page of sequence {name!r} is -1"):
        emit(damaged(step, 1, 2, -1), plan=plan)
    with pytest.raises(LengthError, match=f"pages of sequence {name!r} is 1; .* at least 2"):
        emit(damaged(step, 1, 4, 0, "window"), "window", plan=plan)
    narrow = step.groups["full"]._replace(table=step.groups["full"].table[:, :3])
    with pytest.raises(LengthError, match=f"pages of sequence {name!r} is 3"):
        emit(step.replace(groups={"full": narrow}), plan=plan)


@by_format
def test_a_query_longer_than_its_context(emit):
    """Named with the sequence."""
    plan, step = mixed()
    wrong = step.replace(context=step.context - np.array([0, 70, 0], np.int32))
    with pytest.raises(LengthError, match=f"query of sequence {step.sequences[1].id!r} is 1"):
        emit(wrong, plan=plan)


@by_format
def test_pages_beyond_the_plan(emit):
    """A page the plan has not is refused, as is a slot beyond int32; the plan's last one is not."""
    plan, step = mixed()
    with pytest.raises(CapacityError, match="page 134217728 of 16 tokens is beyond int32"):
        emit(damaged(step, 2, 1, 2**27), plan=plan)
    name = step.sequences[2].id
    with pytest.raises(CapacityError, match=f"page of sequence {name!r} is 1000, at most 999"):
        emit(damaged(step, 2, 1, 1000), plan=plan)
    last = tables(emit(damaged(step, 2, 1, 999), plan=plan))

    assert 999 == last[2][1]


def test_block_offsets_beyond_int32():
    """The blocks of many layers."""
    plan, step = mixed()
    wide = damaged(step, 2, 1, 999)
    with pytest.raises(CapacityError, match="2149802 blocks per page"):
        tensorrt(wide, plan=plan, layers=1_074_901)
    offsets = tensorrt(wide, plan=plan, layers=1_074_000).block_offsets

    assert [999 * 2_148_000, 999 * 2_148_000 + 1] == offsets[2, :, 1].tolist()


@by_format
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query_start", [0, 6, 5, 13]),
        ("query_start", [1, 5, 6, 13]),
        ("query_start", [0, 5, 6]),
        ("counts", [5, 1]),
        ("positions", [0, 1]),
    ],
)
def test_arrays_that_do_not_fit_each_other(emit, name, value):
    """Running sums that fall or start elsewhere, rows and tokens that are not as many."""
    plan, step = mixed()
    with pytest.raises(LengthError):
        emit(step.replace(**{name: np.array(value, np.int32)}), plan=plan)


@by_format
def test_tables_of_another_shape_or_type(emit):
    """Refused before anything is read from them."""
    plan, step = mixed()
    view = step.groups["full"]
    wrong = [view.table[:2], view.table.astype(np.int64), view.table[0]]
    views = [view._replace(table=table) for table in wrong]
    for other in [*views, view._replace(slots=view.slots[:-1])]:
        with pytest.raises(LengthError):
            emit(step.replace(groups={"full": other}), plan=plan)


@by_format
def test_buffers_are_refused_before_anything_is_written(emit):
    """Too small, of another type, read-only or in pieces: named, and all others untouched."""
    plan, step = mixed()
    out = emit(step, plan=plan)
    for name, array in arrays(out).items():
        shut = array.copy()
        shut.flags.writeable = False
        pieces = np.zeros((*array.shape, 2), array.dtype)[..., 0]
        wrong = {
            CapacityError: [array[:-1].copy()],
            LengthError: [array.astype(np.int64), array[None], shut, pieces, None],
        }
        for error, buffers in wrong.items():
            for buffer in buffers:
                given = out._replace(**{name: buffer})
                before = freeze(given)
                with pytest.raises(error, match=name):
                    emit(step, plan=plan, out=given)
                assert before == freeze(given)


# -- latent ----------------------------------------------------------------------------------------


def geometry(**changes):
    """DeepSeek's row, with changes."""
    sizes = {"latent": 576, "rotary": 64, "v_head_size": 512, "rotary_offset": 512}
    return LatentGeometry(**sizes | {"page_size": 64} | changes)


def test_latent_rows_that_kernels_take():
    """DeepSeek's, and one without rotary channels."""
    assert geometry() == geometry().validate()
    assert geometry(rotary=0, rotary_offset=0, v_head_size=576).validate()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latent", 0),
        ("latent", 580),
        ("rotary", -16),
        ("rotary", 17),
        ("rotary", 24),
        ("rotary", 80),
        ("v_head_size", 0),
        ("v_head_size", 577),
        ("rotary_offset", -8),
        ("rotary_offset", 508),
        ("rotary_offset", 520),
        ("page_size", 8),
        ("page_size", 48),
        ("heads", 2),
        ("latent", 576.0),
    ],
)
def test_latent_rows_are_refused_by_rule(name, value):
    """Each constraint has an error that names a size."""
    with pytest.raises((LengthError, PlanError)):
        geometry(**{name: value}).validate()


def test_element_offsets():
    """((page * page_size + offset) * heads + head) * row + channel, in 64 bits."""
    row = geometry()
    slots = np.array([[0, 1], [65, 2**31 - 1]], np.int32)
    offsets = row.element(slots, channel=3)

    assert [[3, 579], [65 * 576 + 3, (2**31 - 1) * 576 + 3]] == offsets.tolist()
    assert np.int64 == offsets.dtype
    assert 65 * 576 + 575 == row.element(65, channel=575) == row.element(np.int32(65), channel=575)
    for wrong in ({"channel": 576}, {"channel": -1}, {"head": 1}):
        with pytest.raises(LengthError):
            row.element(0, **wrong)
    for slots in (np.array([3, -1]), np.array([1.7]), np.array([True]), 1.7, True, [3]):
        with pytest.raises(LengthError, match="slot is"):
            row.element(slots)


def test_reach_of_kernels():
    """Refused by name, with what would be right."""
    assert 2**31 == max_addressable_pages(1)
    assert 1 == max_addressable_pages(2**40)
    with pytest.raises(PlanError, match="one of int32"):
        max_addressable_pages(1, "int16")
    with pytest.raises(LengthError):
        max_addressable_pages(0)
    check_offsets(2**31 - 1, 1)
    check_offsets(65536, 65536, "int64")
