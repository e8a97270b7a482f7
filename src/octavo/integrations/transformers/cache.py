"""`OctavoCache`: what `model.generate(..., past_key_values=cache)` takes, over octavo's pages.

Knows transformers' calls and in which order they come; who is in which row is `rows`' business and
bytes are `pages`'.
"""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers import Cache as HostCache
from transformers.cache_utils import DummyLayer

import octavo
from octavo.errors import LengthError, RollbackUnsupported, UnsupportedModel
from octavo.integrations.transformers.attention import NAME, attend, mask
from octavo.integrations.transformers.hooks import Call, watch
from octavo.integrations.transformers.layers import MixedLayer, StateLayer, TokenLayer
from octavo.integrations.transformers.models import forgets, has_own_tokens, plan_for
from octavo.integrations.transformers.pages import Component, Pages, StateTensors
from octavo.integrations.transformers.rows import Pass, Rows
from octavo.plans import Plan
from octavo.spec import Attention, Latent
from octavo.storage import Storage


class OctavoCache(HostCache):  # type: ignore[misc]
    """A cache for ``generate()`` whose pages are shared between rows, beams and calls.

    Made by `for_model`. One generate() after the other may use it: prompts that begin like
    earlier ones, or like each other, compute the rest alone. ``reset()`` lets the rows go and keeps
    what can be found again; ``close()`` gives everything back.

    Attributes:
        pages: the `octavo.Cache` that owns the pages; its ``stats()`` tell of use and hits.
        storage: the tensors, exactly the planned bytes.
        plan: of the memory.
    """

    def __init__(self, model: Any, plan: Plan, pages: octavo.Cache, *, rollback: int) -> None:
        self.plan, self.pages, self._rollback = plan, pages, rollback
        self.storage = Storage(plan, model.device)
        shares = plan.spec is not None and has_own_tokens(plan.spec)
        self._rows = Rows(pages, shares=shares, resumes=not forgets(model))
        self._tensors = Pages(self.storage)
        super().__init__(layers=_layers(plan, self._tensors, self._rows))
        self._states = [layer for layer in self.layers if isinstance(layer, StateLayer)]
        self._fresh = self._told = False
        self._model = weakref.ref(model)
        self._unwatch = watch(model, self)

    @classmethod
    def for_model(
        cls,
        model: Any,
        memory: int | str,
        *,
        page_size: int = 16,
        max_sequences: int = 64,
        max_length: int | None = None,
        rollback: int = 0,
        policy: str = "lru",
        **options: Any,
    ) -> "OctavoCache":
        """A cache of ``memory`` for one model.

        Args:
            model: a causal language model of transformers, on one device.
            memory: bytes, or text such as ``"1GiB"``; all of it is reserved at once.
            page_size: tokens a page holds.
            max_sequences: rows at once, beams and returned sequences included.
            max_length: longest sequence in tokens; None: the model's, or what fits.
            rollback: drafts that convolution states can take back; for assisted decoding with
                models that have them (LFM2). Others need none.
            policy: which page that nobody holds is given up first: ``lru`` or ``slru``.
            options: others of `octavo.plan`: ``max_step_tokens`` (the longest prefill that windows
                leave room for), ``state_dtype``, ``layout``.

        Raises:
            UnknownArchitecture: octavo cannot read the model's config.
            UnsupportedModel: it keeps something the drop-in has no pages for.
            BudgetTooSmall: not even one sequence fits; it says what would do.
            PlanError, LengthError: an argument is out of range.

        Cost: O(layers), and the memory.
        """
        plan = plan_for(model, memory, page_size=page_size, max_length=max_length, **options)
        pages = octavo.Cache(plan, max_sequences=max_sequences, rollback=rollback, policy=policy)
        return cls(model, plan, pages, rollback=rollback)

    def __repr__(self) -> str:
        return f"<OctavoCache of {self.storage.nbytes:,} bytes, {self.pages!r}>"

    # -- what a user calls ---------------------------------------------------------------------

    def prompt(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, **_rest: Any
    ) -> "OctavoCache":
        """Say what the next generate() will be given, before it is.

        Needed where the prompt is computed in chunks (``prefill_chunk_size``): a chunk does not
        show the others. Takes a tokenizer's output: ``cache.prompt(**inputs)``.

        Args:
            input_ids: [B, T], the whole prompts.
            attention_mask: [B, T]; None: no padding.

        Returns:
            The cache itself.

        Raises:
            LengthError: not of these shapes. CapacityError, NeverFits: as a generate() would.

        Cost: O(B T).
        """
        ids = _ids(input_ids)
        if ids is None:
            raise LengthError("axes of input_ids", input_ids.ndim, 2, 2, "one id a token")
        self._rows.prompt(ids, _real(attention_mask, *ids.shape))
        self._told = True
        return self

    @contextmanager
    def attend(self) -> Iterator["OctavoCache"]:
        """Let the model's attention read the pages in place, for the time of a with-block.

        Raises:
            UnsupportedModel: the model is gone, or its code has no attention to choose.
        """
        model = self._model()
        if model is None or not type(model)._can_set_attn_implementation():
            raise UnsupportedModel("model", "it does not use transformers' attention interface")
        AttentionInterface.register(NAME, attend)
        AttentionMaskInterface.register(NAME, mask)
        config = model.config.get_text_config(decoder=True)
        own = config._attn_implementation
        model.set_attn_implementation(NAME)
        try:
            yield self
        finally:
            model.set_attn_implementation(own)

    def reset(self) -> None:
        """Let all rows go; published pages stay, to be found by the next prompt. O(pages)."""
        self._rows.release()
        self._begin_call(fresh=False)

    def close(self) -> None:
        """Let all rows go and stop following the model. O(pages)."""
        self.reset()
        self._unwatch()

    # -- what generate() calls -----------------------------------------------------------------

    @property
    def _is_user_defined(self) -> bool:
        """Set by generate() on every cache it is given: a call begins."""
        return True

    @_is_user_defined.setter
    def _is_user_defined(self, _value: bool) -> None:
        self._begin_call(fresh=not self._told)

    def _begin_call(self, *, fresh: bool) -> None:
        self._fresh, self._told, self._rows.waits = fresh, False, False
        for layer in self._states:
            layer.record_past = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns that are computed, padding included; 0 until a call has shown its prompt."""
        del layer_idx
        return 0 if self._fresh else self._rows.length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """(columns, first column) of what the layer's `update` returns next."""
        layer = self.layers[layer_idx]
        if not isinstance(layer, TokenLayer):
            layer = next(item for item in self.layers if isinstance(item, TokenLayer))
        sizes: tuple[int, int] = layer.get_mask_sizes(query_length)
        return sizes

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Longest sequence in tokens."""
        del layer_idx
        return self.pages.max_length

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let row i go on as row ``beam_idx[i]``: pages are shared, none is copied. O(rows)."""
        self._rows.select(beam_idx.cpu().numpy().astype(np.int64))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows ``indices``, or those where it is True. O(rows)."""
        rows = torch.arange(len(self._rows.sequences))[indices.cpu()]
        self._rows.select(rows.numpy())

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Let each row go on as ``repeats`` rows. O(rows)."""
        rows = np.arange(len(self._rows.sequences)).repeat(repeats)
        self._rows.select(rows)

    def activate_past_recording(self) -> None:
        """From now on each pass waits for `crop`, which may take drafts back."""
        super().activate_past_recording()
        self._rows.waits = True

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last ``-tokens_to_remove`` columns; 0: all drafts were right.

        Raises:
            LengthError: a positive number, or more than there are.
            RollbackUnsupported: windows or states do not reach so far back.
        """
        if tokens_to_remove > 0:
            raise LengthError("tokens_to_remove", tokens_to_remove, None, 0, "0 or negative")
        count, now = -tokens_to_remove, self._rows.now
        if now is not None:
            cut = min(count, now.new)
            self._save_states(now, cut)
        self._rows.crop(count)

    @property
    def is_compileable(self) -> bool:
        """False: shapes follow the tokens that exist."""
        return False

    @property
    def is_linear(self) -> list[bool]:
        """Layers that keep states alone."""
        return [
            isinstance(layer, StateLayer) and not isinstance(layer, TokenLayer)
            for layer in self.layers
        ]

    @property
    def batch_size(self) -> int:
        """Rows; -1 before the first pass."""
        return len(self._rows.sequences) or -1

    # -- what the model's hooks call -----------------------------------------------------------

    def before(self, call: Call) -> Call:
        """Open a pass for what the model is given; what is there already is cut off it."""
        ids, (batch, new) = _ids(call.ids) if call.plain else None, call.shape
        total = call.total
        whole = total in (None, new) if self._fresh else total == new > self._rows.length
        if self._fresh and whole:
            self._meet(call, ids, batch, new)
        elif self._fresh and total is not None and total - new != self._rows.length:
            why = f"columns before the {new} new ids: attention_mask says so"
            self._fresh = False
            raise LengthError("computed", self._rows.length, total - new, total - new, why)
        self._fresh = False
        start = self._rows.length if whole else 0
        if start:
            call, ids = call.behind(start), None if ids is None else ids[:, start:]
        real = _real(call.mask, batch, call.shape[1])
        if call.paged:
            self._check_mask(call.mask, real)
        now = self._rows.begin(ids, real)
        now.work["attend"] = call.paged
        if now.step is not None:
            self._tensors.copy(now.step.copies)
        for layer in self._states:
            layer.load(now)
        return call

    def _check_mask(self, mask: torch.Tensor | None, real: Any) -> None:
        """Refuse masks that octavo's attention, which counts tokens, would not honour."""
        if mask is not None and mask.ndim != 2:
            raise UnsupportedModel("attention mask", "octavo's attention takes masks of 2 axes")
        if any(self.is_sliding) and (real[:, :-1] & ~real[:, 1:]).any():
            why = "octavo's attention takes windows with padding on the left only"
            raise UnsupportedModel("padding on the right", why)

    def _meet(self, call: Call, ids: Any, batch: int, new: int) -> None:
        """A call's first pass shows its prompt: see what of it is there."""
        known = new - max(0, call.wanted - 1)
        real = _real(call.mask, batch, new)
        unsaid = self._rows.waits and not call.wanted  # how many of the tokens are drafts
        if ids is None or unsaid or not _in_order(call.others.get("position_ids"), real):
            self._rows.prompt(None, real)
        else:
            self._rows.prompt(ids[:, :known], real[:, :known])

    def after(self) -> None:
        """The model has run: what it computed counts, unless `crop` is to come."""
        now = self._rows.now
        if now is None:
            return
        now.done = True
        if not self._rows.waits:
            self._save_states(now, 0)
            self._rows.end()

    def _save_states(self, now: Pass, cut: int) -> None:
        """States behind the pass, and the snapshots of it."""
        if cut > self._rollback and self._states:
            self._rows.release()
            raise RollbackUnsupported("state", now.real.shape[1] - self._rollback)
        for layer in self._states:
            if cut or layer.record_past:
                layer.crop(-cut)
            layer.save(now, cut)
        if now.step is not None:
            self._tensors.copy(now.step.snapshots)


