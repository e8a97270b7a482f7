"""What `octavo plan` and the planner answer to a sizer: wishes, GPUs by name, models compared."""

import json
import re
from pathlib import Path

import pytest

import octavo
from octavo import Attention, BudgetTooSmall, Latent, ModelSpec, PlanError, State
from octavo.cli import main
from octavo.planner.answer import answer
from octavo.planner.figures import amount, counted, enough, exact, hundredths, term
from octavo.planner.gpus import GPUS, find_gpu
from octavo.planner.pools import max_sequences_in_flight
from octavo.planner.wish import plan_wish

LLAMA = ModelSpec("llama", (Attention(8, 128, 128),) * 32, 131072)
WINDOWS = ModelSpec("windows", (Attention(8, 64, 64, window=128), Attention(8, 64, 64)) * 4, 8192)
HYBRID = ModelSpec("hybrid", (Attention(8, 16, 16), State((8, 16, 16), (64, 3))) * 4, 4096)
LATENT = ModelSpec("latent", (Latent(512, 64),) * 4, 4096)
MODELS = [LLAMA, WINDOWS, HYBRID, LATENT]
CONFIGS = Path(__file__).parents[1] / "cases/data/configs"
PACKED = {
    file.stem: spec
    for file in sorted(CONFIGS.glob("*.json"))
    if octavo.plan(spec := ModelSpec.from_config(json.loads(file.read_text())), "80GiB").packed
}


def config(folder, name, **changed):
    """A config file of a small Llama."""
    fields = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256}
    fields |= {"num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 4096}
    file = folder / name
    file.write_text(json.dumps(fields | changed))
    return str(file)


@pytest.fixture
def ask(capsys):
    """``octavo plan`` with these words; returns exit code, stdout and stderr."""

    def run(*words):
        code = main(["plan", *map(str, words)])
        return code, *capsys.readouterr()

    return run


# -- figures ---------------------------------------------------------------------------------------


def test_large_numbers_have_an_amount_beside_them():
    """From a MiB on; smaller ones stand alone."""
    assert "2,621,440,000 bytes (2.44 GiB)" == exact(2_621_440_000)
    assert "2,621,440,000 (2.44 GiB)" == term(2_621_440_000)
    assert ("1,048,575 bytes", "1,048,575") == (exact(2**20 - 1), term(2**20 - 1))
    assert ("1 page", "2 pages", "0 pages") == tuple(counted(n, "page") for n in (1, 2, 0))
    assert ("21.15", "1,000.00") == (hundredths(21.159), hundredths(1000))
    assert ("1,023", "1.01GiB") == (f"{int(enough(1023)):,}", enough(2**30 + 2**23))


# -- GPUs ------------------------------------------------------------------------------------------


def test_every_gpu_has_a_source_and_about_its_nominal_size():
    """Names are unique; the memory is the nominal size in GB or GiB, less what ECC takes."""
    names = [gpu.name for gpu in GPUS]

    assert len(set(names)) == len(names)
    for gpu in GPUS:
        nominal = int(re.fullmatch(r"[A-Z0-9]+-(\d+)GB", gpu.name)[1])
        assert 0.93 * nominal * 2**30 <= gpu.memory <= nominal * 2**30 * 1.02
        assert "https://" in gpu.source


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("H100-80GB", "H100-80GB"),
        ("h100-80gb", "H100-80GB"),
        ("H100", "H100-80GB"),
        ("RTX 4090", "RTX4090-24GB"),
        ("rtx-4090-24gb", "RTX4090-24GB"),
        ("a100 40gb", "A100-40GB"),
    ],
)
def test_a_gpu_is_found_as_people_write_it(name, found):
    """In any case, with spaces or dashes, without its size where one of it is known."""
    assert found == find_gpu(name).name
    plan = octavo.plan(LLAMA, name)
    assert (find_gpu(name).memory, found) == (plan.memory.device, plan.memory.gpu)


@pytest.mark.parametrize(
    ("name", "known"),
    [("A100", "A100-40GB, A100-80GB"), ("H1000", "H100-80GB"), ("quick", "T4-16GB")],
)
def test_an_unknown_gpu_is_refused(name, known):
    """With those that may be meant."""
    with pytest.raises(PlanError, match=f"gpu is '{name}'; give bytes.*{known}"):
        find_gpu(name)
    with pytest.raises(PlanError, match=f"memory is '{name}'; give bytes.*{known}"):
        octavo.plan(LLAMA, name)


