"""Where the bytes of a device go: Gemma-3-27B's weights and cache on 80 GiB."""

from pathlib import Path

from pictures.svg import Picture

import octavo

CONFIG = Path(__file__).parents[2] / "tests/cases/data/configs/Gemma-3-27B.json"


def draw() -> str:
    """The device as one bar, a sequence as a second, and a parent cut into pages of each group."""
    spec = octavo.ModelSpec.from_config(CONFIG)
    length = 32768
    plan = octavo.plan(spec, "80GiB", weights="54GB", utilization=0.9, max_length=length)
    figures = plan.to_dict()
    device, cache = figures["memory"]["device"], figures["memory"]["available"]
    weights = figures["memory"]["weights"]

    def gib(count: int) -> str:
        return f"{count / 2**30:.1f} GiB"

    picture = Picture(760, 304, "A plan of Gemma-3-27B on a device of 80 GiB")
    picture.text(16, 24, f"a device of {gib(device)}, of which 90 % may be used", "head")
    scale = 728 / device
    x = 16.0
    parts = (("weights", weights, "free"), ("cache", cache, "one"))
    for name, count, kind in parts:
        picture.box(x, 34, count * scale, 30, kind, f"{name} {gib(count)}")
        x += count * scale
    picture.box(x, 34, 744 - x, 30, "null")
    picture.text(744, 80, "left to others", "small", "end")

    sequences = int(plan.max_sequences(length))
    words = f"{sequences} sequences of {length:,} tokens, {gib(figures['sequence_bytes'])} each"
    picture.text(16, 112, words, "head")
    scale = 728 / cache
    x = 16.0
    for number in range(sequences):
        width = figures["sequence_bytes"] * scale
        picture.box(x, 122, width, 30, "two", str(number + 1))
        x += width
    picture.box(x, 122, 744 - x, 30, "free")
    every = gib(figures["sequence_bytes_without_windows"])
    words = f"one that kept every token in every layer: {every}"
    picture.text(744, 168, words, "small", "end")

    pool = figures["pool"]
    words = f"{pool['parents']:,} parents of {pool['parent_bytes']:,} bytes, each cut into"
    picture.text(16, 200, words, "head")
    for line, group in enumerate(figures["groups"]):
        count, y = group["pages_per_parent"], 212 + line * 44
        for page in range(count):
            picture.box(270 + page * 474 / count, y, 474 / count, 28, ("one", "both")[line])
        picture.text(
            16, y + 18, f"{count} pages of {group['name']}, {len(group['layers'])} layers", "mono"
        )
    return picture.render()
