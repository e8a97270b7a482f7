"""``octavo simulate``: answers on stdout, one clear line for everything that goes wrong."""

import json
import re
from pathlib import Path

import pytest
from traces import CAPACITIES, LRU_RATES
from traces import read_trace as read_ids

import octavo
from octavo import simulation
from octavo.checks import not_installed
from octavo.cli import html, main
from octavo.simulation import generate

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
PAGE_BYTES = 2 * 2 * 2 * 16 * 2 * 16  # K and V, layers, KV heads, head size, bytes, tokens
GEMMA = Path(__file__).parents[1] / "cases/data/configs/Gemma-3-27B.json"
CHAT = ("chat", "--requests", "40")


@pytest.fixture
def simulate(capsys, monkeypatch):
    """``octavo simulate`` with some words, never slow; the exit code, stdout and stderr."""
    monkeypatch.setattr("octavo.cli.waiting._FIRST_SECONDS", 1e9)

    def run(*words):
        code = main(["simulate", *map(str, words)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def figures(simulate):
    """The same, as the object that ``--json`` prints."""

    def run(*words):
        code, out, err = simulate(*words, "--json")
        *runs, last = err.splitlines()
        assert (0, "replayed in ") == (code, last[:12]), err
        assert all(line.startswith("simulate: ") for line in runs)
        return json.loads(out)

    return run


@pytest.fixture
def config(tmp_path):
    """The config.json of a small model."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_an_output_is_no_input(simulate, config, tmp_path, monkeypatch, option):
    """Trace, config and settings are not overwritten, nor the other output."""
    trace, settings = tmp_path / "t.jsonl", tmp_path / "settings.toml"
    trace.write_text('{"arrival": 0, "input_length": 9, "output_length": 1}\n')
    settings.write_text("[simulate]\n")
    monkeypatch.setenv("OCTAVO_CONFIG_FILE", str(settings))
    before = {file: file.read_text() for file in (trace, config, settings)}
    words = (trace, "--config", config, "--memory", "1MiB")

    for file in before:
        code, out, err = simulate(*words, option, file)
        assert (2, "") == (code, out)
        assert f"{option} {file} would overwrite {file}, which this command reads" in err
    for name in ("new", "./new"):
        code, out, err = simulate(*words, "--html", tmp_path / "new", "--png", tmp_path / name)
        assert (2, "") == (code, out)
        assert "are one file; give each a file of its own" in err
    assert before == {file: file.read_text() for file in before}


@pytest.fixture(scope="module")
def mooncake(tmp_path_factory):
    """A published trace, by name, as the file it was."""

    def write(name):
        path = tmp_path_factory.mktemp("traces") / f"{name}.jsonl"
        with path.open("w") as file:
            for ids in read_ids(name):
                line = {"timestamp": 0, "input_length": 512 * ids.size, "output_length": 1}
                file.write(json.dumps({**line, "hash_ids": ids.tolist()}) + "\n")
        return path

    return write


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("synthetic", "1000,3000,10000,unbounded"), ("conversation", "10000")],
)
def test_published_curves(figures, mooncake, name, sizes):
    """Hash ids are replayed one by one, and hit what an exact simulation of LRU says."""
    found = figures(mooncake(name), "--sweep", "memory", sizes)
    at = [CAPACITIES.index(int(s)) if s.isdecimal() else -1 for s in sizes.split(",")]

    assert ["serial", 512] == [found["mode"], found["runs"][0]["page_size"]]
    rates = [round(100 * run["hit_rate_pages"], 2) for run in found["runs"]]
    assert [LRU_RATES[name][each] for each in at] == rates


def test_same_seed_same_json(simulate):
    """To the byte; the time it took is said on stderr."""
    words = (*CHAT, "--pages", 300, "--timing", "--replicas", 2, "--json", "--seed")

    assert simulate(*words, 5)[1] == simulate(*words, 5)[1]
    assert simulate(*words, 5)[1] != simulate(*words, 6)[1]


def test_text(simulate):
    """What was replayed, how, and what came out; how fast it went is no result."""
    code, out, err = simulate(*CHAT, "--pages", 300, "--timing", "--replicas", 2)

    assert 0 == code
    assert out.startswith("chat: 40 requests (generated), ")
    assert "A step takes 10 ms + prompt tokens / 20,000 + " in out
    for name in ("hit rate", "evicted", "preempted", "first token", "balance"):
        assert f"\n{name}  " in out
    assert err.startswith("replayed in ")
    assert "this program's speed" in err
    assert "tokens/s" in err
    assert "requests/s" in err


def test_without_preemption(figures, simulate):
    """Nobody loses pages where all that run can reach their end, and it is said so."""
    words = (*CHAT, "--rate", 40, "--pages", 300, "--timing")
    on, off = (figures(*words, *more) for more in ((), ("--no-preemption",)))

    assert [True, False] == [found["time_model"]["preemption"] for found in (on, off)]
    assert on["runs"][0]["preemptions"] > 0 == off["runs"][0]["preemptions"]
    assert "requests, none of which is preempted." in simulate(*words, "--no-preemption")[1]


def test_memory_and_model(figures, config):
    """A pool from a config: memory less the null page, in pages of the model's size."""
    found = figures(*CHAT, "--config", config, "--memory", 101 * PAGE_BYTES)

    assert (100, PAGE_BYTES) == tuple(found["runs"][0][key] for key in ("pages", "page_bytes"))


def test_gpus(figures, simulate, config):
    """As in `octavo plan`: memory by name, and as many ranks as GPUs; bytes are of one rank."""
    words = (*CHAT, "--config", config, "--weights", "24.14GB")
    by_name, by_hand = (
        figures(*words, *more)
        for more in (("--gpu", "2xA10-24GB"), ("--memory", "23028MiB", "--tp", 2))
    )
    assert by_hand == by_name
    out = simulate(*words, "--gpu", "2xA10-24GB")[1]
    assert (
        "tp 2, bf16, memory 22.49 GiB per rank less 22.48 GiB of weights, 16 tokens per page" in out
    )
    assert "MiB per rank)" in out
    for more, why in [
        (("--gpu", "2xL4", "--tp", 4, "--config", config), "names 2 GPUs, --tp 4 takes 4"),
        (("--gpu", "L4"), "--gpu has no effect: it needs --config"),
        (("--gpu", "L4", "--memory", "1GiB", "--config", config), "not allowed with argument"),
    ]:
        code, _, err = simulate(*CHAT, *more)
        assert (2, True) == (code, why in err), err


def test_lengths_and_rate(figures, simulate):
    """How long prompts are and how fast they come is said, so that a workload can be judged."""
    trace = figures(*CHAT)["trace"]
    generated = generate("chat", 40)
    lengths = sorted(each.input_length for each in generated.requests)

    assert (lengths[19], lengths[-1]) == (trace["input_length_p50"], trace["input_length_max"])
    assert 40 / trace["seconds"] == pytest.approx(trace["requests_per_second"])
    line = f"Prompts: p50 {lengths[19]:,} tokens, longest {lengths[-1]:,}; "
    assert line in simulate(*CHAT)[1]


@pytest.mark.parametrize("name", ["chat", "agents", "rag", "system-prompt"])
def test_serial_replay_of_conversations(simulate, name):
    """Its rate is too low, which is said where the trace is of conversations, with times never."""
    warned = "quote what --timing says" in simulate(name, "--requests", 9)[1]

    assert (name in ("chat", "agents")) == warned
    assert "quote what" not in simulate(name, "--requests", 9, "--timing")[1]


def test_sweeps(figures, config):
    """Memory in bytes and pages, page sizes of as many tokens, policies."""
    words = (*CHAT, "--config", config, "--memory", 101 * PAGE_BYTES)
    sizes = f"{201 * PAGE_BYTES}B,50,unbounded"

    assert [200, 50] == [
        run["pages"] for run in figures(*words, "--sweep", "memory", sizes)["runs"][:2]
    ]
    runs = figures(*CHAT, "--pages", 300, "--sweep", "page-size", "16", "64")["runs"]
    assert [("16", 300), ("64", 75)] == [(run["label"], run["pages"]) for run in runs]
    runs = figures(*CHAT, "--pages", 300, "--sweep", "policy")["runs"]
    assert ["lru", "slru"] == [run["policy"] for run in runs]
    rates = [run["hit_rate_all_tokens"] for run in figures(*words, "--sweep", "memory")["runs"]]
    assert 6 <= len(rates) <= 10
    assert rates[0] < rates[-1] == rates[-2]


def test_weights_beside_the_config(figures, simulate, config):
    """Known ones leave the pool what `octavo plan` leaves; sizes that nobody names are the pool's.

    Pages and a size of one's own count without them.
    """
    size = 40 * PAGE_BYTES
    (config.parent / "model.gguf").write_bytes(b"x" * size)
    words = (*CHAT, "--config", config)
    memory = ("--memory", 101 * PAGE_BYTES)

    assert 60 == figures(*words, *memory)["runs"][0]["pages"]
    assert 100 == figures(*words, *memory, "--weights", 0)["runs"][0]["pages"]
    assert 160 * 1024 == figures(*words, *memory)["runs"][0]["weights"]
    assert figures(*words, "--pages", 9)["runs"][0]["weights"] is None
    assert 80 == figures(*words, *memory, "--tp", 2)["runs"][0]["pages"] // 2
    assert 50 == figures(*words, "--pages", 50)["runs"][0]["pages"]
    swept = (*words, "--sweep", "memory")
    assert 60 == figures(*swept, f"{101 * PAGE_BYTES}B")["runs"][0]["pages"]
    assert "memory 404 KiB less 160 KiB of weights" in simulate(*words, *memory)[1]
    assert "sweep of memory, weights not counted" in simulate(*swept)[1]
    assert "pool 50 pages, 16 tokens per page" in simulate(*words, "--pages", 50)[1]


def test_packed_model(figures, simulate):
    """Windows and full attention in one pool; what never fits is refused and counted."""
    words = ("chat", "--requests", 10, "--config", GEMMA, "--memory", "2GiB")
    serial, timed = figures(*words)["runs"], figures(*words, "--timing")["runs"]

    assert 10 == serial[0]["requests"] + serial[0]["refused"]
    assert 10 == timed[0]["requests"] + timed[0]["refused"]
    plan = octavo.plan(octavo.ModelSpec.from_config(GEMMA), "2GiB")
    each = {name: group.pages_per_parent for name, group in plan.groups.items()}
    assert each == serial[0]["pages_per_parent"]
    text = simulate(*words)[1]
    assert f" parents of {plan.page_bytes:,} bytes (1.97 GiB), each " in text
    assert " parents at peak" in text


def test_too_small_for_all(figures):
    """A pool below every request serves none of them, and that is an answer."""
    for more in ((), ("--timing",)):
        [run] = figures(*CHAT, "--pages", 2, *more)["runs"]
        assert (0, 40, 0.0) == (run["requests"], run["refused"], run["hit_rate_tokens"])


def test_charts(simulate, tmp_path):
    """Pages of HTML need no other file, of one run and of a sweep; PNG is a picture."""
    page, picture = tmp_path / "out.html", tmp_path / "out.png"
    words = (*CHAT, "--pages", 300, "--html", page, "--png", picture)
    for more in (("--timing", "--replicas", 2), ("--timing", "--sweep", "policy"), ()):
        assert 0 == simulate(*words, *more)[0]
        text = page.read_text(encoding="utf-8")

        assert text.count("<svg") == text.count("</svg>") > 0
        assert "http-equiv" not in text
        assert not any(word in text for word in ("<script", "<link", 'src="http', "@import"))
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_names_are_escaped(simulate, tmp_path):
    """A file's name is text, whatever stands in it."""
    path, page = tmp_path / "<b>&.jsonl", tmp_path / "out.html"
    path.write_text('{"arrival": 0, "input_length": 40, "output_length": 2}\n')

    assert 0 == simulate(path, "--pages", 20, "--html", page)[0]
    assert "<b>" not in page.read_text(encoding="utf-8").replace("<div><b>", "")


@pytest.mark.parametrize(
    "words", [("--timing",), ("--replicas", 2), ("--timing", "--sweep", "memory", "30,300")]
)
def test_pages_have_one_style(simulate, tmp_path, words):
    """That of plan's page, dark too: what is drawn has colours of the style, none of its own."""
    target = tmp_path / "out.html"
    assert (
        0
        == simulate(
            *CHAT, *(() if "--sweep" in words else ("--pages", 300)), *words, "--html", target
        )[0]
    )
    page = target.read_text(encoding="utf-8")

    assert html.STYLE in page
    drawn = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert [] == re.findall(r"#[0-9a-fA-F]{6}\b", drawn)
    named = set(re.findall(r"var\((--\w+)\)", page))
    light, dark = html.STYLE.split("@media (prefers-color-scheme: dark)")
    assert named <= set(re.findall(r"(--\w+):", light))
    assert {"--ink", "--curve0", "--curve1"} <= set(re.findall(r"(--\w+):", dark))


def test_p50_comes_before_p99(simulate, tmp_path):
    """In the text, in the JSON and on the page, of one run and of a sweep."""
    page = tmp_path / "out.html"
    for more in ((), ("--sweep", "policy")):
        words = (*CHAT, "--pages", 300, "--timing", *more)
        _, text, _ = simulate(*words)
        _, data, _ = simulate(*words, "--json", "--html", page)
        for shown in (text, data, page.read_text(encoding="utf-8")):
            assert 0 < shown.index("p50") < shown.index("p99")


def test_without_matplotlib(simulate, monkeypatch, tmp_path):
    """It is missed before anything is simulated, in one line that says what to install."""
    monkeypatch.setattr("octavo.cli.simulate.find_spec", lambda name: None)
    code, out, err = simulate(*CHAT, "--pages", 300, "--html", tmp_path / "out.html")

    assert (1, "") == (code, out)
    assert f"octavo: {not_installed('matplotlib', 'simulate')}\n" == err


def test_a_model_is_no_trace(simulate):
    """A config where a trace goes is said to be one, with the words that take it."""
    code, out, err = simulate(GEMMA, "--pages", 9)

    assert (2, "") == (code, out)
    assert "is a model's config, and TRACE is a file of requests or a workload (chat, " in err
    assert err.endswith(f"; write octavo simulate chat --config {GEMMA}\n")


def test_an_interrupted_sweep_shows_what_has_run(simulate, monkeypatch):
    """Ctrl-C in the third of four settings: two are shown, as a part; before one is done none."""
    replay, left = simulation.replay, [2]

    def interrupted(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return replay(*arguments)

    monkeypatch.setattr(simulation, "replay", interrupted)
    code, out, err = simulate(*CHAT, "--sweep", "memory", "100,200,300,400")
    assert 130 == code
    assert out.startswith("Partial: interrupted when 2 of 4 settings had run.\n")
    assert err.endswith("octavo: interrupted\n")
    left[0] = 1
    code, out, _ = simulate(*CHAT, "--sweep", "memory", "100,200,300", "--json")
    assert (130, 2, 1) == (code, json.loads(out)["missing"], len(json.loads(out)["runs"]))
    left[0] = 0
    assert (130, "", "octavo: interrupted\n") == simulate(*CHAT, "--pages", 100)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("nowhere.jsonl", "--pages", 9), 1, "nowhere.jsonl: there is no such file"),
        (("chatt",), 1, "chatt: .* nor a workload of that name .chat, "),
        (("/",), 1, "/ is a folder; a trace is a file"),
        (("EMPTY", "--pages", 9), 1, "there is no request in it"),
        (("BAD", "--pages", 9), 1, "line 2: it is not JSON"),
        (("--pages", 9), 2, "a file of requests, or one of chat, system-prompt, agents, rag"),
        (("--sweep", "memory", "--pages", 9), 2, "TRACE is missing"),
        (("BAD", "--pages", 9, "--rate", 2), 2, "--rate has no effect: .* TRACE is a file"),
        (("BAD", "--pages", 9, "--seed", 0), 2, "--seed has no effect: .* TRACE is a file"),
        (("chat", "--pages", 9, "--skip-bad"), 2, "--skip-bad has no effect"),
        (("chat", "--pages", 9, "--router", "prefix"), 2, "--router has no effect: .*one replica"),
        (("chat", "--pages", 9, "--step-ms", 3), 2, "--step-ms has no effect: it needs --timing"),
        (("chat", "--pages", 9, "--no-preemption"), 2, "--no-preemption has no effect"),
        (("chat", "--config", GEMMA, "--host-memory", "1GiB"), 2, "it needs --timing"),
        (("chat", "--timing", "--host-memory", "1GiB"), 2, "--host-memory .* needs --config"),
        (("chat", "--timing", "--copy-rate", 9), 2, "--copy-rate .* it needs --host-memory"),
        (("chat", "--pages", 9, "--max-step-tokens", 3), 2, "it needs --timing or --config"),
        (("chat", "--pages", 9, "--tp", 2), 2, "--tp has no effect: it needs --config"),
        (("chat", "--pages", 9, "--config", GEMMA, "--weights", 2), 2, "--weights has no effect"),
        (("chat", "--memory", "1GiB"), 2, "--memory needs --config"),
        (("--calibrate", "nowhere", "--pages", 9), 2, "--pages has no effect: there is no TRACE"),
        (("chat", "--calibrate", "nowhere", "--step-ms", 3), 2, "--calibrate measures it"),
        (("--calibrate", "nowhere"), 1, "nowhere"),
        (("chat", "--memory", "1GiB", "--pages", 4), 2, "not allowed with"),
        (("chat", "--pages", 9, "--config", "nowhere.json"), 1, "nowhere.json"),
        (("chat", "--pages", 0), 2, "0 is not a whole number of at least 1"),
        (("chat", "--pages", 9, "--policy", "fifo"), 2, "invalid choice: 'fifo'"),
        (("chat", "--pages", 9, "--router", "random"), 2, "invalid choice: 'random'"),
        (("chat", "--pages", 9, "--sweep", "policy", "lru,fifo"), 2, "known policies are"),
        (("chat", "--pages", 9, "--sweep", "size"), 2, "--sweep is 'size'; it must be one of"),
        (("chat", "--pages", 9, "--sweep", "memory", "1,,2"), 2, "empty value"),
        (("chat", "--pages", 9, "--sweep", "memory", "lots"), 2, "memory is 'lots'"),
        (("chat", "--pages", 9, "--sweep", "memory", "0"), 2, "pages is '0'"),
        (("chat", "--pages", 9, "--sweep", "memory", "9" * 5000), 2, "whole number"),
        (("chat", "--pages", 9, "--sweep", "memory", "1GiB"), 2, "it takes a model"),
        (("chat", "--pages", 9, "--sweep", "page-size", "-4"), 2, "page size is '-4'"),
        (("chat", "--pages", 9, "--config", GEMMA), 2, "give bytes, such as 16GiB"),
        (("chat", "--memory", 9, "--config", GEMMA), 1, "at least .* bytes are needed"),
        (("chat", "--pages", 9, "--rate", 0), 2, "'0' is not a number of 0.001 to 1e.12"),
        (("chat", "--pages", 9, "--step-ms", "nan"), 2, "'nan' is not a number"),
        (("chat", "--pages", 9, "--timing", "--max-step-tokens", 9), 2, "--max-seqs is above"),
        (("chat", "--pages", 9, "--html", "nowhere/out.html"), 1, "there is no folder 'nowhere'"),
        (("chat", "--pages", 9, "--png", "."), 1, ". is a folder; give the name"),
    ],
)
def test_misuse(simulate, tmp_path, monkeypatch, words, code, why):
    """One line on stderr, nothing on stdout."""
    monkeypatch.chdir(tmp_path)
    Path("EMPTY").touch()
    Path("BAD").write_text('{"arrival": 0, "input_length": 40, "output_length": 2}\nnonsense\n')
    given, out, err = simulate(*words)

    assert (code, "", 1) == (given, out, err.count("\n")), err
    assert re.search(why, err), err


