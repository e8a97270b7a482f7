"""Pages in files: saved whole, loaded into the same model, type and geometry, refused otherwise."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import octavo
from octavo import (
    Attention,
    Latent,
    ModelSpec,
    OctavoError,
    PageFileError,
    PageFileMismatch,
    PlanError,
    State,
    storage,
)
from octavo.storage import PageFile, Storage
from octavo.storage.weights import weights_name

save_pages, load_pages = (
    partial(each, model="tiny") for each in (storage.save_pages, storage.load_pages)
)

HYBRID = ModelSpec(
    "hybrid",
    (*[State((16, 64), (6, 3))] * 4, *[Attention(2, 32, 16)] * 2, Attention(1, 4, 4, 6)),
    64,
)
LATENT = ModelSpec("latent", (Latent(160, 16, 136), Latent(160, 16)), 64)


def made(spec=HYBRID, memory=3_000_000, *, random=True, **options):
    """A storage whose every byte is random, or zero."""
    store = Storage(octavo.plan(spec, memory, **({"page_size": 4, "dtype": "fp32"} | options)))
    if random:
        store.arena.random_(0, 255, generator=torch.Generator().manual_seed(0))
        for layers in (store, store.draft):
            for (_, _, component), field in layers.fields.items():
                if component.endswith("_scale"):
                    field.view.uniform_(0.5, 2.0)
    return store


def apart(store, full, window, states=()):
    """Pages by group, each the first of its own parent."""
    parts = store.plan.groups["state"].parts if states else 1
    parents = {"full": full, "window_6": window}
    if states:
        parents["state"] = [
            [20 + parts * state + part for part in range(parts)] for state in states
        ]
    per_parent = {name: store.plan.groups[name].pages_per_parent for name in parents}
    return {name: 1 + np.array(held) * per_parent[name] for name, held in parents.items()}


def content(store, pages):
    """What these pages hold, by layer and component, as bytes."""
    found = {}
    for t in (t for t in store.plan.tensors if t.group in pages):
        held = np.asarray(pages[t.group])
        column = held if held.ndim == 1 else held[:, t.part]
        layers = store.draft if t.draft else store
        rows = layers.tensor(t.layer, t.component, t.group).flatten(1).view(torch.uint8)
        found[t.draft, t.layer, t.group, t.component] = rows[torch.from_numpy(column)].tolist()
    return found


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8", "int8", "int4"])
@pytest.mark.parametrize("order", ["token", "head"])
def test_pages_come_back_in_another_pool(order, dtype, tmp_path):
    """Size and layout of the pool do not matter, nor which pages they come from and go to."""
    draft = ModelSpec("draft", (Attention(1, 8, 8),), 64)
    options = {"dtype": dtype, "order": order, "draft": draft, "layout": "packed"}
    store = made(page_size=16, **options)
    other = made(memory=20_000_000, page_size=16, random=False, **options)
    parts = [each.plan.groups["state"].parts for each in (store, other)]
    assert parts[0] != parts[1] or dtype != "fp32"
    pages, into = apart(store, [7, 2, 3], [5], [1, 0]), apart(other, [0, 9, 4], [2], [0, 2])
    save_pages(tmp_path / "p", store, pages, metadata={"mine": "text"})

    assert {"mine": "text"} == load_pages(tmp_path / "p", other, into)
    assert content(store, pages) == content(other, into)
    assert ["p"] == [file.name for file in tmp_path.iterdir()]


@pytest.mark.parametrize("layout", ["component", "slab"])
def test_pages_come_back_in_another_layout(layout, tmp_path):
    """What is saved from parents of a packed pool is loaded into flat tensors."""
    spec = ModelSpec("w", (Attention(2, 32, 16), Attention(1, 4, 4, 6)), 64)
    store, other = made(spec, layout="packed"), made(spec, layout=layout, random=False)
    pages, into = apart(store, [7, 2, 3], [5]), apart(other, [0, 9, 4], [2])
    save_pages(tmp_path / "p", store, pages)
    load_pages(tmp_path / "p", other, into)

    assert content(store, pages) == content(other, into)


def test_latent_pages(tmp_path):
    """Rows of latents, their scales and the indexer's keys go along."""
    store, other = made(LATENT, dtype="fp8"), made(LATENT, dtype="fp8", random=False)
    save_pages(tmp_path / "p", store, {"full": np.array([3, 1])})
    load_pages(tmp_path / "p", other, {"full": np.array([1, 2])})

    assert content(store, {"full": [3, 1]}) == content(other, {"full": [1, 2]})
    assert 5 + 3 == len(load_file(tmp_path / "p"))


