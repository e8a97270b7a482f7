"""``octavo demo``: a chat about a page of text, with the prefix cache and without it."""

import argparse
import sys
import time
from pathlib import Path
from shutil import which
from typing import Any, NamedTuple

import octavo
from octavo.checkpoints import hub, text
from octavo.cli import arguments, pull
from octavo.cli.generate import DEFAULT_MODEL, set_up_libraries
from octavo.cli.report import Answer
from octavo.cli.waiting import ProgressBar
from octavo.planner.budget import parse_memory
from octavo.planner.figures import amount

_MEMORY = "64MiB"
_MAX_TOKENS = 48  # of an answer
_BAR = 40
PAGE = """\
The lighthouse at Cape Alder was built in 1871 by the engineer Martha Quill.
It stands on a granite rock at the mouth of the river Tarn and is 42 metres
high. For its first forty years the lamp burned whale oil. In 1911 it was
changed to electric light, and since 1987 it has worked without a keeper.

The last keeper was Tobias Finch. He lived in the tower for thirty years
together with his wife Edda and a parrot called Admiral. The parrot had
learned to imitate the fog horn so well that ships answered him. When Finch
retired, he moved to the village of Lower Marsh and opened a small bakery
there. His rye bread is still sold every Saturday.

Today the lighthouse is a museum. It is open from April to October and shows
the old lamp, the logbooks of the keepers and the stuffed parrot. About 9,000
people visit it every year. The climb to the gallery has 199 steps, and on a
clear day one can see the mountains of the island of Skerry. A ticket costs
four pounds, and children pay nothing. The ferry to the rock leaves from the
harbour of Tarnmouth at ten o'clock and comes back at four.

The storm of 1953 was the worst that the lighthouse has seen. The waves broke
eleven windows and carried the boathouse away. Finch kept the lamp burning for
three nights without sleep. A fishing boat called the Blue Heron followed the
light home, and its crew of six gave the keeper a silver watch. The watch is
shown in the museum next to the parrot."""
_QUESTIONS = (
    "How high is the lighthouse?",
    "How many steps does the climb to the gallery have?",
    "What was the name of the fishing boat?",
)
NEXT = (
    ('generate "Why is the sky blue?" "Why is the sea salty?"', "two prompts in one batch"),
    (f"plan {DEFAULT_MODEL} --memory 16GiB", "how many conversations fit, and why"),
    (
        f"simulate chat --config {DEFAULT_MODEL} --memory 512MiB",
        "what the traffic of a chat service would hit",
    ),
)