def test_gpus_are_the_ranks(ask, tmp_path):
    """``2xH100-80GB`` is tp 2; with --pp the rest of them; else --tp must agree."""
    file = config(tmp_path, "a.json")

    for words, shares in (
        (["--gpu", "2xH100-80GB"], (2, 1)),
        (["--gpu", "4x H100", "--pp", 2], (2, 2)),
        (["--gpu", "h100", "--tp", 4], (4, 1)),
        (["--gpu", "4xH100", "--tp", 4], (4, 1)),
        (["--gpu", "L4"], (1, 1)),
    ):
        data = json.loads(ask(file, *words, "--json")[1])
        assert shares == (data["tp"], data["pp"])
    code, out, err = ask(file, "--gpu", "2xH100", "--tp", 4)
    assert (2, "", "octavo: --gpu names 2 GPUs, --tp 4 takes 4\n") == (code, out, err)


# -- wishes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", MODELS)
@pytest.mark.parametrize(
    "options",
    [{}, {"tp": 2, "dtype": "fp8"}, {"weights": "1GB", "utilization": 0.9}, {"layout": "slab"}],
)
def test_without_memory_a_plan_is_exactly_enough(spec, options):
    """The memory is what memory_for says; one byte less and the same sequences do not fit."""
    wanted = {"sequences": 5, "max_length": 3000}
    plan = octavo.plan(spec, **wanted, **options)
    need = plan.memory.device

    assert not plan.memory.given
    assert octavo.memory_for(spec, sequences=5, length=3000, **options) == need
    assert octavo.plan(spec, need, **wanted, **options).memory.given
    with pytest.raises(BudgetTooSmall) as caught:
        octavo.plan(spec, need - 1, **wanted, **options)
    assert need == caught.value.need


def test_a_plan_without_memory_needs_a_length():
    """One sequence of the model's own length where nothing else is said."""
    plan = octavo.plan(LLAMA)

    assert 131072 == plan.max_length
    assert octavo.plan(LLAMA, plan.memory.device).max_sequences() >= 1
    with pytest.raises(PlanError, match="max_length is None; without memory, give the length"):
        octavo.plan(ModelSpec("unbounded", (Attention(1, 8, 8),)), sequences=2)


