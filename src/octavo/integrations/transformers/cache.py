"""`OctavoCache`: what `model.generate(..., past_key_values=cache)` takes, over octavo's pages.

Knows transformers' calls and in which order they come; who is in which row is `rows`' business and
bytes are `pages`'. It is long because all that transformers asks of a cache is one class, half of
it what its methods promise.
"""

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from threading import get_ident
from typing import Any

import numpy as np
import torch
from transformers import Cache as HostCache

import octavo
from octavo.checks import check_int
from octavo.errors import (
    LengthError,
    OctavoError,
    RollbackUnsupported,
    StepError,
    UnsupportedModel,
    uncopied,
)
from octavo.integrations.transformers.arguments import (
    PassArguments,
    check_prompt,
    count_of,
    ids_of,
    real_of,
)
from octavo.integrations.transformers.attention import (
    NAME_WITH_MASKS,
    attention_of,
    eagerly,
)
from octavo.integrations.transformers.files import PrefixFiles
from octavo.integrations.transformers.guard import Guard, alone
from octavo.integrations.transformers.hooks import follow
from octavo.integrations.transformers.layers import StateLayer, TokenLayer, layers_of
from octavo.integrations.transformers.models import (
    forgets,
    keeps_states,
    plan_for,
    shares,
    takes_attention,
)
from octavo.integrations.transformers.paged import PagedPass
from octavo.integrations.transformers.passes import ModelPass
from octavo.integrations.transformers.rows import OTHER_IDS, BatchRows
from octavo.integrations.transformers.weights import Weights
from octavo.storage import Storage


