"""Writes docs/models.md from the table of model families; the tests check that it is current.

``--write`` writes the page. ``--engine`` first runs a tiny model of every family that
tests/data/engine_families.json lacks in the engine, under every condition; without that file it is
a quarter of an hour's work of one core. It can be stopped, and goes on where it was.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import octavo
from octavo import Attention, Compressed, Cross, Latent, ModelSpec, State
from octavo.errors import ConfigError
from octavo.model.configs import FAMILIES
from octavo.model.configs.families import REMOTE, Family
from octavo.model.configs.fields import Fields
from octavo.model.configs.gguf_layers import PERIODS, PLAIN, STATES
from octavo.model.configs.gguf_layers import REFUSED as GGUF_REFUSED
from octavo.model.configs.nested import DECODING_ENCODERS, ENCODERS, REFUSED, WRAPPERS
from octavo.model.layers import LayerKind, kinds_in
from octavo.planner import sizes

PAGE = Path(__file__).with_name("models.md")
CONFIGS = PAGE.parents[1] / "tests/cases/data/configs"
PARITY = PAGE.parents[1] / "tests/parity"
ANSWERS = PAGE.parents[1] / "tests/data/engine_families.json"
MEMORY = "64TiB"
HEAD = "| `model_type` | example | bytes per token | bytes per sequence |"
RULE = "|---|---|--:|--:|"
INTRODUCTION = """\
# Models

`octavo.ModelSpec.from_config` reads what each layer keeps from a Hugging Face `config.json`, by its
`model_type`; what is not on this page is refused, never guessed.
For such a model, give the layers by hand:
`octavo.ModelSpec(name, layers=(octavo.Attention(...), ...))`.

The example of a family is the model that its class in transformers makes with default arguments:
it shows the kinds of layers, and is not a published model.
Figures are those of `octavo.plan` with default arguments.

Bytes per token are of a cache in bf16 whose windows are not yet full, so that every layer keeps
every token; an indexer's keys are fp8 with scales.
Bytes per sequence are taken from its start, whatever its length: recurrent states in fp32 and
convolution inputs in bf16 (`--state-dtype bf16` halves the recurrent part); what cross attention
keeps of the other input comes on top.
*remote* marks families whose code comes with the model's files.
The last column says how `octavo.engine` runs the family, and under how many of the twelve
conditions below its tokens are those of `generate()`.

This page is written by `make help-texts`.
"""
GROUPS = {
    "causal": "text",
    "see": "pictures and text",
    "hear": "sounds and text",
    "encode and decode": "a source, and a decoder's beginning",
    "real": "text, with real weights",
}
"""How families are grouped where they are recorded, and what each is given."""
TITLES = {
    "dense": "Every layer sees every token",
    "windowed": "Windows, chunks, shared layers",
    "pruned": "Layers as a list in the config says",
    "looped": "Layers that run several times",
    "latent": "One compressed row per token",
    "sparse": "Indexers, rows of several tokens",
    "hybrid": "States of constant size",
    "inkling": "Attention behind short convolutions",
    "encdec": "Decoders with another input",
    "remote": "Of code that comes with the files",
    "speech": "Speech over codebooks",
}


def _module(family: Family) -> str:
    return family.read.__module__.rpartition(".")[2]


def _shape(shape: Iterable[int]) -> str:
    return " × ".join(map(str, shape))


def _heads(kind: Attention | Cross) -> str:
    dims = f"{kind.k_dim}" if kind.k_dim == kind.v_dim else f"{kind.k_dim} + {kind.v_dim}"
    return f"{kind.kv_heads} heads of {dims}"


def _indexer(kind: Attention | Latent | Compressed) -> str:
    return f", an indexer's key of {kind.indexer}" if kind.indexer else ""


def _told(kind: LayerKind) -> str:
    """A kind in a few words."""
    match kind:
        case Attention():
            window = f", window {kind.window}" if kind.window else ""
            chunk = f", chunks of {kind.chunk}" if kind.chunk else ""
            return f"attention, {_heads(kind)}{window}{chunk}{_indexer(kind)}"
        case Latent():
            window = f", window {kind.window}" if kind.window else ""
            return f"latent, {kind.rank} + {kind.rope}{window}{_indexer(kind)}"
        case Compressed():
            row = f" of {kind.rank} + {kind.rope}" if kind.rank else ""
            return f"a row{row} for every {kind.every} tokens{_indexer(kind)}"
        case State():
            parts = [_shape(part) for part in (kind.recurrent, kind.conv) if part]
            rows = f", the last rows of {_shape(kind.rows)}" if kind.rows else ""
            return f"state{', ' if parts else ''}{' and '.join(parts)}{rows}"
        case Cross():
            return f"cross attention, {_heads(kind)}"
        case _:
            return "another layer's"


def _example(name: str, family: Family) -> tuple[str, str, str]:
    """The figures of the family's model when nothing is said."""
    try:
        spec = ModelSpec(name, tuple(family.read(Fields({}, family.defaults, name))))
    except ConfigError as error:
        return (f"no example: `{error.field}` has no default, or none that fits", "", "")
    return _figures(spec)


