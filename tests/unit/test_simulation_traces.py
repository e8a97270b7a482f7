"""Traces are read as they are told, and what is wrong with a line is said in one."""

import json

import numpy as np
import pytest

from octavo import TraceError
from octavo.simulation import TraceRequest, read_trace
from octavo.simulation.requests import BLOCK, block_tokens

GOOD = {"timestamp": 1500, "input_length": 600, "output_length": 5, "hash_ids": [7, 9]}
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.fixture
def read(tmp_path):
    """Reads text or bytes as a trace."""

    def run(content, **options):
        path = tmp_path / "trace"
        raw = content if isinstance(content, bytes) else content.encode()
        path.write_bytes(raw)
        return read_trace(path, **options)

    return run


def _lines(*lines):
    return "".join(json.dumps(line) + "\n" for line in lines)


def test_mooncake(read):
    """Milliseconds become seconds after the first request; equal ids become equal tokens."""
    trace = read(_lines(GOOD, GOOD | {"timestamp": 2000, "hash_ids": [7, 8]}))
    first, second = trace.requests
    equal = first.prompt() == second.prompt()

    assert ("mooncake", BLOCK) == (trace.form, trace.block)
    assert (0.0, 0.5, 600, 5) == (first.arrival, second.arrival, *_lengths(first))
    assert equal[:BLOCK].all()
    assert not equal[BLOCK:].any()


def test_azure(read):
    """Times with seven digits of a second; extra columns and spaces do not matter."""
    rows = "2023-11-16 18:17:03.9799600, 4808,10,x\n2023-11-16 18:17:04.0319600,3180,8,y\n"
    trace = read(HEADER.strip() + ",More\n" + rows)

    assert ("azure", None) == (trace.form, trace.block)
    assert [(4808, 10), (3180, 8)] == [_lengths(request) for request in trace.requests]
    assert 0.052 == pytest.approx(trace.requests[1].arrival)


def test_log(read):
    """Octavo's log tells a prompt by its ids, by hash ids or by its length alone."""
    lines = [
        {"arrival": 1, "tokens": [3, 4, 5], "output": [6, 7]},
        {"arrival": 2.5, "input_length": 513, "hash_ids": ["a", "b"], "output_length": 1},
        {"arrival": 2.5, "input_length": 40, "output_length": 0},
    ]
    told, hashed, bare = read(_lines(*lines)).requests

    assert ([3, 4, 5], [6, 7]) == (told.prompt().tolist(), told.answer().tolist())
    assert (1.5, 513, 1025) == (hashed.arrival, hashed.prompt().size, hashed.serial_length)
    assert (40, 0) == _lengths(bare)


def test_backwards_times_are_sorted_and_counted(read):
    """A request that stands below a later one is moved up, however far below."""
    times = [5000, 3000, 4000, 3000]
    trace = read(_lines(*(GOOD | {"timestamp": time} for time in times)))

    assert [0.0, 0.0, 1.0, 2.0] == [request.arrival for request in trace.requests]
    assert (3, [0, 1, 2, 3]) == (trace.out_of_order, [r.number for r in trace.requests])


def test_images_are_said(read):
    """Parts of messages without text are counted in a note, and a chat without an answer is."""
    image = {"type": "image_url", "image_url": {"url": "a.png"}}
    asks = {"role": "user", "content": [{"type": "text", "text": "what is it?"}, image]}
    trace = read(_lines({"messages": [asks, {"role": "assistant", "content": "a cat"}]}))

    assert "1 part of messages without text, such as images: left out." in trace.notes
    with pytest.raises(TraceError, match="its conversations hold no answer"):
        read(_lines({"messages": [asks]}))


@pytest.mark.parametrize(
    ("times", "late"), [([5000, *range(10)], 10), ([2000, 0, 1000], 2), ([0, 1, 1, 2], 0)]
)
def test_each_below_a_later_one_counts(read, times, late):
    """Not only one that stands right below it."""
    assert late == read(_lines(*(GOOD | {"timestamp": time} for time in times))).out_of_order


