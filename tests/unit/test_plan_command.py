"""``octavo plan``: options, comparisons, the page, and what it says of bad input."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import octavo
from octavo import Attention, ModelSpec
from octavo.cli import main
from octavo.cli.models import read_model
from octavo.cli.plan_page import memory_pieces, render, sequence_pieces
from octavo.model.spec import State
from octavo.planner import pools, sizes
from octavo.planner.figures import amount

CONFIG = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "sliding_window": 32,
    "max_position_embeddings": 512,
}
CONFIGS = Path(__file__).parents[1] / "cases/data/configs"
SPEC = ModelSpec.from_config(CONFIG)
HYBRID = ModelSpec(
    "hybrid <b>", (Attention(2, 16, 16), State((4, 8, 8), (32, 3)), State((4, 8, 8))) * 2, 512
)


def test_a_page_is_no_input(plan, tmp_path):
    """The config, its folder's files, its weights, the settings, by any name: all stay as are."""
    settings, weights = tmp_path / "settings.toml", tmp_path / "model.safetensors"
    settings.write_text("[plan]\n")
    weights.write_bytes(b"weights")
    (tmp_path / "link.html").symlink_to("config.json")
    (tmp_path / "page.html").touch()
    words, before = ("--memory", "16MiB", "--config-file", settings), weights.read_bytes()

    for config in (tmp_path / "config.json", tmp_path):
        for name in ("config.json", "link.html", "model.safetensors", "settings.toml"):
            code, out, err = plan(*words, "--html", tmp_path / name, config=config)
            assert (2, "") == (code, out)
            assert f"--html {tmp_path / name} would overwrite " in err
    assert CONFIG == json.loads((tmp_path / "config.json").read_text())
    assert ("[plan]\n", before) == (settings.read_text(), weights.read_bytes())
    assert 0 == plan(*words, "--html", tmp_path / "page.html", config=tmp_path)[0]


@pytest.mark.parametrize(
    ("gpu", "right"),
    [
        ("16GiB", "--memory takes a size"),
        ("H100-80GBx2", "the number stands first: 2xH100-80GB"),
        ("h100 x 4", "the number stands first: 4xh100"),
    ],
)
def test_what_is_no_gpu(plan, gpu, right):
    """A size, or the number behind the name: the answer says how it is written."""
    code, out, err = plan("--gpu", gpu)

    assert (2, "") == (code, out)
    assert f"{gpu!r} is no name of a GPU; {right}" in err


@pytest.mark.parametrize(
    ("gpu", "meant"),
    [
        ("A10G", "A10-24GB"),
        ("l40", "L40S-48GB"),
        ("H100X", "H100-80GB"),
        ("a100", "A100-40GB, A100-80GB"),
    ],
)
def test_gpus_of_close_names(plan, gpu, meant):
    """A name that is nearly one of those known is answered with that alone."""
    assert (
        f"gpu is {gpu!r}; give bytes as an int, as '16GiB', or a GPU of: {meant} ("
        in plan("--gpu", gpu)[2]
    )
    assert "T4-16GB, A10-24GB, L4-24GB" in plan("--gpu", "TPU")[2]


@pytest.mark.parametrize("name", ["", " ", "-"])
def test_a_page_has_a_name(plan, name):
    """Nothing is written to stdout, nor to a file called ``-``."""
    code, out, err = plan("--memory", "16MiB", "--html", name)

    assert (2, "") == (code, out)
    assert f"--html: {name!r} is no file; give the name of a file to write" in err


