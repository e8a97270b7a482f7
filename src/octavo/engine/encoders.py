"""Encoder-decoders: another input is encoded once, and its keys and values lie in cross pages.

The decoder is run as transformers' own generate() does, under the model's own attention, on keys
and values gathered from pages: its code counts positions from where all its rows stand, so rows of
a step are run together that stand alike, and groups of them one after another. Knows no requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import Cache as HostCache
from transformers import EncoderDecoderCache
from transformers.cache_utils import CacheLayerMixin

from octavo.cache.identity import CrossInput
from octavo.cache.step import CrossView, Step
from octavo.checkpoints.failures import first_line
from octavo.engine.media import digest_of, tensors_of
from octavo.engine.rows import OpenRow, part_of, places_of
from octavo.engine.runner import check_plan, wanted_places
from octavo.errors import UnsupportedModel, uncopied
from octavo.integrations.transformers.layers import token_layer
from octavo.integrations.transformers.models import spec_of
from octavo.integrations.transformers.paged import PagedPass, paged_layers
from octavo.integrations.transformers.passes import ModelPass
from octavo.model.spec import Attention, Cross
from octavo.planner.request import Plan
from octavo.storage import Storage
from octavo.storage.addresses import PageIndex
from octavo.storage.fields import WriteIndex

_GROUP = "cross"
_UNCUT = {
    "fsmt": "lets the tokens of one pass see each other",
    "prophetnet": "takes one token at a time behind a cache",
    "xlm-prophetnet": "takes one token at a time behind a cache",
}
"""Families whose decoder answers otherwise where its prompt is cut, and why."""


class SourcePrompt:
    """What the encoder of a request is given, as a processor or a tokenizer made it.

    Args:
        inputs: tensors of one row: token ids, or features; and masks of them.

    Attributes:
        tensors: as given, by name.
        encoded: what the encoder gave, of L tokens; None before.

    Raises:
        IdentityError: ``inputs`` are no tensors.
    """

    __reduce__ = uncopied("it is a part of one request")

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.tensors = tensors_of(inputs)
        self._digest = digest_of(self.tensors)
        self.encoded: Any = None

    @property
    def extra(self) -> list[CrossInput]:
        """What the request's pages depend on beside its tokens; it must be encoded."""
        return [CrossInput(self._digest, self.encoded.last_hidden_state.shape[1])]


class _Alike(NamedTuple):
    """What rows have in common that are run together; lengths in tokens."""

    past: int
    new: int
    fresh: bool
    source: tuple[Any, ...]


