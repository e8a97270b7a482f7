"""A CSM in the engine, against its own generate(): conversations over one context, in frames.

Claim: the frames are those of generate(); conversations together take less than one by one, and
than generate() of all of them in one batch where they share their context.

Method: a random CSM of a quarter of the published one's width (backbone 4 layers of 512, decoder in
depth 4 layers of 256, 32 codebooks), in fp32, one thread, seconds of CPU time, as the machine is
shared, contenders in turn, the best of the rounds. Each conversation is a context, which is a
recording given as codes, and a text of its own; generate() is given the same as embeddings.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from machine import machine_line

import octavo
from octavo.engine import Engine, SamplingParams

BOOKS, CODES, TEXT, AUDIO, END = 32, 2051, 4096, 4000, 4001
CONTEXT, OWN, NEW = 240, 16, 8
SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_codebooks": BOOKS,
    "vocab_size": CODES,
}
DEPTH = {
    "hidden_size": 256,
    "backbone_hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
}
IDS = {"text_vocab_size": TEXT, "audio_token_id": AUDIO, "audio_eos_token_id": END}


def model_of() -> Any:
    """A random model, whose frames vary."""
    torch.manual_seed(1)
    depth = SHAPE | DEPTH | {"max_position_embeddings": BOOKS + 1}
    other = {"pad_token_id": AUDIO, "bos_token_id": 1, "initializer_range": 0.1}
    config = transformers.CsmConfig(**SHAPE, **IDS, **other, depth_decoder_config=depth)
    return transformers.CsmForConditionalGeneration(config).eval()


def conversations(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [rows, CONTEXT + 1 + OWN], and the codes [CONTEXT, BOOKS] of their context."""
    drawn = torch.Generator().manual_seed(seed)
    codes = torch.randint(1, CODES - 3, (CONTEXT, BOOKS), generator=drawn)
    own = torch.randint(10, AUDIO, (rows, OWN), generator=drawn)
    context = torch.tensor([AUDIO] * CONTEXT + [END]).expand(rows, -1)
    return torch.cat([context, own], 1), codes


@torch.inference_mode()
def by_generate(model: Any, ids: torch.Tensor, codes: torch.Tensor) -> list[list[list[int]]]:
    """The frames of generate(), of all rows in one batch."""
    embeds = model.embed_text_tokens(ids)
    end = torch.full((1, BOOKS), model.config.codebook_eos_token_id)
    embeds[:, : CONTEXT + 1] = model.backbone_model.embed_tokens(torch.cat([codes, end])[None])
    found = model.generate(
        inputs_embeds=embeds,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=NEW,
        do_sample=False,
        depth_decoder_do_sample=False,
    )
    frames: list[list[list[int]]] = found.tolist()
    return frames


def by_engine(model: Any, ids: torch.Tensor, codes: torch.Tensor) -> list[list[list[int]]]:
    """The frames of an engine without anything computed before."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    plan = octavo.plan(spec, "64MiB", dtype="fp32", order="head")
    with Engine(model, plan) as engine:
        answers = engine.generate(
            ids.tolist(), SamplingParams(max_tokens=NEW), inputs={"audio_codes": codes}
        )
    return [[list(frame.codes) for frame in answer.frames] for answer in answers]


def one_by_one(run: Callable[..., Any]) -> Callable[..., list[Any]]:
    """Each row by itself."""
    return lambda model, ids, codes: [run(model, row[None], codes)[0] for row in ids]


CONTENDERS = {
    "generate(), one by one": one_by_one(by_generate),
    "generate(), one batch": by_generate,
    "engine, one by one": one_by_one(by_engine),
    "engine, together": by_engine,
}


def main() -> int:
    """Print the table; 1 where the claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(machine_line("torch", "transformers"))
    print(
        f"random CSM of {BOOKS} codebooks in fp32, 1 thread, CPU time, context {CONTEXT} frames, "
        f"{OWN} tokens of text, {NEW} new frames, best of {options.rounds} rounds in turn"
    )
    print("rows  contender                     s   ms/frame")
    model, holds = model_of(), True
    for rows in (1, 4):
        times: dict[str, list[float]] = {name: [] for name in CONTENDERS}
        for number in range(options.rounds + 1):
            ids, codes = conversations(rows, number)
            found = []
            for name, run in CONTENDERS.items():
                start = time.process_time()
                found.append(run(model, ids, codes))
                times[name].append(time.process_time() - start)
            holds &= all(each == found[0] for each in found)
        best = {name: min(each[1:]) for name, each in times.items()}  # the first warms up
        for name, seconds in best.items():
            print(f"{rows:4}  {name:24}{seconds:7.2f}{1000 * seconds / rows / NEW:11.1f}")
        others = [seconds for name, seconds in best.items() if name != "engine, together"]
        holds &= rows == 1 or best["engine, together"] < min(others)
    print("frames equal, and together is fastest:", "yes" if holds else "no")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