@pytest.mark.parametrize("spec", MODELS)
@pytest.mark.parametrize("memory", [0, "2MiB", "20MiB", "200MiB", "2GiB"])
def test_a_wish_says_what_would_do(spec, memory):
    """What it says fits does, and one more or one token more does not in the same pool."""
    plan, wish = plan_wish(spec, memory, sequences=7, max_length=1000, weights="1MiB")

    def fits(sequences, length, **more):
        options = {"weights": "1MiB"} | more
        try:
            return octavo.plan(spec, memory, sequences=sequences, max_length=length, **options)
        except BudgetTooSmall:
            return None

    assert wish.fits == (fits(7, 1000) is not None)
    assert wish.fits == (wish.max_sequences >= 7) == (wish.device.device >= wish.memory)
    assert not wish.max_sequences or fits(wish.max_sequences, 1000)
    assert not wish.max_length or fits(7, wish.max_length)
    assert octavo.plan(spec, wish.memory, sequences=7, max_length=1000, weights="1MiB")
    if wish.tp:
        assert fits(7, 1000, tp=wish.tp, weights=2**20 // wish.tp)
        assert wish.tp == 2 or not fits(7, 1000, tp=wish.tp // 2, weights=2**21 // wish.tp)
    assert plan.memory.device in (wish.device.device, wish.memory)


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize(
    ("memory", "sequences", "length", "options"),
    [
        ("16GiB", 64, 2**15, {}),
        ("4GiB", 20, 2**15, {"page_size": 64}),
        ("16GiB", 98, 777, {"page_size": 32}),
        ("1717986918", 8, 2**15, {"dtype": "fp32", "page_size": 64}),
    ],
)
def test_what_a_wish_offers_is_the_most(name, memory, sequences, length, options):
    """Typed back it fits; one sequence or one token more does not, however the plan is cut."""
    spec = PACKED[name]
    plan, wish = plan_wish(spec, memory, sequences=sequences, max_length=length, **options)

    def fits(many, tokens):
        try:
            octavo.plan(spec, memory, sequences=many, max_length=tokens, **options)
        except BudgetTooSmall:
            return False
        return True

    most, longest = wish.max_sequences, wish.max_length
    assert most == 0 or fits(most, length)
    assert not fits(most + 1, length)
    assert longest in (0, length) or fits(sequences, longest)
    assert longest == length or not fits(sequences, max(longest + 1, plan.page_size))
    assert wish.fits == (most >= sequences) == (longest == length)
    if most:
        assert max_sequences_in_flight(plan, length) >= min(most, sequences)


@pytest.mark.parametrize(
    ("name", "memory", "sequences", "length", "options", "most", "longest"),
    [
        ("Qwen3-Next-80B-A3B", "16GiB", 64, 2**15, {}, 19, 7760),
        ("Jamba-v0.1", "4GiB", 20, None, {"page_size": 64}, 0, 12096),
        ("Falcon-H1-7B", "16GiB", 98, 777, {"page_size": 32}, 97, 736),
    ],
)
def test_offers_that_another_cut_holds(name, memory, sequences, length, options, most, longest):
    """More than the plan holds that is cut for the length asked for."""
    spec = PACKED[name]
    _, wish = plan_wish(spec, memory, sequences=sequences, max_length=length, **options)

    assert (most, longest) == (wish.max_sequences, wish.max_length)


@pytest.mark.parametrize("memory", ["200MiB", "1GiB", "80GiB"])
@pytest.mark.parametrize("own", [None, 10 * 2**20])
@pytest.mark.parametrize("layout", [None, "component"])
def test_the_longest_that_octavo_chooses_runs(memory, own, layout):
    """A length that nobody named is one at which a sequence fits beside a step in flight."""
    layers = ((Attention(8, 128, 128, chunk=8192),) * 3 + (Attention(8, 128, 128),)) * 12
    spec = ModelSpec("chunks", layers, own)
    plan = octavo.plan(spec, memory, layout=layout)
    told = answer(plan)

    assert 1 == max_sequences_in_flight(plan, plan.max_length)
    assert octavo.plan(spec, memory, layout=layout, max_length=plan.max_length, sequences=1)
    assert "0 while" not in told[0]
    assert "too little for one sequence" not in told[2]
    if own and plan.tokens > plan.max_length and layout is None:
        with pytest.raises(BudgetTooSmall):
            octavo.plan(spec, memory, max_length=plan.max_length + 1, sequences=1)
        steady = octavo.plan(spec, memory, max_length=plan.tokens)
        assert answer(steady)[2].endswith("too little for one sequence while a prompt is computed.")


@pytest.mark.parametrize("name", PACKED)
def test_one_figure_is_rounded_one_way(name):
    """What is needed stands in each line as in the first."""
    text = octavo.plan(PACKED[name]).explain()
    need = re.search(r"needs ([\d.]+ [GMK]iB)", text)[1]

    assert f"Left for the cache: all {need}, weights not given" in text
    assert re.search(rf"^memory +[\d,]+ bytes \({need}\) = ", text, re.MULTILINE)


def test_a_wish_for_a_model_without_a_length():
    """As long as one sequence can be; of no token where none fits; of states any length will do."""
    spec = ModelSpec("unbounded", (Attention(1, 8, 8),))
    _, wish = plan_wish(spec, "1MiB", sequences=2)
    assert (octavo.plan(spec, "1MiB").tokens, False) == (wish.length, wish.fits)
    _, wish = plan_wish(spec, 10, sequences=2)
    assert (16, 0, False) == (wish.length, wish.max_length, wish.fits)
    states = ModelSpec("states", (State((8, 16, 16), (64, 3)),) * 4)
    plan, wish = plan_wish(states, "1MiB", sequences=20)
    assert (True, int(plan.max_sequences(1))) == (wish.fits, wish.max_sequences)
    assert "20 sequences of any length fit" in answer(plan, wish)[0]


def test_a_wish_takes_the_arguments_of_plan():
    """Those out of range are refused by name."""
    for options, name in (
        ({"sequences": 0}, "sequences"),
        ({"sequences": 1, "max_length": 0}, "max_length"),
        ({"sequences": 1, "tp": 3}, "tp"),
        ({"sequences": 1, "weights": "x"}, "weights"),
    ):
        with pytest.raises(PlanError, match=f"{name} is "):
            plan_wish(LLAMA, "1GiB", **options)


# -- the three sentences ---------------------------------------------------------------------------

FITS = """\
llama, fp8 cache, 2 x H100-80GB (tp 2): 8 sequences of 32,768 tokens fit, 61 at most.
Each sequence of 32,768 tokens takes 1 GiB per GPU (2 GiB in all): 32,768 bytes per token and GPU.
Left for the cache: 61.68 GiB per GPU, which is 79.65 GiB x 0.9 less 10 GiB of weights per GPU; 8 \
sequences take 8 GiB of it, and 53.68 GiB is free on each, room for 53 more."""
DOES_NOT = """\
llama, bf16 cache, one L4-24GB: 8 sequences of 32,768 tokens do not fit: 1 fits, or 8 of 6,640 \
tokens, or 8 on 4 x L4-24GB (tp 4); 48.01 GiB would be enough.
Each sequence of 32,768 tokens takes 4 GiB: 131,072 bytes per token.
Left for the cache: 6.49 GiB, which is 22.49 GiB less 16 GiB of weights; 1 sequence takes 4 GiB of \
it, and 2.49 GiB is free, too little for one more."""
NOTHING = """\
llama, bf16 cache, 16 GiB: 8 sequences of 32,768 tokens do not fit, nor do as many \
shorter ones: 8 with tp 4; 48.01 GiB would be enough.
Each sequence of 32,768 tokens takes 4 GiB: 131,072 bytes per token.
Left for the cache: nothing, as 16 GiB of weights are no less than 16 GiB."""
NEEDS = """\
llama, bf16 cache, 2 ranks (tp 2): 1 sequence of 131,072 tokens needs 8.01 GiB per rank, 16.01 GiB \
in all, weights not counted.
Each sequence of 131,072 tokens takes 8 GiB per rank (16 GiB in all): 65,536 bytes per token and \
rank.
Left for the cache: all 8.01 GiB per rank, weights not given; 1 sequence and the null page (never \
handed out) take all of it."""
WINDOWED = """\
windows, bf16 cache, 140 MiB: 2 sequences of 8,192 tokens fit (2.14), 1 while a prompt is \
computed, weights not counted.
Each sequence of 8,192 tokens takes 65.13 MiB: 16,384 bytes per token until its windows are full \
and 8,192 from then on."""


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (FITS, {"memory": "h100", "tp": 2, "dtype": "fp8", "utilization": 0.9, "weights": "10GiB"}),
        (DOES_NOT, {"memory": "L4", "weights": "16GiB"}),
        (NOTHING, {"memory": "16GiB", "weights": "16GiB"}),
    ],
)
def test_answers_to_a_wish(text, options):
    """Model, element type, machine and ranks are named; so is what would do."""
    plan, wish = plan_wish(LLAMA, sequences=8, max_length=32768, **options)

    assert text.splitlines() == answer(plan, wish)