def test_bad_lines_are_counted(figures, tmp_path):
    """``--skip-bad`` leaves them out and says how many."""
    path = tmp_path / "log"
    path.write_text('{"arrival": 0, "input_length": 40, "output_length": 2}\nnonsense\n{}\n')

    assert (1, 2) == tuple(
        figures(path, "--pages", 9, "--skip-bad")["trace"][key] for key in ("requests", "bad_lines")
    )


def test_too_long_is_told_from_too_large(figures, simulate, tmp_path, config):
    """Longer than is allowed, and larger than the pool: apart, and in the rate over all."""
    path, sizes = tmp_path / "log", (160, 160, 3000, 5000)
    line = '{{"arrival": 0, "tokens": {}, "output_length": 2}}\n'
    path.write_text("".join(line.format([*range(size)]) for size in sizes))
    words = (path, "--config", config, "--memory", 101 * PAGE_BYTES)
    for more in ((), ("--timing",)):
        [run] = figures(*words, *more)["runs"]
        counts = [run[f"refused{which}"] for which in ("", "_too_long", "_never_fit")]
        assert [2, 1, 1] == counts
        assert (8320, 320) == (run["all_prompt_tokens"], run["prompt_tokens"])
        assert round(run["cached_tokens"] / 8320, 6) == run["hit_rate_all_tokens"]
        assert 4096 == run["max_length"]
    text = simulate(*words)[1]
    assert "2 refused: 1 longer than the longest sequence allowed, 4,096 tokens (see " in text
    assert ", 1 need more than the whole pool\n" in text
    assert [2] == [run["refused_too_long"] for run in figures(*words, "--max-len", 200)["runs"]]