def _layers(plan: Plan, tensors: Pages, rows: Rows) -> list[Any]:
    """transformers' list of layers, one a layer of the model."""
    assert plan.spec is not None
    kinds = {at: kind for at, kind in plan.spec.kinds() if isinstance(kind, Attention | Latent)}
    return [
        _layer(tensors.states.get(at), kinds.get(at), tensors.tokens.get(at, {}), rows)
        for at in range(len(plan.spec.layers))
    ]


def _layer(
    states: StateTensors | None,
    kind: Attention | Latent | None,
    parts: dict[str, Component],
    rows: Rows,
) -> Any:
    if states is not None and kind is not None:
        return MixedLayer(states, rows, kind, parts)
    if states is not None:
        return StateLayer(states)
    return DummyLayer() if kind is None else TokenLayer(rows, kind, parts)


def _ids(ids: torch.Tensor | None) -> Any:
    """int64[B, T], or None where tokens are no single ids."""
    if ids is None or ids.ndim != 2:
        return None
    return ids.detach().cpu().numpy().astype(np.int64)


def _in_order(positions: torch.Tensor | None, real: Any) -> bool:
    """Whether tokens have the positions 0, 1, ... of their row, so that ids say where they are."""
    if positions is None:
        return True
    if positions.ndim != 2:
        return False
    order = (real.cumsum(axis=1) - 1)[real]
    return bool(np.array_equal(np.broadcast_to(positions.cpu().numpy(), real.shape)[real], order))


def _real(mask: torch.Tensor | None, batch: int, new: int) -> Any:
    """bool[B, new], which of the last ``new`` columns are tokens."""
    if mask is None or mask.ndim != 2:
        return np.ones((batch, new), np.bool_)
    return mask[:, mask.shape[1] - new :].cpu().numpy().astype(np.bool_)
