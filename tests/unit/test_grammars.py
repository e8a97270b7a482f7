"""Answers of a form: what comes meets it, whoever is beside; what cannot be met is refused."""

import json
import random
import re
import string

import pytest
import tokenizers
import torch
import transformers

import octavo
from octavo import SamplingError
from octavo.checks import not_installed
from octavo.engine import Engine, SamplingParams
from octavo.engine.sampling import Samplers, grammars

CHARACTERS = string.ascii_lowercase + string.digits + '{}[]":,-. '
EOS = len(CHARACTERS)
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    },
    "required": ["kind", "age", "tags"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
PROMPT = [5, 6, 7]


@pytest.fixture(scope="module")
def tokenizer():
    """One token per character, as bytes, and one that ends."""
    bytelevel = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    written = ["Ġ" if character == " " else character for character in CHARACTERS]
    vocab = {character: number for number, character in enumerate([*written, "<eos>"])}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer, inner.decoder = bytelevel, tokenizers.decoders.ByteLevel()
    special = {"eos_token": "<eos>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special)


@pytest.fixture(scope="module")
def model():
    """A tiny random Llama with a few tokens more than its tokenizer."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=EOS + 5,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    found = transformers.LlamaForCausalLM(config).double()
    with torch.no_grad():
        for parameter in found.parameters():
            if parameter.ndim > 1:
                parameter.add_(torch.randn_like(parameter) * 0.4)
    return found


def engine_of(model, tokenizer, **options):
    """An engine with 64 KiB of cache, 512 tokens."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    plan = octavo.plan(spec, "512KiB", page_size=4, dtype="fp64", order="head")
    return Engine(model, plan, tokenizer=tokenizer, **options)


@pytest.fixture(scope="module")
def engine(model, tokenizer):
    """An engine whose grammars are compiled once for all tests."""
    with engine_of(model, tokenizer) as found:
        yield found


def answer(engine, tokenizer, **params):
    """The text of an answer, and why it ended."""
    (found,) = engine.generate([PROMPT], SamplingParams(max_tokens=90, **params))
    return tokenizer.decode(found.token_ids, skip_special_tokens=True), found.finish_reason


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_json_of_a_schema(engine, tokenizer, seed):
    """Greedy or sampled, the answer is JSON of the schema, and ends by itself."""
    chance = {} if seed is None else {"temperature": 2.0, "seed": seed}
    text, reason = answer(engine, tokenizer, json_schema=SCHEMA, **chance)
    found = json.loads(text)

    assert "stop" == reason
    assert ["kind", "age", "tags"] == list(found)
    assert found["kind"] in {"cat", "dog"}
    assert 0 <= found["age"] <= 99
    assert {*found["tags"]} <= {True, False}


def test_a_schema_as_text_is_the_same(engine, tokenizer):
    """A mapping and its JSON text ask for the same."""
    expected = answer(engine, tokenizer, json_schema=SCHEMA)

    assert expected == answer(engine, tokenizer, json_schema=json.dumps(SCHEMA))


@pytest.mark.parametrize("expression", ["[0-9]{3}-[0-9]{2}", "(yes|no)( [a-z]{4})?", "a{20}"])
def test_regular_expressions(engine, tokenizer, expression):
    """The whole answer matches the expression."""
    for seed in range(3):
        text, reason = answer(engine, tokenizer, regex=expression, temperature=2.0, seed=seed)
        assert "stop" == reason
        assert re.fullmatch(expression, text)


def test_a_grammar(engine, tokenizer):
    """A grammar in Lark's syntax, which an expression could not say."""
    nested = 'start: pair\npair: "[" pair "]" | "0"'
    text, reason = answer(engine, tokenizer, grammar=nested, logit_bias={CHARACTERS.index("["): 2})

    assert ("0" in text) == (reason == "stop")
    assert text.startswith("[" * text.count("["))


def test_beside_others(engine, tokenizer):
    """Rows with and without a form get what they get alone."""
    each = [
        SamplingParams(max_tokens=40, json_schema=SCHEMA),
        SamplingParams(max_tokens=40),
        SamplingParams(max_tokens=40, regex="[a-z]{30}", temperature=1.0, seed=4),
        SamplingParams(max_tokens=40, json_schema=SCHEMA),
    ]
    alone = [engine.generate([PROMPT], params)[0].token_ids for params in each]

    assert alone == [done.token_ids for done in engine.generate([PROMPT] * 4, each)]


def test_stop_tokens_come_where_the_form_may_end(engine):
    """A stop token ends the answer where it is complete, and only there; its minimum holds."""
    stop = CHARACTERS.index("x")
    likely = {stop: 100.0}
    for minimum, length in ((0, 1), (5, 5)):
        params = {"regex": "[0-9]+", "logit_bias": likely, "stop_token_ids": [stop]}
        request = engine.submit(PROMPT, SamplingParams(min_tokens=minimum, **params))
        engine.run()
        assert stop == request.stop_reason
        assert length + 1 == len(request.output)


def test_a_complete_answer_ends_before_min_tokens(engine):
    """Where nothing can follow, there is nothing to wait for."""
    request = engine.submit(PROMPT, SamplingParams(regex="[0-9]{2}", min_tokens=5))
    engine.run()

    assert (2, "stop") == (len(request.output), request.finish_reason)


def test_goes_back_where_drafts_are_rejected(tokenizer):
    """What may follow depends on the tokens alone, whatever was asked about before."""
    samplers = Samplers(EOS + 5, tokenizer)
    matcher = samplers.make(SamplingParams(regex="ab[0-9]c|ad")).matcher
    ids = {letter: CHARACTERS.index(letter) for letter in "abcd0z"}

    def follows(text):
        scores = torch.zeros(EOS + 5)
        matcher.bar([ids[letter] for letter in text], scores)
        return "".join(CHARACTERS[i] for i in range(EOS) if scores[i] == 0)

    assert "a" == follows("")
    assert string.digits == follows("ab")
    assert "c" == follows("ab0")
    assert "" == follows("abz")
    assert "" == follows("abzc")
    assert "bd" == follows("a")
    assert string.digits == follows("ab")
    assert not matcher.ends([ids["a"], ids["b"]])
    assert matcher.ends([ids["a"], ids["d"]])


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("json_schema", {"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
        ("json_schema", {"enum": []}, "empty"),
        ("json_schema", {"type": "nosuch"}, "nosuch"),
        ("regex", "[", "unclosed"),
        ("regex", "[A-Z]+", "nothing that can be written"),
        ("grammar", 'start: "a" | other', "other"),
        ("grammar", "start: start", "nothing that can be written"),
        ("grammar", "start: other\nother: start", "nothing that can be written"),
        ("grammar", 'start: "a" start', "recur without end"),
        ("grammar", 'start: "{" start "}"', "recur without end"),
        ("json_schema", {"$ref": "#"}, "nothing that can be written"),
    ],
)
def test_refuses_what_cannot_be_met(engine, field, value, words):
    """At submit, by the parameter's name and with the reason."""
    with pytest.raises(SamplingError, match=words) as caught:
        engine.submit(PROMPT, SamplingParams(**{field: value}))
    assert field == caught.value.field
    assert not engine.step()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_form_that_recurs_without_end_costs_no_other_request(model, tokenizer, temperature):
    """Behind a choice nobody sees it at submit: it ends with an error that says so, or in time."""
    forced, free = 'start: /[a-z]/ more\nmore: "c" more', "start: /[a-c]/ start"
    params = {"max_tokens": 6, "temperature": temperature}
    with engine_of(model, tokenizer) as engine:
        lost, long, beside = (
            engine.submit(PROMPT, SamplingParams(grammar=text, **params))
            for text in (forced, free, None)
        )
        with pytest.raises(SamplingError, match="recur without end"):
            lost.result()
        assert (6, "length") == (len(long.result().token_ids), long.finish_reason)
        assert 6 == len(beside.result().token_ids)
        assert 0 == engine.cache.stats().live


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("json_schema", "not JSON"),
        ("json_schema", "[1]"),
        ("json_schema", 5),
        ("json_schema", {"enum": {1, 2}}),
        ("regex", ""),
        ("regex", 5),
        ("grammar", ["start"]),
    ],
)
def test_refuses_what_is_no_form(field, value):
    """Values of other types are refused before any model is there."""
    with pytest.raises(SamplingError, match=field):
        SamplingParams(**{field: value})