def test_answers_without_a_wish():
    """What one sequence needs, and what is different while windows slide."""
    assert NEEDS.splitlines() == answer(octavo.plan(LLAMA, tp=2))
    plan = octavo.plan(WINDOWS, "140MiB")
    assert WINDOWED.splitlines() == answer(plan)[:2]
    assert answer(plan) == plan.explain().splitlines()[:3]
    long = octavo.plan(WINDOWS, "1GiB", max_length=9000)
    assert answer(long)[1].startswith(
        "Each sequence of 9,000 tokens (beyond the model's own 8,192) takes "
    )


@pytest.mark.parametrize("spec", MODELS)
@pytest.mark.parametrize("memory", ["10MiB", "100MiB", "H200"])
@pytest.mark.parametrize("options", [{}, {"tp": 2}, {"pp": 2}, {"dtype": "fp8"}])
def test_answers_stand_by_themselves(spec, memory, options):
    """Three whole sentences that name the model, and what was counted."""
    try:
        plan = octavo.plan(spec, memory, **options)
    except BudgetTooSmall:
        return
    lines = answer(plan)

    assert 3 == len(lines)
    assert lines[0].startswith(f"{spec.name}, {plan.elements.kv.name} cache, ")
    assert f" of {plan.max_length:,} tokens" in lines[0]
    assert " bytes per token" in lines[1]
    assert all(line.endswith(".") and "None" not in line for line in lines)


@pytest.mark.parametrize("spec", MODELS)
@pytest.mark.parametrize("options", [{}, {"tp": 2, "weights": "9GB"}, {"dtype": "fp8"}])
def test_numbers_look_alike(spec, options):
    """A large number of bytes has its amount beside it; per token, not a token."""
    text = octavo.plan(spec, "H200", utilization=0.9, **options).explain()

    for number in re.finditer(r"\d{1,3}(?:,\d{3}){3,}", text):  # a billion and more are bytes
        assert re.match(r"( bytes)? \(\d[\d.]* [GT]iB\)", text[number.end() :]), number[0]
    assert not re.search(r"\b(bytes|pages|tokens|scale) an? ", text)


# -- the command -----------------------------------------------------------------------------------


