"""A prefix saved in one process is hit in the next, with the bytes it was saved with."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import octavo
from octavo import Adapter, Attention, Cache, Cross, Latent, Media, ModelSpec, Salt, State, storage
from octavo.cache.match import Prefixes
from octavo.cache.step import GroupView, StateView
from octavo.errors import IdentityError, PlanError, TokenError
from octavo.storage import Storage, files

load_prefix, save_pages, save_prefix = (
    partial(each, model="tiny")
    for each in (storage.load_prefix, storage.save_pages, storage.save_prefix)
)

FULL = (Attention(1, 2, 2), Attention(1, 2, 2))
SPECS = {
    "full": FULL,
    "window": (*FULL, Attention(1, 2, 2, window=6)),
    "sinks": (*FULL, Attention(1, 2, 2, window=6, sink_tokens=5)),
    "one": (Attention(1, 2, 2, window=1), Attention(1, 2, 2, window=9)),
    "chunked": (*FULL, Attention(1, 2, 2, chunk=8)),
    "state": (*FULL, State((2, 3), (4, 3))),
    "states": (State((64, 64)), State((64, 64)), State((64, 64)), Attention(1, 32, 32)),
    "latent": (Latent(16, 8, 8), Latent(16, 8)),
}
PROMPT = list(range(100, 143))  # ten pages of 4, and three tokens


def made(kind, memory=1_000_000):
    """A cache and its storage."""
    options = {"page_size": 4, "dtype": "fp32", "max_length": 64, "max_step_tokens": 12}
    plan = octavo.plan(ModelSpec(kind, SPECS[kind], 64), memory, **options)
    return Cache(plan), Storage(plan)


def run(cache, store, seq):
    """Compute what is known of a sequence; a token's bytes are its id, a state's its length."""
    while seq.computed < seq.length:
        stop = min(seq.computed + 12, seq.next_stop or seq.length)
        step = cache.extend(seq, stop - seq.computed)
        store.apply(step.copies)
        for tensor in store.plan.tensors:
            view, rows = step.group(tensor.group), store.tensor(tensor.layer, tensor.component)
            if isinstance(view, StateView):
                rows[view.table[0, 0, tensor.part]] = stop
            else:
                pages, offsets = np.divmod(view.slots, 4)
                ids = torch.from_numpy(step.input_ids).float()[:, *[None] * (rows.ndim - 2)]
                rows.view(rows.dtype)[pages, offsets] = ids.to(rows.dtype)
        store.apply(step.snapshots)
        cache.commit(step, [7])
        if step.wants_token[0]:
            return


def check_hit(cache, store, prompt, tokens, extra=()):
    """A prompt hits so many tokens, and every page its next token sees has the prompt's bytes."""
    seq = cache.admit(prompt, extra=extra, limit=len(prompt) + 2)
    assert tokens == seq.cached
    step = cache.extend(seq, len(prompt) - tokens)
    store.apply(step.copies)
    for tensor in store.plan.tensors:
        view, rows = step.group(tensor.group), store.tensor(tensor.layer, tensor.component)
        if isinstance(view, StateView):
            assert not tokens or {float(tokens)} == set(
                rows[view.source[0, tensor.part]].flatten().tolist()
            )
        elif isinstance(view, GroupView):
            lifetime = store.plan.groups[tensor.group].lifetime
            seen = [p for p in range(tokens) if p >= lifetime.floor(tokens) or p < lifetime.sinks]
            found = [rows[view.table[0, p // 4], p % 4].float() for p in seen]
            want = [torch.tensor(float(prompt[p])).to(rows.dtype).float() for p in seen]
            assert all(bool((a == b).all()) for a, b in zip(found, want, strict=True))
    cache.abort(step)
    cache.release(seq)


@pytest.mark.parametrize("kind", SPECS)
def test_a_saved_prefix_is_hit_in_the_next_process(kind, tmp_path):
    """Admit, peek and branches off early find the prefix, byte for byte, as if computed there."""
    cache, store = made(kind)
    seq = cache.admit(PROMPT)
    run(cache, store, seq)
    assert 40 == save_prefix(tmp_path / "p", cache, store, PROMPT)
    cache.release(seq)
    cache.check()

    fresh, other = made(kind)
    assert 40 == load_prefix(tmp_path / "p", fresh, other)
    fresh.check()
    assert 0 == fresh.stats().live
    check_hit(fresh, other, [*PROMPT[:40], 5, 6], 40)
    for shared in (9, 17, 30, 40):
        branch = [*PROMPT[:shared], 5, 6, 8]
        check_hit(fresh, other, branch, 0 if "state" in kind and shared < 40 else shared // 4 * 4)
    assert 40 == load_prefix(tmp_path / "p", fresh, other)


@pytest.mark.parametrize("kind", ["full", "window", "state"])
def test_the_pool_may_be_in_use(kind, tmp_path):
    """Loading goes on from what is published already, and leaves others' pages alone."""
    cache, store = made(kind)
    seq = cache.admit(PROMPT)
    run(cache, store, seq)
    save_prefix(tmp_path / "p", cache, store, PROMPT)
    fresh, other = made(kind)
    for prompt in (PROMPT[:22], list(range(500, 530))):
        run(fresh, other, fresh.admit(prompt))
    assert 40 == load_prefix(tmp_path / "p", fresh, other)

    check_hit(fresh, other, [*PROMPT[:40], 5], 40)
    check_hit(fresh, other, [*range(500, 530), 5], 28)
    fresh.check()


def test_extras_go_along(tmp_path):
    """The prefix is hit under the extras it was computed under, and under no others."""
    extras = (Salt("tenant"), Adapter("a", 3), Media(b"\x00\xff", 5, 9), Media("text", 20, 22))
    cache, store = made("full")
    run(cache, store, cache.admit(PROMPT, extra=extras))
    with pytest.raises(octavo.LengthError, match="nothing of the prefix can be reused"):
        save_prefix(tmp_path / "p", cache, store, PROMPT)
    assert 40 == save_prefix(tmp_path / "p", cache, store, PROMPT, extra=extras)
    fresh, other = made("full")
    assert 40 == load_prefix(tmp_path / "p", fresh, other)

    check_hit(fresh, other, PROMPT, 40, extras)
    check_hit(fresh, other, PROMPT, 0)


def test_windows_are_saved_in_one_look(tmp_path, monkeypatch):
    """However many pages a prefix has, it is matched to be pinned and to be listed."""
    cache, store = made("window")
    run(cache, store, cache.admit(PROMPT))
    looks, look = [], Prefixes.find

    def counted(self, *args):
        looks.append(args)
        return look(self, *args)

    monkeypatch.setattr(Prefixes, "find", counted)

    assert 40 == save_prefix(tmp_path / "p", cache, store, PROMPT)
    assert 2 == len(looks)


def test_windows_that_have_lost_pages(tmp_path):
    """Of a window's prefix that was partly evicted, what shorter prompts can reuse is saved."""
    cache, store = made("window", memory=10_000)
    run(cache, store, cache.admit(PROMPT))
    for end in (8, 12, 16, 20):
        cache.release(cache.admit(PROMPT[: end + 1]))  # used again, so that it goes last
    number = 1000
    while cache.peek([*PROMPT[:32], 1]).tokens == 32:
        other = cache.admit(list(range(number, number + 5)))
        run(cache, store, other)
        cache.release(other)
        number += 5
    boundaries = [cache.peek([*PROMPT[:end], 1]).tokens == end for end in range(4, 44, 4)]
    gone = boundaries.index(False)
    assert any(boundaries[gone:])
    fresh, other = made("window")

    assert 0 < 4 * gone == save_prefix(tmp_path / "p", cache, store, PROMPT)
    assert 4 * gone == load_prefix(tmp_path / "p", fresh, other)
    check_hit(fresh, other, PROMPT, 4 * gone)


@pytest.mark.parametrize(
    ("tokens", "extra", "error", "message"),
    [
        ([[1], [2, 3]], (), TokenError, "token 0"),
        (None, (), TokenError, "None"),
        (set(PROMPT), (), TokenError, "tokens is"),
        (PROMPT, None, IdentityError, "extra"),
    ],
)
def test_prompts_are_refused_as_they_are_by_admit(tokens, extra, error, message, tmp_path):
    """By name, and no file is begun."""
    cache, store = made("full")
    with pytest.raises(error, match=message):
        save_prefix(tmp_path / "p", cache, store, tokens, extra=extra)
    with pytest.raises(PlanError, match="storage is 'Cache'; it must be a Storage"):
        save_prefix(tmp_path / "p", cache, cache, PROMPT)
    with pytest.raises(PlanError, match="cache is 'NoneType'; it must be a Cache"):
        load_prefix(tmp_path / "p", None, store)
    assert [] == list(tmp_path.iterdir())


def test_refusals(tmp_path):
    """Plans that cannot, caches of another plan, and files without a prefix are refused."""
    cache, store = made("full")
    run(cache, store, cache.admit(PROMPT))
    with pytest.raises(octavo.PlanError, match="of the cache's plan"):
        save_prefix(tmp_path / "p", cache, made("window")[1], PROMPT)
    with pytest.raises(octavo.TokenError):
        save_prefix(tmp_path / "p", cache, store, [1.5])
    save_pages(tmp_path / "p", store, {"full": np.array([1])})
    with pytest.raises(octavo.PageFileError, match="no prefix"):
        load_prefix(tmp_path / "p", cache, store)
    for layers in ((State((2, 3)), Attention(1, 2, 2, window=6)), (*FULL, Cross(1, 2, 2, 8))):
        plan = octavo.plan(ModelSpec("x", layers, 64), 100_000, page_size=4, dtype="fp32")
        with pytest.raises(octavo.UnsupportedModel, match="prefix"):
            save_prefix(tmp_path / "q", Cache(plan), Storage(plan), PROMPT)
    assert not (tmp_path / "q").exists()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A prefix of ten pages: what its file says, its metadata and its tensors."""
    cache, store = made("window")
    seq = cache.admit(PROMPT)
    while seq.computed < seq.length:
        run(cache, store, seq)
    path = tmp_path_factory.mktemp("prefix") / "p"
    save_prefix(path, cache, store, PROMPT)
    with safe_open(path, framework="pt") as file:
        held = dict(file.metadata())
    return json.loads(held["prefix"]), held, load_file(path)


FORGED = {
    "no JSON": "{",
    "null": "null",
    "a list": "[]",
    "no tokens": {"tokens": ...},
    "no columns": {"columns": ...},
    "more tokens": {"tokens": list(range(44))},
    "fewer tokens": {"tokens": PROMPT[:8]},
    "half a page": {"tokens": PROMPT[:39]},
    "none": {"tokens": []},
    "text": {"tokens": "abcd"},
    "floats": {"tokens": [1.5] * 40},
    "below 0": {"tokens": [-1] * 40},
    "huge": {"tokens": [2**70] * 40},
    "no groups": {"columns": {}},
    "columns in a list": {"columns": [0, 1]},
    "a column": {"columns": {"full": [0], "window_6": [0]}},
    "columns beyond": {"columns": {"full": [*range(9), 19], "window_6": [*range(10)]}},
    "columns before": {"columns": {"full": [*range(-1, 9)], "window_6": [*range(10)]}},
    "another kind": {"extra": [["os.system", {"a": 1}]]},
    "another field": {"extra": [["Salt", {"a": 1}]]},
    "a wrong value": {"extra": [["Salt", {"value": 3}]]},
    "no extras": {"extra": 5},
    "two that overlap": {"extra": [["Media", {"digest": "a", "start": 0, "stop": 3}]] * 2},
}


@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
def test_what_a_file_says_of_its_prefix_is_checked(forged, saved, tmp_path):
    """Whatever it says under a right checksum: PageFileError, and nothing is taken or written."""
    about, held, tensors = saved
    if isinstance(forged, dict):
        forged = {name: x for name, x in (about | forged).items() if x is not ...}
        forged = json.dumps(forged)
    check_refused(held | {"prefix": forged}, tensors, tmp_path)


def test_a_prefix_without_its_pages(saved, tmp_path):
    """No tensor at all, a group without any, or one page too few."""
    _, held, tensors = saved
    groups = {name: name.split(".")[0] for name in tensors}
    assert 2 == len(set(groups.values()))
    full = {name: tensor for name, tensor in tensors.items() if groups[name] == "full"}
    fewer = {name: tensor[1:].clone() for name, tensor in full.items()}
    for forged in ({}, full, tensors | fewer):
        check_refused(held, forged, tmp_path)


def check_refused(held, tensors, folder):
    """A file with this metadata and these tensors is refused before anything changes."""
    held["octavo.checksum"] = files._checksum(tensors, held)
    save_file(tensors, folder / "p", held)
    cache, store = made("window")
    with pytest.raises(octavo.PageFileError):
        load_prefix(folder / "p", cache, store)

    assert not store.arena.any()
    assert 0 == cache.stats().live
    cache.check()


def test_too_little_room_leaves_a_sound_cache(tmp_path):
    """Where the pool is too full, loading raises and the cache goes on."""
    cache, store = made("full", memory=3_000)
    run(cache, store, cache.admit(PROMPT))
    save_prefix(tmp_path / "p", cache, store, PROMPT)
    fresh, other = made("full", memory=3_000)
    holders = []
    while fresh.available()["full"] > 3:
        holders.append(fresh.admit([len(holders)] * 8))
        run(fresh, other, holders[-1])
    with pytest.raises(octavo.OutOfPages):
        load_prefix(tmp_path / "p", fresh, other)
    fresh.check()
    for holder in holders:
        fresh.release(holder)

    assert 40 == load_prefix(tmp_path / "p", fresh, other)
    check_hit(fresh, other, PROMPT, 40)