def test_refuses_two_forms():
    """An answer has one form."""
    with pytest.raises(SamplingError, match=r"regex is 'a'.*json_schema is given"):
        SamplingParams(json_schema={}, regex="a")


def test_refuses_a_form_without_what_it_needs(monkeypatch):
    """No tokenizer, one that llguidance cannot read, or no llguidance."""
    params = SamplingParams(regex="a")
    for tokenizer, words in ((None, "tokenizer"), (object(), "cannot read the tokenizer")):
        with pytest.raises(SamplingError, match=words):
            Samplers(9, tokenizer).make(params)
    monkeypatch.setattr(grammars, "find_spec", lambda name: None)
    with pytest.raises(SamplingError, match=re.escape(not_installed("llguidance", "grammar"))):
        Samplers(9, None).make(params)


FORMS = [
    {"regex": "[a-f ,.]{30,}"},
    {"regex": "(ab|cd|abcd)+x?"},
    {"json_schema": SCHEMA},
    {"json_schema": {"type": "string"}},
    {"grammar": 'start: e\ne: e "-" t | t\nt: "{" e "}" | /[0-9]+/'},
]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_allowed_is_never_barred(form, tokenizer):
    """Of every token, along answers at random; what is not known to be allowed ends an answer."""
    rng = random.Random(4)
    matcher = grammars.Grammars(tokenizer, EOS + 5).matcher(SamplingParams(**form))
    for _ in range(4):
        output = []
        while len(output) < 20 and not matcher.ends(output):
            scores = torch.zeros(EOS + 5)
            matcher.bar(output, scores)
            possible = scores.isfinite().nonzero().flatten().tolist()
            allowed = [token for token in range(EOS + 5) if matcher.allows(output, token)]
            assert set(possible) - {EOS} == set(allowed)
            output.append(rng.choice(possible))


def test_greedy_answers_ask_for_no_mask_where_the_likeliest_fits(model, tokenizer, monkeypatch):
    """One token is looked at; the mask of all is made where that one may not come."""
    masks = []
    bar = grammars.Matcher.bar
    monkeypatch.setattr(
        grammars.Matcher, "bar", lambda *args: (masks.append(len(args[1])), bar(*args))
    )
    free, narrow = "(?s:.{20})", "[a-b]{20}"
    with engine_of(model, tokenizer) as engine:
        engine.generate([PROMPT], SamplingParams(max_tokens=20, regex=free, logit_bias={EOS: -9}))
        seen = len(masks)
        engine.generate([PROMPT], SamplingParams(max_tokens=20, regex=narrow))

    assert 0 == seen
    assert 0 < len(masks) <= 20
