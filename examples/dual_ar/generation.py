"""generate -> decode_n -> decode_one -> forward, for a batch of utterances in one voice.

Decoding is greedy, so that runs can be compared.
"""

from collections.abc import Sequence

import torch
from dual_ar import CODEBOOKS, END, FAST, SLOW, TEXT, DualAR
from torch import Tensor


class Session:
    """A model with its caches: what stays between requests is the voice.

    Args:
        model: the weights.
        batch: utterances spoken at once.
        capacity: frames an utterance may take, voice and text included.
        bucket: 1 for eager models, 256 for compiled ones.
    """

    def __init__(self, model: DualAR, *, batch: int, capacity: int, bucket: int = 1) -> None:
        self.model = model
        self.slow = SLOW.cache(capacity, batch=batch, bucket=bucket)
        self.fast = FAST.cache(CODEBOOKS, batch=batch, bucket=min(bucket, CODEBOOKS))
        self.voice = 0

    @torch.inference_mode()
    def hear(self, frames: Tensor) -> None:
        """Take the reference voice [frames, 1 + CODEBOOKS]: computed once, copied to all rows."""
        alone = SLOW.cache(self.slow.capacity)
        alone.require(len(frames))
        self.model.slow(self.model.embed(frames[None]), alone.begin(len(frames)))
        self.slow.reset()
        self.slow.copy_prefix(alone)
        self.voice = len(frames)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Tensor], most: int) -> list[Tensor]:
        """At most ``most`` frames after each prompt [frames, 1 + CODEBOOKS], END left out.

        Raises:
            CapacityError: voice, longest prompt and ``most`` exceed the capacity; nothing is run.
        """
        self.slow.truncate(self.voice)
        counts = [len(prompt) for prompt in prompts]
        self.slow.require(max(counts) + most)
        padded = torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
        frame = self.decode_one(padded, counts)
        frames = torch.stack([frame, *self.decode_n(frame, most - 1)], 1)
        return [_until_end(row) for row in frames]

    def decode_n(self, frame: Tensor, most: int) -> list[Tensor]:
        """Up to ``most`` frames after ``frame``; rows that have ended sit out."""
        frames = []
        for _ in range(most):
            counts = (frame[:, 0] != END).int().tolist()
            if not any(counts):
                break
            frame = self.decode_one(frame[:, None], counts)
            frames.append(frame)
        return frames

    def decode_one(self, frames: Tensor, counts: list[int]) -> Tensor:
        """The frame [batch, 1 + CODEBOOKS] after ``counts`` of ``frames``; END where that is 0."""
        hidden = self.model.slow(self.model.embed(frames), self.slow.begin(counts))
        rows = torch.arange(len(counts), device=frames.device)
        taken = torch.tensor(counts, device=frames.device)
        hidden = hidden[rows, (taken - 1).clamp(min=0)]
        token = self.model.next_token(hidden).argmax(-1)
        token = torch.where(taken > 0, token, END)
        return torch.cat([token[:, None], self.decode_codes(hidden, token)], 1)

    def decode_codes(self, hidden: Tensor, token: Tensor) -> Tensor:
        """The codes [batch, CODEBOOKS] of one frame: a sequence of its own, from nothing."""
        self.fast.reset()
        self.model.fast(self.model.into_fast(hidden)[:, None], self.fast.begin())
        codes = [(token - TEXT).clamp(0, END - TEXT - 1)]
        for _ in range(1, CODEBOOKS):
            x = self.model.fast_codes(codes[-1])[:, None]
            hidden = self.model.fast(x, self.fast.begin())
            codes.append(self.model.next_code(hidden[:, 0]).argmax(-1))
        return torch.stack(codes, 1)


def _until_end(frames: Tensor) -> Tensor:
    """What comes before END."""
    (ends,) = (frames[:, 0] == END).nonzero(as_tuple=True)
    return frames[: int(ends[0])] if len(ends) else frames