def test_a_part_of_a_file(tmp_path):
    """A file is read and checked once, and its pages are written where and when they are wanted."""
    store, other = made(), made(random=False)
    save_pages(tmp_path / "p", store, {"full": np.array([3, 1, 4])})
    file = PageFile.read(tmp_path / "p", other, model="tiny")
    assert not other.arena.any()
    assert {"full": 3} == file.counts
    file.write(other, "full", slice(1, 3), np.array([6, 7]))

    assert content(store, {"full": [1, 4]}) == content(other, {"full": [6, 7]})


SAVED = {"full": np.array([1, 2])}


@pytest.mark.parametrize(
    ("spec", "options", "field", "saved", "here"),
    [
        (HYBRID, {"dtype": "bf16"}, "dtype", "fp32, scales none", "bf16, scales none"),
        (HYBRID, {"state_dtype": "bf16"}, "dtype", "recurrent fp32", "recurrent bf16"),
        (HYBRID, {"page_size": 8}, "page_size", "4", "8"),
        (HYBRID, {"order": "head"}, "order", "token", "head"),
        (replace(HYBRID, layers=HYBRID.layers[:6]), {}, "groups", "window_6 (1)", "full (2)"),
        (
            replace(HYBRID, layers=(*HYBRID.layers[:5], Attention(2, 32, 8), HYBRID.layers[6])),
            {},
            "full.5.value",
            "[4, 2, 16] of float32",
            "[4, 2, 8] of float32",
        ),
        (HYBRID, {"draft": HYBRID}, "draft.full.4.key", "nothing", "[4, 2, 32] of float32"),
    ],
)
def test_another_model_type_or_geometry_is_refused(spec, options, field, saved, here, tmp_path):
    """The error names what differs, in the file and here; nothing has been written."""
    save_pages(tmp_path / "p", made(), SAVED)
    other = made(spec, random=False, **options)
    with pytest.raises(PageFileMismatch) as caught:
        load_pages(tmp_path / "p", other, SAVED)

    assert field == caught.value.field
    assert saved in caught.value.saved
    assert here in caught.value.here
    assert caught.value.saved in str(caught.value).replace("\\", "")
    assert not other.arena.any()


def test_other_weights_are_refused(tmp_path):
    """Weights have the name the caller gives them, and two names are two models."""
    save_pages(tmp_path / "p", made(), SAVED, model="tiny@1")
    with pytest.raises(PageFileMismatch, match="model is 'tiny@1' in the file and 'tiny@2' here"):
        load_pages(tmp_path / "p", made(), SAVED, model="tiny@2")


class Weights(torch.nn.Module):
    """A model of two weights and a buffer, and what its config says."""

    def __init__(self, seed=0, dtype=torch.float32, **config):
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = torch.nn.Linear(3, 2, dtype=dtype), torch.nn.LayerNorm(3)
        self.register_buffer("steps", torch.tensor(5))
        self.config = SimpleNamespace(to_dict=lambda: config)


