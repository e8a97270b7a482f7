"""Copies and pickles: a value makes the round trip, what there is one of refuses in words."""

import copy
import functools
import importlib
import pickle
import pkgutil
from typing import is_typeddict

import numpy as np
import pytest
import torch

import octavo
from octavo import Attention, Cache, CrossInput, Latent, ModelSpec, Plan, Salt, Shared, State, index
from octavo.active_prefix.cache import ActivePrefixCache
from octavo.attention.parameters import Parameters
from octavo.cache.identity import Identity
from octavo.cache.policies import LRU, SLRU
from octavo.engine.host import HostMemory
from octavo.engine.sampling import Sampler, SamplingParams
from octavo.engine.speculation.lookup import NGrams, PromptLookup
from octavo.errors import CopyError
from octavo.index.rows import StepRows
from octavo.integrations.onnx.decoder import Decoder
from octavo.integrations.onnx.families import FAMILIES
from octavo.integrations.onnx.rotary import Rotary
from octavo.model.configs.fields import Fields
from octavo.model.layers import Compressed
from octavo.model.lifetimes import Chunked, Lifetime, Rows, Window
from octavo.planner.pools import GroupPlan, PoolPlan
from octavo.scheduling import Scheduler
from octavo.simulation import routers, settings, times
from octavo.simulation.fields import Entry
from octavo.simulation.lines import JsonLines
from octavo.simulation.pools import Pool
from octavo.simulation.report import Run
from octavo.simulation.requests import AnswerTokens, Job, Trace, TraceRequest
from octavo.simulation.tally import Tally, Timeline
from octavo.storage import HostMirror, Storage
from octavo.testing import SHAPES, ModelStore, Report, Router, Text, World, freeze
from octavo.testing.conformance.kernel import Kernel
from octavo.testing.drawing import Chance

NOT_HERE = {
    "arrays.NDArray": "a name for checkers of types",
    # those of other libraries that octavo only fills in
    "checkpoints.loading.LoadedModel": "it has a model of transformers",
    "checkpoints.text.Detokenizer": "it has a tokenizer of transformers",
    "engine.sampling.processors.History": "the rows of one step",
    "integrations.transformers.arguments.PassArguments": "tensors of one call",
    "integrations.transformers.files.PrefixFiles": "a part of OctavoCache, which refuses",
    "integrations.transformers.passes.ModelPass": "it has a step, which refuses",
    "integrations.onnx.runners.PagedAttention": "an operator of onnx",
    "attention.kernels.cpu.KernelCall": "numbers of a call in C",
    "engine.linears.KernelLayers": "as that",
    "engine.linears.KernelPart": "as that",
    "engine.own_states.OneLayer": "a tensor of one step",
    "engine.rows.OpenRow": "it has a step, which refuses",
    "engine.speculation.drafts.Draft": "it has a model of transformers",
    "simulation.lines.CsvLines": "as JsonLines, with a header",
    "testing.world.Record": "it has a sequence, which refuses",
    "testing.world.OpenStep": "it has a step, which refuses",
    "testing.machine.CacheMachine": "Hypothesis makes it",
    "testing.machine.Drawn": "Hypothesis makes it",
}


def _public_classes():
    """Name below octavo -> class, of all but the core, the command line, errors and protocols."""
    found = {}
    for module in pkgutil.walk_packages(octavo.__path__, "octavo."):
        name = module.name.removeprefix("octavo.")
        if name.partition(".")[0] in ("core", "cli", "errors", "__main__") or "__main__" in name:
            continue
        for title, kind in vars(importlib.import_module(module.name)).items():
            if isinstance(kind, type) and kind.__module__ == module.name and title[0] != "_":
                found[f"{name}.{title}"] = kind
    return found


def _is_refused(kind):
    """Whether its ``__reduce__`` is one that refuses."""
    return getattr(kind.__reduce__, "__module__", "") == "octavo.errors" and not issubclass(
        kind, BaseException
    )


def _is_plain(kind):
    """A tuple of fields, or no class of objects."""
    return (
        issubclass(kind, (tuple, BaseException))
        or is_typeddict(kind)
        or getattr(kind, "_is_protocol", False)
    )


@functools.cache
def _spec():
    layers = (Attention(2, 16, 16), Attention(2, 16, 16, window=32))
    return ModelSpec("two", layers * 2, max_length=256)


@functools.cache
def _plan():
    return octavo.plan(_spec(), "1MiB", dtype="fp32")


@functools.cache
def _busy():
    """A cache in the midst of its work, and what it handed out."""
    cache = Cache(Plan.from_pages(40, 4), max_sequences=8)
    first = cache.admit([1, 2, 3, 4, 5])
    batch = cache.batch([first])
    cache.commit(cache.extend(batch, 5), [6])
    pin = cache.pin([1, 2, 3, 4, 5])
    step = cache.extend(batch)
    return cache, first, batch, pin, step


