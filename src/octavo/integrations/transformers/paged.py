"""One pass of a transformers model over pages: where keys and values go, and what reads them there.

What all layers share is made once, when first needed. Knows no requests, no prompts and no rows of
sequences.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import pad

from octavo.attention import best
from octavo.attention.base import LayerCall
from octavo.attention.kernels.cpu import PUT, Pair, RowPut
from octavo.attention.parameters import Parameters
from octavo.attention.sizes import LayerArrays
from octavo.cache.step import Step
from octavo.errors import UnsupportedModel, uncopied
from octavo.model.lifetimes import group_name
from octavo.model.spec import Attention, Latent, Shared
from octavo.planner.plan import Plan
from octavo.storage import WriteIndex
from octavo.storage.layers import LayerStore

HANDLE = "octavo_pages"
"""Attribute of a layer's new keys, and keyword of the attention function, that leads to pages."""

_ABSENT: Any = object()
Index = NDArray[np.int64]


class PagedLayer(NamedTuple):
    """What one layer of a model keeps of every token, and in which pages.

    Attributes:
        layer: index in the model.
        kind: keys and values, or latents.
        group: the pages' group.
        readers: layers that attend to it: itself, and those that keep nothing of their own.
        alike: a number that layers of the same kind have in common.
    """

    layer: int
    kind: Attention | Latent
    group: str
    readers: int
    alike: int

    @property
    def in_place(self) -> bool:
        """Whether it is read in place beside masks of transformers; latents and chunks are not."""
        return isinstance(self.kind, Attention) and self.kind.chunk is None

    @property
    def v_dim(self) -> int:
        """Elements of what is weighted: of a value, or of a latent."""
        return self.kind.rank if isinstance(self.kind, Latent) else self.kind.v_dim


def paged_layers(plan: Plan) -> dict[int, PagedLayer]:
    """The layers of a plan that keep something of every token, by index. O(layers)."""
    kinds = () if plan.spec is None else plan.spec.kinds()
    readers = Counter(kind.layer for _, kind in kinds if isinstance(kind, Shared))
    numbers: dict[Attention | Latent, int] = {}
    return {
        at: PagedLayer(
            at, kind, group_name(kind), 1 + readers[at], numbers.setdefault(kind, len(numbers))
        )
        for at, kind in kinds
        if isinstance(kind, Attention | Latent)
    }


