"""Sampling: what a request may ask for and which tokens that gives."""

from itertools import product

import numpy as np
import pytest
import torch
import transformers

import octavo
from octavo import SamplingError
from octavo.engine import SamplingParams
from octavo.engine.sampling import Choice, Sampler, choices, draws, logprobs, sample_rows
from octavo.engine.sampling.choices import process
from octavo.engine.sampling.narrowing import narrow
from octavo.engine.sampling.params import check_vocabulary
from octavo.engine.sampling.shortlist import LENGTHS, largest, list_length, shortlist

LOGITS = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.1]))


@pytest.fixture(params=["kernels", "torch"], autouse=True)
def chooser(request, monkeypatch):
    """Every test runs twice: by the C kernels, and as where there are none."""
    if request.param == "torch":
        without_kernels(monkeypatch)


def without_kernels(monkeypatch):
    """From now on torch chooses."""
    for module in (choices, logprobs):
        monkeypatch.setattr(module, "kernel", lambda name: None)


class Asked:
    """A row that wants a token."""

    def __init__(self, prompt=(), output=(), **params):
        self.sampler = Sampler(SamplingParams(**params))
        self.prompt_token_ids, self.output = np.array(prompt, np.int32), list(output)

    def sample(self, logits):
        """Its token, alone."""
        (found,) = sample_rows(logits[None], [self])
        if not isinstance(found, Choice):
            raise found
        self.output.append(found.token)
        return found.token


def draw(count=400, **params):
    """The set of tokens that come in many draws."""
    row = Asked(seed=3, **params)
    return {row.sample(LOGITS) for _ in range(count)}


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-40, 1e-38, 1e-30, 1e-4])
@pytest.mark.parametrize("narrowed", [{}, {"top_k": 3}, {"top_p": 0.9}])
def test_the_smallest_temperatures_take_the_likeliest(temperature, narrowed):
    """However small the temperature and large the logits, no number overflows."""
    row = Asked(temperature=temperature, seed=3, **narrowed)

    assert {0} == {row.sample(LOGITS * 1e4 + 3e4) for _ in range(20)}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_refuses_logits_that_are_no_numbers(wrong, temperature):
    """NaN or infinite logits are an error of their own row alone; -inf only bars a token."""
    spoiled, barred = LOGITS.clone(), LOGITS.clone()
    spoiled[2], barred[0] = wrong, float("-inf")
    rows = torch.stack([spoiled, barred, torch.full((4,), float("-inf"))])
    asked = [Asked(temperature=temperature, top_k=1) for _ in range(3)]
    first, second, third = sample_rows(rows, asked)

    assert Choice(1) == second
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
    row = Asked(temperature=1.0, seed=1)
    tokens = [row.sample(LOGITS) for _ in range(4000)]

    assert [pytest.approx(p, abs=0.03) for p in (0.4, 0.3, 0.2, 0.1)] == [
        tokens.count(token) / 4000 for token in range(4)
    ]


def test_seed_decides_alone_and_beside_others():
    """Requests with the same seed draw the same tokens, whoever shares their step."""
    alone, beside, other = (Asked(temperature=t, seed=9) for t in (1.0, 1.0, 0.0))
    expected = [alone.sample(LOGITS) for _ in range(20)]
    for _ in range(20):
        likeliest, choice = sample_rows(torch.stack([LOGITS, LOGITS]), [other, beside])
        beside.output.append(choice.token)
        assert 0 == likeliest.token

    assert expected == beside.output


