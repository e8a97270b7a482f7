"""One sequence in a model of two groups: page tables of full attention and of a window."""

from pictures.svg import Picture

import octavo
from octavo import Attention

PAGE_SIZE, WINDOW = 4, 8


def draw() -> str:
    """The page tables as they are at three lengths; columns a window dropped are the null page."""
    groups = {"full": Attention(1, 1, 1), "window_8": Attention(1, 1, 1, window=WINDOW)}
    cache = octavo.Cache(octavo.Plan.from_pages(40, PAGE_SIZE, groups))
    seq = cache.admit(list(range(100, 109)))
    picture = Picture(760, 318, "Page tables of two groups at three lengths")
    for moment, length in enumerate((9, 17, 30)):
        while seq.scheduled < length - 1:
            cache.commit(cache.extend(seq, 1, ahead=1), [7])
        step = cache.extend(seq, 1, ahead=1)
        y = 12 + moment * 98
        picture.text(16, y + 16, f"{length} tokens", "head")
        for line, name in enumerate(groups):
            picture.text(120, y + 17 + line * 34, name, "mono")
            for column, page in enumerate(step.group(name).table[0].tolist()):
                kind = "null" if page == 0 else ("one", "two")[line]
                words = str(page) if page else "0"
                picture.box(220 + column * 64, y + line * 34, 60, 26, kind, words)
        cache.commit(step, [7])
    words = "numbers are pages; 0 is the null page: no later query can see these positions"
    picture.text(16, 306, words, "small")
    return picture.render()
