"""The layers of the cache as transformers knows them, over octavo's pages.

The base classes are transformers': their names, attributes and calls are its contract. A layer
holds nothing between two passes but where its pages are.
"""

from typing import Any, Protocol

import torch
from torch.nn.functional import pad
from transformers.cache_utils import CacheLayerMixin, DummyLayer, LinearAttentionLayer

from octavo.errors import PlanError, StepError, uncopied
from octavo.integrations.transformers.attention import eagerly
from octavo.integrations.transformers.columns import ColumnReader
from octavo.integrations.transformers.paged import PagedLayer, paged_layers
from octavo.integrations.transformers.passes import ModelPass
from octavo.integrations.transformers.rows import BatchRows
from octavo.model.spec import Latent
from octavo.storage.layers import LayerStore

STATES = ("recurrent", "conv")
"""Components of a state."""


class Place(Protocol):
    """Where the rows stand that a layer keeps tokens of."""

    @property
    def length(self) -> int:
        """Columns computed so far, padding included."""

    @property
    def max_length(self) -> int:
        """Longest sequence."""

    def open_pass(self) -> ModelPass:
        """The pass that the model runs; raises StepError where there is none."""


def layers_of(storage: LayerStore, rows: BatchRows) -> list[Any]:
    """transformers' list of layers, one per layer of the model. O(layers)."""
    plan = storage.plan
    assert plan.spec is not None
    states = {t.layer: t.group for t in plan.tensors if t.component in STATES}
    paged = paged_layers(plan)
    return [
        _layer(storage, rows, paged.get(at), (at, states[at]) if at in states else None)
        for at in range(len(plan.spec.layers))
    ]


def _layer(
    storage: LayerStore, rows: BatchRows, paged: PagedLayer | None, state: tuple[int, str] | None
) -> Any:
    if state is None:
        return token_layer(storage, rows, paged)
    if paged is None:
        return StateLayer(storage, *state)
    return MixedLayer(storage, rows, paged, *state)


def token_layer(
    storage: LayerStore, rows: Place, paged: PagedLayer | None, *, whole: bool = False
) -> Any:
    """transformers' layer of what is kept of tokens, which may be nothing. O(1).

    Args:
        storage: where its pages are.
        rows: who has which token.
        paged: what is kept, and where; None: nothing.
        whole: whether the model hides by itself what is outside a window, and wants all columns.
    """
    if paged is None:
        return DummyLayer()
    return (IndexedLayer if paged.kind.indexer else TokenLayer)(storage, rows, paged, whole=whole)


class TokenLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values, or latents, of every token in pages.

    Args:
        storage: where its pages are.
        rows: who has which token.
        paged: what is kept, and where.
        whole: whether the model is given all columns, zeros where a window has dropped them.
    """

    __reduce__ = uncopied("it belongs to one cache")

    is_croppable = True

    def __init__(
        self,
        storage: LayerStore,
        rows: Place,
        paged: PagedLayer,
        *,
        whole: bool = False,
        **rest: Any,
    ) -> None:
        super().__init__(**rest)
        self.rows, self.paged, kind = rows, paged, paged.kind
        names = ("latent",) if isinstance(kind, Latent) else ("key", "value")
        self.columns = [reader(storage, paged, name) for name in names]
        self.width = None if whole or isinstance(kind, Latent) else kind.window or kind.chunk
        self.is_sliding = self.width is not None
        self.is_initialized = True

    def lazy_initialization(self, *_states: torch.Tensor) -> None:
        """Nothing: the pages are there."""

    @eagerly
    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        *_args: Any,
        kwargs: dict[str, Any] | None = None,
        **_rest: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a pass's keys and values; called by the model.

        Args:
            key_states: [B, kv_heads, q, k_dim], or each head several times in a row, of which one
                is kept; of a latent layer [B, 1, q, rank].
            value_states: likewise of v_dim; of a latent layer [B, 1, q, rope].
            kwargs: the attention function's keywords.

        Returns:
            What the model attends to, [B, heads, L, dim] each, of as many heads as it gave; under
            octavo's own attention the same tensors, as it reads the pages.

        Raises:
            StepError: no pass is open, or autograd would follow keys or values into pages.
            PlanError: another dtype, device or shape than planned.
            UnsupportedModel: the layer has written in this pass.
        """
        now, kind = self.rows.open_pass(), self.paged.kind
        copies = self._copies(key_states, value_states)
        own = key_states, value_states
        if copies > 1:
            own = key_states[:, ::copies], value_states[:, ::copies]
        self._check(*own, now)
        now.paged.write(self.paged, *own)
        if isinstance(kind, Latent):
            found = self.columns[0].read(now, 0)
            return found[..., : kind.rank], found[..., kind.rank :]
        if now.attends and self.paged.in_place:
            return now.paged.hand_over(self.paged, key_states, kwargs), value_states
        first = self._first(now.past)
        keys, values = (each.read(now, first) for each in self.columns)
        if copies == 1:
            return keys, values
        return keys.repeat_interleave(copies, 1), values.repeat_interleave(copies, 1)

    def _copies(self, *states: torch.Tensor) -> int:
        """How often a model gives each head, as Falcon does, one for each query head. O(1) if once.

        Heads that differ are no copies.
        """
        heads = 1 if isinstance(self.paged.kind, Latent) else self.paged.kind.kv_heads
        copies, rest = divmod(states[0].shape[1], heads)
        if rest or copies < 2:
            return 1
        groups = [e.reshape(len(e), heads, copies, *e.shape[2:]) for e in states]
        same = all(bool((each == each[:, :, :1]).all()) for each in groups)
        return copies if same else 1

    def _first(self, past: int) -> int:
        """First column the model is given: a window's passes see its last keys."""
        return 0 if self.width is None else max(0, past - self.width + 1)

    def _check(self, key: torch.Tensor, value: torch.Tensor, now: ModelPass) -> None:
        if (key.requires_grad or value.requires_grad) and torch.is_grad_enabled():
            raise StepError("no gradient flows through pages; run the model under torch.no_grad()")
        kind = self.paged.kind
        if isinstance(kind, Latent):
            heads, k_dim, v_dim = 1, kind.rank, kind.rope
        else:
            heads, k_dim, v_dim = kind.kv_heads, kind.k_dim, kind.v_dim
        rows, columns = len(now.owner), now.new
        for new, shape in (
            (key, (rows, heads, columns, k_dim)),
            (value, (rows, heads, columns, v_dim)),
        ):
            if new.shape != shape:
                right = f"the cache has {shape} here: it was made for another model or batch"
                raise PlanError("shape of keys or values", tuple(new.shape), right)

    def get_seq_length(self) -> int:
        """Columns computed, padding included."""
        return self.rows.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(columns, first column) of what `update` returns next."""
        past = self.rows.length
        first = self._first(past)
        return past + query_length - first, first

    def get_max_length(self) -> int:
        """Longest sequence."""
        return self.width or self.rows.max_length


class IndexedLayer(TokenLayer):
    """The same beside the keys of an indexer, which says what each token attends to.

    Args:
        storage: where its pages are.
        rows: who has which token.
        paged: what is kept, and where.
        rest: as of `TokenLayer`.
    """

    def __init__(self, storage: LayerStore, rows: Place, paged: PagedLayer, **rest: Any) -> None:
        super().__init__(storage, rows, paged, **rest)
        self.index = reader(storage, paged, "indexer")

    @eagerly
    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Write a pass's keys [B, q, dim]; returns those of all columns, [B, L, dim].

        Raises:
            StepError: no pass is open. PlanError, LengthError: as `Storage.write_indexer`.
        """
        now = self.rows.open_pass()
        now.paged.write_indexer(self.paged, indexer_key_states)
        return self.index.read(now, 0)[:, 0].to(indexer_key_states.dtype)

    @property
    def indexer_position_ids(self) -> torch.Tensor | None:
        """[3, B, columns before the pass], positions on the three axes of Qwen 4's."""
        now = self.rows.open_pass()
        if not now.past:
            return None
        if now.axes is not None:
            axes: torch.Tensor = now.axes
            return axes
        positions = torch.from_numpy(now.positions[:, : now.past])
        return positions.to(self.index.device).expand(3, -1, -1)

    @indexer_position_ids.setter
    def indexer_position_ids(self, _positions: torch.Tensor) -> None:
        """Nothing: they follow from the tokens."""

    def update_index(self, idx_k: torch.Tensor) -> torch.Tensor:
        """The same with an axis for one head, as MiniMax-M3 calls it."""
        return self.update_indexer(idx_k[:, 0])[:, None]