def test_without_seed_requests_differ():
    """Requests without a seed do not draw the same tokens."""
    first, second = (Asked(temperature=1.0) for _ in range(2))

    assert [first.sample(LOGITS) for _ in range(60)] != [second.sample(LOGITS) for _ in range(60)]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", -1),
        ("max_tokens", 1.5),
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("temperature", 10**400),
        ("temperature", "warm"),
        ("top_p", 1.1),
        ("top_p", True),
        ("top_k", 0),
        ("seed", -1),
        ("stop", [""]),
        ("stop", [3]),
        ("stop", 3),
        ("stop", None),
        ("min_tokens", 257),
        ("min_p", 1.5),
        ("typical_p", 0),
        ("top_n_sigma", 0),
        ("top_n_sigma", float("inf")),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-300),
        ("n", 1025),
        ("presence_penalty", 2.1),
        ("frequency_penalty", "high"),
        ("logit_bias", [5]),
        ("logit_bias", {5: "up"}),
        ("logit_bias", {5: float("inf")}),
        ("logit_bias", {5: float("nan")}),
        ("logit_bias", {5: 10**400}),
        ("bad_words_ids", [5]),
        ("bad_words_ids", [[]]),
        ("bad_words_ids", "words"),
        ("logits_processors", [5]),
        ("regex", "\ud83d"),
        ("logprobs", -1),
    ],
)
def test_refuses_values_out_of_range(field, value):
    """A value out of range is refused, naming the field."""
    with pytest.raises(octavo.OctavoError, match=f"{field} is"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"stop_token_ids": [3, -1]}, "token 1 is -1; it must be a token id, an int of 0 or more"),
        ({"stop_token_ids": 2}, "stop_token_ids is 2; it must be a list.*ints of 0 or more"),
        ({"stop_token_ids": [2**31]}, r"token 0 is 2147483648; .* \(stop_token_ids\)"),
        ({"logit_bias": {-7: 1.0}}, "token 0 is -7; it must be a token id.*logit_bias"),
    ],
)
def test_refuses_tokens_that_are_none(params, said):
    """Stop tokens and biased ones are token ids; how many there are says the model alone."""
    with pytest.raises(octavo.TokenError, match=said):
        SamplingParams(**params)


def test_error_tells_field_and_value():
    """The error carries what was wrong for programs to read."""
    with pytest.raises(SamplingError) as caught:
        SamplingParams(top_p=2)

    assert ("top_p", 2) == (caught.value.field, caught.value.value)


def test_refuses_what_contradicts():
    """A minimum above the maximum, and a stop token that is banned."""
    with pytest.raises(octavo.LengthError, match="min_tokens is 9.*max_tokens is 8"):
        SamplingParams(max_tokens=8, min_tokens=9)
    with pytest.raises(SamplingError, match="bans token 7, which stop_token_ids"):
        SamplingParams(bad_words_ids=[[7], [1, 2]], stop_token_ids=[7])


@pytest.mark.parametrize(
    "params",
    [
        {"logit_bias": {61: 1}},
        {"bad_words_ids": [[3, 61]]},
        {"stop_token_ids": [61]},
        {"logprobs": 62},
    ],
)
def test_refuses_ids_beyond_the_vocabulary(params):
    """A model of 61 tokens: the field is named, and what would be right."""
    with pytest.raises((SamplingError, octavo.LengthError), match=next(iter(params))):
        check_vocabulary(SamplingParams(**params), 61)
    check_vocabulary(SamplingParams(logit_bias={60: 1}, bad_words_ids=[[60]], logprobs=61), 61)


def generated_by_transformers(logits, row, **options):
    """The scores that generate() would have computed for ``row``."""
    ids = torch.tensor([[*row.prompt_token_ids.tolist(), *row.output]])
    shape = {"vocab_size": logits.numel(), "hidden_size": 8, "num_hidden_layers": 1}
    shape |= {"num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 8}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape))
    config = transformers.GenerationConfig(do_sample=True, **{"top_k": 0} | options)
    model._prepare_special_tokens(config)
    processors = model._get_logits_processor(config, len(row.prompt_token_ids), ids)
    return processors(ids, logits[None].clone())[0]


NARROWED = [
    {"temperature": 0.7},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 0.7, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.2},
    {"temperature": 0.9, "typical_p": 0.7},
    {"temperature": 1.5, "top_k": 20, "top_p": 0.6, "min_p": 0.05, "typical_p": 0.9},
    {"temperature": 2.0, "top_p": 0.999},
    {"temperature": 1.0, "top_p": 0.0},
]
PROCESSED = [
    {"repetition_penalty": 1.3},
    {"bad_words_ids": [[3], [5, 6], [9, 9, 9, 9]]},
    {"min_tokens": 3, "stop_token_ids": [2, 11]},
    {"min_tokens": 2, "stop_token_ids": [2, 11]},
]


