"""Tokens by the C kernels beside torch's: the same, whatever is asked for; no logit is changed."""

import random

import numpy as np
import pytest
import torch

from octavo.attention.kernels.build import Kernel
from octavo.engine import SamplingParams
from octavo.engine.sampling import Choice, Sampler, choices, draws, kernels, logprobs, sample_rows

SIZES = (1, 5, 61, 300, 5003, 49152)
ASKED = {  # of what a row may ask for, and how often it does
    "top_k": (0.3, (1, 3, 50, 64, 65, 512, 600)),
    "top_p": (0.4, (0.0, 0.5, 0.9, 0.95, 0.999, 1.0)),
    "min_p": (0.3, (0.0, 0.01, 0.5, 1.0)),
    "top_n_sigma": (0.1, (1.0,)),
    "typical_p": (0.1, (0.7,)),
    "repetition_penalty": (0.3, (1.2, 0.7, 1e6, 1e-6)),
    "presence_penalty": (0.2, (0.5, -2.0)),
    "frequency_penalty": (0.2, (0.3, -2.0)),
    "logprobs": (0.3, (0, 1)),
}


class Asked:
    """A row that wants a token."""

    def __init__(self, prompt=(), output=(), **params):
        self.sampler = Sampler(SamplingParams(**params))
        self.prompt_token_ids, self.output = np.array(prompt, np.int32), list(output)


def asked_at_random(rng, size):
    """A row of any parameters, with tokens before it."""

    def tokens(most):
        return [rng.randrange(size) for _ in range(rng.randrange(most + 1))]

    params = {"temperature": rng.choice([0.0, 0.3, 0.8, 2.0, 1e-40]), "seed": rng.getrandbits(63)}
    params |= {name: rng.choice(values) for name, (p, values) in ASKED.items() if rng.random() < p}
    if rng.random() < 0.3:
        values = (5.0, -float("inf"), 1e38, -1e38)
        params["logit_bias"] = {token: rng.choice(values) for token in tokens(20)}
    if rng.random() < 0.3:
        params["bad_words_ids"] = [[rng.randrange(size)] for _ in range(3)]
    return Asked(tokens(50), tokens(60), **params)


def scores_at_random(rng, size):
    """Six rows: some with many equal scores, some with barred ones, some that are no numbers."""
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    scores = torch.randn(6, size, generator=generator) * rng.choice([0.1, 1.0, 3.0, 8.0])
    if rng.random() < 0.5:
        scores = scores.bfloat16().float()
    if rng.random() < 0.3:
        scores[torch.rand(6, size, generator=generator) < 0.5] = -float("inf")
    if rng.random() < 0.2:
        scores[rng.randrange(6), rng.randrange(size)] = rng.choice([float("nan"), float("inf")])
    return scores


def alike(one, other):
    """Whether two rows have the same token and log probabilities, or failed alike."""
    if not isinstance(one, Choice):
        return (type(one), str(one)) == (type(other), str(other))
    if one.token != other.token or one.logprobs is None:
        return one == other
    mine, theirs = ([each.logprob, *each.top.values()] for each in (one.logprobs, other.logprobs))
    same = [*one.logprobs.top] == [*other.logprobs.top]
    return same and np.allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_the_kernels_choose_what_torch_does(size, monkeypatch):
    """Tokens, log probabilities and errors, of rows at random; the logits are as they were."""
    rng = random.Random(size)
    for _ in range(12 if size < 10_000 else 3):
        scores, rows = scores_at_random(rng, size), [asked_at_random(rng, size) for _ in range(6)]
        before = scores.clone()
        found = sample_rows(scores, rows)
        assert torch.equal(before.view(torch.int32), scores.view(torch.int32))
        with monkeypatch.context() as without:
            for module in (choices, logprobs):
                without.setattr(module, "kernel", lambda name: None)
            expected = sample_rows(scores, rows)
        for one, other in zip(found, expected, strict=True):
            assert alike(one, other), (one, other)


def test_numbers_of_a_seed_in_the_kernels():
    """Two tokens race by the numbers of SplitMix64, as `draws` has them."""
    rows = [Asked((), [0] * at, temperature=1.0, seed=2**63 - 1 - at) for at in range(400)]
    scores = torch.zeros(400, 2)
    keys = draws.keys_of([row.sampler.seed for row in rows], range(400), scores.device)
    times = -draws._numbers(keys, torch.tensor([[0, 1]])).log()

    assert times.argmin(-1).tolist() == [each.token for each in sample_rows(scores, rows)]


@pytest.mark.parametrize("params", [{}, {"top_p": 1.0}, {"top_k": 1000}, {"top_n_sigma": 9.0}])
def test_every_token_comes_as_often_as_it_should(params):
    """Chi-square of 8,000 draws over ten kinds of 100 tokens, most of which run as one.

    Below what chance exceeds once in 1,000 times.
    """
    chances = torch.arange(1.0, 11.0).repeat(100) / 5500
    rows = [Asked((), [0] * at, temperature=0.5, seed=6, **params) for at in range(8000)]
    found = sample_rows((chances.log() / 2).expand(8000, -1), rows)
    drawn = torch.tensor([each.token % 10 for each in found]).bincount(minlength=10)
    expected = torch.arange(1.0, 11.0) / 55 * 8000

    assert float(((drawn - expected) ** 2 / expected).sum()) < 27.9


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_logits_of_other_types_are_read_as_float32(dtype):
    """And a row that lies scattered, or stands for several."""
    scores = torch.randn(3, 500, generator=torch.Generator().manual_seed(1)).to(dtype)
    rows = [Asked([1], [2], temperature=at, seed=1, presence_penalty=1.0) for at in (0.0, 1.0, 2.0)]
    expected = sample_rows(scores.float(), rows)

    assert expected == sample_rows(scores, rows)
    assert expected == sample_rows(scores.T.contiguous().T, rows)
    assert sample_rows(scores[:1].repeat(3, 1), rows) == sample_rows(scores[:1].expand(3, -1), rows)


def test_a_processor_may_write_into_its_scores():
    """They are its own: the logits stay, and so do its scores when the row is done."""
    kept = []

    def zeros(ids, scores):
        kept.append(scores.fill_(0.0))
        return scores

    scores = torch.randn(1, 50)
    before = scores.clone()
    (choice,) = sample_rows(scores, [Asked(logits_processors=[zeros], logit_bias={3: 1.0})])

    assert Choice(0) == choice
    assert torch.equal(before, scores)
    assert not kept[0].any()


def test_where_nothing_is_compiled_there_are_no_kernels(monkeypatch, tmp_path):
    """Torch computes then."""
    lacking = tmp_path / "lacking.c"
    monkeypatch.setattr(kernels, "Kernel", lambda name, _, *rest: Kernel(name, lacking, *rest))
    kernels.kernel.cache_clear()
    try:
        assert kernels.kernel("octavo_likeliest") is None
        assert [Choice(1)] == sample_rows(torch.tensor([[0.0, 1.0]]), [Asked()])
    finally:
        kernels.kernel.cache_clear()
