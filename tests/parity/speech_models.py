"""A tiny random CSM, prompts of text and of recordings, and what its generate() answers."""

from functools import partial

import torch
import transformers
from drop_in_models import SPEECH as SHORT
from matrix import Case

SPEECH = SHORT | {"max_position_embeddings": 256}
AUDIO, END = SPEECH["audio_token_id"], SPEECH["audio_eos_token_id"]
HOP = 8
"""Samples of a recording per frame."""


def model_of(dtype=torch.float64):
    """A random model whose frames vary, those of its codec too."""
    torch.manual_seed(4)
    model = transformers.CsmForConditionalGeneration(transformers.CsmConfig(**SPEECH))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if parameter.ndim > 1 else 0.1))
        for name, buffer in model.codec_model.named_buffers():
            if name.endswith("embed_sum"):  # what codes stand for
                buffer.normal_()
    return model.to(dtype).eval()


def spoken(seed, text, frames):
    """A prompt of text and recordings of so many frames: ids, and a processor's tensors."""
    generator = torch.Generator().manual_seed(seed)
    ids, values = list(text), []
    for count in frames:
        ids += [AUDIO] * count + [END] + torch.randint(3, 90, (3,), generator=generator).tolist()
        values.append(torch.randn(1, 1, HOP * count, generator=generator))
    ends = torch.tensor([[HOP * count for count in frames]]).cumsum(1)
    tensors = {"input_values": torch.cat(values, 2), "input_values_cutoffs": ends}
    return ids, tensors


def codes_of(request):
    """The frames of an answer, as tuples of codes."""
    return [frame.codes for frame in request.frames]


def case():
    """The model, and prompts of text and of recordings, of which some begin alike."""
    model = model_of()
    text = torch.randint(3, 90, (30,), generator=torch.Generator().manual_seed(5)).tolist()
    asked = [(text[:5], None), (text[:20], None), spoken(1, text[:7], [6, 3])]
    asked += [spoken(1, text[:7], [6, 4]), spoken(2, text[:7], [6, 3])]
    return Case(model, asked, partial(reference, model, 5), answer=codes_of)


def reference(model, frames, ids, inputs=None):
    """Frames of transformers' own generate()."""
    tokens = torch.tensor([ids])
    given = dict(inputs or {})
    if given:
        given["input_values"] = given["input_values"].to(model.dtype)
    found = model.generate(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        max_new_tokens=frames,
        do_sample=False,
        depth_decoder_do_sample=False,
        **given,
    )
    return [tuple(frame) for frame in found[0].tolist()]