def processed(row, logits, **options):
    """Our scores of ``row`` beside transformers', both as log probabilities."""
    scores, failed = process(logits[None], [row])
    assert not failed
    if not row.sampler.params.greedy:
        scores = narrow(scores, [row.sampler.params])
    expected = generated_by_transformers(logits, row, **options)
    return scores[0].log_softmax(-1), expected.log_softmax(-1)


@pytest.mark.parametrize("params", NARROWED)
def test_narrows_as_generate_does(params):
    """The tokens kept and their probabilities are those of transformers, for many logits."""
    torch.manual_seed(4)
    for spread in (0.1, 1.0, 4.0):
        logits = torch.randn(300) * spread
        found, expected = processed(Asked([1], **params), logits, **params)
        assert torch.equal(found.isfinite(), expected.isfinite())
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("params", PROCESSED)
def test_processes_as_generate_does(params):
    """Scores after penalties, bans and a minimum are those of transformers."""
    torch.manual_seed(5)
    row = Asked([7, 3, 9, 9], [5, 9], **params)
    options = dict(params)
    if "stop_token_ids" in options:
        options["eos_token_id"] = options.pop("stop_token_ids")
        options["min_new_tokens"] = options.pop("min_tokens")
    found, expected = processed(row, torch.randn(40), **options)

    torch.testing.assert_close(found, expected)


def test_biases_penalties_and_narrowing_in_the_order_of_generate():
    """All together give what generate() gives, beside rows of other kinds and lengths."""
    torch.manual_seed(6)
    logits = torch.randn(4, 60)
    bias = {4: 2.5, 9: -float("inf")}
    params = {"repetition_penalty": 1.4, "bad_words_ids": [[7, 8]], "temperature": 0.8, "top_k": 9}
    rows = [
        Asked([7, 3], [5, 7], logit_bias=bias, **params),
        Asked([1]),
        Asked([1, 2, 3, 4, 5, 6], [9, 4, 4, 7], logit_bias=bias, **params),
        Asked([5], [5], logits_processors=[lambda ids, scores: scores + ids.sum()], min_tokens=1),
    ]
    scores, failed = process(logits, rows)
    assert not failed
    for at in (0, 2):
        found = narrow(scores[[at]], [rows[at].sampler.params])[0].log_softmax(-1)
        biased = [[[token], value] for token, value in bias.items()]
        expected = generated_by_transformers(logits[at], rows[at], sequence_bias=biased, **params)
        torch.testing.assert_close(found, expected.log_softmax(-1))

    assert torch.equal(logits[1], scores[1])
    assert torch.equal(logits[3] + 10, scores[3])


def test_presence_and_frequency_count_the_answer_alone():
    """Tokens of the answer lose the one once and the other each time; those of the prompt not."""
    rows = [
        Asked([1, 1, 2], [3, 3, 4], presence_penalty=0.5, frequency_penalty=0.25),
        Asked([1], [2], presence_penalty=0.5, frequency_penalty=0.25),
        Asked([1], [], presence_penalty=0.5, frequency_penalty=0.25),
    ]
    scores, _ = process(torch.zeros(3, 6), rows)

    assert [[0, 0, 0, -1, -0.75, 0], [0, 0, -0.75, 0, 0, 0], [0] * 6] == scores.tolist()


def test_tokens_without_a_score_are_passed_over():
    """Some models read more tokens than they write: no other row's score is changed."""
    scores = torch.zeros(3, 20)
    penalties = {"repetition_penalty": 2.0, "presence_penalty": 1.0, "frequency_penalty": 1.0}
    bans = {"logit_bias": {22: 9.0, 5: 3.0}, "bad_words_ids": [[30], [5]]}
    row = Asked([25, 3, 20], [39, 3, 20, 25, 3, 0], **bans, **penalties)
    rows = [Asked(logprobs=1), row, Asked(logprobs=1)]

    assert [0, 1, 0] == [each.token for each in sample_rows(scores, rows)]
    assert not scores.any()
    told = logprobs.logprobs_of(scores[:2], [25, 19], [0, 0])
    assert [-float("inf"), pytest.approx(-np.log(20))] == [each.logprob for each in told]