def test_first_requests_of_a_file(figures, tmp_path):
    """``--requests`` cuts a file."""
    path = tmp_path / "log"
    path.write_text('{"arrival": 0, "input_length": 40, "output_length": 2}\n' * 5)

    assert 3 == figures(path, "--pages", 9, "--requests", 3)["trace"]["requests"]


def test_own_token(simulate, tmp_path):
    """The page of a prompt's own token is told apart from those asked for; so is the padding."""
    path = tmp_path / "log"
    line = {"arrival": 0, "input_length": 700, "hash_ids": [1, 2], "output_length": 1}
    path.write_text(f"{json.dumps(line)}\n")
    text = simulate(path, "--pages", 1000)[1]

    assert "\npool       1,000 pages of 512 tokens + 1 for a prompt's own token\n" in text
    assert "1,025 prompt tokens are replayed" in text


def test_sweep_before_trace(figures, simulate):
    """The values end where the trace stands; a value too small is a row, the others run."""
    words = ("--pages", 3, "--max-len", 1600, "--requests", 40)
    found = figures(*words, "--sweep", "memory", "50", "200,300", "chat")

    assert ["200", "300"] == [run["label"] for run in found["runs"]]
    assert [{"label": "50", "why": "at least 100 pages needed"}] == found["too_small"]
    text = simulate(*words, "--sweep", "memory", "50,200", "chat")[1]
    assert "    50  too small: at least 100 pages needed\n" in text
    assert (1, "") == simulate(*words, "--sweep", "memory", "5,50", "chat")[:2]


