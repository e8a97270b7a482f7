"""One forward pass of a transformers model for a step of octavo's cache.

All rows of a step run as one ragged sequence without padding: the model computes embeddings, linear
layers and norms, octavo keeps keys and values in its own storage and attends over pages. Says which
models can run so. Knows no requests, and decides nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache as HostCache

from octavo.cache.step import Step
from octavo.checks import Ints
from octavo.engine.frames import takes_frames
from octavo.engine.linears import Linears, Quantisation
from octavo.engine.mixers import Mixers, StateCache, modules_with_states
from octavo.engine.norms import norm_of
from octavo.engine.own_states import cache_class, cache_name
from octavo.engine.recorder import recorder
from octavo.engine.recordings import Recordings
from octavo.engine.rotary import turning
from octavo.engine.rows import Pass, RowCache, part_of, passes_of
from octavo.engine.takeover import Takeover
from octavo.errors import PlanError, StepError, UnsupportedModel, uncopied
from octavo.integrations.transformers.attention import NAME, attention_of
from octavo.integrations.transformers.latents import LatentLayers
from octavo.integrations.transformers.models import (
    REFUSED,
    length_bound_rope,
    spec_of,
    taken_by,
    why_by_rows,
)
from octavo.integrations.transformers.paged import PagedLayer, PagedPass, paged_layers
from octavo.model.layers import LayerKind, kinds_in
from octavo.model.spec import Attention, Cross, Latent, ModelSpec, Shared, State
from octavo.planner.request import Plan
from octavo.storage import LayerStore, Storage

_own: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()  # model -> implementation before ours


class PageWriter(StateCache):
    """What the model takes for its cache: writes new keys and values to pages, keeps none itself.

    Args:
        plan: of layers that keep something of every token, or states, or both.

    Attributes:
        now: the pass the model runs; None: none.
    """

    __reduce__ = uncopied("it is a part of one runner")

    def __init__(self, plan: Plan) -> None:
        HostCache.__init__(self, layers=[])
        self._layers = paged_layers(plan)
        self.now: PagedPass | None = None

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *_args: Any,
        kwargs: dict[str, Any] | None = None,
        **_rest: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new keys and values; called by the model.

        Args:
            key_states: [1, kv_heads, T, k_dim]; of a latent layer its latents [1, 1, T, rank].
            value_states: [1, kv_heads, T, v_dim]; of a latent layer [1, 1, T, rope].
            layer_idx: the layer.
            kwargs: the attention function's keywords.

        Returns:
            The same tensors.

        Raises:
            StepError: no pass is open.
        """
        if self.now is None:
            raise StepError("no step has begun; run the model through a Runner")
        paged = self._layers[layer_idx]
        self.now.write(paged, key_states, value_states)
        return self.now.hand_over(paged, key_states, kwargs), value_states

    def check_attended(self) -> None:
        """Check that every layer has attended through octavo, once.

        Raises:
            UnsupportedModel: one has not; its output cannot be trusted.
        """
        assert self.now is not None
        self.now.check_written(self._layers.values())
        self.now.check_attended(self._layers.values())


class RecordedPass(PagedPass):
    """A pass whose writes and attention are recorded where the model's step is.

    Made again, they are those of the pass that its writer has then.

    Args:
        writer: what the model takes for its cache.
        rest: as of PagedPass.
    """

    def __init__(self, writer: PageWriter, *rest: Any) -> None:
        super().__init__(*rest)
        self._writer = writer

    def write(self, paged: PagedLayer, key: torch.Tensor, value: torch.Tensor) -> None:
        """See PagedPass."""
        if (seen := recorder()) is None:
            super().write(paged, key, value)
            return
        with seen.paused():
            super().write(paged, key, value)
        seen.note(partial(self._write_again, paged), (key, value))

    def compute(
        self,
        paged: PagedLayer,
        query: torch.Tensor,
        scale: float | None,
        softcap: float | None,
        sink_logits: torch.Tensor | None,
    ) -> torch.Tensor:
        """See PagedPass."""
        if (seen := recorder()) is None:
            return super().compute(paged, query, scale, softcap, sink_logits)
        with seen.paused():
            found = super().compute(paged, query, scale, softcap, sink_logits)
        sinks = () if sink_logits is None else (sink_logits,)
        seen.note(partial(self._attend_again, paged, scale, softcap), (query, *sinks), (found,))
        return found

    def _write_again(
        self, paged: PagedLayer, key: torch.Tensor, value: torch.Tensor
    ) -> Callable[[], None]:
        return partial(_of_now, self._writer, self.writes(paged, key, value))

    def _attend_again(
        self,
        paged: PagedLayer,
        scale: float | None,
        softcap: float | None,
        query: torch.Tensor,
        *others: torch.Tensor,
    ) -> Callable[[], None]:
        sinks, out = (None, *others)[-2:]
        assert out is not None
        again = self.attends(paged, scale, softcap, query, sinks, out)
        return partial(_of_now, self._writer, again)


