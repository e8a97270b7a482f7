"""``octavo generate PROMPT...``: answers of a model, all prompts in one continuous batch."""

import argparse
import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import octavo
from octavo.checkpoints import hub, text
from octavo.checks import not_installed
from octavo.cli import arguments, pull, report
from octavo.cli.machine import machine_memory
from octavo.cli.terminal import Answers
from octavo.cli.waiting import ProgressBar
from octavo.planner.figures import amount, counted

DEFAULT_MODEL = "smollm2-135m"
_DESCRIPTION = """\
Let a model answer one or more prompts. Several prompts run as one batch and share the cache: a
prefix they have in common is computed once. Answers go to stdout, a summary to stderr."""

_EPILOG = """\
PyTorch runs one thread per core. While other programs keep the cores busy, that is many times
slower than fewer threads: set OMP_NUM_THREADS=1 then."""


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "generate", help="let a model answer prompts", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument(
        "prompts", nargs="+", metavar="PROMPT", help="what to answer; - reads one prompt from stdin"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, at the end")
    _add_model(parser.add_argument_group("model"))
    _add_cache(parser.add_argument_group("cache"))
    _add_sampling(parser.add_argument_group("sampling"))
    parser.set_defaults(run=run)


def _add_model(group: Any) -> None:
    group.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        metavar="NAME|PATH",
        help="name to pull, Hugging Face folder or GGUF file (default: %(default)s)",
    )
    form = group.add_mutually_exclusive_group()
    form.add_argument(
        "--chat",
        action="store_true",
        default=None,
        help="put each prompt into the model's chat format (default if it has one)",
    )
    form.add_argument(
        "--raw", action="store_false", dest="chat", help="continue each prompt as it stands"
    )
    arguments.add_dtype(group, "element type of weights and cache")


def _add_cache(group: Any) -> None:
    group.add_argument(
        "--memory",
        type=arguments.memory,
        default="1GiB",
        metavar="SIZE",
        help="memory for the cache, such as 512MiB (default: %(default)s)",
    )
    arguments.add_page_size(group)
    group.add_argument(
        "--host-memory",
        type=arguments.memory,
        metavar="SIZE",
        help="memory beside it for what preempted answers lose, to be copied back where that takes "
        "less time than computing it (default: it is computed)",
    )
    group.add_argument(
        "--no-prefix-cache", action="store_true", help="compute every prompt from its first token"
    )


def _add_sampling(group: Any) -> None:
    group.add_argument(
        "--max-tokens",
        type=arguments.whole_number(0),
        default=256,
        metavar="N",
        help="longest answer in tokens (default: %(default)s)",
    )
    group.add_argument(
        "--temperature",
        type=arguments.temperature,
        metavar="T",
        help="0: always the likeliest token; 1: as the model says; higher: wilder "
        "(default: 0, or 1 with --top-p or --top-k)",
    )
    group.add_argument(
        "--top-p",
        type=arguments.probability,
        metavar="P",
        help="sample from the likeliest tokens that together have probability P",
    )
    group.add_argument(
        "--top-k",
        type=arguments.whole_number(1),
        metavar="K",
        help="sample from the K likeliest tokens",
    )
    group.add_argument(
        "--seed",
        type=arguments.whole_number(0, 2**63 - 1),
        metavar="S",
        help="same seed, same answer",
    )
    group.add_argument(
        "--json-schema", metavar="FILE", help="answer in JSON of the schema in this file"
    )


def run(options: argparse.Namespace) -> None:
    """Load the model, run all prompts, show the answers and the summary."""
    prompts = arguments.read_prompts(options.prompts)
    _require_memory(options.memory)
    pull.require_engine()
    schema = _read_schema(options.json_schema)
    if options.model == DEFAULT_MODEL and not hub.is_pulled(DEFAULT_MODEL):
        print(f"{DEFAULT_MODEL} is not here yet; fetching it once", file=sys.stderr)
        pull.fetch(DEFAULT_MODEL)
    hub.find(options.model)  # before PyTorch is imported, which takes seconds
    with ProgressBar(Path(options.model).name, unit="tokens") as bar:
        _run(options, prompts, schema, bar)


def _read_schema(path: str | None) -> str | None:
    """The text of a file, where llguidance is here; whether it is a schema the engine will say."""
    if path is None:
        return None
    if find_spec("llguidance") is None:
        raise arguments.CommandError(not_installed("llguidance", "grammar"))
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise arguments.UsageError(f"--json-schema: {path} cannot be read: {error}") from error


def _run(
    options: argparse.Namespace, prompts: list[str], schema: str | None, bar: ProgressBar
) -> None:
    bar("loading PyTorch and transformers")
    set_up_libraries()
    from octavo.checkpoints import loading

    bar("loading the model")
    loaded = loading.load(options.model, options.dtype)
    bar("preparing the cache")
    plan = octavo.plan(
        loaded.spec,
        options.memory,
        page_size=options.page_size,
        dtype=loaded.dtype,
        order="head",
    )
    answers = _encode(loaded, prompts, chat=options.chat)
    with _engine(loaded, plan, options) as engine:
        _submit(engine, answers, _params(options, schema, loaded), loaded)
        began = time.perf_counter()
        _answer(engine, answers, None if options.json else Answers(prompts), bar)
        rate = sum(len(a.output) for a in answers) / (time.perf_counter() - began)
    bar.close()
    if options.json:
        print(json.dumps(report.figures(engine, answers, rate)))
    else:
        print(report.summary(engine, answers, rate), file=sys.stderr)