def _values():
    """Objects that hold nothing of which there is but one."""
    cache, _, _, _, step = _busy()
    request = TraceRequest(0, 0.0, 3, 2, tokens=np.arange(3, dtype=np.int32))
    plan = Plan.from_pages(9, 4)
    yield from (_spec(), _plan(), plan, octavo.plan(_spec(), "1MiB", pp=2), _plan().budget)
    yield from (Attention(1, 2, 3), Latent(64, 16), State((2, 3)), octavo.Cross(1, 2, 2), Shared(0))
    yield from (Salt("a"), octavo.Adapter("a", 1), octavo.Media(b"x", 0, 3), CrossInput("d", 9))
    yield octavo.Prompt([1, 2, 3], Salt("a"), ("d", 9))
    yield from (
        Identity((Salt("a"),)),
        Lifetime(),
        Window(window=4),
        Chunked(chunk=4),
        Compressed(every=4, rank=8),
        Rows(every=4),
    )
    yield from (GroupPlan("full"), PoolPlan(4, 9, plan.groups))
    yield from (cache.peek([1, 2]), cache.explain_match([1, 2]), cache.fits([([1], 4)]))
    yield from (cache.stats(), octavo.Committed(1, (), 0), step.group(), step.delta, step.copies)
    yield from (index.vllm(step, plan=plan), index.dense(step, plan=plan), LRU(), SLRU(30))
    yield from (StepRows(step, page_size=4), index.LatentGeometry(80, 16, 64, 64, 16))
    yield from (Parameters(window=4), SamplingParams(temperature=0.5))
    yield from (PromptLookup(), NGrams(2), HostMemory("1GiB"))
    yield from (settings.Setting(plan), times.TimeModel(), Pool(pages=9), Job(request))
    yield from (request, Trace("t", "log", [request]), AnswerTokens([request]), Timeline(1.0))
    yield from (
        Tally(served=3),
        Run(settings.Setting(plan), [Tally()]),
        Kernel(max, None, int, int),
    )
    yield from (Entry(own=3, output_length=2), JsonLines())
    yield from (routers.RoundRobin(), routers.LeastLoaded(), routers.LongestPrefix())
    yield from (SHAPES[0], Report(), Text([1, 2, 3]), Router(SHAPES[0]), Chance(3))
    yield from (Decoder(64, 32, 1, 2, 64, Attention(1, 16, 16), 64), Fields({"a": 1}, {}))
    yield from (Rotary.plain(16), FAMILIES["llama"])
    prefix = ActivePrefixCache(layers=1, kv_heads=1, head_dim=8, capacity=16)
    yield from (prefix, prefix.begin(3))


def _handles():
    """Objects of which there is one."""
    cache, first, batch, pin, step = _busy()
    storage = Storage(_plan())
    yield from (cache, first, batch, pin, step, step.replace(), octavo.Step())
    yield from (index.Emitter(index.vllm, cache.plan), Scheduler(Cache(cache.plan), 8))
    yield from (storage, HostMirror(storage, {"full": 2}), World(SHAPES[0]), ModelStore(SHAPES[0]))
    yield Sampler(SamplingParams(temperature=1.0, seed=1))


COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda thing: pickle.loads(pickle.dumps(thing)),  # noqa: S301
    "oldest pickle": lambda thing: pickle.loads(pickle.dumps(thing, 2)),  # noqa: S301
}


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_values_make_the_round_trip(make):
    """A copy of a value holds what it held."""
    for value in _values():
        made = make(value)
        assert type(value) is type(made)
        if isinstance(value, PoolPlan):
            assert value == made
        else:  # some hold arrays, which do not say by == whether they are equal
            assert freeze(_seen(value)) == freeze(_seen(made))


def _seen(value):
    """What is compared of a value: arrays where it holds tensors."""
    if isinstance(value, ActivePrefixCache) or type(value).__name__ == "Prefix":
        return [t.numpy() for t in vars(value).values() if isinstance(t, torch.Tensor)]
    return value


@pytest.mark.parametrize("make", COPIES.values(), ids=COPIES)
def test_handles_refuse_in_words(make):
    """Two caches on one pool would give out the same pages: there is one of it and its handles."""
    before = freeze(_busy()[0])
    for handle in _handles():
        with pytest.raises(CopyError, match="cannot be copied or pickled: it") as caught:
            make(handle)
        assert type(handle).__name__ == caught.value.kind
        assert isinstance(caught.value, TypeError)
    with pytest.raises(CopyError, match="a Sequence"):  # what holds a handle refuses with it
        make([_busy()[1]] if make is not copy.copy else _busy()[1])
    assert before == freeze(_busy()[0])


def test_every_public_class_is_one_or_the_other():
    """A class is a tuple, a value with an example here, or its objects refuse."""
    examples = {type(value) for value in _values()}
    left = {
        name
        for name, kind in _public_classes().items()
        if not (_is_refused(kind) or _is_plain(kind) or kind in examples or name in NOT_HERE)
    }

    assert set() == left
    assert not [kind for kind in examples if _is_refused(kind)]
