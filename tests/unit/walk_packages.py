"""Right calls of what stands around a cache, with all their arguments by name."""

from functools import partial

import numpy as np
import torch

import octavo
from octavo import Attention, Cache, ModelSpec, Plan, index
from octavo.model import dtypes, lifetimes
from octavo.planner import pools
from octavo.scheduling import HostPages, Scheduler
from octavo.simulation import TimeModel
from octavo.storage import HostMirror, Storage, copy_pages
from octavo.testing import unowned_slots

SPEC = ModelSpec("two", (Attention(2, 16, 16), Attention(2, 16, 16, window=32)) * 2, max_length=256)
PLAN = octavo.plan(SPEC, "1MiB", dtype="fp32", page_size=16)
FORMATS = ("vllm",)
OPTIONS = {
    "rows": None,
    "kernel": None,
    "kernel_page": None,
    "form": "absolute",
    "slot_fill": -1,
    "page_fill": None,
    "max_query_len": None,
    "max_seq_len": None,
}


class Request:
    """What a scheduler sees of one."""

    def __init__(self, prompt, limit):
        self.prompt, self.limit, self.sequence = prompt, limit, None


class Scene:
    """A cache with an open step, and the storage of its pages."""

    def __init__(self):
        self.cache = Cache(PLAN, max_sequences=4)
        self.seq = self.cache.admit(list(range(20)))
        self.step = self.cache.extend(self.seq, 20)
        self.storage = Storage(PLAN)
        self.ones = torch.ones(20, 2, 16)


def _fixed(call, **arguments):
    return lambda case: (call, dict(arguments))


def _emits(name):
    def build(case):
        emit = getattr(index, name)
        options = dict(OPTIONS)
        return emit, {"step": case.step, "group": "full", "plan": PLAN, "out": None, **options}

    return build


def _stored(name, **arguments):
    def build(case):
        given = {
            key: getattr(case, value[1:]) if isinstance(value, str) and value[:1] == "." else value
            for key, value in arguments.items()
        }
        return getattr(case.storage, name), given

    return build


PAGES = np.array([1, 2], np.int32)
SLOTS = np.arange(16, 36, dtype=np.int32)
CALLS = {
    "Attention": _fixed(
        Attention,
        kv_heads=1,
        k_dim=2,
        v_dim=2,
        window=4,
        sink_tokens=0,
        sink_logits=False,
        chunk=None,
        indexer=0,
    ),
    "Latent": _fixed(octavo.Latent, rank=4, rope=2, indexer=0, window=None),
    "State": _fixed(
        octavo.State, recurrent=(2, 3), conv=(4, 3), groups=0, group_channels=0, rows=(), buffer=()
    ),
    "Cross": _fixed(octavo.Cross, kv_heads=1, k_dim=2, v_dim=2, length=9),
    "Shared": _fixed(octavo.Shared, layer=0, kind=None),
    "ModelSpec": _fixed(
        ModelSpec,
        name="m",
        layers=(Attention(1, 2, 2),),
        max_length=9,
        mtp=(),
        depth=None,
        notes=(),
    ),
    "ModelSpec.with_mtp": _fixed(SPEC.with_mtp, count=0),
    "ModelSpec.from_config": _fixed(
        ModelSpec.from_config,
        config={
            "model_type": "llama",
            "num_hidden_layers": 2,
            "hidden_size": 64,
            "num_attention_heads": 2,
        },
    ),
    "dtype": _fixed(dtypes.dtype, name="bf16"),
    "lifetime_of": _fixed(lifetimes.lifetime_of, kind=Attention(1, 2, 2)),
    "group_name": _fixed(lifetimes.group_name, kind=Attention(1, 2, 2)),
    "Plan.from_pages": _fixed(
        Plan.from_pages,
        num_pages=99,
        page_size=4,
        groups={"full": Attention(1, 1, 1), "s": octavo.State(1)},
        max_length=20,
        pages_per_parent={"full": 2},
        parts={"s": 2},
        page_bytes={"full": 8},
    ),
    "pools.pages": _fixed(partial(pools.pages, PLAN), length=9),
    "Plan.ids": _fixed(PLAN.ids, group="full"),
    "Plan.max_sequences": _fixed(PLAN.max_sequences, length=9),
    "pools.max_length_for": _fixed(
        partial(pools.max_length_for, PLAN), sequences=2, in_flight=False
    ),
    **{f"index.{name}": _emits(name) for name in FORMATS},
    "index.flex": lambda c: (
        index.flex,
        {
            "step": c.step,
            "group": "full",
            "plan": PLAN,
            "query_block": 16,
            "kv_block": None,
            "causal": True,
        },
    ),
    "index.LatentGeometry": _fixed(
        index.LatentGeometry,
        latent=80,
        rotary=16,
        v_head_size=64,
        rotary_offset=64,
        page_size=16,
        heads=1,
    ),
    "index.max_addressable_pages": _fixed(index.max_addressable_pages, stride=16, dtype="int32"),
    "index.check_offsets": _fixed(index.check_offsets, pages=9, stride=16, dtype="int32"),
    "Scheduler": lambda c: (
        Scheduler,
        {
            "cache": c.cache,
            "max_step_tokens": 8,
            "preemption": True,
            "watermark": 0.1,
            "patience": 8,
            "host": HostPages(c.cache, TimeModel(host_memory=1)),
        },
    ),
    "Scheduler.add": lambda c: (
        Scheduler(Cache(PLAN), 8).add,
        {"request": Request([1, 2], 9), "priority": 1, "deadline": 2.0},
    ),
    "Scheduler.add request": lambda c: (
        lambda prompt, limit: Scheduler(Cache(PLAN), 8).add(Request(prompt, limit)),
        {"prompt": [1, 2], "limit": 9},
    ),
    "Storage": _fixed(Storage, plan=PLAN, device="cpu"),
    "Storage.layer": _stored("layer", layer=0, group=None),
    "Storage.tensor": _stored("tensor", layer=0, component="key", group=None),
    "Storage.index": _stored("index", slots=SLOTS, group="full"),
    "Storage.page_index": _stored("page_index", pages=PAGES, group="full"),
    "Storage.write": _stored(
        "write", layer=0, key=".ones", value=".ones", slots=SLOTS, group="full"
    ),
    "Storage.gather": _stored("gather", layer=0, pages=PAGES, start=0, stop=20, group="full"),
    "Storage.apply": lambda c: (c.storage.apply, {"copies": c.step.copies, "fresh": c.step.fresh}),
    "Storage.zero": _stored("zero", pages={"full": PAGES}),
    "Storage.page_bytes": _stored("page_bytes", group="full"),
    "Storage.read_pages": _stored("read_pages", group="full", pages=PAGES),
    "Storage.write_pages": lambda c: (
        c.storage.write_pages,
        {"group": "full", "pages": PAGES, "content": c.storage.read_pages("full", PAGES)},
    ),
    "HostMirror": lambda c: (HostMirror, {"storage": c.storage, "places": {"full": 2}}),
    "HostMirror.offload": lambda c: (
        HostMirror(c.storage, {"full": 2}).offload,
        {"group": "full", "pages": PAGES, "places": np.array([0, 1])},
    ),
    "copy_pages": lambda c: (
        copy_pages,
        {"copies": c.step.copies, "arrays": {"full": [np.zeros((9, 4))]}, "fresh": None},
    ),
    "unowned_slots": lambda c: (unowned_slots, {"cache": c.cache, "group": "full"}),
}