def _of_now(writer: PageWriter, call: Callable[[PagedPass], None]) -> None:
    """Make a call for the pass that is run now."""
    assert writer.now is not None
    call(writer.now)


class Runner:
    """Runs a model over pages; the model's attention is octavo's until `close`.

    Args:
        model: a transformers causal language model; put in evaluation mode.
        plan: from `octavo.plan` for this model.
        quantise: what to make of the weights of linear layers; None: nothing.
        storage: where its keys and values live beside those of another model; None: in tensors of
            the plan that are made here.

    Attributes:
        model: as given.
        storage: where keys and values live, on the model's device.
        by_rows: why each sequence of a step is run by itself, under the model's own attention;
            None: all run together, and attention is octavo's.

    Raises:
        UnknownArchitecture: octavo cannot read the model's config.
        UnsupportedModel: a layer keeps what the engine does not run yet, or states that the model
            does not ask its cache for; or it cannot be quantised.
        PlanError: the plan is for other layers or another dtype, or no such quantisation.
    """

    __reduce__ = uncopied("it has a model and the pages of its cache; make another")

    def __init__(
        self,
        model: Any,
        plan: Plan,
        quantise: Quantisation | None = None,
        storage: LayerStore | None = None,
    ) -> None:
        check_servable(model, plan)
        self.model = model
        self.storage: Any = storage or Storage(plan, model.device)
        self._mixers = Mixers(model, self.storage)
        self.by_rows = why_by_rows(model, spec_of(model))
        self._writer = cache_class(model, PageWriter)(plan)
        self._latents = None if self.by_rows else LatentLayers(model, plan)
        self._cache: RowCache | None = None  # of rows that are run alone, since there are some
        self._ahead: Mapping[int, Ints] = {}
        self._takes = taken_by(model)
        self._linears = Linears(model, quantise)
        self._between = Takeover(model, (norm_of, turning))
        self._attends = bool(paged_layers(plan)) and not self.by_rows
        model.eval()
        self._recordings: Recordings | None = None
        self._take()
        if self._latents is not None and self.storage.device.type == "cpu":
            self._recordings = Recordings(model, self._latents.matrices, self._mixers.modules)

    def look(self) -> None:
        """See whether somebody has changed the model, before a request begins. O(modules)."""
        if self._recordings is not None:
            self._recordings.look()

    @torch.inference_mode()
    def forward(self, step: Step, guesses: NDArray[np.int64] | None = None) -> torch.Tensor:
        """Compute a step: write the KV of its tokens, return the logits it wants.

        Args:
            step: open, from the cache of the same plan; its ``copies`` have been run.
            guesses: int64[rows], how many of each row's last tokens may be taken back, so that the
                state before each is kept too; None: its drafts.

        Returns:
            [k, vocabulary]: of each row that wants a token, in their order, what follows its last
            known token and each of its drafts. The next call may overwrite it.

        Raises:
            UnsupportedModel: a layer did not attend through octavo, did so twice, or asked for what
                it has not.

        Cost: one forward pass of T tokens, by rows one for each; attention over each row's context,
        never the pool.
        """
        self._take()
        guesses = draft_counts(step) if guesses is None else guesses
        if not self._ahead and not self.by_rows:
            return self._run_ragged(step, guesses)
        found = dict[int, torch.Tensor]()
        for now in self.passes(step):
            part, of_it = part_of(step, now.rows), guesses[now.rows]
            if now.ahead is None and not self.by_rows:
                logits = self._run_ragged(part, of_it)
            else:
                logits = self._run_row(part, of_it, now.ahead)
            counts = (part.wants_token + draft_counts(part)).tolist()
            found |= zip(now.rows, torch.split(logits, counts), strict=True)
        return torch.cat([found[row] for row in sorted(found)])

    def passes(self, step: Step) -> list[Pass]:
        """Those that compute a step, in their order. O(rows)."""
        return passes_of(step, self._ahead, by_rows=self.by_rows is not None)

    @contextmanager
    def looking_ahead(self, ahead: Mapping[int, Ints]) -> Iterator[None]:
        """Within it some rows of a step see tokens behind its own.

        Args:
            ahead: of each such row, the ids of these tokens. It is run alone, by the model's own
                attention, and what hides the rest is the decoder's.
        """
        self._ahead = ahead
        try:
            yield
        finally:
            self._ahead = {}

    def _run_ragged(self, step: Step, guesses: NDArray[np.int64]) -> torch.Tensor:
        """All rows at once, one behind the other."""
        self._begin(step, guesses)
        wanted = self._tensor(wanted_places(step))
        inputs = self._tensor(step.input_ids), self._tensor(step.positions), wanted
        if self._recordings is None:
            return self._compute(*inputs)
        return self._recordings.run(inputs, self._compute, partial(self._keep, step, guesses))

    def _begin(self, step: Step, guesses: NDArray[np.int64]) -> None:
        """Give the model's layers a step to write to and to read."""
        self._writer.now = RecordedPass(self._writer, self.storage, step, (1, step.input_ids.size))
        self._writer.states = self._mixers.states(step, guesses)

    def _keep(self, step: Step, guesses: NDArray[np.int64]) -> Callable[[], None]:
        """What lets a step that has begun begin once more, from the states it is to go on from."""
        put_back = self._writer.states.kept() if self._writer.states is not None else list[Any]

        def again() -> None:
            put_back()
            self._begin(step, guesses)

        return again

    def _compute(
        self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor
    ) -> torch.Tensor:
        """What the model gives for the tokens of a step."""
        found = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            use_cache=True,
            logits_to_keep=wanted,
            **{cache_name(self.model): self._writer},
        )
        self._writer.check_attended()
        if self._writer.states is not None:
            self._writer.states.check()
        logits: torch.Tensor = found.logits[0]  # a few families give those of all tokens
        return logits if len(logits) == len(wanted) else logits.index_select(0, wanted)

    def _run_row(self, step: Step, guesses: NDArray[np.int64], ahead: Ints | None) -> torch.Tensor:
        """A step of one row, as generate() would run it."""
        if self._cache is None:
            self._cache = RowCache(self.model, self.storage)
        if attention_of(self.model) == NAME:
            _set_attention(self.model, _own[self.model])  # until the next step
        cache, count = self._cache, int(step.wants_token[0] + draft_counts(step)[0])
        behind = np.empty(0, np.int32) if ahead is None else ahead
        end = int(step.context[0]) + len(behind)
        cache.begin(step, len(behind))
        cache.states = states = self._mixers.states(step, guesses)
        inputs = {
            "input_ids": self._tensor(np.append(step.input_ids, behind))[None],
            "position_ids": self._tensor(np.arange(step.past[0], end))[None],
            "attention_mask": self._tensor(np.ones(end))[None],
            "logits_to_keep": max(count, 1) + len(behind),
        }
        given = {name: value for name, value in inputs.items() if name in self._takes}
        logits: torch.Tensor = self.model(**given, cache=cache, use_cache=True).logits
        cache.check()
        if states is not None:
            states.check()
        last = logits.shape[1] - len(behind)
        return logits[0, last - count : last]

    def close(self) -> None:
        """Give the model its own attention back; `forward` takes it again."""
        self._mend()
        if attention_of(self.model) == NAME:
            _set_attention(self.model, _own[self.model])
        self._mixers.release()
        if self._latents is not None:
            self._latents.release()
        self._linears.close()
        self._between.close()

    def _take(self) -> None:
        """Set octavo's attention, whatever another runner of this model has done since."""
        self._mend()
        found = attention_of(self.model)
        if found != NAME and self._attends:
            _own[self.model] = found
            _set_attention(self.model, NAME)
        self._mixers.take()
        if self._latents is not None:
            self._latents.take()
        self._linears.take()
        self._between.take()

    def _mend(self) -> None:
        """Undo what an interrupt has left of a recording, before modules are given and taken."""
        if self._recordings is not None:
            self._recordings.close()

    def _tensor(self, ids: Any) -> torch.Tensor:
        return torch.from_numpy(ids.astype(np.int64)).to(self.storage.device)


