"""Settings of the whole test run, and steps over scattered pages amid poison."""

import os
import signal
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from octavo import core
from octavo.cache.step import GroupView, Step
from octavo.slots import slot_mapping

# A shell that runs the tests in the background has them ignore interrupts, and so all they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ["OCTAVO_CONFIG_FILE"] = os.devnull  # settings of whoever runs the tests are not theirs

# In CI the examples are the same every time; elsewhere each run looks at new ones.
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("short", settings.get_profile("ci"), max_examples=10)  # make test-pure
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_report_header():
    """Which core is tested."""
    return f"octavo's core: {core.why_not or 'compiled'}"


class Pages(NamedTuple):
    """A step and one layer's keys and values, NaN in every slot the contexts do not cover."""

    step: Step
    keys: np.ndarray
    values: np.ndarray


def build_step(spans, page_size, rng, spare=3):
    """A step of rows (past, count) whose pages are scattered over a pool with ``spare`` others."""
    past, counts = (np.array(column, np.int32) for column in zip(*spans, strict=True))
    context = past + counts
    widths = [-(-length // page_size) for length in context.tolist()]
    ids = iter((rng.permutation(sum(widths) + spare) + 1).tolist())
    rows = [[next(ids) for _ in range(width)] for width in widths]
    table = np.zeros((len(spans), max([1, *widths])), np.int32)
    for row, pages in zip(table, rows, strict=True):
        row[: len(pages)] = pages
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    slots = [
        slot_mapping(pages, page_size, max(0, start), stop)
        for pages, start, stop in zip(rows, past.tolist(), context.tolist(), strict=True)
    ]
    view = GroupView(np.concatenate(slots), table, np.zeros(len(spans), np.int32))
    return Step(
        sequences=(),
        counts=counts,
        input_ids=np.zeros(starts[-1], np.int32),
        positions=np.concatenate(
            [np.arange(a, b, dtype=np.int32) for a, b in zip(past, context, strict=True)]
        ),
        query_start=starts,
        past=past,
        context=context,
        last=np.where(counts > 0, starts[1:] - 1, -1).astype(np.int32),
        wants_token=counts > 0,
        groups={"full": view},
    )


@pytest.fixture
def pages():
    """Builds Pages: ``pages(spans, page_size, kv_heads, k_dim, v_dim, order, rng)``."""

    def build(spans, page_size, kv_heads, k_dim, v_dim, order, rng):
        step = build_step(spans, page_size, rng)
        count = int(step.group().table.max()) + 4
        owned = np.zeros((count, page_size), np.bool_)
        owned[0] = True
        for row, context in zip(step.group().table, step.context.tolist(), strict=True):
            slots = slot_mapping(row, page_size, 0, context)
            owned[np.divmod(slots, page_size)] = True
        layers = []
        for dim in (k_dim, v_dim):
            layer = rng.standard_normal((count, page_size, kv_heads, dim))
            layer[~owned], layer[0] = np.nan, 0
            layers.append(layer if order == "token" else np.ascontiguousarray(layer.swapaxes(1, 2)))
        return Pages(step, *layers)

    return build
