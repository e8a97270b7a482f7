"""Right calls of the public callables, with all their arguments by name."""

import numpy as np

import octavo
from octavo import Attention, Cache, Cross, Plan, Salt, State
from octavo.cache import events, inspection, policies
from octavo.slots import slot_mapping

GROUPS = {
    "full": Attention(1, 1, 1),
    "w": Attention(1, 1, 1, window=8),
    "state": State(1),
    "cross": Cross(1, 1, 1),
}


class Scene:
    """A cache in the midst of its work."""

    def __init__(self):
        self.plan = Plan.from_pages(80, 4, GROUPS)
        self.cache = Cache(self.plan, max_sequences=8, depth=3, rollback=2, on_event=len)
        self.seq = self.cache.admit([1, 2, 3, 4, 5], id="a", limit=60)
        self.batch = self.cache.batch([self.seq])
        self.cache.commit(self.cache.extend(self.batch, 5), [6])
        self.other = self.cache.admit([7, 8, 9], id="b", extra=[Salt("x")], cross=("d", 5))
        self.idle = self.cache.admit([7, 8, 9, 10, 11], id="c")
        self.away = self.cache.admit([3, 1], id="d")
        self.cache.preempt(self.away)
        self.pin = self.cache.pin([1, 2, 3, 4, 5])
        self.step = self.cache.extend(self.batch)


def _verbs(name, **arguments):
    def build(scene):
        return getattr(scene.cache, name), {
            key: getattr(scene, value[1:]) if isinstance(value, str) and value[:1] == "." else value
            for key, value in arguments.items()
        }

    return build


def _fixed(call, **arguments):
    return lambda scene: (call, dict(arguments))


CALLS = {
    "Cache": lambda scene: (
        Cache,
        {
            "plan": scene.plan,
            "max_sequences": 4,
            "max_length": 20,
            "policy": "slru",
            "prefix": True,
            "snapshots": "grid",
            "snapshot_bytes": None,
            "rollback": 1,
            "depth": 2,
            "on_event": len,
            "erase": False,
        },
    ),
    "Cache.peek": _verbs("peek", tokens=[1, 2, 3], extra=()),
    "Cache.explain_match": _verbs("explain_match", tokens=[1, 2, 3], extra=()),
    "Cache.check_limit": _verbs("check_limit", length=2, limit=9, extra=()),
    "Cache.fits": lambda s: (
        s.cache.fits,
        {"requests": [(s.seq, 9), ([1, 2], 3, ())], "reuse": True, "spare": 0},
    ),
    "Cache.fits request": lambda s: (
        lambda tokens, limit, extras: s.cache.fits([(tokens, limit, extras)]),
        {"tokens": [1, 2], "limit": 9, "extras": ()},
    ),
    "Cache.need": _verbs("need", rows=".other", counts=3, ahead=0),
    "Cache.admit": _verbs(
        "admit",
        tokens=[1, 2, 3],
        limit=9,
        extra=(),
        id="new",
        reuse=True,
        guarantee=False,
        cross=("x", 3),
    ),
    "Cache.release": _verbs("release", sequence=".other"),
    "Cache.pin": _verbs("pin", tokens=[1, 2, 3, 4, 5], extra=()),
    "Cache.batch": lambda s: (s.cache.batch, {"sequences": [s.other]}),
    "Cache.extend": lambda s: (s.cache.extend, {"rows": [s.other], "counts": [3], "ahead": 0}),
    "Cache.extend one": _verbs("extend", rows=".other", counts=3, ahead=0),
    "Cache.commit": _verbs("commit", step=".step", tokens=[1], kept=[1]),
    "Cache.abort": _verbs("abort", step=".step"),
    "Cache.learn": _verbs("learn", sequence=".other", tokens=[1]),
    "Cache.keep": _verbs("keep", sequence=".other", position=8),
    "Cache.slide": _verbs("slide", sequence=".other", position=8),
    "Cache.held": _verbs("held", sequence=".other"),
    "Cache.truncate": _verbs("truncate", sequence=".other", length=2, exclusive=False),
    "Cache.drop": _verbs("drop", sequence=".other", count=1),
    "Cache.fork": _verbs("fork", sequence=".idle", n=1),
    "Cache.preempt": _verbs("preempt", sequence=".other"),
    "Cache.resume": _verbs("resume", sequence=".away", reuse=True, publish=True),
    "Batch.add": lambda s: (s.batch.add, {"sequence": s.other}),
    "Batch.remove": lambda s: (s.batch.remove, {"sequence": s.seq}),
    "Batch.row": lambda s: (s.batch.row, {"sequence": s.seq}),
    "Batch.__contains__": lambda s: (lambda sequence: sequence in s.batch, {"sequence": s.seq}),
    "Step.group": lambda s: (s.step.group, {"name": "full"}),
    "Step.slots": lambda s: (s.step.slots, {"name": "full"}),
    "Step.group_number": lambda s: (s.step.group_number, {"name": "full"}),
    "Salt": _fixed(octavo.Salt, value="a"),
    "Adapter": _fixed(octavo.Adapter, id="a", version=1),
    "Media": _fixed(octavo.Media, digest="a", start=0, stop=3),
    "CrossInput": _fixed(octavo.CrossInput, digest="a", length=3),
    "SLRU": _fixed(policies.SLRU, percent=20),
    "page_digests": _fixed(events.page_digests, tokens=[1, 2], page_size=1, extra=()),
    "inspection.vacant_pages": lambda s: (
        lambda group: inspection.vacant_pages(s.cache, group),
        {"group": "full"},
    ),
    "slot_mapping": lambda s: (
        slot_mapping,
        {"pages": [3, 1], "page_size": 4, "start": 1, "stop": 7, "out": np.zeros(9, np.int32)},
    ),
    "slot_mapping one": lambda s: (
        slot_mapping,
        {"pages": [3, 1], "page_size": 4, "start": 1, "stop": 2, "out": None},
    ),
}

WORDS = {
    "length": "len",
    "tokens": "token|sequence|count|limit",
    "rows": "sequence|batch",
    "sequences": "sequence",
    "counts": "count|length",
    "requests": "request|sequence|prompt",
    "extras": "extra",
    "name": "group|dtype",
    "limit": "whole pool",
    "n": "sequences",
    "prompt": "limit",
    "max_length": "num_pages",
    "pages_per_parent": "group",
    "parts": "group",
    "page_bytes": "group",
    "component": "layer",
    "slots": "slot",
    "places": "place|group",
    "step": "page_size of the plan",
    "copies": "target|source|group",
    "fresh": "pages|group",
    "stride": "elements",
    "count": "mtp",
    "pages": "page|slot|elements|content",
    "page_size": "slot|pages",
    "start": "stop|places",
    "stop": "start",
}
"""Other words by which a message names an argument."""
