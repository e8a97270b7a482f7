"""The tree of published pages that three prompts leave behind."""

from pictures.svg import Picture

import octavo
from octavo.cache.events import Stored, page_digests

PAGE_SIZE = 4


def draw() -> str:
    """A box per node, in the column of its page, and a line to the node before it."""
    stored: dict[bytes, Stored] = {}

    def listen(event: object) -> None:
        if isinstance(event, Stored):
            stored[event.digest] = event

    cache = octavo.Cache(octavo.Plan.from_pages(20, PAGE_SIZE), on_event=listen)
    system = [1, 2, 3, 4, 5, 6, 7, 8]
    prompts = [[*system, 20, 21, 22, 23, 24], [*system, 30, 31, 32, 33, 40], [90, 91, 92, 93, 94]]
    tokens: dict[bytes, list[int]] = {}
    for prompt in prompts:
        seq = cache.admit(prompt)
        cache.commit(cache.extend(seq, seq.length - seq.scheduled), [7])
        for column, digest in enumerate(page_digests(prompt, PAGE_SIZE)):
            tokens[digest] = prompt[column * PAGE_SIZE : (column + 1) * PAGE_SIZE]
    asked = [*system, 30, 31, 99, 98, 97]
    found = page_digests(asked, PAGE_SIZE)[: cache.peek(asked).tokens // PAGE_SIZE]

    picture = Picture(760, 200, "Nodes of the prefix index, and what a new prompt finds")
    places: dict[bytes, tuple[int, int]] = {}
    ends: list[int] = []
    for digest, event in stored.items():
        column = places[event.parent][0] + 1 if event.parent in places else 0
        while len(ends) <= column:
            ends.append(0)
        above = places[event.parent][1] if event.parent in places else 0
        line = max(above, ends[column])
        ends[column] = line + 1
        places[digest] = (column, line)
        x, y = 120 + column * 214, 24 + line * 50
        turn = x - 25
        picture.line(
            (x - 50, 41 + above * 50), (turn, 41 + above * 50), (turn, y + 17), (x, y + 17)
        )
        kind = "both" if digest in found else "one"
        words = " ".join(map(str, tokens[digest]))
        picture.box(x, y, 164, 34, kind, f"{words} | page {event.page}")
    picture.text(16, 45, "root", "head")
    picture.text(16, 160, "a new prompt", "head")
    picture.text(130, 160, " ".join(map(str, asked)), "mono")
    words = f"finds {cache.peek(asked).tokens} tokens: the green nodes. The third page differs."
    picture.text(130, 182, words, "small")
    return picture.render()