class EncoderDecoderRunner:
    """Runs an encoder-decoder over pages; the model's attention stays its own.

    Args:
        model: a transformers encoder-decoder; put in evaluation mode.
        plan: from `octavo.plan` for this model.

    Attributes:
        model: as given.
        storage: where keys and values live, on the model's device.
        by_rows: why not all sequences of a step run together.

    Raises:
        UnknownArchitecture: octavo cannot read the model's config.
        UnsupportedModel: a layer keeps something other than keys and values, or the decoder's
            prompts cannot be cut, or its answers depend on who else is in the batch.
        PlanError: the plan is for other layers or another dtype.
    """

    __reduce__ = uncopied("it has a model and the pages of its cache; make another")

    by_rows = "its decoder takes rows together that stand alike, and no others"

    def __init__(self, model: Any, plan: Plan) -> None:
        spec = spec_of(model).in_context()
        others = {type(k).__name__ for _, k in spec.kinds() if not isinstance(k, Attention | Cross)}
        if others:
            why = f"its decoder keeps {' and '.join(sorted(others))} beside a cross input"
            raise UnsupportedModel(spec.name, why)
        if does := _UNCUT.get(model.config.model_type):
            raise UnsupportedModel(spec.name, f"its decoder {does}, so that prompts cannot be cut")
        if getattr(model.config, "moe_eval_capacity_token_fraction", 1) < 1:
            why = "its experts leave out tokens by how many come at once, others' among them"
            raise UnsupportedModel(spec.name, why)
        check_plan(model, spec, plan)
        self.model, self.storage = model, Storage(plan, model.device)
        paged = paged_layers(plan)
        self._place = OpenRow(plan.max_length or plan.tokens)
        whole = not any(getattr(each.kind, "window", None) for each in paged.values())
        self._own = HostCache(
            layers=[token_layer(self.storage, self._place, paged[at], whole=whole) for at in paged]
        )
        self._paged = list(paged.values())
        self._crossed = _CrossPass(self.storage)
        at = [layer for layer, kind in spec.kinds() if isinstance(kind, Cross)]
        self._cross = HostCache(layers=[CrossLayer(self._crossed, layer) for layer in at])
        self._sources: Sequence[SourcePrompt] = ()
        self._takes = signature(model.forward).parameters.keys()
        model.eval()

    @torch.inference_mode()
    def encode(self, prompt: SourcePrompt) -> None:
        """Run the encoder. Cost: its own.

        Raises:
            UnsupportedModel: it fails on the tensors.
        """
        encoder = self.model.get_encoder()
        inputs = {name: value.to(self.storage.device) for name, value in prompt.tensors.items()}
        try:
            prompt.encoded = encoder(**inputs, return_dict=True)
        except Exception as error:
            why = f"the encoder fails on {sorted(inputs)}: {first_line(error)}"
            raise UnsupportedModel("inputs", why) from error

    @contextmanager
    def reading(self, prompts: Sequence[SourcePrompt]) -> Iterator[None]:
        """Within it the rows of a step attend to these, encoded before."""
        self._sources = prompts
        try:
            yield
        finally:
            self._sources = ()

    @torch.inference_mode()
    def forward(self, step: Step, guesses: NDArray[np.int64] | None = None) -> torch.Tensor:
        """Compute a step; see `Runner.forward`. Cost: a forward pass for rows that stand alike."""
        del guesses  # its layers keep no states
        wanted, found = wanted_places(step), dict[int, torch.Tensor]()
        for rows in self._alike(step):
            places = places_of(step, rows)
            sources = [self._sources[row] for row in rows]
            logits = self._run(part_of(step, rows), sources).flatten(0, 1)
            for at in np.flatnonzero(np.isin(places, wanted)).tolist():
                found[int(places[at])] = logits[at]
        return torch.stack([found[at] for at in wanted.tolist()]) if len(wanted) else logits[:0]

    def look(self) -> None:
        """Nothing: its steps are not recorded."""

    def close(self) -> None:
        """Nothing: the model is as it was found."""

    def _alike(self, step: Step) -> list[list[int]]:
        """The rows of a step that have new tokens, those together that one pass can run."""
        found: dict[_Alike, list[int]] = {}
        fresh, past = step.group(_GROUP).fresh.tolist(), step.past.tolist()
        for row, count in enumerate(step.counts.tolist()):
            if count:
                shapes = tuple((k, v.shape) for k, v in self._sources[row].tensors.items())
                key = _Alike(past[row], count, fresh[row], shapes)
                found.setdefault(key, []).append(row)
        return list(found.values())

    def _run(self, step: Step, sources: Sequence[SourcePrompt]) -> torch.Tensor:
        """Logits [rows, tokens of each, vocabulary] of rows that stand alike."""
        n, past = len(sources), int(step.past[0])
        count = len(step.input_ids) // n
        each = np.arange(n)
        paged = PagedPass(self.storage, step, (n, count))
        real = np.ones((n, past + count), np.bool_)
        self._place.now = ModelPass(step, each, each, real, past, None, paged)
        self._crossed.begin(step.group(_GROUP))
        ids = torch.from_numpy(step.input_ids.astype(np.int64)).to(self.storage.device)
        masks = [s.tensors.get("attention_mask") for s in sources]
        found = self.model(
            decoder_input_ids=ids.view(n, count),
            encoder_outputs=_together([source.encoded for source in sources]),
            cache=EncoderDecoderCache(self._own, self._cross),
            use_cache=True,
            **self._mask([mask for mask in masks if mask is not None]),
        )
        paged.check_written(self._paged)
        self._crossed.check(len(self._cross.layers))
        logits: torch.Tensor = found.logits
        if tuple(logits.shape[:2]) != (n, count):
            why = f"it gives logits of shape {tuple(logits.shape)} for {n} rows of {count} tokens"
            raise UnsupportedModel("model", why)
        return logits

    def _mask(self, masks: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Which of the encoded tokens are padding, where the model asks for it."""
        if not masks or "attention_mask" not in self._takes:
            return {}
        return {"attention_mask": torch.cat([mask.to(self.storage.device) for mask in masks])}


def _together(encoded: Sequence[Any]) -> Any:
    """What an encoder gave for several sources of one length, as of one batch. O(of them)."""
    first = encoded[0]
    if len(encoded) == 1:
        return first
    return type(first)(
        {
            name: torch.cat([each[name] for each in encoded])
            for name, value in first.items()
            if isinstance(value, torch.Tensor)
        }
    )


class _CrossPass:
    """Where the cross inputs of one pass lie, for all layers.

    Attributes:
        length: tokens of each; 0 while its pages are to be written.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.length = 0

    def begin(self, view: CrossView) -> None:
        """Look at the inputs of rows that stand alike. O(their tokens)."""
        size = self._storage.plan.page_size
        length = int(view.lengths[0])
        table = view.table[:, : -(-length // size)].astype(np.int64)
        at = np.arange(length)
        slots = (table[:, at // size] * size + at % size).reshape(-1)
        self._pages: list[PageIndex] = [self._storage.page_index(row, _GROUP) for row in table]
        self._slots: WriteIndex | None = None
        self.length = 0 if view.fresh[0] else length
        if not self.length:
            self._slots = self._storage.index(slots, _GROUP)
        self._kept, self._tokens = set[int](), length
        self._last: tuple[int, tuple[torch.Tensor, torch.Tensor]] | None = None

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """Put one layer's keys and values [rows, heads, L, dim] in their pages."""
        assert self._slots is not None
        new = [each.transpose(1, 2).flatten(0, 1) for each in (key, value)]
        self._storage.write(layer, new[0], new[1], self._slots, _GROUP)
        self._kept.add(layer)

    def read(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of one layer, [rows, heads, L, dim] each. O(of what it returns), once."""
        if self._last is None or self._last[0] != layer:
            self._kept.add(layer)
            rows = (self._storage.gather(layer, p, 0, self._tokens, _GROUP) for p in self._pages)
            keys, values = (torch.stack(each).transpose(1, 2) for each in zip(*rows, strict=True))
            self._last = layer, (keys, values)
        return self._last[1]

    def check(self, layers: int) -> None:
        """Check that every layer has written or read its cross input.

        Raises:
            UnsupportedModel: one has not; the model's output cannot be trusted.
        """
        if len(self._kept) != layers:
            why = f"{len(self._kept)} of {layers} layers attended to the encoded input"
            raise UnsupportedModel("model", why)


class CrossLayer(CacheLayerMixin):
    """One layer's keys and values of the encoded input, as transformers knows them.

    Args:
        place: where the pages of the pass are.
        layer: index in the model.
    """

    __reduce__ = uncopied("it belongs to one runner")

    def __init__(self, place: _CrossPass, layer: int) -> None:
        self._place, self._layer, self.is_initialized = place, layer, True

    def lazy_initialization(self, *_states: torch.Tensor) -> None:
        """Nothing: the pages are there."""

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_args: Any, **_rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write keys and values [B, heads, L, dim]; returns the same."""
        self._place.write(self._layer, key_states, value_states)
        return key_states, value_states

    @property
    def keys(self) -> torch.Tensor:
        """[B, heads, L, dim], from pages."""
        return self._place.read(self._layer)[0]

    @property
    def values(self) -> torch.Tensor:
        """The same of values."""
        return self._place.read(self._layer)[1]

    def get_seq_length(self) -> int:
        """Tokens of the encoded input; 0 while they are to be written."""
        return self._place.length

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(columns, first column); every token is seen."""
        return self._place.length or query_length, 0

    def get_max_length(self) -> int:
        """None that is known."""
        return -1