def test_top_n_sigma_keeps_what_is_near_the_largest():
    """Barred tokens count neither for the mean nor for the spread."""
    logits = torch.tensor([[0.0, 2, 4, 6, 8, -float("inf")]])  # the spread is the root of 8
    for sigma, kept in ((0.7, 1), (0.8, 2), (1.5, 3), (9, 5)):
        params = SamplingParams(temperature=0.5, top_n_sigma=sigma)
        assert kept == int(narrow(logits.clone(), [params]).isfinite().sum())


@pytest.mark.parametrize("size", [8, 1000])
@pytest.mark.parametrize("listed", [0, 2, 8])
def test_draws_follow_the_probabilities(size, listed):
    """Chi-square of 4,000 draws over 8 tokens, below what chance exceeds once in 1,000 times.

    Some of them run by themselves, and the others as one.
    """
    chances = torch.zeros(4000, size)
    chances[:, -8:] = torch.tensor([0.3, 0.2, 0.15, 0.1, 0.1, 0.1, 0.05, 0.0])
    keys = draws.keys_of([12] * 2000 + [13] * 2000, [*range(2000)] * 2, chances.device)
    ids = torch.arange(size - 8, size - 8 + listed).expand(4000, listed)
    rest = chances.scatter(1, ids, 0.0)
    found = torch.tensor(draws.race(ids, chances.gather(1, ids), rest.sum(-1), keys))
    behind = found < 0
    if listed < 8:
        found[behind] = draws.draw(rest[behind], keys[behind])
    drawn, expected = found.bincount(minlength=size), chances[0, -8:-1] * 4000

    assert (listed < 8) == bool(behind.any())
    assert 4000 == drawn[-8:-1].sum()
    assert float(((drawn[-8:-1] - expected) ** 2 / expected).sum()) < 22.5


def test_numbers_of_a_seed():
    """They are those of SplitMix64, whose first outputs for seed 0 are known, on every machine."""
    keys = torch.zeros(1, dtype=torch.int64)
    numbers = draws._numbers(keys, torch.tensor([[1, 2, 3]]))[0].tolist()
    known = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]

    assert [((each >> 12) + 0.5) / 2**52 for each in known] == numbers


def test_a_draw_never_falls_behind_the_last_token(monkeypatch):
    """However near to 1 the random number is, a token that has no chance never comes."""
    for number in (2**-53, 1 - 2**-53):
        monkeypatch.setattr(
            draws, "_numbers", lambda keys, ids, n=number: torch.full(ids.shape, n).double()
        )
        for chances in ([0.0, 0.1, 0.2, 0.0], [0.0, 0.0, 0.2, 0.0]):
            place = int(draws.draw(torch.tensor([chances]), torch.zeros(1)))
            assert chances[place] > 0