def _require_memory(wanted: int) -> None:
    """Refuse a cache larger than the machine: the system might promise it and not keep that."""
    there = machine_memory()
    if there is not None and wanted > there:
        raise arguments.CommandError(
            f"--memory asks for {amount(wanted)} of cache, this machine has {amount(there)}"
        )


def set_up_libraries() -> None:
    """Keep what transformers says while it loads off the terminal, and let idle threads sleep soon.

    Between the kernels of a step threads wait for less than a tenth of a millisecond, and spin for
    that long. To sleep at once takes a step of a small model up to three times as long, and to spin
    for long costs most of the time where other programs want the cores.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # read when PyTorch is imported
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def _encode(loaded: Any, prompts: list[str], *, chat: bool | None) -> list[report.Answer]:
    """The prompts in tokens; ``chat`` None: as a chat where the model has a format for it."""
    tokenizer = loaded.tokenizer
    chat = text.has_chat_template(tokenizer) if chat is None else chat
    encode = text.encode_chat if chat else text.encode_raw
    answers = [report.Answer(encode(tokenizer, p), text.Detokenizer(tokenizer)) for p in prompts]
    for number, answer in enumerate(answers, start=1):
        if not answer.tokens:
            raise arguments.UsageError(f"prompt {number} makes no tokens with this tokenizer")
    return answers


def _engine(loaded: Any, plan: octavo.Plan, options: argparse.Namespace) -> Any:
    """The engine with its cache allocated."""
    from octavo.engine import Engine, HostMemory

    host = None if options.host_memory is None else HostMemory(options.host_memory)
    try:
        prefix = not options.no_prefix_cache
        return Engine(loaded.model, plan, prefix=prefix, host=host, tokenizer=loaded.tokenizer)
    except (MemoryError, RuntimeError) as error:
        if "alloc" not in str(error) and not isinstance(error, MemoryError):
            raise
        size = amount(options.memory)
        why = f"this machine cannot provide {size} of memory for the cache; lower --memory"
        raise arguments.CommandError(why) from error


def _submit(engine: Any, answers: list[report.Answer], params: Any, loaded: Any) -> None:
    """Hand all prompts to the engine; it runs nothing yet, so one that cannot fit stops all."""
    for number, answer in enumerate(answers, start=1):
        length, context = len(answer.tokens), loaded.spec.max_length or sys.maxsize
        if length + min(1, params.max_tokens) > context:
            raise arguments.CommandError(
                f"prompt {number} has {counted(length, 'token')}, but the model's context of "
                f"{context:,} must hold it and at least one token of the answer"
            )
        try:
            answer.request = engine.submit(answer.tokens, params)
        except octavo.NeverFits as error:
            more = min(params.max_tokens, context - length)
            raise _too_little(number, length, more, engine.cache.plan, error) from error


def _params(options: argparse.Namespace, schema: str | None, loaded: Any) -> Any:
    """The sampling wanted; narrowing the choice without a temperature means temperature 1."""
    from octavo.engine import SamplingParams

    narrowed = options.top_p is not None or options.top_k is not None
    temperature = options.temperature
    return SamplingParams(
        max_tokens=options.max_tokens,
        temperature=(1.0 if narrowed else 0.0) if temperature is None else temperature,
        top_p=options.top_p,
        top_k=options.top_k,
        seed=options.seed,
        json_schema=schema,
        stop_token_ids=loaded.stop_token_ids,
    )


def _answer(
    engine: Any, answers: list[report.Answer], shown: Answers | None, bar: ProgressBar
) -> None:
    """Run until every answer is complete, showing text as it comes, and a bar where none does."""
    waiting = dict(enumerate(answers))
    hidden = shown is None or (sys.stderr.isatty() and not sys.stdout.isatty())
    try:
        while waiting:
            _tell(answers, bar)
            engine.step()
            if not hidden and any(answer.request.output for answer in answers):
                bar.close()
            for index, answer in list(waiting.items()):
                added = answer.update()
                if shown:
                    shown.add(index, added)
                if answer.request.done:
                    del waiting[index]
                    if shown:
                        shown.finish(index)
    finally:
        if shown:
            shown.close()


def _tell(answers: list[report.Answer], bar: ProgressBar) -> None:
    """How much of the prompts has been read, or from the first token on how much answered."""
    answered = sum(len(answer.request.output) for answer in answers)
    if answered:
        bar("answering", answered)
        return
    open_rows = [answer.request.sequence for answer in answers if answer.request.sequence]
    read = sum(sequence.computed for sequence in open_rows)
    bar("reading the prompt", read, sum(len(answer.tokens) for answer in answers))


def _too_little(
    number: int, tokens: int, more: int, plan: octavo.Plan, refused: octavo.NeverFits
) -> arguments.CommandError:
    """Memory too small for one request, in pages and bytes."""
    need, have = (amount(pages * plan.page_bytes) for pages in (refused.need, refused.total))
    return arguments.CommandError(
        f"prompt {number} ({counted(tokens, 'token')}) with its answer (up to {more:,}) needs "
        f"{counted(refused.need, 'page')} ({need}), the memory holds {refused.total:,} ({have}); "
        "raise --memory or lower --max-tokens"
    )