def test_how_much_is_needed(ask, tmp_path):
    """No memory: the answer says how much, of each rank and in all; the exit code is 0."""
    file = config(tmp_path, "tiny.json")
    code, out, err = ask(file, "--max-seqs", 64, "--max-len", "2k", "--tp", 2)
    need = octavo.memory_for(ModelSpec.from_config(file), sequences=64, length=2048, tp=2)

    assert (0, "") == (code, err)
    assert out.startswith("tiny, bf16 cache, 2 ranks (tp 2): 64 sequences of 2,048 tokens need")
    assert f"{amount(need, up=True)} per rank" in out.splitlines()[0]
    data = json.loads(ask(file, "--max-seqs", 64, "--max-len", "2k", "--tp", 2, "--json")[1])
    assert (need, False, True) == (
        data["memory"]["device"],
        data["memory"]["given"],
        data["wish"]["fits"],
    )
    assert out.splitlines()[:3] == data["answer"]


def test_a_length_that_does_not_fit_is_a_wish_for_one(ask, tmp_path):
    """The answer says what would do, and the exit code is 3."""
    file = config(tmp_path, "tiny.json")
    code, out, err = ask(file, "--memory", "1MiB", "--max-len", "4k")

    assert (3, "") == (code, err)
    assert "1 sequence of 4,096 tokens does not fit: one of 496 tokens" in out.splitlines()[0]


def test_models_are_compared(ask, tmp_path):
    """A row a model at one length; 3 where one of them does not fit."""
    files = [config(tmp_path, "small.json"), config(tmp_path, "wide.json", num_key_value_heads=8)]
    code, out, err = ask(*files, "--memory", "8MiB", "--max-seqs", 2, "--max-len", "1k")

    head, *rows, note = out.splitlines()
    assert (3, "") == (code, err)
    assert "(weights not counted: small, wide)" == note
    assert ["model", "bytes per token", "per sequence of 1,024"] == re.split(r" {2,}", head)[:3]
    assert ["small", "wide"] == [row.split()[0] for row in rows]
    assert ["yes", "no"] == [re.split(r" {2,}", row)[-2].strip() for row in rows]
    data = json.loads(ask(*files, "--max-seqs", 2, "--max-len", "1k", "--json")[1])["comparison"]
    for row, file in zip(data, files, strict=True):
        need = octavo.memory_for(ModelSpec.from_config(file), sequences=2, length=1024)
        assert need == row["wish"]["memory"]
    code, _, err = ask(*files, "--compare", "dtype")
    assert (2, "octavo: --compare dtype takes one CONFIG, not several\n") == (code, err)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("tp", ["1", "2", "4", "8"]), ("layout", ["packed", "slab", "component"])],
)
def test_ranks_and_layouts_are_compared(ask, tmp_path, choice, names):
    """Each with the figures of its own plan; ranks share the weights."""
    file = config(tmp_path, "tiny.json")
    words = [file, "--memory", "64MiB", "--weights", "8MiB", "--tp", 2, "--compare", choice]
    rows = json.loads(ask(*words, "--json")[1])["comparison"]

    assert names == [row["choice"] for row in rows]
    for row in rows:
        weights = 2**24 // row["tp"]
        made = octavo.plan(
            ModelSpec.from_config(file), 2**26, layout=row["layout"], tp=row["tp"], weights=weights
        )
        assert (made.bytes_per_token, made.tokens) == (row["bytes_per_token"], row["tokens"])


def test_a_comparison_says_nothing_fits_only_where_nothing_does(ask, tmp_path):
    """A memory that holds some sequences, but not so many of one token, has its row."""
    file = config(tmp_path, "tiny.json")
    words = [file, "--memory", "1MiB", "--max-seqs", 1000, "--max-len", 64, "--compare", "memory"]
    rows = json.loads(ask(*words, "--json")[1])["comparison"]

    assert [False] * 5 == [row["fits"] for row in rows]
    rows = json.loads(ask(*words, "--weights", "600KiB", "--json")[1])["comparison"]
    assert [True, True, False] == ["refused" in row for row in rows[:3]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("meta-llama/Llama-3.3-70B", "of a model on a hub, save its config.json first"),
        ("nowhere", "no model of that name (known: smollm2-135m"),
        ("Llama-3.1-8B", "; save the config.json that lies beside its weights"),
        ("nowhere.json", "there is no such file or folder\n"),
        ("no/such/config.json", "there is no such file or folder, nor a folder 'no/such'"),
        ("empty", "the folder has no config.json"),
    ],
)
def test_what_is_not_there_is_called_by_what_it_is(ask, tmp_path, monkeypatch, name, message):
    """A file, a folder without a config, or the name of a model on a hub."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    code, out, err = ask(name)

    assert (1, "", 1) == (code, out, err.count("\n"))
    assert err.startswith(f"octavo: config path is '{name}'; ")
    assert message in err
