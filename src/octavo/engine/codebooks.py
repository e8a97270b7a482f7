"""What a model over codebooks is given in a step, and how a frame comes of its logits.

CSM's backbone reads a row of embeddings per position, and its logits are of a frame's first code.
A decoder in depth, which begins with the backbone's last hidden state, adds the other codes one by
one, for all rows of a step together: its keys and values are of one frame, and gone behind it.
Other models are left alone. Knows no pages.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from octavo.cache.step import Step
from octavo.checks import Ints
from octavo.engine.frames import Frames, takes_frames
from octavo.engine.request import Request
from octavo.engine.sampling import Choice, Frame, Sampler, SamplingParams, sample_rows
from octavo.engine.speculation import Found
from octavo.errors import SamplingError, UnsupportedModel, uncopied

_HONOURED = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "typical_p", "top_n_sigma"),
    *("seed", "n"),
)
_DRAWS = 2**32
"""Random numbers of a request that each codebook has for itself, one per frame."""


class _Depth(NamedTuple):
    """A row that wants the next code of its frame.

    Attributes:
        prompt_token_ids: of its request.
        output: as many as came before in the draws of this codebook.
        sampler: of its request.
    """

    prompt_token_ids: Ints
    output: range
    sampler: Sampler


class Codebooks:
    """Has a model compute a step's frames, and makes frames of the first codes sampled.

    Args:
        model: of transformers; one that takes no frames is left alone.
        frames: gives frames their ids.
        tokenizer: the engine's.

    Attributes:
        size: codes that each codebook has; None: the model takes no frames.

    Raises:
        UnsupportedModel: the model answers in frames, and there is a tokenizer.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self, model: Any, frames: Frames, tokenizer: Any) -> None:
        self._model, self._frames = model, frames
        self.size: int | None = model.config.vocab_size if takes_frames(model) else None
        self._hidden = dict[Request, torch.Tensor]()  # what the last step's first codes came of
        if self.size is not None and tokenizer is not None:
            why = "this model answers in frames of codes, which are no text"
            raise UnsupportedModel("tokenizer", why)

    def check(self, params: SamplingParams) -> None:
        """Refuse parameters that mean nothing for frames. O(fields).

        Raises:
            SamplingError: one is set, other than those of `sample_rows` and of counts.
        """
        if self.size is None:
            return
        for field in fields(params):
            value = getattr(params, field.name)
            if field.name not in _HONOURED and value != getattr(SamplingParams(), field.name):
                right = f"tokens of this model are frames; it takes {', '.join(_HONOURED)}"
                raise SamplingError(field.name, value, right)

    @contextmanager
    def placed(self, step: Step, requests: Sequence[Request]) -> Iterator[None]:
        """Within it the model is given the frames and text that ``step`` computes.

        Args:
            step: open.
            requests: by row.

        Raises:
            UnsupportedModel: its head was not given a hidden state for each row that wants one.
        """
        if self.size is None:
            yield
            return
        seen: list[torch.Tensor] = []

        def enter(_model: Any, args: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            changed = {"input_ids": None, "inputs_embeds": self._embedded(step, requests)}
            return args, keywords | changed

        hooks = (
            self._model.register_forward_pre_hook(enter, with_kwargs=True),
            self._model.lm_head.register_forward_pre_hook(lambda _, args: seen.append(args[0][0])),
        )
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        rows = [requests[row] for row in step.sample.tolist()]
        if [len(rows)] != list(map(len, seen)):
            why = f"its head saw {list(map(len, seen))} rows, and {len(rows)} want a code"
            raise UnsupportedModel("model", why)
        self._hidden = dict(zip(rows, seen[0], strict=True))

    def _embedded(self, step: Step, requests: Sequence[Request]) -> torch.Tensor:
        """[1, T, width], text and frames, each embedded by the model's own module."""
        codes, device = self._codes(step, requests), self._model.device
        places = np.flatnonzero(codes[:, 0] >= 0)
        ids = step.input_ids.astype(np.int64)
        ids[places] = 0
        embeds: torch.Tensor = self._model.embed_text_tokens(torch.from_numpy(ids).to(device)[None])
        if not places.size:
            return embeds
        frames = torch.from_numpy(codes[places]).to(device)[None]
        found = self._model.get_input_embeddings()(frames).to(embeds)
        return embeds.index_copy(1, torch.from_numpy(places).to(device), found)

    def _codes(self, step: Step, requests: Sequence[Request]) -> NDArray[np.int64]:
        """int64[T, codebooks] of a step's tokens, below 0 where text is."""
        codes = np.full((step.input_ids.size, self._model.config.num_codebooks), -1, np.int64)
        starts, context = step.query_start.tolist(), step.context.tolist()
        for row, request in enumerate(requests):
            first, end, known = int(step.past[row]), context[row], request.prompt_tokens
            mine = codes[starts[row] : starts[row + 1]]
            spoken = request.condition.speech
            if spoken is not None and spoken.codes is not None:
                given = spoken.codes[first:end]
                mine[: len(given)] = given
            if end > known:
                answered = request.frames[max(first - known, 0) : end - known]
                mine[len(mine) - len(answered) :] = [frame.codes for frame in answered]
        return codes

    @torch.inference_mode()
    def finish(self, found: Found, requests: Sequence[Request]) -> Found:
        """Make frames of first codes, by the decoder in depth, with each request's own sampler.

        Args:
            found: of the step that `placed` was left for last, a first code of each request or what
                its sampler raised.
            requests: whose they are; a fork goes on from where the first of its samples is.

        Returns:
            Frames instead of first codes, and what went wrong in a row.

        Cost: a pass of the decoder in depth per codebook but the first, for all rows together.
        """
        chosen = [at for at, choices in enumerate(found) if isinstance(choices, list)]
        if self.size is None or not chosen:
            return found
        asked = [requests[at] for at in chosen]
        first = [found[at][0].token for at in chosen]  # type: ignore[index]
        frames, failed = self._deepened(first, asked)
        finished = list(found)
        for row, at in enumerate(chosen):
            finished[at] = failed.get(row) or [self._choice(frames[row])]
        return finished

    def _deepened(
        self, first: list[int], requests: Sequence[Request]
    ) -> tuple[list[list[int]], dict[int, Exception]]:
        """The codes of each row's frame; and by row what its sampler raised, whose codes are 0."""
        seen, self._hidden = self._hidden, {}
        hidden = torch.stack([seen[r if r in seen else r.samples[0]] for r in requests])
        depth, failed = self._model.depth_decoder, dict[int, Exception]()
        cache = DynamicCache(config=depth.config)
        frames = [[code] for code in first]
        given = [[0, code] for code in first]  # the first place is the hidden state's
        for book in range(1, self._model.config.num_codebooks):
            logits = depth(
                input_ids=torch.tensor(given, device=hidden.device),
                backbone_last_hidden_state=hidden if book == 1 else None,
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            rows = [
                _Depth(r.prompt_token_ids, range(book * _DRAWS + len(r.output)), r.sampler)
                for r in requests
            ]
            for row, choice in enumerate(sample_rows(logits, rows)):
                if isinstance(choice, Exception):
                    failed.setdefault(row, choice)
                frames[row].append(choice.token if isinstance(choice, Choice) else 0)
            given = [frame[-1:] for frame in frames]
        return frames, failed

    def _choice(self, codes: list[int]) -> Choice:
        """A frame that was sampled; as of generate(), all its codes but the last may end speech."""
        end = self._model.config.codebook_eos_token_id
        frame = Frame(tuple(codes), all(code == end for code in codes[:-1]))
        return Choice(self._frames.id_of(codes), frame=frame)
