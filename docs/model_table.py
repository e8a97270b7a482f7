"""Writes docs/models.md from the table of model families; the tests check that it is current.

``--write`` writes the page. ``--engine`` runs a tiny model of every family in the engine first, a
quarter of an hour's work, and keeps how each was answered for the page.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path

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

Each family's line tells of the model that its class in transformers makes when nothing is said: an
example of the kinds of layers, not a published model.
Figures are those of `octavo.plan` when nothing is said.

Bytes per token are of bf16, while every layer keeps it; an indexer's keys are fp8 with scales.
Bytes per sequence are those it has from its start, whatever its length: recurrent states in fp32
and convolution inputs in bf16 (`--state-dtype bf16` halves the recurrent part); the other input of
a cross attention comes on top.
*remote* marks families whose code comes with the model's files.
The last column says whether `octavo.engine` runs the family, as explained below.

This page is written by `make help-texts`.
"""
TITLES = {
    "dense": "Every layer sees every token",
    "windowed": "Windows, chunks, shared layers",
    "pruned": "Layers as a list says",
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
        return (f"depends on `{error.field}`, which has no default or none that fits", "", "")
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
            answer = _answers().get(name, "").partition(":")[0]
            lines.append(f"| `{name}`{remote} | {' | '.join(_example(name, family))} | {answer} |")
    return lines


@cache
def _answers() -> dict[str, str]:
    """How the engine answers each family that transformers' AutoModelForCausalLM names."""
    found: dict[str, str] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return found


def _engine() -> list[str]:
    """Which families the engine runs, and why not the others."""
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, answer in _answers().items():
        kind, _, why = answer.partition(": ")
        kinds[kind][why].append(f"`{name}`")
    counts = {kind: sum(map(len, by_reason.values())) for kind, by_reason in kinds.items()}
    runs = counts["together"] + counts["by rows"]
    return [
        f"Of the {len(_answers())} families that `AutoModelForCausalLM` of transformers names,",
        f"`octavo.engine` runs {runs}. A tiny random model of each",
        "gives the greedy tokens of its own `generate()`, in chunks beside others.",
        "",
        f"*together*, {counts['together']}: one forward pass per step for all sequences, without",
        "padding, on pages.",
        "",
        f"*by rows*, {counts['by rows']}: a forward pass for each sequence, by the model's own",
        "attention, on keys gathered from its pages; slower, the more sequences run.",
        "`Engine.by_rows` says why:",
        "",
        *(f"- {why}: {', '.join(names)}." for why, names in kinds["by rows"].items()),
        "",
        f"*refused*, {counts['refused']}, by a typed error that says why:",
        "",
        *(f"- {', '.join(names)}: {why}." for why, names in kinds["refused"].items()),
        "",
        f"*untried*, {counts['untried']}, as no tiny model of it was built:",
        "",
        *(f"- {', '.join(names)}: {why}." for why, names in kinds["untried"].items()),
    ]


def run_engine() -> None:
    """Run a tiny model of every family in the engine, and keep how each was answered."""
    sys.path.insert(0, str(PARITY))
    from served_models import FAMILIES as NAMES
    from served_models import outcome

    answers = {name: outcome(name) for name in NAMES}
    ANSWERS.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")


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
