"""Every handed config: a storage takes the planned bytes, each component where it belongs."""

from pathlib import Path

import pytest
import torch

import octavo
from octavo import Attention, ModelSpec
from octavo.model.spec import Latent
from octavo.planner import sizes
from octavo.storage import Storage

CONFIGS = sorted((Path(__file__).parent / "data" / "configs").glob("*.json"))
STORED = ["bf16", "fp32", "fp8", "int8", "int4"]


def plans(spec):
    """Plans of a model in every layout and element type that can hold it, the orders in turn."""
    latent = any(isinstance(kind, Latent) for _, kind in spec.kinds())
    options = {"page_size": 16, "max_length": 64, "max_step_tokens": 64}
    for number, dtype in enumerate(STORED[: 3 if latent else 5]):
        for layout in ("component", "slab", "packed"):
            order = ("token", "head")[number % 2]
            yield octavo.plan(spec, "40GiB", dtype=dtype, layout=layout, order=order, **options)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_allocated_bytes_are_the_planned_ones(path):
    """In every layout and element type; views have the planned shapes, strides and types."""
    spec = ModelSpec.from_config(path)
    for plan in plans(spec):
        store = Storage(plan, "meta")
        assert sizes.arena_bytes(plan) == store.nbytes == store.arena.untyped_storage().nbytes()
        for tensor in plan.tensors:
            view = store.fields[tensor.layer, tensor.group, tensor.component].view
            assert tensor.page_bytes == view[0].numel() * view.element_size()
            assert tensor.page_stride == view.stride(0) * view.element_size()
            assert getattr(torch, tensor.dtype.torch_name) == view.dtype
        for layer, kind in spec.kinds():
            if isinstance(kind, Attention):
                assert_view(store, layer, kind)


def assert_view(store, layer, kind):
    """A layer's view has its heads and dims in the plan's order, and scales where it has them."""
    view, plan = store.layer(layer), store.plan
    heads = (kind.kv_heads, plan.page_size) if plan.order == "head" else None
    outer = heads or (plan.page_size, kind.kv_heads)
    half = 2 if plan.elements.kv.name == "int4" else 1
    assert (*outer, kind.k_dim // half) == view.key.shape[1:]
    assert (*outer, kind.v_dim // half) == view.value.shape[1:]
    if plan.elements.scales == "head":
        assert view.key.shape[:-1] == view.key_scale.shape == view.value_scale.shape
    else:
        assert view.key_scale is None
    assert view.kv_dtype == (plan.elements.kv.name if plan.elements.kv.bits <= 8 else None)
