"""Engines whose unowned slots are poisoned."""

import pytest

from octavo.lifetimes import group_name
from octavo.testing import unowned_slots


@pytest.fixture
def poison():
    """Fills every unowned slot of an engine with NaN: ``poison(engine)``."""

    def fill(engine):
        plan = engine.cache.plan
        for layer, kind in plan.spec.kinds():
            free, tails = unowned_slots(engine.cache, group_name(kind))
            for view in engine.storage.layer(layer)[:2]:
                by_token = view if plan.order == "token" else view.transpose(1, 2)
                by_token[free] = float("nan")
                for page, offset in tails:
                    by_token[page, offset:] = float("nan")

    return fill
