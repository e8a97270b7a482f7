"""Pictures and sounds in a prompt: what a model's own code makes of them before its decoder.

A processor of transformers gives token ids, some of which stand for media, and tensors. The model
turns these into embeddings and positions and hands them to its decoder. Here it does so once per
request, up to the decoder; the steps of an engine then put the rows where the step has them,
however the prompt is cut. Knows no pages.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch

from octavo.cache.identity import Media
from octavo.cache.step import Step
from octavo.checkpoints.failures import first_line
from octavo.checks import Ints
from octavo.engine.rows import Pass, RowCache, places_of
from octavo.engine.wholes import Seen, seen_of
from octavo.errors import IdentityError, UnsupportedModel, uncopied

_IDS = ("input_ids", "attention_mask")  # of a processor's result; the prompt says them already
_PLACES = re.compile(r"(image|video|audio|media)_token_(id|index)")
_KNOWN = ("inputs_embeds", "position_ids", "attention_mask", "input_ids", "cache")
_BY_MEDIUM = {"pixel_values", "image_grid_thw", "image_sizes"}
_TYPES = ("mm_token_type_ids", "token_type_ids")  # what positions and masks have come of
_DEEP = ("visual_pos_masks", "deepstack_visual_embeds")  # of Qwen3-VL: added behind first layers


class Encoded(NamedTuple):
    """What a decoder is given for one prompt of n tokens.

    Attributes:
        places: int64[m], the positions whose embeddings are no token's.
        rows: [m, width], their embeddings.
        positions: int64[axes, n], what rotations count by.
        deep: [m, width] for each of the first layers, added behind it; empty for most models.
        seen: what its tokens see; None: those before each, and itself.
    """

    places: torch.Tensor
    rows: torch.Tensor
    positions: torch.Tensor
    deep: tuple[torch.Tensor, ...]
    seen: Seen | None = None

    def positions_at(self, at: torch.Tensor) -> torch.Tensor:
        """int64[axes, len(at)] of positions ``at``, which go on by one behind the prompt."""
        n = self.positions.shape[1]
        behind = self.positions.max() + 1 + at - n
        return torch.where(at < n, self.positions[:, at.clamp(max=n - 1)], behind)


class MediaPrompt:
    """The media of one prompt, as a processor gave them.

    Args:
        ids: the prompt's token ids.
        inputs: the processor's result; its ids, where it has some, must be the same.
        tokens: ids that stand for media.

    Attributes:
        places: bool[n], tokens that stand for media; once encoded, all whose embeddings are no
            token's, such as marks around a picture that a model embeds by itself.
        encoded: what the decoder is given; None before.

    Raises:
        IdentityError: ``inputs`` are no tensors of one prompt, or no token stands for them.
    """

    __reduce__ = uncopied("it is a part of one request")

    def __init__(self, ids: Ints, inputs: Mapping[str, Any], tokens: frozenset[int]) -> None:
        self.ids, self.tensors = ids, beside_ids(ids, inputs)
        self.encoded: Encoded | None = None
        self.places = self._media = np.isin(ids, list(tokens))
        if not self.places.any():
            right = f"the prompt must have tokens that stand for media: {sorted(tokens)}"
            raise IdentityError("inputs", sorted(self.tensors), right)

    @cached_property
    def extra(self) -> list[Media]:
        """What pages of the prompt depend on beside its tokens; it must be encoded. O(bytes)."""
        assert self.encoded is not None
        seen, placed = self.encoded.seen, {"positions": self.encoded.positions}
        if seen is not None:
            placed |= {str(kind): each.until for kind, each in seen.by_kind.items()}
        there = self.places if seen is None else self.places | seen.together
        runs, tensors = _runs(there), {k: v for k, v in self.tensors.items() if k not in _TYPES}
        if np.array_equal(there, self._media):
            digests = _digests(tensors, len(runs))
        else:  # of what stands beside media, too
            digests = [digest_of(tensors | {"input_ids": torch.from_numpy(self.ids)})] * len(runs)
        places = [digest_of({k: v[..., a:b] for k, v in placed.items()}) for a, b in runs]
        found = zip(digests, places, runs, strict=True)
        return [Media(f"{digest} {place}", *run) for digest, place, run in found]

    def ahead(self, past: int, end: int) -> Ints | None:
        """The ids of the tokens from ``end`` on that those of ``past..end-1`` see. O(tokens).

        None: each of these sees what is before it, and itself.
        """
        seen = self.encoded.seen if self.encoded else None
        count = None if seen is None else seen.ahead(past, end)
        return None if count is None else self.ids[end : end + count]


class MediaEncoder:
    """Runs a model up to its decoder, and gives the decoder what came of it.

    Args:
        model: a transformers model; one without media is never asked.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, model: Any) -> None:
        self._model = model
        config = model.config.to_dict()
        found = (v for k, v in config.items() if _PLACES.fullmatch(k) and isinstance(v, int))
        self._tokens = frozenset(found)

    def prompt(self, ids: Ints, inputs: Mapping[str, Any]) -> MediaPrompt:
        """The media of a prompt, not yet encoded. O(bytes).

        Raises:
            UnsupportedModel: the model takes text alone. IdentityError: as of MediaPrompt.
        """
        if not self._tokens:
            raise UnsupportedModel("inputs", "no token of this model stands for media")
        return MediaPrompt(ids, inputs, self._tokens)

    def require_causal(self) -> None:
        """Refuse a decoder whose tokens see later ones unless the masks of a prompt hide them.

        Raises:
            UnsupportedModel: it is one.
        """
        config = self._model.config.get_text_config(decoder=True)
        if getattr(config, "use_bidirectional_attention", None) is True:
            why = "its tokens see later ones; give what its processor returns for a picture"
            raise UnsupportedModel("inputs", why)

    @torch.inference_mode()
    def encode(self, prompt: MediaPrompt) -> None:
        """Run the model up to its decoder, with its own attention. Cost: its encoders.

        Raises:
            UnsupportedModel: the model fails on the tensors, or gives its decoder what cannot be
                cut.
        """
        ids = torch.from_numpy(prompt.ids.astype(np.int64)).to(self._model.device)[None]
        plain, _ = self._reach(ids, {})  # what a step gives the decoder
        embeds, given = self._reach(ids, prompt.tensors)
        places = torch.from_numpy(prompt.places).to(ids.device)
        deep = given.get("deepstack_visual_embeds") or ()
        if deep and not torch.equal(given["visual_pos_masks"].reshape(-1), places):
            raise UnsupportedModel("inputs", "deep embeddings are of other tokens than the media's")
        own = places | (embeds != plain).any(dim=-1)[0]
        if deep and not torch.equal(own, places):
            raise UnsupportedModel("inputs", "deep embeddings, and marks that are no tokens")
        positions = given.get("position_ids")
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device)
        positions = positions.reshape(-1, ids.shape[1])
        config = self._model.config.get_text_config(decoder=True)
        seen = seen_of(given.get("attention_mask"), getattr(config, "sliding_window", None))
        if seen is None:
            self.require_causal()
        if seen is not None and deep:
            raise UnsupportedModel("inputs", "deep embeddings, and pictures seen as a whole")
        rows = own.nonzero()[:, 0], embeds[0, own]
        prompt.encoded = Encoded(*rows, positions, tuple(deep), seen)
        prompt.places = own.cpu().numpy()

    def _reach(
        self, ids: torch.Tensor, tensors: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """The embeddings [1, n, width] that the decoder is given, and all else; checked."""
        given: dict[str, Any] = {}

        def stop(_module: Any, _args: Any, keywords: dict[str, Any]) -> None:
            given.update(keywords)
            raise _Reached

        decoder = self._model.get_decoder()
        inputs = {name: value.to(ids.device) for name, value in tensors.items()}
        hook = decoder.register_forward_pre_hook(stop, with_kwargs=True)
        try:
            self._model(
                input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **inputs
            )
        except _Reached:
            pass
        except Exception as error:
            why = f"the model fails on {sorted(inputs)}: {first_line(error)}"
            raise UnsupportedModel("inputs", why) from error
        finally:
            hook.remove()
        for name, value in given.items():
            if name not in _KNOWN + _DEEP and not isinstance(
                value, bool | int | float | str | None
            ):
                why = f"the model's decoder is given {name} for media, which cannot be cut yet"
                raise UnsupportedModel("inputs", why)
        embeds = given.get("inputs_embeds")
        if embeds is None and given.get("input_ids") is None:
            raise UnsupportedModel("inputs", "the model's decoder is not given embeddings")
        if embeds is None:
            embeds = decoder.get_input_embeddings()(given["input_ids"])
        return embeds, given

    def ahead(self, step: Step, prompts: Sequence[MediaPrompt | None]) -> dict[int, Ints]:
        """The rows of a step whose tokens see later ones, each with the ids of those behind it.

        O(tokens of rows with media).
        """
        found = {}
        bounds = zip(step.past.tolist(), step.context.tolist(), strict=True)
        for row, (prompt, (past, end)) in enumerate(zip(prompts, bounds, strict=True)):
            if prompt is not None and (ids := prompt.ahead(past, end)) is not None:
                found[row] = ids
        return found

    @contextmanager
    def placed(
        self, step: Step, prompts: Sequence[MediaPrompt | None], passes: Iterable[Pass]
    ) -> Iterator[None]:
        """Within it the decoder is given the rows of encoded prompts that ``step`` computes.

        Args:
            step: open.
            prompts: of each row, encoded; None: text alone. One is not.
            passes: of the decoder, in their order.
        """
        given = iter([self._placed(step, prompts, each) for each in passes])

        def enter(decoder: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
            placed = next(given)
            return None if placed is None else placed.enter(decoder, args, keywords)

        hook = self._model.get_decoder().register_forward_pre_hook(enter, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    def _placed(
        self, step: Step, prompts: Sequence[MediaPrompt | None], now: Pass
    ) -> "_Placed | None":
        """What the decoder is given in one pass; None: what the model gives it."""
        chosen = [prompts[row] for row in now.rows]
        encoded = [None if each is None else each.encoded for each in chosen]
        if not any(encoded):
            return None
        positions = [step.positions[places_of(step, now.rows)]]
        counts = step.counts[now.rows]
        if now.ahead is not None:
            end = int(step.context[now.rows[0]])
            positions.append(np.arange(end, end + len(now.ahead), dtype=np.int32))
            counts = counts + len(now.ahead)
        seen = encoded[0].seen if now.ahead is not None and encoded[0] is not None else None
        return _Placed(np.concatenate(positions), counts, encoded, self._model, seen)


class _Reached(Exception):
    """The model has come to its decoder."""


class _Placed:
    """What the decoder is given in one pass, where rows of encoded prompts take part.

    Where tokens see later ones there is one row, and ``seen`` says what they see.
    """

    def __init__(
        self,
        positions: Ints,
        counts: Ints,
        encoded: Sequence[Encoded | None],
        model: Any,
        seen: Seen | None,
    ) -> None:
        device, self._seen, self._first = model.device, seen, encoded[0]
        self._kinds = getattr(model.config.get_text_config(decoder=True), "layer_types", None)
        axes = max(each.positions.shape[0] for each in encoded if each is not None)
        at = torch.from_numpy(positions.astype(np.int64)).to(device)
        self._positions = at.expand(axes, -1).clone()
        places, rows, self._deep = [], [], dict[int, list[torch.Tensor]]()
        ends = counts.cumsum()
        for each, end, count in zip(encoded, ends.tolist(), counts.tolist(), strict=True):
            if each is None:
                continue
            begin = end - count
            self._positions[:, begin:end] = each.positions_at(at[begin:end])
            first = int(at[begin])
            low, high = torch.searchsorted(
                each.places, torch.tensor([first, first + end - begin], device=device)
            ).tolist()
            places.append(each.places[low:high] - first + begin)
            rows.append(each.rows[low:high])
            for layer, added in enumerate(each.deep):
                self._deep.setdefault(layer, []).append(added[low:high])
        self._places, self._rows = torch.cat(places), torch.cat(rows)
        self._at = at

    def enter(
        self, decoder: Any, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Change what the decoder is given."""
        embeds = keywords.get("inputs_embeds")
        if embeds is None:
            embeds = decoder.get_input_embeddings()(keywords["input_ids"])
        count = embeds.shape[1]
        positions = self._positions if len(self._positions) == 1 else self._positions[:, None]
        changed: dict[str, Any] = {"input_ids": None, "position_ids": positions}
        changed["inputs_embeds"] = embeds.index_copy(1, self._places, self._rows[None].to(embeds))
        if self._deep and len(self._places):
            mask = torch.zeros(1, count, dtype=torch.bool, device=embeds.device)
            mask[0, self._places] = True
            changed["visual_pos_masks"] = mask
            changed["deepstack_visual_embeds"] = [torch.cat(d) for d in self._deep.values()]
        cache = keywords.get("cache")
        if isinstance(cache, RowCache) and self._first is not None:
            cache.count_by(self._first.positions_at(torch.arange(int(self._at[0])).to(self._at)))
        if self._seen is not None:
            changed["attention_mask"] = self._seen.masks(self._at, cache, self._kinds)
        return args, keywords | changed


def _runs(there: np.ndarray) -> list[tuple[int, int]]:
    """Where each run of True begins and ends."""
    found, at = [], 0
    for value, group in groupby(there.tolist()):
        length = len(list(group))
        if value:
            found.append((at, at + length))
        at += length
    return found


def _digests(tensors: Mapping[str, torch.Tensor], count: int) -> list[str]:
    """SHA-256 for each of ``count`` media: of its own part, where tensors are by medium, or of all.

    A part is a row of each tensor, or the patches that its row of ``image_grid_thw`` counts.
    """
    grid = tensors.get("image_grid_thw")
    sizes = [1] * count if grid is None else grid.prod(dim=-1).tolist()
    pixels = tensors.get("pixel_values")
    by_medium = (
        pixels is not None
        and len(sizes) == count
        and len(pixels) == sum(sizes)
        and tensors.keys() <= _BY_MEDIUM
    )
    if not by_medium:
        return [digest_of(tensors)] * count
    assert pixels is not None
    parts = torch.split(pixels, sizes)
    others = [name for name in ("image_grid_thw", "image_sizes") if name in tensors]
    return [
        digest_of({"pixel_values": part} | {name: tensors[name][at] for name in others})
        for at, part in enumerate(parts)
    ]


def tensors_of(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What a processor returned, checked. O(names).

    Raises:
        IdentityError: it is no mapping of names to tensors.
    """
    if not isinstance(inputs, Mapping):
        raise IdentityError("inputs", inputs, "it must be what the model's processor returns")
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            right = "it must be a tensor; call the processor with return_tensors='pt'"
            raise IdentityError(f"inputs[{name!r}]", type(value).__name__, right)
    return dict(inputs)


def beside_ids(ids: Ints, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """What a processor returned beside a prompt's ids and their mask, checked. O(ids).

    Raises:
        IdentityError: it is no mapping of names to tensors, or its ids are others.
    """
    found = tensors_of(inputs)
    given = found.get("input_ids")
    if given is not None and np.asarray(given).tolist() not in ([ids.tolist()], ids.tolist()):
        right = "they must be the prompt's; submit(inputs['input_ids'][0], inputs=inputs)"
        raise IdentityError("inputs['input_ids']", np.shape(given), right)
    return {name: each for name, each in found.items() if name not in _IDS}


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of tensors with their names, shapes and types. O(bytes)."""
    digest = sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        flat = tensor.detach().cpu().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
