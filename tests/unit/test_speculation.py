"""Speculation: guesses, what of them is accepted, and that tokens are those of no speculation."""

from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import torch
import transformers

import octavo
from octavo import Cache, LengthError, Plan, PlanError, SamplingError, UnsupportedModel
from octavo.engine import Draft, Engine, PromptLookup, SamplingParams
from octavo.engine.speculation import rollback_for
from octavo.engine.speculation.lookup import NGrams
from octavo.engine.speculation.worth import PAUSE, Chance, Costs
from octavo.scheduling import Scheduler

SHAPE = {
    "vocab_size": 23,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 96,
    "eos_token_id": None,
    "tie_word_embeddings": False,
}
PROMPTS = [[5, 6, 7], list(range(1, 22)) * 2, [9] * 11]
LOOKUP = PromptLookup(max_tokens=5, min_match=2)
NEW = 18


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    """Guesses cost no time, so that each is worth it."""
    monkeypatch.setattr("octavo.engine.speculation.speculation.perf_counter", lambda: 0.0)


def llama(**changes):
    """A tiny random Llama in float64."""
    torch.manual_seed(0)
    found = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE | changes)).double()
    return noisy(found, 0.2)


def noisy(model, share):
    """The model with noise on its weights."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.add_(torch.randn_like(parameter) * share)
    return model


@pytest.fixture(scope="module")
def model():
    """One of few words: its answers repeat themselves."""
    return llama()


@pytest.fixture(scope="module")
def draft(model):
    """One that mostly says what the model says."""
    return noisy(deepcopy(model), 0.02)


def plan_for(model, pages=60, draft=None):
    """A plan of exactly ``pages`` usable pages of 4 tokens."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    other = None if draft is None else octavo.ModelSpec.from_config(draft.config.to_dict())
    layers = spec.layers if other is None else spec.layers + other.layers
    token = sum(layer.elements_per_token for layer in layers) * 8
    options = {"page_size": 4, "dtype": "fp64", "order": "head", "draft": other}
    return octavo.plan(spec, (pages + 1) * 4 * token, **options)


def run(model, params, pages=60, **options):
    """Requests of all prompts, run to their ends, and the engine's stats; nothing is left held."""
    way = options.get("speculation")
    other = way.model if isinstance(way, Draft) else None
    with Engine(model, plan_for(model, pages, other), **options) as engine:
        each = params if isinstance(params, list) else [params] * len(PROMPTS)
        found = [engine.submit(*pair) for pair in zip(PROMPTS, each, strict=True)]
        engine.run()
        engine.cache.check()
        stats = engine.cache.stats()
        assert (0, 0) == (stats.live, stats.sequences)
        return found, engine.stats, stats


def outputs(requests):
    """What each said, and why it ended."""
    return [(r.output, r.finish_reason, r.stop_reason) for r in requests]


PARAMS = [
    SamplingParams(max_tokens=NEW),
    SamplingParams(max_tokens=NEW, temperature=0.4, seed=3),
    SamplingParams(max_tokens=NEW, temperature=1.0, top_k=3, top_p=0.9, seed=5),
]


@pytest.fixture(scope="module")
def plain(model):
    """Without speculation: what each prompt says, by parameters."""
    return [outputs(run(model, params, prefix=False)[0]) for params in PARAMS]


@pytest.mark.parametrize("at", range(len(PARAMS)), ids=["greedy", "cool", "warm"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_step_tokens": 3},
        {"max_step_tokens": 7, "prefix": False},
        {"max_sequences": 1},
        {"pages": 19, "watermark": 0},
    ],
    ids=["beside", "chunks of 3", "chunks of 7", "alone", "preempted"],
)
def test_the_same_tokens(model, plain, options, at):
    """Guesses change no token, sampled or not, in whatever company, and are accepted."""
    found, stats, pool = run(model, PARAMS[at], speculation=LOOKUP, **options)

    assert plain[at] == outputs(found)
    assert (pool.preemptions > 0) == ("pages" in options)
    if options != {"max_step_tokens": 3}:
        assert 0 < stats.accepted_tokens < stats.drafted_tokens
    assert stats.generated_tokens == 3 * NEW
    assert stats.drafted_tokens == sum(request.drafted_tokens for request in found)
    assert stats.accepted_tokens == sum(request.accepted_tokens for request in found)


@pytest.mark.parametrize(
    "options",
    [{}, {"max_step_tokens": 7, "prefix": False}, {"pages": 19, "watermark": 0}],
    ids=["beside", "chunks of 7", "preempted"],
)
@pytest.mark.parametrize("at", [0, 2], ids=["greedy", "warm"])
def test_the_same_tokens_with_a_draft_model(model, draft, plain, options, at):
    """What a draft model guesses changes no token, and is often right."""
    found, stats, pool = run(model, PARAMS[at], speculation=Draft(draft), **options)

    assert plain[at] == outputs(found)
    assert (pool.preemptions > 0) == ("pages" in options)
    assert stats.drafted_tokens / 6 < stats.accepted_tokens < stats.drafted_tokens