def _set_attention(model: Any, name: str) -> None:
    """Set how a model attends; of one over codebooks its backbone alone."""
    if takes_frames(model):
        model.backbone_model.set_attn_implementation({"": name})
    else:
        model.set_attn_implementation(name)


def draft_counts(step: Step) -> NDArray[np.int64]:
    """How many tokens of each row are guesses beyond those it knows, int64[rows]. O(rows)."""
    beyond = step.context.astype(np.int64) - step.known
    return np.where(step.wants_token, np.maximum(beyond, 0), 0)


def wanted_places(step: Step) -> NDArray[np.int64]:
    """The places of a step's tokens after which one is to be sampled, int64[k]. O(rows + k).

    Of each row that wants a token: its last known token, and its drafts.
    """
    rows = step.sample
    counts = 1 + draft_counts(step)[rows]
    starts = step.last[rows] + 1 - counts.cumsum()  # less the places of the rows before
    return np.repeat(starts, counts) + np.arange(int(counts.sum()))


def check_servable(model: Any, plan: Plan) -> None:
    """Refuse a model that octavo cannot run, or not with this plan. O(layers).

    Raises:
        UnknownArchitecture, UnsupportedModel, PlanError: see Runner.
    """
    spec = spec_of(model).in_context()
    if (why := _refusal(model, spec)) is not None:
        raise UnsupportedModel(spec.name, why)
    check_plan(model, spec, plan)
    assert plan.elements is not None
    if (
        any(getattr(kind, "indexer", 0) for _, kind in spec.kinds())
        and plan.elements.indexer.bits < 16
    ):
        right = "an indexer's keys must be exact; plan with indexer_dtype='fp32' or 'bf16'"
        raise PlanError("indexer_dtype", plan.elements.indexer.name, right)
    config = model.config.get_text_config(decoder=True)
    changes = length_bound_rope(config, plan.max_length or plan.tokens)
    if changes is not None:
        raise UnsupportedModel(spec.name, changes)