def reader(storage: LayerStore, paged: PagedLayer, component: str) -> ColumnReader:
    """What gathers one component of a layer. O(1)."""
    view = storage.tensor(paged.layer, component)
    if view.ndim == 3:
        view = view[:, None]
    elif storage.plan.order == "token":
        view = view.transpose(1, 2)
    return ColumnReader(view, paged.group)


class StateLayer(LinearAttentionLayer):  # type: ignore[misc]
    """Convolution and recurrent states of transformers' own kind, for the time of a pass.

    Args:
        storage: where they are kept between two passes.
        layer: index in the model.
        group: the states' group.
    """

    __reduce__ = uncopied("it belongs to one cache")

    def __init__(self, storage: LayerStore, layer: int, group: str, **rest: Any) -> None:
        super().__init__(**rest)
        self.storage, self.layer, self.group = storage, layer, group
        self.dtypes = {
            t.component: storage.tensor(layer, t.component).dtype
            for t in storage.plan.tensors
            if t.layer == layer and t.component in STATES
        }
        self._recurrent_dtype: torch.dtype | None = None

    def load(self, now: ModelPass) -> None:
        """Bring the states of a pass's rows in; nothing where the pass is the first. O(bytes)."""
        self._forget()
        if now.step is None or not now.past:
            return
        view = now.step.group(self.group)
        pages, there = view.source[now.owner], view.has_state[now.owner] & (now.owner >= 0)
        if "conv" in self.dtypes:
            conv = self.storage.read_states(self.layer, "conv", pages, there)
            self.update_conv_state(pad(conv, (1, 0)))
        if "recurrent" in self.dtypes:
            state = self.storage.read_states(self.layer, "recurrent", pages, there)
            self.update_recurrent_state(state.to(self._recurrent_dtype or state.dtype))
            self.has_previous_state[0] = True

    def save(self, now: ModelPass, cut: int = 0) -> None:
        """Put the states behind a pass, less its last ``cut`` columns, in their pages. O(bytes)."""
        if now.step is not None:
            target = now.step.group(self.group).table[:, cut]
            found = {"conv": self.conv_states[0], "recurrent": self.recurrent_states[0]}
            for component, dtype in self.dtypes.items():
                states = found[component]
                if states is not None:
                    rows = torch.from_numpy(now.leader).to(states.device)
                    kept = states[rows].to(dtype)
                    kept = kept[..., 1:] if component == "conv" else kept
                    self.storage.write_states(self.layer, component, kept, target)
            if found["recurrent"] is not None:
                self._recurrent_dtype = found["recurrent"].dtype
        self._forget()

    def _forget(self) -> None:
        """Hold no tensor of a batch."""
        for at in range(self.number_of_states):
            self.conv_states[at] = self.recurrent_states[at] = None
            self.is_conv_states_initialized[at] = False
            self.is_recurrent_states_initialized[at] = False
            self.has_previous_state[at] = False

    def reset(self) -> None:
        """Hold nothing."""
        self._forget()


class MixedLayer(StateLayer, TokenLayer):
    """Attention beside a state in one layer."""

    def __init__(
        self, storage: LayerStore, rows: BatchRows, paged: PagedLayer, layer: int, group: str
    ) -> None:
        TokenLayer.__init__(self, storage, rows, paged)
        StateLayer.__init__(self, storage, layer, group)