def test_a_draft_model_reads_what_the_model_reads(model, plain):
    """One that is the model's copy is always right: also preempted, in chunks, from found pages."""
    way = Draft(deepcopy(model), max_tokens=3)
    with Engine(
        model, plan_for(model, 24, way.model), speculation=way, max_step_tokens=9, watermark=0
    ) as engine:
        for at in (0, 1, 2, 0):
            found = [engine.submit(prompt, PARAMS[at]) for prompt in PROMPTS]
            found += [engine.submit(PROMPTS[1], PARAMS[0])]
            engine.run()
            engine.cache.check()
            assert plain[at] == outputs(found[:3])
        samples = SamplingParams(max_tokens=NEW, temperature=1.0, seed=7, n=3)
        engine.submit(PROMPTS[1], samples)
        engine.run()

        assert engine.cache.stats().preemptions > 0
        assert engine.stats.cached_tokens > 100
        assert engine.stats.accepted_tokens == engine.stats.drafted_tokens > 5 * NEW


def test_models_are_given_back(model, draft, plain):
    """A closed engine leaves both models as they were."""
    names = [each.config._attn_implementation for each in (model, draft)]
    run(model, PARAMS[0], speculation=Draft(draft))

    assert names == [each.config._attn_implementation for each in (model, draft)]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (Draft, UnsupportedModel, "it is the model itself"),
        (lambda _: Draft(llama(vocab_size=24)), UnsupportedModel, "a vocabulary of 24 tokens"),
        (lambda _: Draft(llama(max_position_embeddings=32)), UnsupportedModel, "max_length=32"),
        (lambda _: Draft(llama().float()), PlanError, "computes in torch.float32"),
    ],
)
def test_refuses_draft_models_that_do_not_fit(model, make, error, words):
    """What stands in the way is named, and both models are given back."""
    name, way = model.config._attn_implementation, make(model)
    with pytest.raises(error, match=words):
        Engine(model, plan_for(model, draft=way.model), speculation=way)
    assert name == model.config._attn_implementation == way.model.config._attn_implementation


def test_refuses_a_plan_without_the_draft_model(model, draft):
    """Its keys and values must have their place."""
    with pytest.raises(PlanError, match="no draft model.*draft="):
        Engine(model, plan_for(model), speculation=Draft(draft))
    with pytest.raises(PlanError, match="other layers"):
        Engine(model, plan_for(model, draft=llama(num_hidden_layers=1)), speculation=Draft(draft))


def _joint(model, prompt, params):
    """The chances of all answers of two tokens behind the first, by the model alone."""
    warm, found = params.temperature, {}
    words = range(model.config.vocab_size)
    answers = torch.tensor([[*prompt, *answer] for answer in product(words, repeat=3)])
    with torch.no_grad():
        logits = model(answers).logits.double() / warm
    chances = logits[:, len(prompt) - 1 : -1].softmax(-1)
    for row, answer in enumerate(answers[:, len(prompt) :].tolist()):
        each = (chances[row, at, token] for at, token in enumerate(answer))
        found[tuple(answer)] = float(torch.stack(list(each)).prod())
    return found


@pytest.mark.parametrize("seeded", [True, False])
@pytest.mark.parametrize("way", ["lookup", "draft"])
def test_the_distribution(way, seeded):
    """Sampled answers are as frequent as the model alone would have them (chi-square)."""
    model, prompt, draws = llama(vocab_size=4, num_hidden_layers=1), [1, 2, 1, 2, 1, 2], 1000
    params = SamplingParams(max_tokens=3, temperature=1.3, seed=1 if seeded else None)
    other = noisy(deepcopy(model), 0.1) if way == "draft" else None
    speculation = PromptLookup(min_match=1) if other is None else Draft(other, max_tokens=2)
    expected, counts = _joint(model, prompt, params), {}
    with Engine(model, plan_for(model, 150, other), speculation=speculation) as engine:
        for start in range(0, draws, 50):
            found = [engine.submit(prompt, params) for _ in range(50)]
            for at, request in enumerate(found):
                request.sampler.seed = start + at
            engine.run()
            for request in found:
                answer = tuple(request.output)
                counts[answer] = counts.get(answer, 0) + 1
        assert draws / 8 < engine.stats.accepted_tokens < engine.stats.drafted_tokens
    common = {answer for answer, chance in expected.items() if chance * draws >= 5}
    rare = 1 - sum(expected[answer] for answer in common)
    cells = [(counts.get(answer, 0), expected[answer] * draws) for answer in common]
    cells.append((draws - sum(seen for seen, _ in cells), rare * draws))
    score = sum((seen - mean) ** 2 / mean for seen, mean in cells)
    freedom = len(cells) - 1

    assert freedom > 15
    assert score < freedom + 3.5 * (2 * freedom) ** 0.5


