"""Two prompts that begin alike: which pages each holds, what is computed and what is not."""

from itertools import count
from typing import NamedTuple

from pictures.svg import Picture

import octavo

PAGE_SIZE = 4
SYSTEM = "You are a keeper of an old light by the cold sea."
QUESTIONS = ("Why is the lamp lit?", "When do you rest at night?")
COLUMN, GAP, LEFT = 124, 8, 104


class Row(NamedTuple):
    """A prompt in the cache: its words, its pages, and how many of its tokens were found."""

    words: list[str]
    pages: list[int]
    cached: int
    computed: int


def run() -> list[Row]:
    """Both prompts, one after the other; every word is a token."""
    ids: dict[str, int] = {}
    numbers = count()
    cache = octavo.Cache(octavo.Plan.from_pages(10, PAGE_SIZE))
    rows = []
    for question in QUESTIONS:
        words = f"{SYSTEM} {question}".split()
        tokens = [
            ids[word] if word in ids else ids.setdefault(word, next(numbers)) for word in words
        ]
        seq = cache.admit(tokens)
        step = cache.extend([seq], seq.length - seq.scheduled)
        pages = step.group().table[0].tolist()
        cache.commit(step, [next(numbers)])
        rows.append(Row(words, pages, seq.cached, int(step.counts[0])))
    return rows


def draw() -> str:
    """The prompts above and below, in pages of words; the pages of the cache between them."""
    first, second = run()
    shared = set(first.pages) & set(second.pages)
    picture = Picture(760, 274, "Two prompts that begin alike share pages")
    numbers = sorted({*first.pages, *second.pages})
    width = (5 * COLUMN + 4 * GAP - GAP * (len(numbers) - 1)) / len(numbers)
    middles = {page: LEFT + i * (width + GAP) + width / 2 for i, page in enumerate(numbers)}
    for (row, top, name), own in zip(
        ((first, 34, "prompt 1"), (second, 206, "prompt 2")), ("one", "two"), strict=True
    ):
        picture.text(16, top + 21, name, "head")
        for i, page in enumerate(row.pages):
            words = row.words[i * PAGE_SIZE : (i + 1) * PAGE_SIZE]
            x = LEFT + i * (COLUMN + GAP)
            edge, other = (top + 34, 120) if row is first else (top, 154)
            picture.line((x + COLUMN / 2, edge), (middles[page], other))
            kind = "both" if (i + 1) * PAGE_SIZE <= row.cached else own
            picture.box(x, top, COLUMN, 34, kind, " ".join(words))
    picture.text(16, 141, "the cache", "head")
    for page, middle in middles.items():
        kind = "both" if page in shared else "one" if page in first.pages else "two"
        picture.box(middle - width / 2, 120, width, 34, kind, f"page {page}")
    picture.text(LEFT, 22, f"{len(first.words)} tokens: all {first.computed} are computed", "small")
    words = f"{len(second.words)} tokens: {second.cached} are found, {second.computed} are computed"
    picture.text(LEFT, 260, words, "small")
    return picture.render()
