"""Generated workloads look like what they are named after, and come again from their seed."""

import numpy as np
import pytest

from octavo import LengthError, PlanError
from octavo.simulation import WORKLOADS, generate

NAMES = list(WORKLOADS)


def _same(ours, theirs):
    return all(
        (a.arrival, a.output_length) == (b.arrival, b.output_length)
        and np.array_equal(a.tokens, b.tokens)
        for a, b in zip(ours.requests, theirs.requests, strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_equal_seeds_equal_requests(name):
    """And other seeds others."""
    assert _same(generate(name, 50, seed=3), generate(name, 50, seed=3))
    assert not _same(generate(name, 50, seed=3), generate(name, 50, seed=4))


@pytest.mark.parametrize("name", NAMES)
def test_arrivals_and_lengths(name):
    """Requests are numbered by arrival and come about as often as asked."""
    trace = generate(name, 400, rate=2.0)
    arrivals = [request.arrival for request in trace.requests]

    assert arrivals == sorted(arrivals)
    assert arrivals[0] == 0
    assert list(range(400)) == [request.number for request in trace.requests]
    assert all(r.input_length == r.tokens.size for r in trace.requests)
    assert 1.0 < 400 / arrivals[-1] < 3.0


def test_a_turn_repeats_the_conversation():
    """Most prompts of a chat begin with an earlier prompt and its answer."""
    requests = generate("chat", 60).requests
    heads = {np.append(r.tokens, r.output).tobytes() for r in requests}
    follow = [r for r in requests if any(r.tokens.tobytes().startswith(head) for head in heads)]

    assert len(follow) > 20


def test_a_shared_system_prompt():
    """There are 16 beginnings at most, and the most popular is asked for again and again."""
    begins = [r.tokens[:1000].tobytes() for r in generate("system-prompt", 200).requests]

    assert len(set(begins)) <= 16
    assert max(begins.count(each) for each in set(begins)) > 20


def test_documents_in_random_order():
    """All prompts of rag begin alike, and almost none goes on alike."""
    requests = generate("rag", 50).requests

    assert 1 == len({r.tokens[:200].tobytes() for r in requests})
    assert len({r.tokens[:2000].tobytes() for r in requests}) > 45


def test_misuse():
    """Unknown names and impossible numbers are refused by name."""
    with pytest.raises(PlanError, match="known workloads are: chat, "):
        generate("chats")
    with pytest.raises(PlanError, match="rate is 0"):
        generate("chat", rate=0)
    with pytest.raises(LengthError, match="requests is 0"):
        generate("chat", 0)