@pytest.fixture
def plan(tmp_path, capsys):
    """``octavo plan`` on the config; returns exit code, stdout and stderr."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))

    def run(*words, config=file):
        code = main(["plan", str(config), *map(str, words)])
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {}),
        (["--dtype", "fp16"], {"dtype": "fp16"}),
        (["--dtype", "int8", "--scales", "token"], {"dtype": "int8", "scales": "token"}),
        (["--page-size", 32, "--max-len", 64], {"page_size": 32, "max_length": 64}),
        (["--layout", "slab"], {"layout": "slab"}),
        (["--tp", 2], {"tp": 2}),
        (
            ["--utilization", "0.9", "--weights", "100KiB", "--activations", "1kB", "--other", "5"],
            {"utilization": "0.9", "weights": "100KiB", "activations": 1000, "other": 5},
        ),
    ],
)
def test_options_are_those_of_plan(plan, tmp_path, words, options):
    """The command shows the plan that Python makes of the same options, as text and as JSON."""
    made = octavo.plan(read_model(str(tmp_path / "config.json")), "1MiB", **options)
    answer = made.explain().splitlines()[:3]

    assert (0, made.explain() + "\n", "") == plan("--memory", "1MiB", *words)
    code, out, err = plan("--memory", "1MiB", *words, "--json")
    assert (0, made.to_dict() | {"answer": answer}, "") == (code, json.loads(out), err)


def test_element_types_of_what_is_kept(capsys):
    """Those of states and of an indexer are taken where the model keeps such, else refused."""
    jamba, llama = CONFIGS / "Jamba-v0.1.json", CONFIGS / "Llama-3.1-8B.json"
    words = ["--memory", "8GiB", "--state-dtype", "bf16"]
    assert 0 == main(["plan", str(jamba), *words])
    assert "states bf16" in capsys.readouterr().out
    assert 0 == main(["plan", str(llama), str(jamba), *words, "--max-len", "1k"])
    capsys.readouterr()

    for models, option, ends in (
        ([llama], ["--state-dtype", "fp32"], "Llama-3.1-8B keeps no recurrent states"),
        ([jamba], ["--indexer-dtype", "fp8"], "Jamba-v0.1 keeps no keys of an indexer"),
        ([llama, jamba], ["--indexer-dtype", "fp8"], "and Jamba-v0.1 keep no keys of an indexer"),
    ):
        assert 2 == main(["plan", *map(str, models), "--memory", "8GiB", *option])
        assert capsys.readouterr().err.endswith(f"{ends}\n")


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ((), "max_length is 10; it must be at least 16, a page's tokens; or give a smaller "),
        (("--page-size", 32), "page_size is 32; it must be an int of at least 1 and at most 10, "),
    ],
)
def test_a_length_below_a_page(plan, words, right):
    """What is wrong is the length that was given, not a page size that was not."""
    code, out, err = plan("--memory", "1MiB", "--max-len", 10, *words)

    assert (2, "") == (code, out)
    assert err.startswith(f"octavo: {right}")


def test_models_without_known_weights_are_named(plan, tmp_path, capsys):
    """Beside others they would seem to have room for more than they do."""
    (tmp_path / "model.gguf").write_bytes(b"x" * 4096)
    known, llama = str(tmp_path / "config.json"), str(CONFIGS / "Llama-3.1-8B.json")
    for words, told in (
        (["--memory", "8GiB"], True),
        (["--memory", "8GiB", "--weights", "1GiB"], False),
        ([], False),
    ):
        plan(config=known)
        main(["plan", known, llama, "--max-len", "256", *words])
        out = capsys.readouterr().out
        assert told == out.endswith("\n(weights not counted: Llama-3.1-8B)\n")
        assert told == ("not counted" in out)


def test_bytes_are_those_of_a_gpu(capsys):
    """Whatever is of one of several GPUs says so."""
    words = ["--gpu", "2xH100-80GB", "--weights", "7GiB", "--max-len", "32k"]
    main(["plan", str(CONFIGS / "Llama-3.1-8B.json"), *words])
    lines = dict(each.split(maxsplit=1) for each in capsys.readouterr().out.splitlines() if each)

    assert lines["model"].endswith("bytes are per GPU (tp 2), sequences and tokens of all together")
    assert lines["device"].endswith("= 78,004,617,216 bytes (72.65 GiB) for the cache per GPU")
    assert lines["sequence"].endswith("2,147,483,648 bytes (2 GiB) per GPU")
    assert lines["memory"].startswith("78,004,617,216 bytes (72.65 GiB) per GPU = ")
    assert lines["Each"].endswith("(4 GiB in all): 65,536 bytes per token and GPU.")
    assert lines["note"] == "activations: not given; nothing is set aside for the forward pass"


def test_names_of_the_json(plan):
    """The names that docs/sizing.md tells are the ones printed."""
    data = json.loads(plan("--memory", "1MiB", "--json")[1])
    budget, pool = data["budget"], data["pool"]

    assert {"parents", "parent_bytes", "null_bytes"} == set(pool)
    used = pool["parents"] * pool["parent_bytes"] + pool["null_bytes"]
    assert 2**20 == budget["total"] == used + budget["remainder"]
    assert ["window_32", "full"] == [group["name"] for group in data["groups"]]
    for group in data["groups"]:
        assert pool["parents"] * group["pages_per_parent"] == group["usable_pages"]
        assert group["pages"] == group["usable_pages"] + 1
        assert group["page_bytes"] * group["pages_per_parent"] == pool["parent_bytes"]


@pytest.mark.parametrize(("sequences", "fits"), [(3, True), (40, False), (10**4, False)])
def test_a_wish(plan, sequences, fits):
    """Whether so many fit, at which length they do, and the memory that is exactly enough."""
    words = ["--memory", "1MiB", "--max-len", 256, "--max-seqs", sequences]
    code, out, _ = plan(*words, "--json")
    wish = json.loads(out)["wish"]
    made = octavo.plan(SPEC, "1MiB", max_length=256)

    assert (0 if fits else 3) == code

    assert (sequences, 256, fits) == (wish["sequences"], wish["length"], wish["fits"])
    assert pools.max_length_for(made, sequences) == wish["max_length"]
    enough = {"max_length": 256, "sequences": sequences}
    assert octavo.plan(SPEC, wish["memory"], **enough)
    with pytest.raises(octavo.BudgetTooSmall):
        octavo.plan(SPEC, wish["memory"] - 1, **enough)
    code, out, _ = plan(*words)
    told = out.splitlines()[0]
    assert (0 if fits else 3) == code
    assert f"{sequences:,} sequences of 256 tokens {'fit' if fits else 'do not fit'}" in told
    assert fits or f"{amount(wish['memory'], up=True)} would be enough" in told
    assert ("do not fit, nor do as many shorter ones" in told) == (sequences == 10**4)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("page-size", ["1", "16", "32", "64", "256"]),
        ("dtype", ["fp32", "bf16", "fp8", "int8", "int4"]),
        ("memory", ["256 KiB", "512 KiB", "1 MiB", "2 MiB", "4 MiB"]),
    ],
)
def test_comparisons(plan, choice, names):
    """A table of plans that differ in one thing, each with the figures of its own plan."""
    words = ["--memory", "1MiB", "--max-len", 256, "--compare", choice]
    rows = json.loads(plan(*words, "--json")[1])["comparison"]
    table = plan(*words)[1].split("\n\n")[-1].splitlines()

    assert names == [row["choice"] for row in rows]
    assert f"sequences of {256}" in table[0]
    shown = [
        re.split(r"\s\s+|, scale per head", line.strip())[0] for line in table[: 1 + len(names)]
    ]
    assert [choice, *names] == shown
    if choice == "page-size":
        assert "of 256  lost per sequence  reuse in steps of  table entries" in table[0]
        assert table[-1].startswith("(lost: half a page per group")
    for row in rows:
        made = octavo.plan(
            SPEC, row["memory"], page_size=row["page_size"], dtype=row["dtype"], max_length=256
        )
        found = (made.bytes_per_token, made.tokens, made.budget.padding)
        assert found == (row["bytes_per_token"], row["tokens"], row["padding"])


def test_what_cannot_be_compared_says_why(plan):
    """A plan that is refused is a line below the table."""
    words = ["--memory", "64KiB", "--max-len", 40, "--compare"]

    assert "page_size is 256; it must be an int" in plan(*words, "page-size")[1]
    assert "16 KiB: nothing fits" in plan(*words, "memory")[1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--memory", "1MiB", "--max-len", "9" * 15], 2, "max_length is 9999"),
        (["--memory", "1MiB", "--max-len", "32.5k"], 2, "'32.5k' is no length; give tokens as"),
        (["--memory", "1MiB", "--max-len", "0k"], 2, "such as 32768, or 32k (1024s)"),
        (["--memory", "80", "GiB"], 2, "a size is one word, such as 80GiB"),
        (["--gpu", "2xH100-80GB", "--tp", 4], 2, "--gpu names 2 GPUs, --tp 4 takes 4"),
        (["--sequences", 5], 2, "did you mean --max-seqs? (see octavo plan --help)"),
        (["--bogus"], 2, "octavo plan: unrecognized arguments: --bogus (see octavo plan --help)"),
        (["--gpu", "3xH100-80GB", "--pp", 2], 2, "--gpu names 3 GPUs, --tp 1 and --pp 2 take 2"),
        (
            ["--gpu", "A100"],
            2,
            "gpu is 'A100'; give bytes as an int, as '16GiB', or a GPU of: A100-40GB",
        ),
        (["--gpu", "L4", "--memory", "1MiB"], 2, "not allowed with argument"),
        (["--compare", "memory"], 2, "--compare memory starts from --memory or --gpu"),
        (["--compare", "model"], 2, "--compare model takes several CONFIGs"),
        (["--memory", "1MiB", "--pp", 7], 2, "pp is 7; it must be an int of at least 1"),
        (["--memory", "1MiB", "--mtp", 1], 2, "--mtp is 1; the config has 0 prediction layers"),
        (["--memory", "1MiB", "--utilization", "2"], 2, "utilization is '2'; it must be above 0"),
        (["--memory", "1MiB", "--scales", "head"], 2, "bf16 is not quantised and has no scales"),
        (["--memory", "1MiB", "--max-seqs", 10**18], 2, "take more than 2**31 token slots"),
        (["--memory", "1MiB", "--html", "/nowhere/a.html"], 1, "there is no folder '/nowhere'"),
        (["--memory", "1MiB", "--html", "a", "--json"], 2, "not allowed with argument --html"),
        (["--memory", "1XiB"], 2, "give bytes as an int"),
        (["--memory", "1MiB", "--dtype", "int3"], 2, "invalid choice: 'int3'"),
        (["--memory", "1MiB", "--compare", "cp"], 2, "invalid choice: 'cp'"),
    ],
)
def test_bad_input_is_one_line(plan, words, code, message):
    """A line on stderr that says what is wrong, an exit code, and no traceback."""
    found, out, err = plan(*words)

    assert (code, "") == (found, out)
    assert message in err
    assert err.startswith("octavo")
    assert 1 == err.count("\n")


@pytest.mark.parametrize("content", ["", "[1, 2", "[]", '{"model_type": "lama"}', "\x00", "{}"])
def test_bad_files_are_one_line(plan, tmp_path, content):
    """Not JSON, no object, an unknown model."""
    file = tmp_path / "bad.json"
    file.write_text(content)

    for config in (file, tmp_path / "nowhere.json", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        code, out, err = plan("--memory", "1MiB", config=config)
        assert (1, "", 1) == (code, out, err.count("\n"))


def test_a_window_longer_than_any_sequence(plan):
    """Such a window keeps every token and never has more in flight."""
    code, out, _ = plan("--memory", "1MiB", "--max-len", 16)

    assert (0, True, False) == (code, "window_32" in out, "in flight" in out)


def test_weights_beside_the_config_are_taken_off(tmp_path, capsys):
    """An index of safetensors says them, for each rank its part; --weights comes before it."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64}
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    index = {"metadata": {"total_size": 200_001}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    main(["plan", str(tmp_path), "--memory", "1MiB", "--tp", "2"])
    told = capsys.readouterr().out
    assert "1,048,576 (1 MiB) - 100,001 weights = 948,575 bytes for the cache" in told
    assert "weights: 200,001 bytes, from model.safetensors.index.json, 100,001 on each of 2" in told
    main(["plan", str(tmp_path), "--memory", "1MiB", "--weights", "0"])
    assert "of weights" not in capsys.readouterr().out


# -- the page --------------------------------------------------------------------------------------


class Outline(HTMLParser):
    """Tags that are open, to see that all are closed in order, and what a page would fetch."""

    VOID = ("meta", "br")

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        """A tag begins."""
        self.fetched += [value for name, value in attrs if name in ("src", "href")]
        self.fetched += [tag] if tag in ("script", "link", "img", "iframe") else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        """A tag ends: the one opened last."""
        assert tag == self.open.pop()

    def handle_data(self, data):
        """Text between tags."""
        self.text.append(data)


PLANS = [
    octavo.plan(SPEC, "1MiB"),
    octavo.plan(SPEC, "1MiB", utilization=0.9, weights=1000, activations=50, other=7),
    octavo.plan(SPEC, "1MiB", layout="slab", dtype="int8"),
    octavo.plan(
        HYBRID, "1MiB", dtype="fp8", scales="head", draft=ModelSpec("d", (SPEC.layers[5],))
    ),
    octavo.plan(ModelSpec("plain", (Attention(2, 16, 16),)), "1MiB"),
]


@pytest.mark.parametrize("made", PLANS)
def test_pictures_sum_to_the_memory(made):
    """Every byte of the device is in the picture, and of a sequence in the second one."""
    pieces = memory_pieces(made)

    assert made.memory.device == sum(piece.bytes for piece in pieces)
    assert all(piece.bytes > 0 for piece in pieces)
    assert sizes.kept_bytes(made, made.max_length) == sum(p.bytes for p in sequence_pieces(made))


def test_names_in_a_picture():
    """Weights, keys and values by group, states, scales, draft, padding and what is left over."""
    assert ["KV full", "states", "scales", "draft", "padding", "null page", "remainder"] == [
        piece.name for piece in memory_pieces(PLANS[3])
    ]
    assert ["weights", "activations", "other", "kept free", "KV window_32"] == [
        piece.name for piece in memory_pieces(PLANS[1])
    ][:5]


@pytest.mark.parametrize("made", PLANS)
def test_the_page_is_self_contained(made):
    """Well-formed, without scripts or anything to fetch; names are text, never markup."""
    page, outline = render(made, None, [["size", "n"], ["1", "2"]], ["a & b"]), Outline()
    outline.feed(page)
    text = " ".join(outline.text)

    assert [] == outline.open == outline.fetched
    assert "url(" not in page
    assert "a & b" in text
    assert "<b>" not in page.replace("<div><b>", "")
    for term in ("model", "one token", "memory", "capacity", "reuse"):
        assert term in text
    assert f"{made.budget.payload:,}" in text


def test_the_page_is_written(plan, tmp_path):
    """--html writes the page and says where; the wish and the comparison are in it."""
    target = tmp_path / "plan.html"
    words = ["--memory", "1MiB", "--max-seqs", 5, "--compare", "dtype", "--html", target]

    assert (3, f"wrote {target}\n", "") == plan(*words)
    page = target.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "5 sequences of 512 tokens" in page
    assert ">int4, scale per head</td>" in page


def test_the_page_has_what_the_text_has(plan, tmp_path):
    """Ranks on a card, what columns mean and why a row is missing; a phone names each cell."""
    target = tmp_path / "plan.html"
    words = ["--memory", "1MiB", "--weights", "600KiB", "--tp", 2, "--max-len", 100]
    assert 0 == plan(*words, "--compare", "tp", "--html", target)[0]
    page = target.read_text(encoding="utf-8")

    assert "<b>tp 2</b>" in page
    assert "bytes are of one rank" in page
    assert '<p class="soft">tp 1: nothing fits' in page
    cells = re.findall(r"<td[^>]*>", page)
    assert cells
    assert all("data-of=" in cell for cell in cells)
