"""Tiny models of transformers with random weights, exported and run over pages in steps."""

import numpy as np
import torch
import transformers

import octavo
from octavo.integrations.onnx import Decoder, PagedSession, export_decoder

SIZES = {
    "vocab_size": 60,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "max_position_embeddings": 96,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
STEPS = (  # which rows take part, and how many tokens each runs
    ([0], [33]),  # a prompt's first chunk
    ([0, 1], [17, 9]),  # the rest of it, beside another's first
    ([1, 0], [21, 1]),  # mixed: prefill beside decode
    ([0, 1], [1, 1]),
    ([0, 1], [1, 1]),
)


def build(family, **changes):
    """A causal LM of a family, its weights wide enough that a slip shows, in eager attention."""
    config = getattr(transformers, f"{family}Config")(**SIZES | changes)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    name = {"Gemma3Text": "Gemma3"}.get(family, family)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
            else:
                parameter.normal_(0, 1.5 * parameter.shape[-1] ** -0.5)
    return model


def weights_of(model):
    """A state dict in NumPy."""
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def prompts(vocab=60):
    """Two rows of token ids, int64[2, 54]."""
    return np.random.default_rng(0).integers(0, vocab, (2, 54))


def wanted_logits(model, tokens):
    """What transformers computes of both rows at once, [2, 54, vocab]."""
    with torch.no_grad():
        return model(torch.from_numpy(tokens)).logits.numpy()


def paged_logits(
    decoder, weights, tokens, operators="standard", runtime="onnxruntime", dtype="fp32"
):
    """What the exported graph computes of both rows over pages, in `STEPS`: [n, vocab] each."""
    plan = octavo.plan(decoder.spec, "512KiB", dtype=dtype, layout="component")
    graph = export_decoder(decoder, weights, dtype=dtype, operators=operators)
    session, cache = PagedSession(graph, plan, runtime=runtime), octavo.Cache(plan)
    for pages in session.caches.values():
        pages[1:] = np.nan  # what no sequence owns may hold anything
    rows = [cache.admit(tokens[0, :51].tolist()), cache.admit(tokens[1, :30].tolist())]
    found = [[], []]
    for who, counts in STEPS:
        step = cache.extend([rows[number] for number in who], counts)
        logits = session.run(step)
        for at, number in enumerate(who):
            found[number].append(logits[slice(*step.query_start[at : at + 2])])
        after = [int(step.context[at]) for at in range(len(who))]
        cache.commit(step, [int(tokens[n, upto]) for n, upto in zip(who, after, strict=True)])
    return [np.concatenate(parts) for parts in found]


def difference(model, decoder=None, **options):
    """Largest difference of logits from transformers', relative to the largest logit."""
    decoder = Decoder.from_config(model) if decoder is None else decoder
    tokens = prompts(decoder.vocab)
    found = paged_logits(decoder, weights_of(model), tokens, **options)
    wanted = wanted_logits(model, tokens)
    off = [np.abs(one - all_[: len(one)]).max() for one, all_ in zip(found, wanted, strict=True)]
    return max(off) / np.abs(wanted).max()