def test_usual_sizes(figures, config):
    """Without any size: from about one long sequence on until all fits, or with no model pages."""
    found = figures(*CHAT, "--config", config, "--sweep", "memory")["runs"]
    assert 6 <= len(found) <= 10
    assert found[-1]["evictions"] == {"prefill": 0, "decode": 0}
    pages = figures(*CHAT, "--sweep", "memory")["runs"]
    assert 10 == len(pages)
    assert pages[-1]["hit_rate_all_tokens"] == found[-1]["hit_rate_all_tokens"]


def test_plan_options(figures, config):
    """Element type, ranks and what a device keeps for the model are those of ``octavo plan``."""
    words = (*CHAT, "--config", config, "--memory", 101 * PAGE_BYTES)

    def pages(*more):
        return figures(*words, *more)["runs"][0]["pages"]

    assert [201, 201] == [pages("--dtype", "fp8"), pages("--tp", 2)]
    assert 50 == pages("--weights", 50 * PAGE_BYTES)
    assert pages("--dtype", "int8") < pages("--dtype", "int8", "--scales", "tensor")
    assert pages("--utilization", "0.5") == 49


def test_settings_are_shown(simulate, config, tmp_path):
    """In text and on the page: model, element type, page size, policy, replicas, router, seed."""
    page = tmp_path / "out.html"
    words = (*CHAT, "--config", config, "--memory", "1MiB", "--replicas", 2, "--router", "prefix")
    text = simulate(*words, "--html", page, "--png", tmp_path / "out.png")[1]
    told = (
        f"Setting: model {tmp_path.name}, bf16, memory 1 MiB, weights not counted, 16 tokens per "
        "page, lru, 2 replicas, router prefix, sequences of at most 4,096 tokens, --rate 4, seed 0."
    )

    assert told in text
    assert told in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("more", [(), ("--timing",), ("--page-size", 1)])