def test_fewer_steps(model):
    """Accepted guesses save as many steps of a request that runs alone."""
    alone = {"max_sequences": 1, "prefix": False}
    _, plain, _ = run(model, PARAMS[0], **alone)
    _, stats, _ = run(model, PARAMS[0], speculation=LOOKUP, **alone)

    assert stats.steps == plain.steps - stats.accepted_tokens
    assert stats.accepted_tokens >= NEW


def test_a_prefix_hit(model, plain):
    """What was published beside rejected guesses is right for who finds it."""
    with Engine(model, plan_for(model), speculation=LOOKUP) as engine:
        engine.generate(PROMPTS, PARAMS[2])
        found = engine.generate(PROMPTS, PARAMS[0])

        assert [tokens for tokens, *_ in plain[0]] == [each.token_ids for each in found]
        assert found[1].cached_tokens == 40
        again = [*PROMPTS[1], *found[1].token_ids]
        longer = engine.generate([again], SamplingParams(max_tokens=4))[0]
    with Engine(model, plan_for(model), prefix=False) as engine:
        assert engine.generate([again], SamplingParams(max_tokens=4))[0][0] == longer.token_ids


@pytest.mark.parametrize("new", [1, 2, 6, 11])
def test_limits(model, plain, new):
    """A request ends at its limit though more was guessed, and takes no page beyond it."""
    found, stats, _ = run(model, SamplingParams(max_tokens=new), speculation=LOOKUP)

    assert [tokens[:new] for tokens, *_ in plain[0]] == [request.output for request in found]
    assert stats.generated_tokens == 3 * new


class Letters:
    """A tokenizer of one letter per token."""

    def decode(self, tokens, **_):
        """Letters."""
        return "".join(chr(97 + token) for token in tokens)


@pytest.mark.parametrize("length", [5, 10, 14])
def test_stops_within_accepted_guesses(model, plain, length):
    """Stop tokens and texts end a request where they come, and nothing behind them is told."""
    params, heard = [], [[], [], []]
    for tokens, *_ in plain[0]:
        text = Letters().decode(tokens[length - 3 : length])
        params.append(SamplingParams(max_tokens=NEW, stop=text))
    params[0] = SamplingParams(max_tokens=NEW, stop_token_ids=[plain[0][0][0][length - 1]])
    expected = run(model, params, tokenizer=Letters())[0]
    with Engine(model, plan_for(model), tokenizer=Letters(), speculation=LOOKUP) as engine:
        found = [
            engine.submit(*pair, on_token=lambda _, token, at=at: heard[at].append(token))
            for at, pair in enumerate(zip(PROMPTS, params, strict=True))
        ]
        engine.run()
        assert engine.cache.stats().live == 0

    assert outputs(expected) == outputs(found)
    assert heard == [request.output for request in found]


def test_a_listener_that_fails_hears_no_more(model):
    """Of several tokens in one step, those after a listener's failure are not told."""
    heard = []

    def listen(request, token):
        heard.append(token)
        if request.accepted_tokens > 1:
            raise KeyError(token)

    with Engine(model, plan_for(model), speculation=LOOKUP) as engine:
        request = engine.submit(PROMPTS[0], SamplingParams(max_tokens=60), on_token=listen)
        with pytest.raises(KeyError):
            engine.run()
        engine.cache.check()

        assert request.finish_reason == "cancelled"
        assert heard == request.output[: len(heard)]
        assert engine.cache.stats().live == 0


def test_ngrams():
    """The last place counts, and what is guessed beyond the end repeats."""
    ngrams = NGrams(2)
    ngrams.extend([1, 2, 3, 4, 1, 2, 5, 6, 1])
    assert ngrams.guess(3) == []
    ngrams.extend([2])
    assert ngrams.guess(3) == [5, 6, 1]
    assert ngrams.guess(9) == [5, 6, 1, 2, 5, 6, 1, 2, 5]
    ngrams.extend([2, 2, 2])
    assert ngrams.guess(3) == [2, 2, 2]
    assert NGrams(3).guess(1) == []