def test_a_model_is_named_by_its_weights(tmp_path):
    """Pages of one model are not loaded into another of equal shape, nor after one weight changed,
    one type, or a config that says otherwise how the weights are used.
    """
    save_pages(tmp_path / "p", made(), SAVED, model=Weights(rope={"theta": 1e4}, _path="a"))
    same = Weights(rope={"theta": 1e4}, _path="b", eos_token_id=3)
    load_pages(tmp_path / "p", made(), SAVED, model=same)
    changed, buffer = Weights(rope={"theta": 1e4}), Weights(rope={"theta": 1e4})
    with torch.no_grad():
        changed.second.bias[1] += 1e-30
        buffer.steps += 1
    others = [Weights(1, rope={"theta": 1e4}), Weights(rope={"theta": 1e5}), changed, buffer]
    for other in (*others, Weights(dtype=torch.bfloat16, rope={"theta": 1e4}), "tiny"):
        into = made(random=False)
        with pytest.raises(PageFileMismatch, match="model is 'sha256:[0-9a-f]{64}' in the file"):
            load_pages(tmp_path / "p", into, SAVED, model=other)
        assert not into.arena.any()


def test_weights_of_every_kind_have_a_name():
    """Empty ones, views and numbers of any type; a model that is compiled is the same model."""
    model = Weights()
    kinds = [torch.empty(0), torch.tensor(True), torch.ones(2, 3).t(), torch.ones(2).bfloat16()]
    kinds += [torch.zeros(3).to(torch.float8_e4m3fn), torch.ones(2, dtype=torch.complex64).conj()]
    for number, kind in enumerate(kinds):
        model.register_buffer(f"kind{number}", kind)

    assert weights_name(model) == weights_name(torch.compile(model, backend="eager"))
    assert weights_name(model) != weights_name(Weights())


def test_a_file_of_an_earlier_version_names_its_spec(tmp_path):
    """What was saved under the name of a spec is loaded by that name, and by nothing else."""
    save_pages(tmp_path / "p", made(), SAVED, model="hybrid")
    load_pages(tmp_path / "p", made(), SAVED, model="hybrid")
    with pytest.raises(PageFileMismatch, match="model is 'hybrid' in the file and 'sha256:"):
        load_pages(tmp_path / "p", made(), SAVED, model=Weights())


@pytest.mark.parametrize("model", [None, "", 5, b"tiny", Weights(dtype=torch.float16).to("meta")])
def test_what_names_no_weights_is_refused(model, tmp_path):
    """Weights that are not named, or not loaded; nothing is written, and nothing read."""
    with pytest.raises(octavo.PlanError, match="model is "):
        save_pages(tmp_path / "p", made(), SAVED, model=model)
    assert [] == list(tmp_path.iterdir())
    save_pages(tmp_path / "p", made(), SAVED)
    with pytest.raises(octavo.PlanError, match="model is "):
        load_pages(tmp_path / "p", made(), SAVED, model=model)


def test_a_draft_model_needs_a_name_too(tmp_path):
    """One model's weights do not name the pages of two models."""
    store = made(draft=ModelSpec("draft", (Attention(1, 8, 8),), 64))
    with pytest.raises(octavo.PlanError, match="model is 'Weights'; the plan has a draft model"):
        save_pages(tmp_path / "p", store, SAVED, model=Weights())


