"""One case with its numbers: query and caches as a kernel gets them, NaN where it must not read."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from octavo.attention import Attended
from octavo.attention.kernels import oracle
from octavo.attention.parameters import Keywords
from octavo.cache.step import Step
from octavo.cache.views import GroupView, View
from octavo.testing.conformance.cases import Case
from octavo.testing.conformance.components import Array, component, rounded
from octavo.testing.conformance.scenes import (
    STEP_ARRAYS,
    Scene,
    build_scene,
    rows_of,
    without_keys,
)

_BEYOND = 8  # pages of NaN behind the plan's, for kernels that read too far
_LONG, _LONG_WITH_NAN = 300, 1030  # keys of a long row: kernels cut it at 128, 256, 512...


class Trial(NamedTuple):
    """The arguments of one call of `paged_attention`, as NumPy arrays.

    Attributes:
        case: what it is a trial of.
        scene: its rows, and their plan.
        query: [T, H, k_dim].
        keys, values: one layer's pages in the case's order; values None: latent.
        step: the scene's.
        options: keywords that are not at their defaults, but for ``order`` and ``return_lse``.
    """

    case: Case
    scene: Scene
    query: Array
    keys: Array
    values: Array | None
    step: Step
    options: Mapping[str, Any]

    @property
    def view(self) -> GroupView:
        """The page table that is read."""
        found: GroupView = self.step.group(self.options.get("group"))
        return found

    @property
    def keywords(self) -> dict[str, Any]:
        """What a kernel is called with: all that is not at its default."""
        order = {"order": "head"} if self.case.order == "head" else {}
        lse = {"return_lse": True} if self.case.lse else {}
        return {**self.options, **order, **lse}

    def reference(self) -> Attended[Array]:
        """The oracle's answer. O(T * H * context * (k_dim + v_dim))."""
        options = cast("Keywords", {**self.options, "order": self.case.order})
        arrays = (self.query, self.keys, self.values)
        return oracle.paged_attention(*arrays, self.step, return_lse=True, **options)

    def together(self) -> "Trial":
        """The same with pages that lie next to each other. O(pages)."""
        values = None if self.values is None else np.ascontiguousarray(self.values)
        return self._replace(keys=np.ascontiguousarray(self.keys), values=values)


@lru_cache(maxsize=128)
def _scene(name: str, page_size: int, window: int | None, sink_tokens: int, longest: int) -> Scene:
    rows = rows_of(name, page_size, longest)
    return build_scene(rows, page_size, window, sink_tokens, seed=page_size)


def build_trial(case: Case, poison: float = np.nan) -> Trial:
    """The numbers of ``case``, the same every time.

    Args:
        poison: what slots hold that are of no row's context. The null page holds zeros.

    Cost: O(pages * page_size * kv_heads * (k_dim + v_dim)).
    """
    rule, rng = case.rule, np.random.default_rng(case.seed)
    window = rule.options.get("window") if rule.dropping else None
    sinks = rule.options.get("sink_tokens", 0) if rule.dropping else 0
    longest = _LONG_WITH_NAN if rule.nan else _LONG
    scene = _scene(case.scene, case.page_size, window, sinks, longest)
    if rule.keyless:
        scene = without_keys(scene)
    options = dict(rule.options)
    if rule.dropping:
        options["group"] = "window"
    view = scene.step.group(options.get("group"))
    query = rng.standard_normal((int(scene.step.query_start[-1]), case.heads, case.k_dim))
    if rule.sink_logits:
        options["sink_logits"] = rounded(rng.standard_normal(case.heads), case.dtype)
    owned = _owned(scene.step, view, scene.plan.num_pages + _BEYOND, case.page_size)
    keys, key_scale = component(case, case.k_dim, owned, poison, rng)
    values, value_scale = None, None
    if rule.latent:
        options["v_dim"] = case.v_dim
    else:
        values, value_scale = component(case, case.v_dim, owned, poison, rng)
    scales = {"key_scale": key_scale, "value_scale": value_scale}
    options |= {name: scale for name, scale in scales.items() if scale is not None}
    query = rounded(query, case.dtype)
    if rule.nan:
        _put_nan(case, scene, view, (query, keys, keys if values is None else values))
    return Trial(case, scene, query, keys, values, _copied(scene.step), options)


def _put_nan(case: Case, scene: Scene, view: GroupView, arrays: tuple[Array, ...]) -> None:
    """NaN in head 0 of each row's query, of one of its keys, or of one of its values, in turns."""
    query, *caches = arrays
    for number, (table, row) in enumerate(zip(view.table, scene.rows, strict=True)):
        context = row.past + row.new
        borders = {0, 127, 256, 511, 512, context // 2, context - 1}
        at = [border for border in sorted(borders) if 0 <= border < context]
        if not row.new or not at:
            continue
        kind, position = (number + case.seed) % 3, at[(number + case.seed) % len(at)]
        if kind == 2:
            query[scene.step.query_start[number], 0, 0] = np.nan
            continue
        page = caches[kind][table[position // case.page_size]]
        slots = page if page.ndim == 2 else page[0] if case.order == "head" else page[:, 0]
        slots[position % case.page_size, 1] = np.nan


def _copied(step: Step) -> Step:
    """A step of its own, so that a kernel that writes into it spoils no other trial. O(step)."""
    arrays = {name: getattr(step, name).copy() for name in STEP_ARRAYS}
    groups: dict[str, View] = {
        name: view._replace(**{field: array.copy() for field, array in view._asdict().items()})
        for name, view in step.groups.items()
    }
    return step.replace(groups=groups, **arrays)


def _owned(step: Step, view: GroupView, pages: int, page_size: int) -> NDArray[np.bool_]:
    """Slots of the rows' contexts: bool[pages, page_size]."""
    owned = np.zeros((pages, page_size), np.bool_)
    for table, context in zip(view.table, step.context.tolist(), strict=True):
        at = np.arange(context)
        owned[table[at // page_size], at % page_size] = True
    return owned


def arrays_of(step: Step) -> dict[str, NDArray[Any]]:
    """All arrays of a step, those of its groups too, by the names messages give them. O(fields)."""
    found = {f"step.{name}": getattr(step, name) for name in STEP_ARRAYS}
    for group, view in step.groups.items():
        for name, array in view._asdict().items():
            what = "the page table" if name == "table" else f"the {name}"
            found[f"{what} of group {group}"] = array
    return found