def test_price_of_a_guess():
    """The tokens that come in the time that a further one takes, from steps of other sizes."""
    costs = Costs()
    assert costs.price == 0
    for _ in range(5):
        costs.note(4, 1.4, 4, 0, 0.0)
    assert costs.price == 0  # what another token costs nobody knows
    for tokens in (6, 9, 5):
        costs.note(tokens, 1 + 0.1 * tokens, 4, tokens - 4, 0.0)
    mean = costs._gained / costs._seconds
    assert costs.price == pytest.approx(0.1 * mean)
    assert 0.2 < costs.price < 0.4
    before = costs.price
    costs.note(9, 1000.0, 4, 5, 0.0)  # held up by something else
    assert before < costs.price < 1
    costs = Costs()
    for tokens in (1, 2, 3):
        costs.note(tokens, 1.0, 1, tokens - 1, 0.5)
    assert costs.price == pytest.approx((1.5 / 3) * 3 / 4.5, rel=0.05)


def test_guesses_that_pay():
    """The surer a request's guesses and the cheaper they are, the more; one that pays not waits."""
    sure, unsure = Chance(), Chance()
    for _ in range(9):
        sure.note(8, 8)
        unsure.note(8, 0)
    assert [sure.count(price, 10) for price in (0.0, 0.01, 0.5, 0.95, 1.0)] == [10, 10, 10, 6, 0]
    assert [unsure.count(price, 10) for price in (0.01, 0.1, 0.9)] == [2, 1, 0]
    unsure.note(1, 0)
    counts = [unsure.count(0.9, 10) for _ in range(PAUSE + 2)]
    assert counts == [0] * PAUSE + [1, 1]
    unsure.note(1, 0)
    assert unsure.count(0.9, 10) == 0


def test_off_where_it_loses(model, plain, monkeypatch):
    """Where a guess costs more than a token, none is verified but one after a while."""
    monkeypatch.setattr(Costs, "price", 1.2)
    found, stats, _ = run(model, PARAMS[0], speculation=LOOKUP)

    assert plain[0] == outputs(found)
    assert stats.drafted_tokens <= 3


@pytest.mark.parametrize("fields", [{"max_tokens": 0}, {"min_match": 0}, {"max_tokens": "4"}])
def test_refuses_counts(fields):
    """A guess has at least one token, and a reason."""
    with pytest.raises(LengthError, match=next(iter(fields))):
        PromptLookup(**fields)


def test_refuses_other_ways(model):
    """What is no way to guess is named."""
    with pytest.raises(SamplingError, match="speculation"):
        Engine(model, plan_for(model), speculation="lookup")


def test_states_are_kept_for_each_guess():
    """A sequence of a model with states holds one more than guesses; of others, none."""
    config = transformers.Mamba2Config(
        vocab_size=23, hidden_size=16, num_heads=4, head_dim=8, state_size=4, num_hidden_layers=1
    )
    stateful = octavo.ModelSpec.from_config(config.to_dict())
    plan = octavo.plan(stateful, "1MiB", dtype="fp32", order="head")

    assert LOOKUP.max_tokens == rollback_for(LOOKUP, plan)
    assert rollback_for(Draft(None, max_tokens=3), plan) == 3
    assert rollback_for(None, plan) == 0


class Prompt:
    """The least a scheduler wants of a request."""

    def __init__(self, size, limit, start=0):
        self.prompt, self.limit = np.arange(start, start + size, dtype=np.int32), limit
        self.sequence = None


def _running(scheduler, requests):
    for request in requests:
        scheduler.add(request)
    while any(r.sequence is None or r.sequence.length == r.prompt.size for r in requests):
        turn = scheduler.schedule()
        scheduler.cache.commit(turn.step, np.zeros(len(turn.requests), np.int32))


def test_guesses_take_what_is_left_of_a_step():
    """Tokens and prompts come first, and a guess goes no further than the limit."""
    scheduler = Scheduler(Cache(Plan.from_pages(99, 4)), 12)
    requests = [Prompt(3, 20), Prompt(3, 7, 100)]
    _running(scheduler, requests)
    turn = scheduler.schedule(dict.fromkeys(requests, 9))
    assert [10, 2] == turn.step.counts.tolist()
    scheduler.cache.abort(turn.step)
    scheduler.add(Prompt(4, 9, 200))
    turn = scheduler.schedule(dict.fromkeys(requests, 9))
    assert [7, 1, 4] == turn.step.counts.tolist()


def test_nobody_gives_way_to_a_guess():
    """Where pages run out, guesses go first."""
    scheduler = Scheduler(Cache(Plan.from_pages(5, 4)), 64)
    requests = [Prompt(6, 16), Prompt(5, 8, 100)]
    _running(scheduler, requests)
    turn = scheduler.schedule({requests[0]: 9})

    assert [1, 1] == turn.step.counts.tolist()
    assert scheduler.cache.stats().preemptions == 0