def test_other_given_scales_are_refused(tmp_path):
    """Pages of one scale for all mean something else under another."""
    stores = [made(dtype="int8", scales="tensor") for _ in range(2)]
    stores[0].set_scales(4, 0.5, 0.25)
    stores[1].set_scales(4, 0.5, 0.5)
    save_pages(tmp_path / "p", stores[0], SAVED)
    load_pages(tmp_path / "p", stores[0], SAVED)
    with pytest.raises(PageFileMismatch, match="scales is"):
        load_pages(tmp_path / "p", stores[1], SAVED)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The bytes of a small file of pages, and the storage it is of."""
    spec = ModelSpec("small", (Attention(1, 2, 2),), 8)
    store = Storage(octavo.plan(spec, 1000, page_size=2, dtype="bf16"))
    store.arena.random_(0, 255)
    path = tmp_path_factory.mktemp("pages") / "p"
    save_pages(path, store, SAVED, metadata={"note": "something"})
    return path.read_bytes(), Storage(store.plan)


@pytest.mark.parametrize("bit", [0, 1, 2, 6])
def test_a_flipped_bit_is_noticed(bit, small, tmp_path):
    """Whichever byte it is in, header, metadata or pages, the file is refused."""
    whole, store = small
    for at in range(bit, len(whole), 5):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        (tmp_path / "p").write_bytes(damaged)
        with pytest.raises(PageFileError):
            load_pages(tmp_path / "p", store, SAVED)
    assert not store.arena.any()


def test_a_truncated_or_longer_file_is_noticed(small, tmp_path):
    """Of whichever length."""
    whole, store = small
    for length in range(0, len(whole), 23):
        (tmp_path / "p").write_bytes(whole[:length])
        with pytest.raises(PageFileError):
            load_pages(tmp_path / "p", store, SAVED)
    (tmp_path / "p").write_bytes(whole + b"\0")
    with pytest.raises(PageFileError):
        load_pages(tmp_path / "p", store, SAVED)
    assert not store.arena.any()


@pytest.mark.parametrize("path", [None, 3, b"pages", "a\0b"])
def test_what_is_no_path(path, small):
    """Named before anything is read or written."""
    _, store = small
    for verb in (save_pages, load_pages):
        with pytest.raises(PlanError, match="path is .*; it must be a path"):
            verb(path, store, SAVED, model="tiny")


def test_what_is_no_file_of_pages(small, tmp_path):
    """A missing file, a folder and a safetensors file of something else are named."""
    _, store = small
    save_file({"x": torch.zeros(3)}, tmp_path / "other")
    for name, message in [
        ("none", "No such file"),
        ("", "cannot be read"),
        ("other", "no checksum"),
    ]:
        with pytest.raises(PageFileError, match=message) as caught:
            load_pages(tmp_path / name, store, SAVED)
        assert str(tmp_path / name) == str(caught.value.path)


def test_a_tensor_that_is_missing(small, tmp_path):
    """A file with a valid checksum that lacks a layer's values is refused by that name."""
    from octavo.storage import files

    whole, store = small
    (tmp_path / "p").write_bytes(whole)
    with safe_open(tmp_path / "p", framework="pt") as file:
        held = dict(file.metadata())
    tensors = load_file(tmp_path / "p")
    value = tensors.pop("full.0.value")
    for said, others in (
        ("full.0.value is 'nothing' in the file", {}),
        ("full.0.value is 'a single number' in the file", {"full.0.value": torch.ones(())}),
        ("full.1.key is '", {"full.0.value": value, "full.1.key": value.clone()}),
        ("others have more or fewer", {"full.0.value": value[:1]}),
    ):
        forged = tensors | others
        held["octavo.checksum"] = files._checksum(forged, held)
        save_file(forged, tmp_path / "p", held)
        with pytest.raises(PageFileError, match=said):
            load_pages(tmp_path / "p", store, SAVED)
    assert not store.arena.any()
    assert json.loads(held["octavo.scales"]) == [[], []]


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        ({"full": np.array([0, 1])}, "null page"),
        ({"full": np.array([1, 10**6])}, "page is 1000000"),
        ({"full": np.array([1])}, "pages of full is 1; it must be 2"),
        ({"full": np.array([1, 2]), "state": np.array([[3]])}, "the file holds full"),
        ({}, "the file holds full"),
        ({"full": [1, 2]}, "pages is"),
        ({"full": np.array([2, 2])}, "page of full at .* is 2"),
        ({"full": np.array([[1, 2]])}, "axes of pages of full is 2"),
        ({"full": np.array(1)}, "axes of pages of full is 0"),
    ],
)
def test_refused_pages(pages, message, tmp_path):
    """Pages that cannot be written, or not those of the file, are refused; nothing is written."""
    save_pages(tmp_path / "p", made(layout="component"), SAVED)
    store = made(layout="component", random=False)
    with pytest.raises(OctavoError, match=message):
        load_pages(tmp_path / "p", store, pages)
    assert not store.arena.any()


