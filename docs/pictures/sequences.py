"""What a sequence has published, computed, scheduled and knows, while a step is open."""

from pictures.svg import Picture

import octavo


def draw() -> str:
    """One bar for each of the four, over the positions of a sequence in a chunk of prefill."""
    cache = octavo.Cache(octavo.Plan.from_pages(20, 8))
    seq = cache.admit(list(range(36)), limit=48)
    done = cache.commit(cache.extend(seq, 20))
    cache.extend(seq, 10)
    marks = {
        "published": (done.published * 8, "both", "full pages: shared, read-only"),
        "computed": (seq.computed, "one", "keys and values are written"),
        "scheduled": (seq.scheduled, "two", "a slot is reserved by the open step"),
        "known": (seq.length, "kept", "token ids the cache has been told"),
        "limit": (seq.limit, "free", "as long as it may become"),
    }
    picture = Picture(760, 222, "Published, computed, scheduled, known and limit of one sequence")
    for page in range(7):
        x = 110 + page * 64
        picture.line((x, 24), (x, 210))
        picture.text(x, 18, str(page * 8), "small", "middle")
    for row, (name, (length, kind, words)) in enumerate(marks.items()):
        y = 34 + row * 36
        picture.text(16, y + 17, name, "head")
        picture.box(110, y, length * 8, 24, kind)
        picture.text(118, y + 17, str(length), "mono")
        picture.text(522, y + 17, words, "small")
    return picture.render()