class PagedPass:
    """One forward pass over a step's pages; what all layers share is made once, when first needed.

    transformers' tensors are a rectangle of rows and columns; a step has its tokens one after
    another. A place is row * columns + column.

    Args:
        storage: where the pages are.
        step: open; None: no row has a new token.
        shape: rows and new columns of the model's tensors.
        places: int64[T], the place of each token of the step; None: that of its number.
        source: int64[rows], the row whose output each row takes; None: its own.
        real: bool[rows, L], columns that are tokens, past ones too, to check the model's masks by;
            None: it makes none.
    """

    __reduce__ = uncopied("it belongs to one step")

    def __init__(
        self,
        storage: LayerStore,
        step: Step | None,
        shape: tuple[int, int],
        places: Index | None = None,
        source: Index | None = None,
        real: NDArray[np.bool_] | None = None,
    ) -> None:
        self._storage, self._step, self._shape = storage, step, shape
        self._places, self._source = self._on_device(places), self._on_device(source)
        self._slots: dict[str, WriteIndex] = {}
        self._prepared: dict[tuple[str, bool], Any] = {}
        self._row_puts: dict[str, RowPut | None] = {}
        self._puts: dict[Any, Callable[[Pair, Pair], None] | None] = {}
        self._calls: dict[Any, Callable[[LayerArrays[torch.Tensor]], torch.Tensor]] = {}
        self._written: set[int] = set()
        self._reads: Counter[int] = Counter()
        self._real = None if real is None else torch.from_numpy(real).to(storage.device)
        self._masks: list[tuple[torch.Tensor, int | None]] = []

    def write(self, paged: PagedLayer, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put a layer's new keys and values [rows, heads, columns, dim] in their slots.

        Of a latent layer ``key`` is the latent and ``value`` its position part, of one head each.

        Raises:
            PlanError, LengthError: another dtype, device or shape than planned.
            UnsupportedModel: the layer has written in this pass.

        Cost: O(T heads dim).
        """
        if paged.layer in self._written:
            why = "it writes twice in one pass, and the second would overwrite the first"
            raise UnsupportedModel(f"layer {paged.layer}", why)
        self._written.add(paged.layer)
        if self._step is None:
            return
        if self._put(paged, key, value):
            return
        keys, values, slots = self._tokens(key), self._tokens(value), self._slots_of(paged.group)
        if isinstance(paged.kind, Latent):
            row = torch.cat([keys, values], dim=-1)
            self._storage.write_latent(paged.layer, row[:, 0], slots)
        else:
            self._storage.write(paged.layer, keys, values, slots)

    def write_indexer(self, paged: PagedLayer, key: torch.Tensor) -> None:
        """Put the keys of a layer's indexer, [rows, columns, dim], in their slots.

        Raises and costs as `write`.
        """
        if self._step is not None:
            slots, layer = self._slots_of(paged.group), paged.layer
            kept = key.to(self._storage.tensor(layer, "indexer").dtype)
            self._storage.write_indexer(layer, self._tokens(kept[:, None])[:, 0], slots)

    def hand_over(
        self, paged: PagedLayer, key: torch.Tensor, keywords: dict[str, Any] | None
    ) -> torch.Tensor:
        """``key`` with the mark by which the attention function finds the layer's pages. O(1).

        Args:
            paged: the layer.
            key: its new keys; a layer that shares them finds the pages by them.
            keywords: the attention function's, where the model gives them to `update`; the mark is
                put there too, for models that make other tensors of the keys.
        """
        setattr(key, HANDLE, (self, paged))
        if keywords is not None:
            keywords[HANDLE] = self, paged
        return key

    def attend(
        self,
        paged: PagedLayer,
        query: torch.Tensor,
        scale: float | None,
        softcap: float | None,
        sink_logits: torch.Tensor | None,
    ) -> torch.Tensor:
        """[rows, q, H, v_dim] of a query [rows, H, q, k_dim]; zeros at padding.

        Of a latent layer the query is of rank + rope elements, and what comes out of rank.

        Where q is less than the pass's columns, as of a layer that shares another's keys, the query
        is that of the last ones.

        Raises:
            UnsupportedModel: more layers than the spec says attend to this one's pages, or one does
                so several times, to parts of its keys or values.

        Cost: attention over the contexts of the step's rows.
        """
        self._reads[paged.layer] = reads = self._reads.get(paged.layer, 0) + 1
        if reads > paged.readers:
            why = f"its keys are attended to more than {paged.readers} times in one pass"
            raise UnsupportedModel(f"layer {paged.layer}", why)
        (rows, columns), (_, heads, width, _) = self._shape, query.shape
        if width < columns:
            query = pad(query, (0, 0, columns - width, 0))
        if self._step is None:
            return query.new_zeros(rows, width, heads, paged.v_dim)
        found = self.compute(paged, self._tokens(query), scale, softcap, sink_logits)
        spread = self._spread(found).view(rows, columns, heads, -1)
        return spread if width == columns else spread[:, columns - width :]

    def window(self, asked: int | None) -> int | None:
        """A window the model asks for, which is none where it holds the longest sequence. O(1)."""
        spec = self._storage.plan.spec
        longest = None if spec is None else spec.max_length
        return None if asked is None or (longest is not None and asked >= longest) else asked

    def check_mask(self, paged: PagedLayer, mask: torch.Tensor) -> None:
        """Check that the model's own mask shows what octavo's attention sees. O(mask), once a mask.

        Args:
            paged: the layer.
            mask: [rows or 1, 1, q, columns], of the last of both; bool, or added to scores.

        Raises:
            UnsupportedModel: it shows or hides other tokens, as where a prefix or a picture is seen
                as a whole.
        """
        assert isinstance(paged.kind, Attention)
        window = paged.kind.window
        if self._real is None or any(mask is m and window == w for m, w in self._masks):
            return
        length, (new, width) = self._real.shape[1], mask.shape[-2:]
        query = torch.arange(length - new, length, device=mask.device)[:, None]
        key = torch.arange(length - width, length, device=mask.device)
        seen = (key <= query) & (key > query - (window or length))
        shown = mask[:, 0] if mask.dtype == torch.bool else mask[:, 0] == 0
        other = shown != seen & self._real[:, None, length - width :]
        if bool((other & self._real[:, length - new :, None]).any()):
            why = (
                "the model's mask shows other tokens than those before each, such as a whole prefix"
            )
            raise UnsupportedModel("attention mask", f"{why}; gather it, without attend()")
        self._masks.append((mask, window))

    def check_written(self, layers: Iterable[PagedLayer]) -> None:
        """Check that the model that has run gave octavo the keys of these layers. O(layers).

        Raises:
            UnsupportedModel: not of all; the model's output is not to be trusted.
        """
        self._check("kept keys and values", {p.layer: p.layer in self._written for p in layers})

    def check_attended(self, layers: Iterable[PagedLayer]) -> None:
        """Check that it read these layers' pages through octavo, each reader once. O(layers).

        Raises:
            UnsupportedModel: not all; the model's output is not to be trusted.
        """
        self._check("attended", {p.layer: self._reads[p.layer] == p.readers for p in layers})

    @staticmethod
    def _check(what: str, done: dict[int, bool]) -> None:
        lacks = [layer for layer, well in done.items() if not well]
        if lacks:
            count = f"{len(done) - len(lacks)} of {len(done)} layers"
            raise UnsupportedModel(
                "model", f"only {count} {what} through octavo, layers {lacks} did not"
            )

    def _tokens(self, new: torch.Tensor) -> torch.Tensor:
        """The step's tokens [T, heads, dim] of a tensor [rows, heads, columns, dim]. O(T)."""
        new = new.detach() if new.requires_grad else new
        flat = new.transpose(1, 2).flatten(0, 1)
        return flat if self._places is None else flat.index_select(0, self._places)

    def _put(self, paged: PagedLayer, key: torch.Tensor, value: torch.Tensor) -> bool:
        """Whether a layer's keys and values could be put by the kernel, and have been.

        Layers that are alike are checked once.
        """
        caches = self._storage.own.get(paged.layer)
        if caches is None:
            return False
        shapes = key.shape, value.shape, key.stride(), value.stride(), caches[0].stride()
        alike = paged.alike, *shapes, key.dtype, value.dtype, key.is_cpu, value.is_cpu
        put = self._puts.get(alike, _ABSENT)
        if put is _ABSENT:
            put = self._puts[alike] = self._put_of(paged.group, (key, value), caches)
        if put is not None:
            put((key, value), caches)
        return put is not None

    def _put_of(self, group: str, new: Pair, caches: Pair) -> Callable[[Pair, Pair], None] | None:
        """What puts the step's tokens in a group; None: the storage writes them. O(T)."""
        put = self._rows_put(group)
        return None if put is None else put.repeated(new, caches)

    def _rows_put(self, group: str) -> RowPut | None:
        """Where the kernel puts the step's tokens; None: it does not. O(T), then O(1)."""
        if group not in self._row_puts:
            slots, storage = self._slots_of(group), self._storage
            plain = self._places is None and slots.rows is None and storage.device.type == "cpu"
            self._row_puts[group] = (
                RowPut(slots.pages, slots.offsets, storage.plan.order)
                if plain and not PUT.why_not()
                else None
            )
        return self._row_puts[group]

    def _slots_of(self, group: str) -> WriteIndex:
        """Where the step's tokens go in a group. O(T), then O(1)."""
        assert self._step is not None
        if group not in self._slots:
            found = self._step.group(group).slots
            self._slots[group] = self._storage.index(found, group)
        return self._slots[group]

    def _spread(self, found: torch.Tensor) -> torch.Tensor:
        """What the step's tokens found, [T, H, v_dim], at every place of the rectangle."""
        rows, columns = self._shape
        if self._places is not None:
            out = found.new_zeros(rows * columns, *found.shape[1:])
            found = out.index_copy_(0, self._places, found)
        if self._source is not None:
            found = found.view(rows, -1).index_select(0, self._source)
        return found

    def compute(
        self,
        paged: PagedLayer,
        query: torch.Tensor,
        scale: float | None,
        softcap: float | None,
        sink_logits: torch.Tensor | None,
    ) -> torch.Tensor:
        """[T, H, v_dim] of [T, H, k_dim]: the only call of a backend under transformers.

        Layers that are alike are checked once.
        """
        arrays = self._arrays(paged, query)
        if sink_logits is not None:
            call = self._call(paged, arrays, scale, softcap, sink_logits)
            found: torch.Tensor = self.prepared(paged).attend(call)[0]
            return found
        alike = paged.alike, scale, softcap, query.shape, query.dtype, arrays.keys.stride()
        run = self._calls.get(alike)
        if run is None:
            call = self._call(paged, arrays, scale, softcap, None)
            run = self._calls[alike] = self.prepared(paged).repeated(call)
        return run(arrays)

    def attends(
        self,
        paged: PagedLayer,
        scale: float | None,
        softcap: float | None,
        query: torch.Tensor,
        sink_logits: torch.Tensor | None,
        out: torch.Tensor,
    ) -> Callable[["PagedPass"], None]:
        """What a pass of as many tokens computes of this query, into ``out``. O(1).

        Args:
            paged, scale, softcap, query, sink_logits: as of `compute`.
            out: [T, H, v_dim], contiguous.
        """
        call = self._call(paged, self._arrays(paged, query), scale, softcap, sink_logits)
        again = self.prepared(paged).again(call, out)
        return lambda now: again(now.prepared(paged))

    def writes(
        self, paged: PagedLayer, key: torch.Tensor, value: torch.Tensor
    ) -> Callable[["PagedPass"], None]:
        """What a pass of as many tokens writes of these keys and values, as of `write`. O(1)."""
        caches, put = self._storage.own.get(paged.layer), self._rows_put(paged.group)
        again = None if put is None or caches is None else put.again((key, value), caches)
        if again is None:
            return lambda now: now.write(paged, key, value)

        def run(now: "PagedPass") -> None:
            place = now._rows_put(paged.group)
            assert place is not None
            again(place)

        return run

    def _arrays(self, paged: PagedLayer, query: torch.Tensor) -> LayerArrays[torch.Tensor]:
        if isinstance(paged.kind, Latent):
            return LayerArrays(query, self._storage.tensor(paged.layer, "latent"), None)
        return LayerArrays(query, *self._storage.own[paged.layer])

    def _call(
        self,
        paged: PagedLayer,
        arrays: LayerArrays[torch.Tensor],
        scale: float | None,
        softcap: float | None,
        sink_logits: torch.Tensor | None,
    ) -> LayerCall[torch.Tensor]:
        """One layer's attention, checked."""
        kind = paged.kind
        parameters = Parameters(
            order=self._storage.plan.order,
            scale=scale,
            softcap=softcap,
            window=kind.window,
            sink_tokens=0 if isinstance(kind, Latent) else kind.sink_tokens,
            sink_logits=sink_logits,
            v_dim=paged.v_dim if isinstance(kind, Latent) else None,
        )
        found: LayerCall[torch.Tensor] = self.prepared(paged).check(arrays, parameters)
        return found

    def prepared(self, paged: PagedLayer) -> Any:
        """The step as the fastest backend here reads it. O(rows + tokens + pages), then O(1)."""
        group, latent = key = paged.group, isinstance(paged.kind, Latent)
        if key not in self._prepared:
            storage, plan = self._storage, self._storage.plan
            name = str(storage.dtype).removeprefix("torch.")
            backend = best(storage.device, name, plan.order, latent=latent).load()
            self._prepared[key] = backend.prepare(
                self._step, page_size=plan.page_size, group=group, device=storage.device
            )
        return self._prepared[key]

    def _on_device(self, index: Index | None) -> torch.Tensor | None:
        return None if index is None else torch.from_numpy(index).to(self._storage.device)