def test_pages_of_two_groups_in_the_same_bytes(tmp_path):
    """In a packed plan a parent's bytes are one group's at a time."""
    store = made(layout="packed")
    save_pages(tmp_path / "p", store, apart(store, [7, 2], [5]))
    other = made(layout="packed", random=False)
    with pytest.raises(octavo.PlanError, match="they lie in the bytes of those of full"):
        load_pages(tmp_path / "p", other, apart(other, [3, 4], [4]))
    assert not other.arena.any()


@pytest.mark.parametrize(
    ("pages", "options", "message"),
    [
        (np.array(5), {}, "axes of pages of full is 0; it must be 1"),
        (np.array([1]), {"metadata": {"a": 5}}, "metadata is"),
        (np.array([1]), {"metadata": ["a"]}, "metadata is"),
        (np.array([1]), {"metadata": {"octavo.model": "other"}}, "octavo's own"),
        (np.array([1]), {"model": 5}, "model is"),
    ],
)
def test_what_cannot_be_saved(pages, options, message, tmp_path):
    """Pages of other axes, and metadata that is no text or octavo's own; no file is written."""
    with pytest.raises(OctavoError, match=message):
        save_pages(tmp_path / "p", made(), {"full": pages}, **options)
    assert [] == list(tmp_path.iterdir())


def test_states_are_saved_with_all_their_parts(tmp_path):
    """A page for each part of each state, no fewer."""
    store = made()
    for pages, message in ((np.array([1]), "axes of pages"), (np.array([[1] * 9]), "parts of")):
        with pytest.raises(octavo.LengthError, match=message):
            save_pages(tmp_path / "p", store, {"state": pages})


def test_scales_that_are_no_numbers(tmp_path):
    """A file whose scales would make every number NaN is refused, though its checksum is right."""
    store = made(dtype="int8", page_size=16)
    pages = apart(store, [1, 2], [3])
    for (_, _, component), field in store.fields.items():
        if component == "value_scale":
            field.view.fill_(float("nan"))
    save_pages(tmp_path / "p", store, pages)
    other = made(dtype="int8", page_size=16, random=False)
    with pytest.raises(PageFileError, match="value_scale is negative or not finite"):
        load_pages(tmp_path / "p", other, pages)
    assert not other.arena.any()


def test_files_have_the_mode_of_the_umask(tmp_path):
    """Those who may read other new files may read this one."""
    before = os.umask(0o027)
    try:
        save_pages(tmp_path / "p", made(), SAVED)
    finally:
        os.umask(before)
    assert 0o640 == (tmp_path / "p").stat().st_mode & 0o777


KILLED = """
import os, pathlib, signal, sys
import octavo
from octavo.storage import Storage, save_pages
import numpy as np

spec = octavo.ModelSpec("small", (octavo.Attention(1, 2, 2),), 8)
store = Storage(octavo.plan(spec, 1000, page_size=2, dtype="bf16"))
pathlib.Path.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
save_pages(sys.argv[1], store, {"full": np.array([1, 2])}, model="small")
"""


@pytest.mark.parametrize("old", [b"old", None])
def test_a_killed_process_leaves_the_old_file_or_none(old, tmp_path):
    """Killed after all is written and before it has its name."""
    if old is not None:
        (tmp_path / "p").write_bytes(old)
    run = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "p")], check=False)

    assert -signal.SIGKILL == run.returncode
    assert old == ((tmp_path / "p").read_bytes() if (tmp_path / "p").exists() else None)


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    """The old file stays where the new one fails, and no other is left beside it."""
    save_pages(tmp_path / "p", made(), SAVED)
    before = (tmp_path / "p").read_bytes()
    with pytest.raises(octavo.LengthError):
        save_pages(tmp_path / "p", made(), {"full": np.array([10**6])})
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="irectory"):
        save_pages(tmp_path / "folder", made(), SAVED)

    assert before == (tmp_path / "p").read_bytes()
    assert {"p", "folder"} == {file.name for file in tmp_path.iterdir()}
