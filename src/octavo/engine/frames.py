"""Frames: positions of one code of each of several codebooks, and ids by which they are known.

Sesame's CSM reads text tokens and frames of speech, and answers in frames. The cache knows each
position by one id: that of a text token, or one given here to all codes of a frame. Knows no pages
and no requests.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.cache.identity import Salt
from octavo.checkpoints.failures import first_line
from octavo.checks import Ints
from octavo.engine.media import beside_ids
from octavo.errors import CapacityError, IdentityError, UnsupportedModel, uncopied

CODES = "audio_codes"
RECORDED = ("input_values", "input_values_cutoffs")
_MAX_ID = 2**31 - 1


def takes_frames(model: Any) -> bool:
    """Whether a model reads frames beside text tokens, and answers in frames. O(1)."""
    return model.config.model_type == "csm" and hasattr(model, "depth_decoder")


class SpokenPrompt:
    """A prompt with recordings among its text.

    Args:
        ids: the prompt's token ids.
        tensors: a recording, or its codes, by name.

    Attributes:
        ids: int32[n], by which its pages are found; those of frames are there once it is encoded.
        codes: int64[n, codebooks], below 0 where text is; None before it is encoded.
    """

    __reduce__ = uncopied("it is a part of one request")

    def __init__(self, ids: Ints, tensors: dict[str, torch.Tensor]) -> None:
        self.ids, self.tensors = ids, tensors
        self.codes: NDArray[np.int64] | None = None


class Frames:
    """Reads the recordings of prompts, and gives frames their ids.

    An id is of one frame for as long as the engine is there, and says nothing in another.

    Args:
        model: of transformers; one that takes no frames is never asked.
        most: how many frames are remembered. One that did not come for longest is forgotten, and
            gets another id when it comes again: pages that hold it are not found by then.
    """

    __reduce__ = uncopied("its ids are those of one engine's pages")

    def __init__(self, model: Any, most: int) -> None:
        self._model, self._most = model, most
        self._known = OrderedDict[tuple[int, ...], int]()
        self._next = model.embed_text_tokens.num_embeddings if takes_frames(model) else 0
        self.salt = Salt(f"frames of engine {token_hex(16)}")

    def id_of(self, codes: Sequence[int]) -> int:
        """The id of a frame, above those of text tokens. O(codebooks).

        Raises:
            CapacityError: every id is taken, after two billion different frames.
        """
        frame = tuple(codes)
        if frame not in self._known:
            if self._next > _MAX_ID:
                why = "ids have 32 bits; make another engine"
                raise CapacityError("id of a frame", self._next, _MAX_ID, why)
            self._known[frame], self._next = self._next, self._next + 1
            if len(self._known) > self._most:
                self._known.popitem(last=False)
        self._known.move_to_end(frame)
        return self._known[frame]

    def prompt(self, ids: Ints, inputs: Mapping[str, Any]) -> SpokenPrompt | None:
        """The recordings of a prompt, not yet encoded; None: there are none. O(bytes).

        Raises:
            IdentityError: ``inputs`` are neither what the processor returns nor codes, or do not
                fit the prompt.
        """
        tensors = beside_ids(ids, inputs)
        if not tensors:
            return None
        config = self._model.config
        count = int((ids == config.audio_token_id).sum())
        if not count or set(tensors) not in ({CODES}, set(RECORDED)):
            right = f"a prompt with tokens {config.audio_token_id} has {' and '.join(RECORDED)}"
            raise IdentityError("inputs", sorted(tensors), f"{right}, or {CODES} of its frames")
        if CODES in tensors:
            _check_codes(tensors[CODES], count, config)
        return SpokenPrompt(ids, tensors)

    @torch.inference_mode()
    def encode(self, prompt: SpokenPrompt) -> None:
        """Have the model's codec say the codes, where they were not given. Cost: the codec.

        Raises:
            UnsupportedModel: the model fails on the tensors. CapacityError: see `id_of`.
        """
        config, ids = self._model.config, prompt.ids
        if CODES in prompt.tensors:
            codes = np.full((ids.size, config.num_codebooks), -1, np.int64)
            codes[ids == config.audio_token_id] = prompt.tensors[CODES].cpu().numpy()
            codes[ids == config.audio_eos_token_id] = config.codebook_eos_token_id
        else:
            codes = self._recorded(ids, prompt.tensors)
        places = np.flatnonzero(codes[:, 0] >= 0)
        prompt.ids = ids.copy()
        prompt.ids[places] = [self.id_of(frame) for frame in codes[places].tolist()]
        prompt.codes = codes

    def _recorded(self, ids: Ints, tensors: Mapping[str, torch.Tensor]) -> NDArray[np.int64]:
        """Codes [n, codebooks] of a prompt: the labels that the model's code makes of them."""
        device, dtype = self._model.device, self._model.dtype
        tokens = torch.from_numpy(ids.astype(np.int64)).to(device)[None]
        values, cutoffs = (tensors[name].to(device) for name in RECORDED)
        try:
            found = self._model._merge_input_ids_with_input_values(
                tokens, values.to(dtype), cutoffs, labels=torch.full_like(tokens, -100)
            )
        except Exception as error:
            why = f"the model fails on {sorted(tensors)}: {first_line(error)}"
            raise UnsupportedModel("inputs", why) from error
        codes: NDArray[np.int64] = found["labels"][0].cpu().numpy()
        return codes


def _check_codes(codes: torch.Tensor, count: int, config: Any) -> None:
    """Refuse what are no codes of ``count`` frames.

    Raises:
        IdentityError: they are not.
    """
    name, shape = f"inputs[{CODES!r}]", (count, config.num_codebooks)
    if codes.dtype.is_floating_point or codes.dtype == torch.bool:
        raise IdentityError(name, str(codes.dtype), "codes are integers")
    if tuple(codes.shape) != shape:
        right = f"they must be of shape {shape}: a frame per token {config.audio_token_id}"
        raise IdentityError(name, tuple(codes.shape), right)
    low, high = int(codes.min()), int(codes.max())
    if low < 0 or high >= config.vocab_size:
        wrong = low if low < 0 else high
        raise IdentityError(name, wrong, f"the codes of this model are 0..{config.vocab_size - 1}")