def _figures(spec: ModelSpec) -> tuple[str, str, str]:
    """Layers, bytes per token and bytes per sequence."""
    kinds = [kind for _, kind in spec.kinds()]
    told = "; ".join(f"{count} {kind}" for kind, count in Counter(map(_told, kinds)).items())
    own = tuple(
        tuple(kind for kind in kinds_in(layer) if not isinstance(kind, Cross))
        for layer in spec.layers
    )
    plan = octavo.plan(replace(spec, layers=own, max_length=None), MEMORY, page_size=1)
    token, sequence = plan.bytes_per_token, sizes.fixed_bytes_per_sequence(plan)
    depth = ""
    if spec.depth:
        depth = f"; beside it {_figures(spec.depth)[0]}, for {spec.depth.max_length} positions"
    return (f"{len(spec.layers)} layers: {told}{depth}", f"{token:,}", f"{sequence:,}")


def _sentence(family: Family) -> str:
    return (family.read.__doc__ or "").partition("\n")[0].replace("``", "`")


def _rows(module: str) -> list[str]:
    """The families of one module of readers, those with one reader together."""
    own = [(name, family) for name, family in FAMILIES.items() if _module(family) == module]
    own.sort(key=lambda item: (item[1].read.__code__.co_firstlineno, item[0]))
    lines = []
    for _, group in groupby(own, key=lambda item: item[1].read):
        members = list(group)
        lines += ["", _sentence(members[0][1]), ""]
        lines += [f"{HEAD} engine |", f"{RULE}---|"]
        for name, family in members:
            remote = " *remote*" if name in REMOTE else ""
            answer = _short(_answers("causal").get(name))
            lines.append(f"| `{name}`{remote} | {' | '.join(_example(name, family))} | {answer} |")
    return lines


@cache
def _recorded() -> dict[str, Any]:
    """How the engine answers each family under every condition; see tests/parity/answers.py."""
    found: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found


def _answers(group: str) -> dict[str, dict[str, Any]]:
    """The same of one group of families."""
    found: dict[str, dict[str, Any]] = _recorded()[group]
    return found


def _short(answer: dict[str, Any] | None) -> str:
    """How a family runs, and under how many of the conditions."""
    if answer is None or answer["how"] == "refused":
        return answer["how"] if answer else ""
    count = len(_recorded()["conditions"])
    return f"{answer['how']}, {count - len(answer.get('lacks', {}))} of {count}"


