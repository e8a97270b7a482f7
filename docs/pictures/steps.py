"""One step over three rows: one in prefill, one that decodes, one with drafts."""

from pictures.svg import Picture

import octavo

KINDS = ("one", "two", "both")


def draw() -> str:
    """Each row's past and new tokens, and the step's arrays under them."""
    cache = octavo.Cache(octavo.Plan.from_pages(40, 4), max_sequences=4)
    rows = [cache.admit(list(range(30, 35))), cache.admit([40] * 9), cache.admit([50] * 6)]
    for seq in rows[1:]:
        cache.commit(cache.extend(seq, seq.length), [seq.length])
    step = cache.extend(rows, [5, 1, 3], ahead=2)
    names = ["prefill", "decode", "one token and 2 drafts"]

    picture = Picture(760, 322, "The rows of a step, and the arrays made of them")
    picture.text(190, 20, "past: computed before", "small")
    picture.text(470, 20, "new tokens of this step", "small")
    for row, name in enumerate(names):
        y = 32 + row * 36
        past, count = int(step.past[row]), int(step.counts[row])
        picture.text(16, y + 17, name, "head")
        if past:
            picture.box(460 - past * 28, y, past * 28, 24, "free", str(past))
        for at in range(count):
            picture.box(470 + at * 40, y, 36, 24, KINDS[row])
        picture.text(740, y + 17, f"context {int(step.context[row])}", "small", "end")
    arrays = {
        "input_ids": step.input_ids.tolist(),
        "positions": step.positions.tolist(),
        "slots()": step.slots().tolist(),
    }
    starts = step.query_start.tolist()
    for line, (name, values) in enumerate(arrays.items()):
        y = 158 + line * 34
        picture.text(16, y + 17, name, "head")
        for at, value in enumerate(values):
            row = next(row for row in range(3) if at < starts[row + 1])
            picture.box(190 + at * 44, y, 40, 24, KINDS[row], str(value))
    picture.text(16, 278, "query_start", "head")
    picture.text(190, 278, str(starts), "mono")
    picture.text(300, 278, "where each row begins", "small")
    picture.text(16, 304, "last", "head")
    picture.text(190, 304, str(step.last.tolist()), "mono")
    picture.text(300, 304, "whose logits sample the next token", "small")
    return picture.render()
