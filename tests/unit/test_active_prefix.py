"""octavo.ActivePrefixCache: lengths, what is refused, rewinding, copying, and its memory."""

import subprocess
import sys

import pytest
import torch
from active_prefixes import DIM, KV_HEADS, LAYERS, cache, fill, frozen, held

import octavo
from octavo.active_prefix import prefix as onepass


def test_import_stays_light():
    """`import octavo` loads no torch; asking for the name does."""
    code = (
        "import sys, octavo; assert 'torch' not in sys.modules; "
        "octavo.ActivePrefixCache; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_unknown_name_of_the_package_is_an_attribute_error():
    """The names imported on use do not hide a misspelt one."""
    with pytest.raises(AttributeError, match="ActivePrefix'"):
        octavo.ActivePrefix  # noqa: B018


def test_kv_len_is_prompt_then_one_more_a_step():
    """Prefill of T tokens sees T, decode step i sees T + i + 1; heads are not expanded."""
    kept = cache()
    seen = [fill(kept, count).keys[1].shape for count in (3, 1, 1)]

    assert [(1, KV_HEADS, length, DIM) for length in (3, 4, 5)] == seen
    assert (5, (5,)) == (kept.kv_len, kept.lengths)


def test_bucket_rounds_what_is_seen_and_not_what_is_held():
    """Attention is shown whole buckets, the last one cut at the capacity; lengths stay exact."""
    kept = cache(10, bucket=4)
    shown = [(kept.kv_len, fill(kept, count).values[0].shape[2]) for count in (3, 1, 1, 4)]

    assert [(0, 4), (3, 4), (4, 8), (5, 10)] == shown
    assert 9 == kept.kv_len


@pytest.mark.parametrize("bucket", [1, 4])
def test_mask_is_as_wide_as_the_prefix(bucket):
    """[batch, 1, tokens, kv_len]: each token sees its own position and those before."""
    kept = cache(bucket=bucket)
    fill(kept, 2)
    prefix = kept.begin(2)
    want = torch.zeros(2, prefix.keys[0].shape[2], dtype=torch.bool)
    want[0, :3] = want[1, :4] = True

    assert [[2, 3]] == prefix.positions.tolist()
    assert want[None, None].tolist() == prefix.mask.tolist()


def test_rows_have_lengths_of_their_own():
    """Padding of shorter rows is not kept, and each row goes on at its own position."""
    kept = cache(batch=3)
    fill(kept, [3, 1, 0])
    prefix = fill(kept, [1, 1, 1], start=50.0)

    assert (4, 2, 1) == kept.lengths
    assert [[3], [1], [0]] == prefix.positions.tolist()
    assert [
        [1.0, 2.0, 3.0, 50.0],
        [1.0, 50.0, 0.0, 0.0],
        [50.0, 0.0, 0.0, 0.0],
    ] == prefix.keys[0][:, 0, :, 0].tolist()


@pytest.mark.parametrize("kv_len", [0, -1, 9])
def test_kv_len_outside_the_capacity_is_a_value_error_with_the_bounds(kv_len):
    """kv_len 0 and capacity + 1 are refused; the message says 1 and 8."""
    kept = cache()
    with pytest.raises(ValueError, match=rf"kv_len is {kv_len}; .* at least 1 and at most 8"):
        kept.begin_at([0], kv_len)

    assert (0,) == kept.lengths


@pytest.mark.parametrize("kv_len", [1, 8])
def test_kv_len_at_the_bounds_is_accepted(kv_len):
    """1 and the capacity itself."""
    assert kv_len == cache().begin_at(range(kv_len), kv_len).keys[0].shape[2]


@pytest.mark.parametrize(
    ("positions", "kv_len", "said"),
    [
        ([3], 3, "position is 3; .* at most 2"),
        ([-1], 3, "position is -1; .* at least 0"),
        ([], 3, "tokens of the step is 0"),
        ([1, 1], 3, "position is 1; it must be 2"),
        ([2, 0], 3, "position is 0; it must be 3"),
        ([4], 5, r"position is 4; .* at most 3 \(a row holds 3"),
        ([3], 5, "kv_len is 5; .* at most 4"),
        ([0.5], 3, "position is 0.5"),
        ([2], 2.0, "kv_len is 2.0"),
        (None, 3, "positions is None"),
        (2, 3, "positions is 2"),
    ],
)
def test_positions_that_do_not_fit_are_refused(positions, kv_len, said):
    """Outside the prefix, negative, none, doubled, out of order, after a gap, no ints."""
    kept = cache()
    fill(kept, 3)
    before = frozen(kept)

    with pytest.raises(octavo.LengthError, match=said):
        kept.begin_at(positions, kv_len)
    assert before == frozen(kept)


def test_named_positions_overwrite_and_cut():
    """`begin_at` writes where it is told and drops what lies beyond kv_len."""
    kept = cache()
    fill(kept, 6)
    prefix = kept.begin_at([1, 2], 4)
    new = torch.full((1, KV_HEADS, 2, DIM), 9.0)
    for layer in range(LAYERS):
        prefix.update(layer, new, new)

    assert (4,) == kept.lengths
    assert [1.0, 9.0, 9.0, 4.0] == held(kept)


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (0, "tokens of the step is 0"),
        (-1, "counts is -1"),
        (6, "kv_len is 9; .* at least 1 and at most 8"),
        ([1, 7], "kv_len is 9"),
        ([1], "rows of counts is 1; it must be 2"),
        (True, "counts is True"),
    ],
)
def test_counts_that_do_not_fit_are_refused(counts, said):
    """No token, a negative count, beyond the capacity, other than one per row."""
    kept = cache(batch=2)
    fill(kept, [3, 2])
    before = frozen(kept)

    with pytest.raises(octavo.LengthError, match=said):
        kept.begin(counts)
    assert before == frozen(kept)