def test_more_than_the_machine_can_count(simulate, tmp_path, more):
    """Two thousand million pages, or as many tokens that would fit: refused, not killed."""
    path = tmp_path / "log"
    path.write_text('{"arrival": 0, "input_length": 2000000000, "output_length": 2}\n')
    sized = ("--pages", 2_000_000_000, "--page-size", 1, "--replicas", 9)
    code, out, err = simulate("chat", *sized)

    assert (1, "", 1) == (code, out, err.count("\n"))
    assert "this machine has" in err
    code, out, err = simulate(path, "--sweep", "memory", "unbounded", *more)
    assert (1, "", 1) == (code, out, err.count("\n"))


def test_a_trace_of_lengths(simulate, tmp_path):
    """What hits is said not to be known, and without a size of the pool all fits."""
    path = tmp_path / "burst.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n5,472,18\n45,1087,230\n")
    code, out, _ = simulate(path)

    assert 0 == code
    assert "hits cannot be measured" in out
    assert "not known, of 1,559 tokens" in out
    assert "pool unbounded" in out


def test_host_memory(simulate):
    """What is copied back is told, where copying is faster than computing."""
    words = ("system-prompt", "--timing", "--config", GEMMA.with_name("Llama-3.1-8B.json"))
    words += ("--memory", "1GiB", "--weights", 0, "--rate", 50, "--requests", 40, "--watermark", 0)
    words += ("--host-memory", "8GiB")
    found = json.loads(simulate(*words, "--copy-rate", "2e10", "--json")[1])

    assert (2**33, 2e10) == tuple(found["time_model"][n] for n in ("host_memory", "copy_rate"))
    assert found["runs"][0]["restored_tokens"] > 0
    out = simulate(*words, "--copy-rate", "2e10")[1]
    assert "copied bytes / 2e+10 seconds" in out
    assert f"{found['runs'][0]['restored_tokens']:,} copied back" in out
    assert "copied back" not in simulate(*words, "--copy-rate", "2e9")[1]


def test_ids_and_times_of_other_units(simulate, tmp_path):
    """The options say what the file leaves open; a workload has neither."""
    path = tmp_path / "trace.jsonl"
    line = {"timestamp": 0.5, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]}
    path.write_text(json.dumps(line))

    assert 1 == simulate(path)[0]
    assert 0 == simulate(path, "--block-size", 16, "--time-unit", "s")[0]
    assert "--block-size has no effect" in simulate("chat", "--block-size", 16)[2]