@pytest.mark.parametrize("params", [{}, {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_chances_that_are_alike_give_the_same_tokens(params):
    """With the same seed, mostly: so a draft model's guesses are accepted."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(300, 500, generator=generator) * 2
    near = logits + torch.randn(300, 500, generator=generator) * 0.1
    rows = [Asked([], [0] * at, temperature=1.0, seed=5, **params) for at in range(300)]
    one, other = sample_rows(logits, rows), sample_rows(near, rows)

    assert sum(a == b for a, b in zip(one, other, strict=True)) > 225


@pytest.mark.parametrize("size", [300, 5000, 5003])
@pytest.mark.parametrize("params", [*NARROWED, {"temperature": 1.0, "top_k": 17, "min_p": 0.5}])
def test_the_likeliest_alone_are_narrowed_as_all_are(params, size):
    """Where a short list says that it is whole, its chances are those of all tokens narrowed."""
    torch.manual_seed(8)
    asked = SamplingParams(**params)
    first = list_length(asked)
    for spread, length in product((0.1, 1.0, 4.0), LENGTHS if first else ()):
        logits = torch.randn(3, size) * spread
        ids, chances, whole = shortlist(logits, [asked] * 3, length)
        expected = narrow(logits, [asked] * 3).exp()
        for row in range(3):
            if whole[row]:
                assert 0 == expected[row].scatter(0, ids[row], 0.0).sum()
                listed = expected[row].gather(0, ids[row])
                torch.testing.assert_close(listed, chances[row], rtol=1e-5, atol=1e-6)
        assert all(whole) or length < 512 or spread < 4 or params.get("top_p") == 0.999


@pytest.mark.parametrize("size", [61, 5000, 5003])
@pytest.mark.parametrize("count", [1, 5, 40])
def test_the_largest_of_each_row(size, count):
    """They are those of topk, whatever the vocabulary's size and count."""
    scores = torch.randn(4, size, generator=torch.Generator().manual_seed(9))
    found, expected = largest(scores, count), scores.topk(count)

    assert torch.equal(expected.values, found.values)
    assert torch.equal(expected.indices, found.ids)


@pytest.mark.parametrize("count", [1, 5, 40])
def test_of_equal_scores_the_first_are_the_largest(count):
    """In a row of whole numbers, zeros of both signs and tokens that are barred."""
    scores = torch.randint(-2, 3, (4, 5003), generator=torch.Generator().manual_seed(9)).float()
    scores[1, ::2] = -0.0
    scores[2, 3:] = -float("inf")
    order = scores.sort(dim=-1, descending=True, stable=True)

    assert torch.equal(order.indices[:, :count], largest(scores, count).ids)


def test_rows_that_bar_every_token_fail_alone():
    """And one whose own processor raises or gives another shape; the row beside them does not."""

    def broken(ids, scores):
        raise RuntimeError("broken")

    rows = [
        Asked(logit_bias=dict.fromkeys(range(4), -float("inf"))),
        Asked(logits_processors=[broken]),
        Asked(logits_processors=[lambda ids, scores: scores[0]], temperature=1.0),
        Asked(logits_processors=[lambda ids, scores: scores.numpy()]),
        Asked(),
    ]
    barred, raised, shape, array, sound = sample_rows(LOGITS.expand(5, -1), rows)

    assert isinstance(barred, SamplingError)
    assert "logit_bias" == barred.field
    assert "broken" == str(raised)
    assert ["logits_processors"] * 2 == [shape.field, array.field]
    assert Choice(0) == sound


def test_logprobs_are_the_models():
    """Of the token chosen and the likeliest, before any penalty or temperature."""
    rows = [
        Asked(logprobs=2, logit_bias={0: -float("inf")}),
        Asked(logprobs=0, temperature=9.0, top_k=1),
        Asked(),
    ]
    first, second, third = sample_rows(LOGITS.double().expand(3, -1), rows)
    logs = [pytest.approx(float(value)) for value in LOGITS]

    assert (1, 1, logs[1]) == (first.token, *first.logprobs[:2])
    assert {0: logs[0], 1: logs[1]} == first.logprobs.top
    assert (0, 0, logs[0], {}) == (second.token, *second.logprobs)
    assert third.logprobs is None


def test_many_rows_of_a_large_vocabulary(monkeypatch):
    """More than is worked on at once: each row's token is the one it gets alone."""
    monkeypatch.setattr(choices, "_BLOCK", 5 * 49152)
    torch.manual_seed(7)
    logits = torch.randn(14, 49152)
    params = [{}, {"temperature": 1.0, "seed": 1, "top_p": 0.9}, {"repetition_penalty": 1.2}]
    alone = [Asked([1, 2], [3] * at, **params[at % 3]).sample(logits[at]) for at in range(14)]
    rows = [Asked([1, 2], [3] * at, **params[at % 3]) for at in range(14)]

    assert alone == [choice.token for choice in sample_rows(logits, rows)]