def test_request_that_cannot_be_finished_is_refused_up_front():
    """Prompt + most new tokens beyond the capacity, counted from what a kept prefix takes."""
    kept = cache()
    kept.require(8)
    fill(kept, 3)
    kept.require(5)

    with pytest.raises(ValueError, match="kv_len is 9, at most 8 is possible: 6 more after 3"):
        kept.require(6)


NEW = torch.ones(1, KV_HEADS, 1, DIM)


@pytest.mark.parametrize(
    ("error", "layer", "key", "value", "said"),
    [
        (octavo.PlanError, 0, NEW.double(), NEW, "dtype of key"),
        (octavo.PlanError, 0, NEW, NEW.bfloat16(), "dtype of value"),
        (octavo.PlanError, 0, NEW, NEW.to("meta"), "device of value"),
        (octavo.LengthError, 0, NEW.repeat(1, 2, 1, 1), NEW, "heads of key is 4; it must be 2"),
        (octavo.LengthError, 0, NEW, NEW[..., :3], "head_dim of value is 3; it must be 4"),
        (octavo.LengthError, 0, NEW, NEW.repeat(1, 1, 2, 1), "tokens of value is 2"),
        (octavo.LengthError, 0, NEW.repeat(2, 1, 1, 1), NEW, "batch of key is 2"),
        (octavo.LengthError, 0, NEW[0], NEW, "axes of key is 3"),
        (octavo.PlanError, 0, None, NEW, "key is 'NoneType'"),
        (octavo.PlanError, 0, NEW, NEW.to_sparse(), "layout of value"),
        (octavo.LengthError, LAYERS, NEW, NEW, "layer is 2; .* at most 1"),
        (octavo.LengthError, -1, NEW, NEW, "layer is -1"),
        (octavo.StepError, 0, NEW.clone().requires_grad_(), NEW, "no gradient flows"),
    ],
)
def test_keys_and_values_that_do_not_fit_are_refused(error, layer, key, value, said):
    """Another dtype, device, head count, size or layer: typed, and nothing is written."""
    kept = cache()
    prefix = kept.begin()
    before = frozen(kept)

    with pytest.raises(error, match=said):
        prefix.update(layer, key, value)
    assert before == frozen(kept)


@pytest.mark.parametrize(
    ("error", "query", "said"),
    [
        (
            octavo.LengthError,
            torch.ones(1, 3, 1, DIM),
            "heads of query is 3; .*a multiple of the 2",
        ),
        (octavo.LengthError, torch.ones(1, 4, 2, DIM), "tokens of query is 2"),
        (octavo.PlanError, torch.ones(1, 4, 1, DIM).half(), "dtype of query"),
        (octavo.LengthError, torch.ones(4, DIM), "axes of query is 2"),
        (octavo.PlanError, None, "query is 'NoneType'"),
    ],
)
def test_queries_that_do_not_fit_are_refused(error, query, said):
    """A query is checked before keys and values are written."""
    kept = cache()
    prefix = kept.begin()
    before = frozen(kept)

    with pytest.raises(error, match=said):
        prefix.attend(0, query, NEW, NEW)
    assert before == frozen(kept)


