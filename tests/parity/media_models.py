"""Tiny random models that see or hear, and prompts as their processors would give them."""

import copy
import re
from functools import partial

import torch
import transformers
from matrix import Case
from media_shapes import END, FAMILIES, HEARING, IMAGE, MARKS, START, VIDEO

NEW = 5
CLASSES = {"MiniMaxM3VL": "MiniMaxM3SparseForConditionalGeneration"}
PLAIN = ("Exaone4_5_", "MiniMaxM3VL", "VideoLlama3")
"""Those that count patches of pictures as they count text."""
WHOLE = ("Gemma3", "Gemma4", "PaliGemma")
"""Those whose pictures, or prompts, are seen as a whole."""


def model_of(family):
    """A tiny random model whose greedy tokens vary."""
    fields, _ = copy.deepcopy(FAMILIES[family])
    if family not in HEARING:
        fields = {"image_token_id": IMAGE, "video_token_id": VIDEO} | fields
    config = getattr(transformers, f"{family}Config")(**fields)
    torch.manual_seed(5)
    name = CLASSES.get(family, f"{family}ForConditionalGeneration")
    model = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 and not parameter.any():  # else a picture is zeros
                parameter.normal_()
            elif parameter.ndim > 1:
                parameter.mul_(3)
            if family in WHOLE and re.search(r"language_model.*[vo]_proj", name):
                parameter.mul_(4)  # else what is seen changes no token
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    return model


def picture(family, before, after, seed=1):
    """What a processor gives for one picture, or recording, between two texts."""
    random = torch.Generator().manual_seed(seed)
    found = FAMILIES[family][1]
    more, shape, count = found(None) if callable(found) else found
    texts = [torch.randint(3, 80, (1, n), generator=random) for n in (before, after)]
    places = torch.full((1, count), IMAGE)
    marks = [torch.tensor([[mark]]) for mark in MARKS.get(family, (START, END))]
    ids = torch.cat([texts[0], marks[0], places, marks[1], texts[1]], dim=1)
    found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if "image_grid_thw" in more and family not in PLAIN:
        found["mm_token_type_ids"] = (ids == IMAGE).long()
    if family == "Gemma4":
        found["mm_token_type_ids"] = (ids == IMAGE).long()
    if family == "Gemma3":
        found["token_type_ids"] = (ids == IMAGE).long()
    if family == "PaliGemma":
        found["token_type_ids"] = torch.zeros_like(ids)  # all of a prompt is seen as a whole
    name = "input_features" if family in HEARING else "pixel_values"
    return found | {name: torch.randn(shape, generator=random)} | more


def case_of(family):
    """Prompts with a picture or a recording, one twice as long, and one of text alone."""
    model = model_of(family)
    asked = [picture(family, *size) for size in ((5, 4, 1), (9, 9, 7))]
    seen = [(prompt["input_ids"][0].tolist(), prompt) for prompt in asked]
    if family != "PaliGemma":  # whose processor wants a picture
        seen.append((list(range(3, 14)), None))
    return Case(model, seen, partial(reference, model))


def reference(model, ids, inputs):
    """What transformers answers."""
    ids = torch.tensor([ids])
    given = inputs or {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    found = model.generate(**given, max_new_tokens=NEW, do_sample=False)
    return found[0, ids.shape[1] :].tolist()


def scored(model, prompt):
    """What transformers answers: tokens, and how probable they were."""
    found = model.generate(
        **prompt,
        max_new_tokens=NEW,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    tokens = found.sequences[0, prompt["input_ids"].shape[1] :]
    logits = torch.cat(found.logits).log_softmax(-1)
    return tokens.tolist(), logits.gather(1, tokens[:, None])[:, 0]


def agree(expected, requests):
    """Whether requests have the tokens of generate(), as probable as there."""
    return all(
        tokens == request.output
        and torch.allclose(
            logprobs, torch.tensor([each.logprob for each in request.logprobs]), atol=2e-5
        )
        for (tokens, logprobs), request in zip(expected, requests, strict=True)
    )
