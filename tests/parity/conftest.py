"""Engines whose unowned slots are poisoned, and single nodes on ONNX Runtime's CPU."""

import numpy as np
import onnxruntime
import pytest
from onnx import helper

from octavo import Attention, Latent
from octavo.model.lifetimes import group_name
from octavo.testing import unowned_slots


@pytest.fixture
def poison():
    """Fills every unowned slot of an engine with NaN: ``poison(engine)``."""

    def fill(engine):
        plan = engine.cache.plan
        for layer, kind in plan.spec.kinds():
            if not isinstance(kind, Attention | Latent):
                continue
            free, tails = unowned_slots(engine.cache, group_name(kind))
            for view in _rows_of(engine.storage, layer, kind):
                by_token = view if plan.order == "token" or view.ndim == 3 else view.transpose(1, 2)
                by_token[free] = float("nan")
                for page, offset in tails:
                    by_token[page, offset:] = float("nan")

    return fill


def _rows_of(storage, layer, kind):
    """Views of what a layer keeps of every token."""
    latents = ["latent"] * isinstance(kind, Latent) + ["indexer"] * bool(kind.indexer)
    own = () if isinstance(kind, Latent) else storage.layer(layer)[:2]
    return [*own, *(storage.tensor(layer, name) for name in latents)]


@pytest.fixture
def run_node():
    """Runs one ONNX node on CPU: ``run_node(op, inputs, outputs, **attributes)`` gives arrays."""

    def run(op, inputs, outputs, *, domain="", opset=24, **attributes):
        """``inputs``: arrays by name in the op's order, None if absent; ``outputs``: types."""
        given = {name: array for name, array in inputs.items() if array is not None}
        names = [name if name in given else "" for name in inputs]
        node = helper.make_node(op, names, list(outputs), domain=domain, **attributes)
        graph = helper.make_graph(
            [node],
            op,
            [_value_info(name, array.dtype, array.shape) for name, array in given.items()],
            [_value_info(name, dtype, None) for name, dtype in outputs.items()],
        )
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return session.run(None, given)

    return run


def _value_info(name, dtype, shape):
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)