@pytest.mark.parametrize("scale", [float("nan"), "1", True])
def test_scale_is_a_number(scale):
    """What is no finite number is refused before keys and values are written."""
    kept = cache()
    prefix = kept.begin()
    before = frozen(kept)

    with pytest.raises(octavo.PlanError, match="scale is"):
        prefix.attend(0, torch.ones(1, 4, 1, DIM), NEW, NEW, scale=scale)
    assert before == frozen(kept)


@pytest.mark.parametrize(
    "change",
    [lambda c: c.begin(), lambda c: c.reset(), lambda c: c.copy_prefix(cache())],
    ids=["begin", "reset", "copy_prefix"],
)
def test_prefix_of_an_earlier_pass_is_refused(change):
    """What was begun before the cache moved on writes no longer."""
    kept = cache()
    prefix = kept.begin()
    change(kept)
    before = frozen(kept)

    with pytest.raises(octavo.StepError, match="begin anew"):
        prefix.update(0, NEW, NEW)
    assert before == frozen(kept)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacity": 0}, "capacity is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"bucket": 0}, "bucket is 0"),
        ({"dtype": torch.int8}, "dtype is 'torch.int8'"),
        ({"dtype": torch.float8_e4m3fn}, "dtype is 'torch.float8_e4m3fn'"),
        ({"dtype": "float32"}, "dtype is 'float32'"),
        ({"dtype": None}, "dtype is 'None'"),
        ({"device": "nowhere"}, "device is 'nowhere'"),
    ],
)
def test_sizes_are_checked(options, said):
    """A cache of nothing, of what is no float of 16 bits or more, or on no device."""
    with pytest.raises(ValueError, match=said):
        cache(**options)


def test_truncate_keeps_the_first_positions():
    """Rewinding keeps a prefix, row by row; what comes next takes the place of the rest."""
    kept = cache(batch=2)
    fill(kept, [5, 4])
    kept.truncate([2, 4])
    fill(kept, 1, start=70.0)

    assert (3, 5) == kept.lengths
    assert [1.0, 2.0, 70.0] == held(kept, row=0)
    assert [1.0, 2.0, 3.0, 4.0, 70.0] == held(kept, row=1)


@pytest.mark.parametrize("lengths", [4, -1, [3], [3, 3]])
def test_truncate_refuses_what_is_not_held(lengths):
    """More than a row holds, below 0, or another number of rows."""
    kept = cache(batch=2)
    fill(kept, [3, 2])
    before = frozen(kept)

    with pytest.raises(octavo.LengthError):
        kept.truncate(lengths)
    assert before == frozen(kept)


def test_prefix_is_copied_into_other_rows():
    """A prefix computed once in a cache of one row opens the rows of another."""
    voice, kept = cache(), cache(batch=3)
    fill(voice, 4, start=30.0)
    fill(kept, 5)
    kept.copy_prefix(voice, 3, rows=[0, 2])

    assert (3, 5, 3) == kept.lengths
    assert [30.0, 31.0, 32.0] == held(kept, row=0) == held(kept, row=2)
    assert [1.0, 2.0, 3.0, 4.0, 5.0] == held(kept, row=1)


def test_prefix_is_copied_within_a_cache():
    """The row that is copied from stays as it is, longer than the copy or not."""
    kept = cache(batch=3)
    fill(kept, [5, 2, 0])
    kept.copy_prefix(kept, 3)

    assert (5, 3, 3) == kept.lengths
    assert [1.0, 2.0, 3.0, 4.0, 5.0] == held(kept, row=0)
    assert [101.0, 102.0, 103.0] == held(kept, layer=1, row=2)


@pytest.mark.parametrize("lengths", [[256, 256], [256, 300], [256, 0]])
def test_prefix_that_fills_its_storage_is_copied_within_a_cache(lengths):
    """Rows that share memory from end to end are copied all the same."""
    kept = cache(1_024, batch=2)
    fill(kept, lengths)
    kept.copy_prefix(kept, rows=[1])

    assert (256, 256) == kept.lengths
    assert held(kept, row=0) == held(kept, row=1)


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        (None, {}, "source is 'NoneType'"),
        (cache(), {"rows": 0}, "rows is 0"),
        (cache(dtype=torch.float64), {}, "dtype of source"),
        (cache(), {"length": 1}, "length is 1"),
        (cache(), {"row": 1}, "row is 1"),
        (cache(), {"rows": [2]}, "rows is 2"),
        (
            octavo.ActivePrefixCache(layers=2, kv_heads=1, head_dim=4, capacity=8),
            {},
            "kv_heads of source is 1; it must be 2",
        ),
        (
            octavo.ActivePrefixCache(layers=3, kv_heads=2, head_dim=4, capacity=8),
            {},
            "layers of source is 3; it must be 2",
        ),
    ],
)
def test_copies_that_do_not_fit_are_refused(source, options, said):
    """Other heads, layers or dtype, and rows or lengths there are not."""
    kept = cache(batch=2)
    fill(kept, 2)
    before = frozen(kept)

    with pytest.raises(ValueError, match=said):
        kept.copy_prefix(source, **options)
    assert before == frozen(kept)