def _refusal(model: Any, spec: ModelSpec) -> str | None:
    """What of a model the engine cannot run, or None. O(layers)."""
    kinds = [kind for _, kind in spec.kinds()]
    runs = Attention | Latent | Shared | State
    if not model.config.is_encoder_decoder:
        runs |= Cross  # nothing comes in that it could attend to
    others = {type(kind).__name__ for kind in kinds if not isinstance(kind, runs)}
    if others:
        return f"the engine runs no layers of kind {' and '.join(sorted(others))}"
    states = [kind for kind in kinds if isinstance(kind, State)]
    reasons = {
        "each of its positions is several ids, as of codebooks": not hasattr(
            model.get_input_embeddings(), "weight"
        )
        and not takes_frames(model),
        "it has no output layer, so it gives no logits": model.base_model is model
        and model.get_output_embeddings() is None,
        "its states hold the last rows of tokens, which the engine does not run": any(
            state.rows or state.buffer for state in states
        ),
        "its layers keep states, and no module of it asks the cache for them": states
        and not modules_with_states(model),
    }
    name = model.config.get_text_config(decoder=True).model_type
    return next((why for why, is_so in reasons.items() if is_so), REFUSED.get(name))


def check_plan(model: Any, spec: ModelSpec, plan: Plan) -> None:
    """Refuse a plan that is not for this model. O(layers).

    Raises:
        PlanError: it knows no bytes, or is for other layers or another dtype.
    """
    if plan.spec is None or plan.elements is None:
        raise PlanError("plan", plan, "it must come from octavo.plan, which knows bytes")
    if _kept(plan.spec) != _kept(spec):
        raise PlanError(
            "plan.spec", plan.spec.name, f"the model is {spec.name} and has other layers"
        )
    if getattr(torch, plan.elements.kv.torch_name) != model.dtype:
        right = f"the model computes in {model.dtype}; plan with that dtype"
        raise PlanError("dtype", plan.elements.kv.name, right)


def _kept(spec: ModelSpec) -> list[list[LayerKind]]:
    """What each layer keeps, of another input however long a plan is for. O(layers)."""
    return [
        [
            replace(kind, length=None) if isinstance(kind, Cross) else kind
            for kind in kinds_in(layer)
        ]
        for layer in spec.layers
    ]