def _lengths(request):
    return request.input_length, request.output_length


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "it is not JSON"),
        ("[1, 2]", "no JSON object"),
        ("[" * 100_000, "it is not JSON"),
        (_lines({**GOOD, "input_length": -3}), "input_length is -3; it must be a whole number"),
        (_lines({**GOOD, "input_length": 10**10}), "at most 2147483647"),
        (_lines({**GOOD, "output_length": 1.5}), "output_length is 1.5"),
        (_lines({**GOOD, "output_length": True}), "output_length is True"),
        (_lines({**GOOD, "timestamp": "now"}), "timestamp is 'now'; it must be a number"),
        (_lines({**GOOD, "timestamp": 10**400}), "timestamp is 10000"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp is nan"),
        (_lines({**GOOD, "input_length": 1025}), "hash_ids has 2 ids; .* takes 3"),
        (_lines({**GOOD, "hash_ids": [1, None]}), "hash_ids must be a list"),
        (_lines({"timestamp": 1, "input_length": 3}), "it lacks output_length"),
        (_lines({"input_length": 3}), "it lacks output_length; it has input_length"),
        (_lines({"arrival": 1, "tokens": [], "output_length": 1}), "tokens must be a list"),
        (_lines({"arrival": 1, "tokens": [-1], "output_length": 1}), "tokens must be a list"),
        ('{"input_length": 1, "output_length": 2, "input_length": 3}', "'input_length' stands tw"),
        ('{"messages": [{"role": "user", "role": "tool", "content": ""}]}', "'role' stands twice"),
        (b"\xff\xfe", "not text in UTF-8"),
        (b"{\0}", "it is not text"),
    ],
)
def test_bad_line(read, line, why):
    """It names file, line and reason; with ``skip_bad`` it is counted."""
    raw = _lines(GOOD).encode() + b"\n" + (line if isinstance(line, bytes) else line.encode())

    with pytest.raises(TraceError, match=f"trace: line 3: .*{why}"):
        read(raw)
    trace = read(raw, skip_bad=True)
    assert (1, 1) == (len(trace.requests), trace.bad_lines)


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("2023-11-16 18:17:03,5", "it has 2 columns; 3 are expected"),
        ("yesterday,5,6", "TIMESTAMP is 'yesterday'"),
        ("2023-11-16 18:17:03,five,6", "ContextTokens is 'five'"),
        ("2023-11-16 18:17:03,-5,6", "ContextTokens is -5"),
        ("2023-11-16 18:17:03,5,99999999999999999999", "GeneratedTokens is '9"),
    ],
)
def test_bad_row(read, row, why):
    """The same for CSV, whose first line is the header."""
    good = "2023-11-16 18:17:03,5,6\n"

    with pytest.raises(TraceError, match=f"line 3: {why}"):
        read(HEADER + good + row + "\n")
    assert 1 == read(HEADER + good + row + "\n", skip_bad=True).bad_lines


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("", "there is no request in it$"),
        ("\n\n", "there is no request in it$"),
        (HEADER, "there is no request in it$"),
        ("{}\n", "no request in it; 1 bad lines were skipped"),
        ("hello world\n", "line 1: this is no trace"),
        (HEADER.strip() + ", ContextTokens\n", "line 1: the column ContextTokens stands twice"),
        ('[{"input_length": 1, "input_length": 2}]', "'input_length' stands twice"),
        ("TIMESTAMP,ContextTokens\n", "line 1: the column GeneratedTokens is missing"),
    ],
)
def test_no_trace(read, content, why):
    """A file without requests is refused, whatever may be skipped."""
    with pytest.raises(TraceError, match=why):
        read(content, skip_bad=True)


def test_what_comes_before_the_first_good_line_is_skipped_too(read):
    """A comment at the top is a malformed line like any other."""
    trace = read('# comment\n{"arrival": 0, "tokens": [1, 2], "output_length": 1}\n', skip_bad=True)

    assert (1, 1) == (trace.bad_lines, len(trace.requests))


def test_times_count_in_their_zone(read):
    """A second apart, whatever the clocks showed."""
    rows = "2023-11-16 18:00:00+05:00,10,1\n2023-11-16 13:00:01+00:00,10,1\n"
    first, second = read(HEADER + rows).requests

    assert 1.0 == second.arrival - first.arrival


def test_no_id_stands_twice():
    """Not in one block, nor in two."""
    tokens = block_tokens(np.arange(100, dtype=np.int32))

    assert tokens.min() >= 0
    assert 100 * BLOCK == np.unique(tokens).size


@pytest.mark.parametrize("far", [2**22, 2**30, 2**31 - 2])
def test_far_blocks_differ(far):
    """However many blocks there are, two of them differ in every single id."""
    tokens = block_tokens(np.array([1, far, far + 1], np.int32)).reshape(3, BLOCK)

    assert tokens.min() >= 0
    assert all(3 == np.unique(column).size for column in tokens.T)


def test_a_request_has_ids_of_its_own():
    """Prompts told by length alone, and answers, are equal to no other request's."""
    ids = {TraceRequest(number, 0.0, 8, 8).prompt()[0] for number in range(100)}

    assert 100 == len(ids)