class Turn(NamedTuple):
    """What one turn of the chat took.

    Attributes:
        answer: its text.
        prompt_tokens: tokens of the conversation so far, the question included.
        cached_tokens: those of them whose keys and values were found in the cache.
        first_token: seconds from the question to the first token of the answer.
    """

    answer: str
    prompt_tokens: int
    cached_tokens: int
    first_token: float


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="see in a minute what the cache saves",
        description="A small model answers three questions about a page of text in one chat: once "
        "with the prefix cache, so that a turn computes only what is new, and once without it. "
        "Fetches the model the first time.",
        epilog="Other programs that keep the cores busy make both runs slower: "
        "see octavo generate --help.",
    )
    arguments.add_dtype(parser, "element type of weights and cache")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load the model, chat twice, compare."""
    pull.require_engine()
    loaded = _load(options.dtype)
    plan = octavo.plan(loaded.spec, _MEMORY, dtype=loaded.dtype, order="head")
    print(f"{DEFAULT_MODEL}, a model of 135 million weights in {loaded.dtype}, is given a page of")
    print(f"text and three questions about it:\n\n{PAGE}")
    print("\nWith the cache a turn computes only what it adds to the conversation.\n")
    reused = _chat(loaded, plan, prefix=True)
    print("The same without: every turn computes the conversation from its beginning.\n")
    computed = _chat(loaded, plan, prefix=False)
    print(_comparison(reused, computed, plan))
    print("next:")
    for words, why in NEXT:
        print(f"  {program()} {words}\n      {why}")
    print(
        "  read docs/guides/transformers.md\n      the same cache under your own model.generate()"
    )


def _load(dtype: str) -> Any:
    """The model, fetched where it is missing; importing PyTorch is most of the wait."""
    if not hub.is_pulled(DEFAULT_MODEL):
        print(f"{DEFAULT_MODEL} is not here yet; fetching it once", file=sys.stderr)
        pull.fetch(DEFAULT_MODEL)
    with ProgressBar(DEFAULT_MODEL) as bar:
        bar("loading PyTorch and transformers")
        set_up_libraries()
        from octavo.checkpoints import loading

        bar("loading the model")
        return loading.load(DEFAULT_MODEL, dtype)


def _warm_up(engine: Any, loaded: Any) -> None:
    """Read the page and answer a word, in either chat, so that what happens once is not timed.

    It does not begin as the chat does, so nothing of it is found there.
    """
    from octavo.engine import SamplingParams

    with ProgressBar(DEFAULT_MODEL) as bar:
        bar("a first request, which is not counted")
        engine.generate([text.encode_raw(loaded.tokenizer, PAGE)], SamplingParams(max_tokens=4))


def _chat(loaded: Any, plan: octavo.Plan, *, prefix: bool) -> list[Turn]:
    """Ask all questions in one conversation, showing each answer and what it took."""
    from octavo.engine import Engine

    said: list[str] = []
    turns = []
    with Engine(loaded.model, plan, prefix=prefix) as engine:
        _warm_up(engine, loaded)
        for question in _QUESTIONS:
            said.append(question if said else f"{_instruction()}\n\n{question}")
            print(f"> {question}")
            turn = _ask(engine, loaded, text.encode_chat(loaded.tokenizer, *said))
            said.append(turn.answer)
            turns.append(turn)
            print(f"  [{_facts(turn, plan)}]\n")
    return turns


def _facts(turn: Turn, plan: octavo.Plan) -> str:
    """What a turn took, in one line."""
    size = amount(turn.cached_tokens * plan.bytes_per_token)
    cached = (
        f"{turn.cached_tokens:,} of them cached ({size})" if turn.cached_tokens else "none cached"
    )
    prompt = f"prompt of {turn.prompt_tokens:,} tokens"
    return f"first token after {turn.first_token:.2f} s; {prompt}, {cached}"


def _instruction() -> str:
    """What opens the first turn: the page, its lines joined to paragraphs."""
    paragraphs = (" ".join(lines.split()) for lines in PAGE.split("\n\n"))
    return "Read this text and answer my questions about it.\n\n" + "\n\n".join(paragraphs) + "\n"


def _ask(engine: Any, loaded: Any, prompt: list[int]) -> Turn:
    """Stream one answer."""
    from octavo.engine import SamplingParams

    params = SamplingParams(max_tokens=_MAX_TOKENS, stop_token_ids=loaded.stop_token_ids)
    answer = Answer(prompt, text.Detokenizer(loaded.tokenizer))
    began = time.perf_counter()
    answer.request = engine.submit(prompt, params)
    with ProgressBar(DEFAULT_MODEL) as bar:
        bar("reading the prompt")
        while not answer.request.output:
            engine.step()
    first = time.perf_counter() - began
    try:
        print(answer.update(), end="", flush=True)
        while not answer.request.done:
            engine.step()
            print(answer.update(), end="", flush=True)
    finally:
        print()  # where it is cut short too, what went wrong has its own line
    return Turn(answer.text, len(prompt), answer.request.cached_tokens, first)


def _comparison(reused: list[Turn], computed: list[Turn], plan: octavo.Plan) -> str:
    """The first tokens as a bar chart, what was saved, and the plan of the cache."""
    cached = sum(turn.cached_tokens for turn in reused)
    prompts = sum(turn.prompt_tokens for turn in reused)
    return f"""\
Seconds to the first token (the first turn is new to both; each had answered a request before):

{_chart(reused, computed)}

{cached:,} of {prompts:,} prompt tokens were found in the cache: {saved(reused, computed)},
and {amount(cached * plan.bytes_per_token)} of keys and values were not computed again.
{_agreement(reused, computed)}
The plan: {amount(parse_memory(_MEMORY))} hold {plan.usable_pages:,} pages of {plan.page_size} \
tokens, {amount(plan.page_bytes)} each.
"""


def _chart(reused: list[Turn], computed: list[Turn]) -> str:
    """Two bars per turn, the longest ``_BAR`` wide."""
    longest = max(turn.first_token for turn in (*reused, *computed))
    lines = []
    for number, pair in enumerate(zip(reused, computed, strict=True), start=1):
        for name, turn in zip((f"turn {number}  cache", "no cache"), pair, strict=True):
            bar = "#" * max(1, round(_BAR * turn.first_token / longest))
            lines.append(f"  {name:>15}  {turn.first_token:6.2f}  {bar}")
    return "\n".join(lines)


def saved(reused: list[Turn], computed: list[Turn]) -> str:
    """Seconds of all turns but the first, where the machine was quiet enough to show them."""
    turns = zip(reused[1:], computed[1:], strict=True)
    less = sum(without.first_token - with_.first_token for with_, without in turns)
    if less > 0:
        return f"{less:.1f} s less to wait"
    return "no time saved this once, as other programs kept the cores busy"


def _agreement(reused: list[Turn], computed: list[Turn]) -> str:
    """Whether both runs said the same."""
    if [turn.answer for turn in reused] == [turn.answer for turn in computed]:
        return "Both runs gave the same answers."
    return "The answers differ: steps of other sizes round differently."


def program() -> str:
    """How this command was called, so that the next one can be called likewise."""
    program = sys.argv[0]
    if Path(program).name == "__main__.py":
        return "python -m octavo"
    return "octavo" if which("octavo") == program else program