def test_memory_follows_use():
    """A capacity of 32,768 costs what is held, in grains of 256, and a reset gives it back."""
    position = LAYERS * 2 * KV_HEADS * DIM * 4
    kept = cache(32_768)
    sizes = [kept.nbytes]
    for count in (256, 1, 1_000):
        fill(kept, count)
        sizes.append(kept.nbytes)
    kept.truncate(300)
    sizes.append(kept.nbytes)
    kept.reset()
    sizes.append(kept.nbytes)

    assert [256, 256, 512, 1_280, 512, 256] == [size // position for size in sizes]


def test_storage_is_never_larger_than_the_capacity():
    """Grains end at the capacity."""
    kept = cache(300)
    kept.begin(300)

    assert 300 * LAYERS * 2 * KV_HEADS * DIM * 4 == kept.nbytes


def test_failed_allocation_leaves_the_cache_as_it_was(monkeypatch):
    """Memory that runs out while storage grows, layer by layer, loses nothing."""
    kept = cache(1_024)
    fill(kept, 256)
    new_zeros, left = torch.Tensor.new_zeros, [2]

    def scarce(tensor, *sizes):
        if not left[0]:
            raise MemoryError
        left[0] -= 1
        return new_zeros(tensor, *sizes)

    monkeypatch.setattr(torch.Tensor, "new_zeros", scarce)
    with pytest.raises(MemoryError):
        kept.begin(1)
    monkeypatch.undo()

    assert 256 == kept.kv_len
    fill(kept, 1, start=500.0)
    assert [1.0, 256.0, 500.0] == [held(kept)[at] for at in (0, 255, 256)]
    assert [101.0, 356.0, 600.0] == [held(kept, layer=1)[at] for at in (0, 255, 256)]


def test_cache_made_in_inference_mode_is_written_outside():
    """Storage can be written in any mode, whichever it was made in."""
    with torch.inference_mode():
        kept = cache()
        fill(kept, 2)
    with torch.no_grad():
        fill(kept, 1, start=8.0)

    assert [1.0, 2.0, 8.0] == held(kept)


def test_nothing_hidden_is_ever_not_finite():
    """A pass that wrote NaN, once cut off, leaves zeros for what a mask hides."""
    kept = cache(bucket=8, batch=2)
    fill(kept, [6, 4], start=float("nan"))
    kept.truncate(0)
    fill(kept, 1)
    query = torch.ones(2, 4, 1, DIM)
    out = kept.begin().attend(0, query, NEW.expand(2, -1, -1, -1), NEW.expand(2, -1, -1, -1))

    assert out.isfinite().all()


@pytest.mark.parametrize("bucket", [1, 8])
def test_padding_that_is_not_finite_is_never_seen(bucket):
    """NaN and infinities right of a row's own tokens change nothing in the first pass."""
    key, value = torch.randn(2, 3, KV_HEADS, 5, DIM)
    query = torch.randn(3, 4, 5, DIM)
    clean = cache(batch=3, bucket=bucket).begin([5, 2, 0]).attend(0, query, key, value)
    for bad in ("nan", "inf"):
        key[1, :, 2:] = value[1, :, 2:] = value[2] = float(bad)
        out = cache(batch=3, bucket=bucket).begin([5, 2, 0]).attend(0, query, key, value)

        assert torch.equal(clean[0], out[0])
        assert torch.equal(clean[1, :, :2], out[1, :, :2])


def test_heads_are_not_expanded(monkeypatch):
    """Attention gets the cache's own memory, cut to the prefix, and a group's heads as its rows."""
    calls = []
    plain = onepass.scaled_dot_product_attention

    def spy(query, keys, values, *rest, **options):
        calls.append((query.shape[-3:], keys.shape[-2], values.shape[-2], keys.data_ptr()))
        return plain(query, keys, values, *rest, **options)

    monkeypatch.setattr(onepass, "scaled_dot_product_attention", spy)
    kept = cache()
    fill(kept, 3)
    prefix = kept.begin()
    prefix.attend(1, torch.ones(1, 6, 1, DIM), NEW, NEW)

    assert [((KV_HEADS, 3, DIM), 4, 4, kept._keys[1].data_ptr())] == calls
