"""Sampling: what a request may ask for and which tokens that gives."""

import pytest
import torch

import octavo
from octavo import SamplingError
from octavo.engine import SamplingParams
from octavo.engine.request import StopTexts
from octavo.engine.sampling import Sampler, sample_rows

LOGITS = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))


def draw(count=400, **params):
    """The set of tokens that come in many draws."""
    sampler = Sampler(SamplingParams(seed=3, **params))
    return {sampler.sample(LOGITS) for _ in range(count)}


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-40, 1e-38, 1e-30, 1e-4])
@pytest.mark.parametrize("narrowed", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_the_smallest_temperatures_take_the_likeliest(temperature, narrowed):
    """However small the temperature and large the logits, no number overflows."""
    sampler = Sampler(SamplingParams(temperature=temperature, seed=3, **narrowed))

    assert {0} == {sampler.sample(LOGITS * 1e4 + 3e4) for _ in range(20)}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_refuses_logits_that_are_no_numbers(wrong, temperature):
    """NaN or infinite logits are an error of their own row alone; -inf only bars a token."""
    spoiled, barred = LOGITS.clone(), LOGITS.clone()
    spoiled[2], barred[0] = wrong, float("-inf")
    params = SamplingParams(temperature=temperature, top_k=1)
    rows = torch.stack([spoiled, barred, torch.full((4,), float("-inf"))])
    first, second, third = sample_rows(rows, [Sampler(params) for _ in range(3)])

    assert 1 == second
    for error in (first, third):
        assert isinstance(error, octavo.UnsupportedModel)
        assert "logits" == error.what


def test_greedy_takes_the_likeliest():
    """Temperature 0, the default, needs no chance."""
    assert {0} == draw(3)


def test_temperature_alone_reaches_every_token():
    """With a temperature every token comes."""
    assert {0, 1, 2, 3} == draw(temperature=1.0)


def test_top_k_keeps_the_k_likeliest():
    """Only the k likeliest tokens come."""
    assert {0, 1} == draw(temperature=2.0, top_k=2)


def test_top_p_keeps_the_nucleus():
    """Only the likeliest tokens that together reach the probability come."""
    assert {0, 1} == draw(temperature=1.0, top_p=0.6)


def test_frequencies_follow_the_probabilities():
    """Draws at temperature 1 come as often as the model says."""
    sampler = Sampler(SamplingParams(temperature=1.0, seed=1))
    tokens = [sampler.sample(LOGITS) for _ in range(4000)]

    assert [pytest.approx(p, abs=0.03) for p in (0.4, 0.3, 0.2, 0.1)] == [
        tokens.count(token) / 4000 for token in range(4)
    ]


def test_seed_decides_alone_and_beside_others():
    """Requests with the same seed draw the same tokens, whoever shares their step."""
    params = SamplingParams(temperature=1.0, seed=9)
    alone, beside, other = Sampler(params), Sampler(params), Sampler(SamplingParams())
    expected = [alone.sample(LOGITS) for _ in range(20)]
    rows = [sample_rows(torch.stack([LOGITS, LOGITS]), [other, beside]) for _ in range(20)]

    assert expected == [tokens[1] for tokens in rows]
    assert {0} == {tokens[0] for tokens in rows}


def test_without_seed_requests_differ():
    """Requests without a seed do not draw the same tokens."""
    first, second = (Sampler(SamplingParams(temperature=1.0)) for _ in range(2))

    assert [first.sample(LOGITS) for _ in range(60)] != [second.sample(LOGITS) for _ in range(60)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", "warm"),
        ("top_p", 1.1),
        ("top_p", True),
        ("top_k", 0),
        ("seed", -1),
        ("stop", [""]),
        ("stop", [3]),
        ("stop", 3),
        ("stop", None),
    ],
)
def test_refuses_values_out_of_range(field, value):
    """A value out of range is refused, naming the field."""
    with pytest.raises(octavo.OctavoError, match=f"{field} is"):
        SamplingParams(**{field: value})


def test_refuses_stop_tokens_that_are_none():
    """Stop tokens are token ids."""
    with pytest.raises(octavo.TokenError):
        SamplingParams(stop_token_ids=[-1])


def test_error_tells_field_and_value():
    """The error carries what was wrong for programs to read."""
    with pytest.raises(SamplingError) as caught:
        SamplingParams(top_p=2)

    assert ("top_p", 2) == (caught.value.field, caught.value.value)


class Letters:
    """A tokenizer of one letter a token."""

    def decode(self, tokens, **_):
        """The letters of ``tokens``."""
        return "".join(map(chr, tokens))


@pytest.mark.parametrize(
    ("text", "expected"),
    [("and so END", "END"), ("and so EN", None), ("x" * 100 + "###", "###"), ("", None)],
)
def test_stop_texts_at_the_end(text, expected):
    """A stop text is found with the token that completes it."""
    stops = StopTexts(("END", "###"), Letters())

    assert expected == stops.found([ord(letter) for letter in text])