def _engine() -> list[str]:
    """Which families the engine runs, how, under which conditions, and why not the others."""
    lines = [
        "A tiny model of each family with random weights, and SmolLM2-135M with its own, answers",
        "three prompts under each of these conditions. A condition is met where every greedy token",
        "is that of the model's own `generate()`. A test runs a sample of them again, and",
        "`docs/model_table.py --engine` runs all:",
        "",
        "| condition | what is run |",
        "|---|---|",
        *(f"| {name} | {what} |" for name, what in _recorded()["conditions"].items()),
        "",
        "Pages are of 16 tokens or 4 where nothing else is said, and chunks of at most 11.",
        "Tiny models run in fp64, where what differs is a fault; a few know fp32 alone.",
        "",
        "| families that are given | tried | together | by rows | meet all conditions | refused |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for group, given in GROUPS.items():
        answers = _answers(group).values()
        hows = Counter(each["how"] for each in answers)
        whole = sum(each["how"] != "refused" and "lacks" not in each for each in answers)
        counts = (len(answers), hows["together"], hows["by rows"], whole, hows["refused"])
        lines.append(f"| {given} | {' | '.join(map(str, counts))} |")
    lines += [
        "",
        "*text*: the families that `AutoModelForCausalLM` of transformers names, and six others;",
        "the tables below say of each how it runs, and under how many of the conditions. CSM",
        "is given recordings too, and answers in [frames](engine.md#speech-in-frames). Others:",
        "",
    ]
    for group, given in list(GROUPS.items())[1:]:
        named = defaultdict(list)
        for name, each in _answers(group).items():
            named[_short(each)].append(name)
        lines += [f"- *{given}*, {short}: {', '.join(found)}." for short, found in named.items()]
    return [*lines, "", *_explained()]


def _explained() -> list[str]:
    """Why families run as they do, each reason with those it is for."""
    every = [(name, each) for group in GROUPS for name, each in _answers(group).items()]
    lines = [
        "*together*: one forward pass per step for all sequences, without padding, on pages.",
        "*by rows*: a forward pass for each sequence, or for those that stand alike, by the",
        "model's own attention, on keys gathered from pages; slower, the more sequences run.",
        "`Engine.by_rows` says why:",
    ]
    for how in ("by rows", "refused"):
        reasons = defaultdict(list)
        for name, each in every:
            if each["how"] == how:
                reasons[each["why"]].append(f"`{name}`")
        if how == "refused":
            lines += ["", "*refused*, by a typed error that says why:"]
        lines += ["", *(f"- {why}: {_all(names)}." for why, names in reasons.items())]
    lacks = defaultdict(list)
    for name, each in every:
        for condition, why in each.get("lacks", {}).items():
            lacks[condition, why].append(f"`{name}`")
    if lacks:
        lines += ["", "Conditions that are not met:", ""]
    lines += [f"- *{key[0]}*, {key[1]}: {_all(names)}." for key, names in lacks.items()]
    return lines


def _all(names: list[str]) -> str:
    """Names, or in short those of a whole group."""
    for group, given in GROUPS.items():
        if names == [f"`{name}`" for name in _answers(group)]:
            return f"all that are given *{given}*"
    return ", ".join(names)


def run_engine() -> None:
    """Run a tiny model of every family that the file lacks, and keep how each was answered."""
    sys.path.insert(0, str(PARITY))
    from answers import record

    record()


def _published() -> list[str]:
    """The published files that the tests read."""
    specs = ((file.stem, ModelSpec.from_config(file)) for file in sorted(CONFIGS.glob("*.json")))
    lines = (f"| {name} | {' | '.join(_figures(spec))} |" for name, spec in specs)
    return [HEAD.replace("`model_type`", "model"), RULE, *lines]


def _nests() -> list[str]:
    lines = ["| `model_type` | decoder, where its part of the file names no other |", "|---|---|"]
    return [*lines, *(f"| `{name}` | `{inner}` |" for name, inner in sorted(WRAPPERS.items()))]


def _gguf() -> list[str]:
    """What is read of GGUF files, by architecture."""
    groups = {
        "Attention, as the metadata says it": PLAIN,
        "Windows too": PERIODS,
        "States of constant size, alone or with attention": STATES,
        "Refused, as they keep no cache": GGUF_REFUSED,
    }
    lines = ["By `general.architecture`, from the metadata alone:", ""]
    for title, names in groups.items():
        lines.append(f"- {title}: {', '.join(f'`{name}`' for name in sorted(names))}.")
    return lines


def render() -> str:
    """The whole page."""
    lines = [INTRODUCTION, "## Published models", "", *_published(), ""]
    lines += ["## Which of them the engine runs", "", *_engine(), ""]
    for module, title in TITLES.items():
        lines += [f"## {title}", *_rows(module), ""]
    lines += ["## Decoders nested beside encoders", ""]
    lines += ["The decoder's part is `text_config`, `llm_config`, `language_config` or"]
    lines += [
        "`thinker_config` and the like; whatever encodes images or sound keeps no cache.",
        "",
        *_nests(),
        "",
    ]
    lines += ["## Encoders", "", "These generate nothing, keep no cache, and are refused:"]
    lines += [", ".join(f"`{name}`" for name in sorted(ENCODERS)) + "."]
    lines += ["With `is_decoder` these of them are decoders, and are read:"]
    lines += [", ".join(f"`{name}`" for name in sorted(DECODING_ENCODERS)) + "."]
    lines += ["", "## GGUF files", "", *_gguf()]
    lines += ["", "## Others that generate", "", "Refused, each for a reason of its own:", ""]
    lines += [f"- `{name}`: {reason}." for name, reason in sorted(REFUSED.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] == ["--engine"]:
        run_engine()
    if sys.argv[1:] in (["--write"], ["--engine"]):
        PAGE.write_text(render(), encoding="utf-8")
    else:
        print(render(), end="")
