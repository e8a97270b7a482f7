"""Two sequences that begin alike, one that has ended, and the pool their pages come from."""

from pictures.svg import Picture

import octavo

PAGE_SIZE = 4
BEGIN = [1, 2, 3, 4, 5, 6, 7, 8]
PROMPTS = {"A": [*BEGIN, 11, 12, 13], "B": [*BEGIN, 21, 22, 23, 24, 25], "C": [5] * 8}
KINDS = {"": "free", "A": "one", "B": "two", "AB": "both", "C": "kept"}


def cut(prompt: list[int], column: int) -> list[int]:
    """The token ids of a page of a prompt."""
    return prompt[column * PAGE_SIZE : (column + 1) * PAGE_SIZE]


def draw() -> str:
    """Page tables above, the pool below; each page in the colour of who holds it."""
    cache = octavo.Cache(octavo.Plan.from_pages(13, PAGE_SIZE), max_sequences=4)
    sequences, tables, holders, tokens = {}, {}, dict.fromkeys(range(13), ""), {}
    for name, prompt in PROMPTS.items():
        sequences[name] = seq = cache.admit(prompt)
        step = cache.extend([seq], seq.length - seq.scheduled)
        tables[name] = step.group().table[0].tolist()
        cache.commit(step, [7])
        for column, page in enumerate(tables[name]):
            holders[page] += name
            tokens[page] = cut(prompt, column)
    cache.release(sequences["C"])  # it has ended; its full pages can still be found
    stats = cache.stats()

    picture = Picture(760, 330, "Page tables of two sequences over one pool of pages")
    picture.text(16, 20, "page tables", "small")
    words = f"{stats.live} live, {stats.evictable} evictable, {stats.free} free"
    picture.text(744, 20, f"{words}: {stats.pages} pages to use", "small", "end")
    for row, name in enumerate("AB"):
        y = 40 + row * 62
        picture.text(16, y + 18, f"sequence {name}", "head")
        for column, page in enumerate(tables[name]):
            picture.box(120 + column * 110, y, 100, 26, KINDS[holders[page]], f"page {page}")
            first = column * PAGE_SIZE
            last = first + len(cut(PROMPTS[name], column)) - 1
            words = f"position {first}" if first == last else f"positions {first} to {last}"
            picture.text(170 + column * 110, y + 40, words, "small", "middle")

    picture.text(16, 190, "the pool: token ids in the slots of each page", "small")
    words = {"": "free", "A": "A", "B": "B", "AB": "A and B", "C": "evictable"}
    for page, holder in holders.items():
        x, y = 16 + page % 7 * 106, 200 + page // 7 * 62
        for offset in range(PAGE_SIZE):
            ids = tokens.get(page, [])[offset : offset + 1]
            kind = KINDS[holder] if page else "null"
            picture.box(x + offset * 24, y, 24, 24, kind, "".join(map(str, ids)))
        label = words[holder] if page else "null page"
        picture.text(x, y + 40, f"page {page}: {label}", "small")
    return picture.render()