class OctavoCache(PrefixFiles, HostCache):  # type: ignore[misc]
    """A cache for ``generate()`` whose pages are shared between rows, beams and calls.

    ::

        cache = OctavoCache.for_model(model, tokens=4_096)  # once
        answer = model.generate(**inputs, cache=cache)  # as often as you like
        print(cache.reused_tokens)  # of this prompt, not computed again

    Prompts that begin like earlier ones, or like each other, compute the rest alone. Nothing need
    be called in between: `reset` frees the rows of the last call, `forget` drops what was found
    too, `close` stops following the model.

    Attributes:
        pages: the `octavo.Cache` that owns the pages; its ``stats()`` count use and hits.
        reused_tokens: of the last call's prompts, what was not computed, padding apart: found in
            pages, or held by the rows of the call before.
        storage: the tensors, exactly the planned bytes.
        plan: of the memory.
        guard: who may call it.
    """

    def __init__(self, model: Any, pages: octavo.Cache, *, rollback: int) -> None:
        self.pages, self._rollback = pages, rollback
        self.plan = plan = pages.plan
        self.storage = Storage(plan, model.device)
        options = {"shares": shares(model, plan), "resumes": not forgets(model)}
        self._rows = BatchRows(self.pages, **options, goes_on=not keeps_states(model))
        super().__init__(layers=layers_of(self.storage, self._rows))
        self._states = [layer for layer in self.layers if isinstance(layer, StateLayer)]
        self._paged = [layer.paged for layer in self.layers if isinstance(layer, TokenLayer)]
        self._in_place = [paged for paged in self._paged if paged.in_place]
        self._chunked = any(getattr(paged.kind, "chunk", None) for paged in self._paged)
        self._fresh = self._prompted = self._waits = self._showing = False
        self._columns: int | None = None
        self.reused_tokens = 0
        self.guard = Guard()
        self._own = attention_of(model)
        self._model, self._weights = weakref.ref(model), Weights(model)
        self._unfollow = follow(model, self)

    @classmethod
    def for_model(
        cls,
        model: Any,
        memory: int | str | None = None,
        *,
        tokens: int | None = None,
        page_size: int = 16,
        max_sequences: int = 64,
        max_length: int | None = None,
        rollback: int = 0,
        policy: str = "lru",
        **options: Any,
    ) -> "OctavoCache":
        """A cache of ``memory``, or for ``tokens``, for one model.

        Args:
            model: a causal language model of transformers, on one device; may be what
                torch.compile made of one.
            memory: bytes, or text such as ``"1GiB"``; all of it is reserved at once.
            tokens: to have room for at least, instead: of one row, or, where that is more than a
                row's longest, of several together.
            page_size: tokens per page.
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
        model = getattr(model, "_orig_mod", model)  # of torch.compile
        plan = plan_for(
            model, memory, tokens, page_size=page_size, max_length=max_length, **options
        )
        pages = octavo.Cache(plan, max_sequences=max_sequences, rollback=rollback, policy=policy)
        return cls(model, pages, rollback=rollback)

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
            input_ids: [B, T], the whole prompts; each may go on as several rows, as beams do.
            attention_mask: [B, T]; None: no padding.

        Returns:
            The cache itself.

        Raises:
            LengthError: not of these shapes. TokenError: not ids.
            CapacityError, NeverFits: as a generate() would.
            StepError: another thread runs a pass.

        Cost: O(B T).
        """
        check_prompt(input_ids, attention_mask)
        ids = ids_of(input_ids)
        with self._entered():
            if self._weights.others():
                self._drop()
            real = real_of(attention_mask, *ids.shape, by_column=self._chunked)
            hides = not np.array_equal(real, real_of(attention_mask, *ids.shape))
            self._rows.prompt(None if hides else ids, real)
            self.guard.thread, self._prompted = get_ident(), True
        return self

    @contextmanager
    def attend(self) -> Iterator["OctavoCache"]:
        """Let the model's attention read the pages in place, for the time of a with-block.

        Raises:
            UnsupportedModel: the model is gone, or its code has no attention to choose.
        """
        model = self._model()
        if model is None or not takes_attention(model):
            raise UnsupportedModel("model", "it does not use transformers' attention interface")
        if attention_of(model) != NAME_WITH_MASKS:  # an interrupt may have left it
            self._own = attention_of(model)
        try:
            model.set_attn_implementation(NAME_WITH_MASKS)
            yield self
        finally:
            model.set_attn_implementation(self._own)

    def reset(self) -> None:
        """Free the rows of the last call; what they computed can still be found. O(pages).

        Not needed between calls. It makes the cache usable again, whatever failed: a pass that
        another thread runs fails, and after an interrupt within octavo no page stays.
        """
        try:
            with self._entered():
                self._let_go()
        except OctavoError:  # an interrupt that Python swallowed, in a finaliser
            self.guard.torn = True
            with self._entered():
                self._let_go()

    def _entered(self) -> AbstractContextManager[None]:
        return self.guard.entered(self.begin_anew)

    def begin_anew(self) -> None:
        """Have nothing taken of pages that an interrupt left half changed. O(tokens known)."""
        self.pages.reset(force=True)
        self._rows.begin_anew()

    def _let_go(self) -> None:
        if self._rows.now is not None and not self._rows.now.done:
            self._rows.idle = "reset() or forget() ended it"
        self._rows.release()
        self._rows.lost = self._prompted = False
        self._begin_call(fresh=False)
        self.guard.thread = None

    def forget(self) -> None:
        """Let all rows go and drop every page, as where weights have changed unseen. O(pages).

        A prompt of other weights than the pages' does so by itself.

        Raises:
            StepError: prefixes are pinned with ``pages.pin``.
        """
        with self._entered():
            self._let_go()
            self._drop()

    def _drop(self) -> None:
        self._rows.release()
        self.pages.reset()
        self._weights.read()

    @contextmanager
    def _at_rest(self) -> Iterator[Any]:
        with self._entered():
            self._rows.settle()
            if self._weights.others():
                self._drop()
            yield self._model()

    def close(self) -> None:
        """Let all rows go and stop following the model. O(pages)."""
        self.reset()
        self._rows.idle = "the cache is closed; for_model makes another"
        self._unfollow()

    __reduce__ = uncopied(
        "pages belong to one cache and model; for_model makes another, and rows are copied with "
        "batch_repeat_interleave"
    )

    # -- what generate() calls -----------------------------------------------------------------

    @property
    def _is_user_defined(self) -> bool:
        """Set by generate() on every cache it is given: a call begins."""
        return True

    @_is_user_defined.setter
    def _is_user_defined(self, _value: bool) -> None:
        with self._entered():
            self._rows.settle()
            self.guard.thread = get_ident()
            self._begin_call(fresh=not self._prompted)

    def _begin_call(self, *, fresh: bool) -> None:
        self._fresh, self._waits, self._showing = fresh, False, False
        for layer in self._states:
            layer.record_past = False

    @eagerly
    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns that are computed, padding included; 0 until a call has shown its prompt."""
        del layer_idx
        return 0 if self._fresh or self._showing else self._rows.length

    @eagerly
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

    @alone
    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Let row i go on as row ``beam_idx[i]``: pages are shared, none is copied. O(rows).

        Raises:
            LengthError: there is no such row.
        """
        self._rows.select(beam_idx.cpu().numpy().astype(np.int64))

    @alone
    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep the rows ``indices``, or those where it is True. O(rows).

        Raises:
            LengthError: there is no such row, or none is left.
        """
        chosen, rows = indices.cpu().numpy(), len(self._rows.sequences)
        if chosen.dtype == np.bool_:
            check_int("rows that are chosen or not", chosen.size, rows, rows)
            chosen = np.flatnonzero(chosen)
        self._rows.select(chosen.astype(np.int64))

    @alone
    def batch_repeat_interleave(self, repeats: int) -> None:
        """Let each row go on as ``repeats`` rows. O(rows).

        Raises:
            LengthError: below 1, or there are no rows. CapacityError: too many rows.
        """
        rows = np.arange(len(self._rows.sequences)).repeat(check_int("repeats", repeats, 1))
        self._rows.select(rows)

    def activate_past_recording(self) -> None:
        """From now on each pass waits for `crop`, which may take drafts back."""
        super().activate_past_recording()
        self._waits = True

    @alone
    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last ``-tokens_to_remove`` columns; 0: all drafts were right.

        Raises:
            LengthError: a positive number, none at all, or more than there are.
            RollbackUnsupported: windows or states do not reach so far back.
        """
        count, now = count_of(tokens_to_remove), self._rows.now
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
    def is_initialized(self) -> bool:
        """Whether columns are computed: models see a whole prompt in what comes before."""
        return self.get_seq_length() > 0

    @property
    def batch_size(self) -> int:
        """Rows; -1 before the first pass."""
        return len(self._rows.sequences) or -1

    # -- what the model's hooks call -----------------------------------------------------------

    @contextmanager
    def shown(self, columns: int, *, whole: bool) -> Iterator[None]:
        """generate() prepares positions, for a whole prompt as if nothing were computed yet.

        Args:
            columns: of the prompt, those that are computed included.
            whole: whether all of them are shown, and not the new ones alone.
        """
        self._columns, self._showing = columns, whole
        try:
            yield
        finally:
            self._showing = False

    @alone
    def before(self, call: PassArguments) -> PassArguments:
        """Open a pass for what the model is given; what is there already is cut off it.

        Raises:
            LengthError: the mask or the positions are of other columns than are there.
            UnsupportedModel: generate() with ``use_cache=False``. PlanError: autocast.
            StepError: ids or positions other than `prompt` was given, or other weights than
                computed the rows; see also `BatchRows.begin`.
        """
        self._rows.settle()
        first, prompted = self._fresh, self._prompted
        self._fresh = self._prompted = False
        call.check_kept(self.storage.dtype, generated=first)
        call = replace(call, by_column=True) if self._chunked else call
        ids = call.array
        start = self._start(call, ids, first=first, prompted=prompted)
        self._rows.seat(call.shape[0], spread=prompted)
        if first or prompted:
            self.reused_tokens = int(self._rows.real.sum())
        if start:
            if ids is None or not self._rows.begins(ids, call.real):
                raise StepError(OTHER_IDS)
            call, ids = call.behind(start), ids[:, start:]
        real = call.real
        if not call.in_order(self._rows.real):
            ids = None
        if ids is None and prompted and self._rows.known:
            why = "prompt() was given ids for positions 0, 1, ... of each row"
            raise StepError(f"{why}: run those, with position_ids where there is padding")
        self._open(call, ids, real)
        return call

    def _open(self, call: PassArguments, ids: Any, real: Any) -> None:
        if self._chunked and self._rows.length:
            call.check_chunks(self._rows.real)
        if call.paged:
            call.check_paged(self._rows.real, windows=any(self.is_sliding))
        now = self._rows.begin(ids, real)
        now.paged = PagedPass(self.storage, now.step, real.shape, now.places, now.source, now.real)
        now.attends = call.paged
        if now.step is not None and now.step.copies:
            self.storage.apply(now.step.copies)
        for layer in self._states:
            layer.load(now)

    def _start(self, call: PassArguments, ids: Any, *, first: bool, prompted: bool) -> int:
        """Columns of the call that are computed already: those it shows again."""
        new, had = call.shape[1], self._rows.length
        total, self._columns = self._columns, None
        if not first or total is None:
            total = call.total(counted=first or self._rows.known or not had)
            private = not self._rows.known if had else not self._rows.shares and total == new + 1
            if first and not call.tells and private and total not in (new, had + new):
                total = None  # positions of their own, or from 1
        if first and total in (None, new):
            self._check_weights(whole=True)
            self._meet(call, ids)
            return self._rows.length
        if not self._rows.lost:
            self._check_weights(whole=not had)
        if prompted and total == new > had:
            return had
        if total is not None and total - new != had:
            why = f"columns before the {new} new ids: attention_mask or position_ids say so"
            raise LengthError("computed", had, total - new, total - new, why)
        return 0

    def _check_weights(self, *, whole: bool) -> None:
        """Forget what other weights have computed, or refuse to go on from it."""
        if not (self._weights.others() if whole else self._weights.written()):
            return
        if not whole:
            why = "the model's weights are not those that computed the rows"
            raise StepError(f"{why}; reset() begins new rows and forgets the pages")
        self._drop()

    def _meet(self, call: PassArguments, ids: Any) -> None:
        """A call's first pass shows its prompt: see what of it is there."""
        if call.blind and self._rows.length and not self._rows.known:
            why = "the ids have places for pictures or sounds, and these were not given"
            raise StepError(f"{why}: give them again, or the new ids alone with a mask over all")
        known = call.shape[1] - max(0, call.wanted - 1)
        real = call.real
        unsaid = self._waits and not call.wanted  # how many of the tokens are drafts
        if ids is None or unsaid or not call.in_order(real[:, :0]):
            self._rows.prompt(None, real)
        else:
            self._rows.prompt(ids[:, :known], real[:, :known])

    def after(self, *, failed: bool) -> None:
        """The model has run: what it computed counts, unless `crop` is to come, or it raised.

        Raises:
            UnsupportedModel: a layer kept nothing, or attended otherwise; the rows are gone.
        """
        with self._entered():
            now = self._rows.now
            if now is None or now.done or now.thread != get_ident():
                return
            if failed:
                self._rows.settle()
                return
            try:
                now.paged.check_written(self._paged)
                if now.attends:
                    now.paged.check_attended(self._in_place)
            except UnsupportedModel:
                self._rows.settle()
                raise
            now.done = True
            if not self._waits:
                self._save_states(now, 0)
                self._rows.end()

    def _save_states(self, now: ModelPass, cut: int) -> None:
        """States behind the pass, and the snapshots of it."""
        if cut > self._rollback and self._states:
            self._rows.release()
            raise RollbackUnsupported("state", now.real.shape[1] - self._rollback)
        for layer in self._states:
            if cut or layer.record_past:
                layer.crop(-cut)
            layer.save(now, cut)
        if now.step is not None and now.step.snapshots:
            self.storage.apply(now.step.snapshots)
