"""From positions of a sequence over its page table to slots."""

from pictures.svg import Picture

import octavo
from octavo.slots import slot_mapping

PAGE_SIZE = 4


def draw() -> str:
    """Positions, the page each is in, and its slot."""
    cache = octavo.Cache(octavo.Plan.from_pages(9, PAGE_SIZE), prefix=False)
    others = [cache.admit([each]) for each in range(8)]
    for other in others:
        cache.commit(cache.extend(other, 1))
    for other in (1, 6, 4):  # so that the pages of the next are scattered
        cache.release(others[other])
    seq = cache.admit(list(range(10)))
    step = cache.extend(seq, 10)
    pages = step.group().table[0].tolist()
    assert step.slots().tolist() == slot_mapping(pages, PAGE_SIZE, 0, 10).tolist()

    picture = Picture(760, 178, "Positions, pages and slots of a sequence of ten tokens")
    for y, words in ((34, "position"), (84, "page table"), (140, "slot")):
        picture.text(16, y + 4, words, "head")
    for position, slot in enumerate(step.slots().tolist()):
        x = 120 + position * 44 + position // PAGE_SIZE * 24
        column = position // PAGE_SIZE
        picture.box(x, 18, 40, 26, ("one", "two", "both")[column], str(position))
        picture.box(x, 124, 40, 26, ("one", "two", "both")[column], str(slot))
        picture.line((x + 20, 44), (x + 20, 66))
        picture.line((x + 20, 98), (x + 20, 124))
    for column, page in enumerate(pages):
        x = 120 + column * (PAGE_SIZE * 44 + 24)
        width = 44 * min(PAGE_SIZE, 10 - column * PAGE_SIZE) - 4
        picture.box(x, 66, width, 32, ("one", "two", "both")[column], f"page {page}")
    picture.text(744, 170, f"slot = page x {PAGE_SIZE} + position in the page", "small", "end")
    return picture.render()
