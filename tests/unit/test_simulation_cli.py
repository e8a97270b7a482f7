"""``octavo simulate``: answers on stdout, one clear line for everything that goes wrong."""

import json
import re
import sys
from pathlib import Path

import pytest
from traces import CAPACITIES, LRU_RATES
from traces import read_trace as read_ids

from octavo.cli import main
from octavo.cli.terminal import ProgressBar

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
def simulate(capsys):
    """``octavo simulate`` with some words; the exit code, stdout and stderr."""

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
        assert (0, 1) == (code, err.count("\n")), err
        return json.loads(out)

    return run


@pytest.fixture
def config(tmp_path):
    """The config.json of a small model."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG))
    return path


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
    """To the byte; the time it took is told on stderr."""
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
    assert err.startswith("simulated in ")
    assert "tokens/s" in err
    assert "requests/s" in err


def test_memory_and_model(figures, config):
    """A pool from a config: memory less the null page, in pages of the model's size."""
    found = figures(*CHAT, "--config", config, "--memory", 101 * PAGE_BYTES)

    assert (100, PAGE_BYTES) == tuple(found["runs"][0][key] for key in ("pages", "page_bytes"))


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
    assert 6 == len(figures(*words, "--sweep", "memory")["runs"])
    rates = [run["hit_rate_tokens"] for run in figures(*words, "--sweep", "memory")["runs"]]
    assert rates[0] < rates[-1]


def test_packed_model(figures):
    """Windows and full attention in one pool; what never fits is refused and counted."""
    words = ("chat", "--requests", 10, "--config", GEMMA, "--memory", "2GiB")
    serial, timed = figures(*words)["runs"], figures(*words, "--timing")["runs"]

    assert 10 == serial[0]["requests"] + serial[0]["refused"]
    assert 10 == timed[0]["requests"] + timed[0]["refused"]


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
    assert "<b>" not in page.read_text(encoding="utf-8")


def test_without_matplotlib(simulate, monkeypatch, tmp_path):
    """It is missed before anything is simulated, in one line that says what to install."""
    monkeypatch.setattr("octavo.cli.simulate.find_spec", lambda name: None)
    code, out, err = simulate(*CHAT, "--pages", 300, "--html", tmp_path / "out.html")

    assert (1, "") == (code, out)
    assert "octavo: matplotlib is not installed; run pip install 'octavo[simulate]'\n" == err


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("nowhere.jsonl", "--pages", 9), 1, "nowhere.jsonl: No such file"),
        ((".", "--pages", 9), 1, "Is a directory"),
        (("EMPTY", "--pages", 9), 1, "there is no request in it"),
        (("BAD", "--pages", 9), 1, "line 2: it is not JSON"),
        (("chat",), 2, "how large is the pool?"),
        (("chat", "--memory", "1GiB"), 2, "--memory needs --config"),
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
        (("chat", "--pages", 9, "--config", GEMMA), 2, "give bytes, as 16GiB"),
        (("chat", "--memory", 9, "--config", GEMMA), 1, "at least .* bytes are needed"),
        (("chat", "--pages", 9, "--rate", 0), 2, "'0' is not a number of 0.001 to 1e.12"),
        (("chat", "--pages", 9, "--step-ms", "nan"), 2, "'nan' is not a number"),
        (("chat", "--pages", 9, "--timing", "--max-step-tokens", 9), 2, "--max-seqs is above"),
        (("chat", "--pages", 9, "--html", "nowhere/out.html"), 1, "nowhere: no such directory"),
        (("chat", "--pages", 9, "--png", "."), 1, "is a directory"),
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


def test_progress_on_a_terminal(simulate, monkeypatch):
    """A bar over all runs; elsewhere only the line that says how fast it went."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, _, err = simulate(*CHAT, "--pages", 300, "--sweep", "policy")

    assert 0 == code
    assert "simulate: slru [###" in err
    assert "80 of 80 requests" in err


def test_bar_counts_requests(capsys):
    """Where no terminal is, a stage is one line."""
    ProgressBar("simulate", unit="requests")("lru", 0, 1200)

    assert "simulate: lru 1,200 requests\n" == capsys.readouterr().err


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
