"""Files of each tool that writes traces: what they say is read, what they leave open is said."""

import gzip
import io
import json

import numpy as np
import pytest

from octavo import Plan, TraceError
from octavo.errors import LengthError, PlanError
from octavo.simulation import Setting, TimeModel, read_trace, replay, serve
from octavo.simulation.texts import text_tokens

# Files of people who size caches, as they were reported; made shorter.
BAILIAN = [
    {"chat_id": n, "parent_chat_id": -1, "timestamp": 60.0 + n, "input_length": 600,
     "output_length": 10, "type": "text", "turn": 1, "hash_ids": [1, *range(100 * n, 100 * n + 37)]}
    for n in (1, 2)
]  # fmt: skip
GUIDELLM = [
    {"timestamp": 0.0, "input_length": 10, "output_length": 5, "hash_ids": [0]},
    {"timestamp": 0.2, "input_length": 20, "output_length": 8, "hash_ids": [0, 1]},
    {"timestamp": 0.4, "input_length": 15, "output_length": 6, "hash_ids": [2]},
]
AIPERF = [
    {"session_id": "abc-123", "input_length": 300, "output_length": 40},
    {"session_id": "abc-123", "delay": 2, "input_length": 150, "output_length": 20},
]
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,1360,0,1360,API log
"""
SHAREGPT = [
    {"id": "a", "conversations": [
        {"from": "human", "value": "What is a page?"},
        {"from": "gpt", "value": "A piece of memory."},
        {"from": "human", "value": "And a slot?"}, {"from": "gpt", "value": "A place in it."},
    ]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "Hello."}]},
    {"id": "c", "messages": [
        {"role": "user", "content": [{"type": "text", "text": "What is a page?"}]},
        {"role": "assistant", "content": "Memory."},
    ]},
]  # fmt: skip


def lines(objects):
    """JSON lines."""
    return "".join(json.dumps(each) + "\n" for each in objects)


@pytest.fixture
def read(tmp_path):
    """Reads text as a trace."""

    def run(content, name="trace", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_trace(path, **options)

    return run


def hits(trace, page_size=16):
    """Tokens found and tokens asked for, one request at a time, with room for all."""
    plan = Plan.from_pages(2 + trace.most_pages(page_size, serial=True), page_size)
    whole = replay(trace, Setting(plan)).whole
    return whole.cached_tokens, whole.prompt_tokens


def shape(trace):
    """Arrival and lengths of each request."""
    return [(r.arrival, r.input_length, r.output_length) for r in trace.requests]


@pytest.mark.parametrize("form", ["bailian", "mooncake"])
def test_ids_of_16_tokens(read, form):
    """38 ids of 600 tokens cannot be ids of 512: 16 of 1,200 tokens hit, and a second passes."""
    wanted = [each if form == "bailian" else {**each, "chat_id": None} for each in BAILIAN]
    for each in wanted:
        if each["chat_id"] is None:
            del each["chat_id"]
    trace = read(lines(wanted))

    assert (form, 16) == (trace.form, trace.block)
    assert [(0.0, 600, 10), (1.0, 600, 10)] == shape(trace)
    assert (16, 1200) == hits(trace)
    said = [] if form == "bailian" else ["as 16 tokens", "as seconds"]
    assert [any(word in note for note in trace.notes) for word in said] == [True] * len(said)


def test_ids_no_line_agrees_on_are_refused(read):
    """20 tokens cannot take two ids of 512, and 15 to 19 tokens per id would all do."""
    why = "line 2: .* takes 1, one per 512.* 15 to 19 .*--block-size"
    with pytest.raises(TraceError, match=why):
        read(lines(GUIDELLM))
    assert 16 == read(lines(GUIDELLM), block_size=16).block
    with pytest.raises(TraceError, match="line 3: hash_ids has 1 ids; .* of 15 takes 2"):
        read(lines(GUIDELLM), block_size=12)
    assert 1 == read(lines(GUIDELLM), skip_bad=True).bad_lines


def test_blocks_beyond_512_tokens(read):
    """Blocks of 1,024: two that differ differ everywhere."""
    trace = read(
        lines(
            {"timestamp": n, "input_length": 1500, "output_length": 1, "hash_ids": [7, n]}
            for n in range(2)
        ),
        block_size=1024,
    )
    first, second = (request.prompt() for request in trace.requests)

    assert (first == second).tolist() == [True] * 1024 + [False] * 476


def test_times(read):
    """Whole numbers are milliseconds, others seconds; both in one file are refused, or said."""
    whole = [{"timestamp": 1000 * n, "input_length": 5, "output_length": 1} for n in range(3)]
    mixed = [each | {"timestamp": each["timestamp"] / 3} for each in whole[:2]] + whole[2:]

    assert [0.0, 1.0, 2.0] == [at for at, *_ in shape(read(lines(whole)))]
    assert [0.0, 1000.0, 2000.0] == [at for at, *_ in shape(read(lines(whole), time_unit="s"))]
    with pytest.raises(TraceError, match="line 1: timestamp has a decimal point .*--time-unit"):
        read(lines(mixed))
    assert 3 == len(read(lines(mixed), time_unit="ms").requests)


def test_sessions(read):
    """A turn repeats all that its session had so far, answers too; without times it has delays."""
    trace = read(lines(AIPERF))
    first, second = trace.requests

    assert [(0.0, 300, 40), (0.002, 490, 20)] == shape(trace)
    assert "sessions" == trace.form
    assert (first.prompt() == second.prompt()[:300]).all()
    assert (second.prompt()[300:340] == first.answer()[0]).all()
    assert (288, 790) == hits(trace)
    assert any("no times" in note for note in trace.notes)
    served = serve(trace, Setting(Plan.from_pages(200, 16)), TimeModel())
    assert 0 == served.whole.refused


def test_sessions_of_hash_ids_and_times(read):
    """Ids are of a turn's own tokens; a turn may not come before the one above it."""
    turns = [
        {"session_id": 1, "timestamp": 10, "input_length": 20, "output_length": 3, "hash_ids": [5]},
        {"session_id": 2, "timestamp": 20, "input_length": 20, "output_length": 3, "hash_ids": [5]},
        {"session_id": 1, "timestamp": 30, "input_length": 20, "output_length": 3, "hash_ids": [6]},
    ]
    first, other, second = read(lines(turns)).requests

    assert (first.prompt() == other.prompt()).all()
    assert (43, 20) == (second.input_length, other.input_length)
    with pytest.raises(TraceError, match="line 2: its session has a later request above it"):
        read(lines([turns[2], turns[0]]))


def test_burstgpt(read):
    """Seconds and lengths; an answer of none is a request too."""
    trace = read(BURSTGPT, "b.csv")

    assert ("burstgpt", False) == (trace.form, trace.tells_contents)
    assert [(0.0, 472, 18), (40.0, 1087, 230), (113.0, 1360, 0)] == shape(trace)
    with pytest.raises(TraceError, match="line 1: the column Response tokens is missing"):
        read("Timestamp,Request tokens\n5,6\n")


@pytest.mark.parametrize("form", ["lines", "array", "indented"])
def test_conversations(read, form):
    """Each answer ends a request that repeats the turns before it; texts are counted by bytes."""
    text = {
        "lines": lines(SHAREGPT),
        "array": json.dumps(SHAREGPT),
        "indented": json.dumps(SHAREGPT, indent=2),
    }[form]
    trace = read(text)

    assert "conversations" == trace.form
    assert [(0.0, 4, 5), (0.0, 12, 4), (0.0, 4, 2)] == shape(trace)
    assert any("4 bytes a token" in note or "4 bytes per token" in note for note in trace.notes)
    assert (4, 20) == hits(trace, page_size=4)


def test_prompts_as_text(read):
    """vLLM's custom benchmark: equal beginnings of texts are equal ids."""
    wanted = [{"prompt": "abcdefgh" + word, "output_tokens": 7} for word in ("ijkl", "mnop")]
    trace = read(lines(wanted))

    assert [(0.0, 3, 7)] * 2 == shape(trace)
    assert (2, 6) == hits(trace, page_size=2)
    untold = read(lines([{"prompt": "abc"}, {"prompt": "def"}]))
    assert [0, 0] == [request.output_length for request in untold.requests]
    assert any("no lengths of answers" in note for note in untold.notes)
    with pytest.raises(TraceError, match="line 2: it lacks output_tokens; other lines have it"):
        read(lines([wanted[0], {"prompt": "abc"}, wanted[1]]))


@pytest.mark.parametrize("indent", [None, 2])
def test_results_of_a_benchmark(read, indent):
    """What vLLM and SGLang save of a benchmark: lengths, and starts where they are there."""
    result = {"backend": "vllm", "duration": 3.2, "input_lens": [5, 9], "output_lens": [1, 0]}

    assert [(0.0, 5, 1), (0.0, 9, 0)] == shape(read(json.dumps(result, indent=indent)))
    timed = read(json.dumps(result | {"start_times": [8.5, 8.75]}))
    assert [0.0, 0.25] == [request.arrival for request in timed.requests]
    several = read(lines([result, result]))
    assert 4 == len(several.requests)
    assert any("2 results are taken as one" in note for note in several.notes)
    with pytest.raises(TraceError, match="2 input_lens and 1 output_lens"):
        read(json.dumps(result | {"output_lens": [1]}))


def test_a_trace_of_lengths_shows_no_hits(read):
    """What hits is not known, and not 0."""
    trace = read(BURSTGPT, "b.csv")
    found = replay(trace, Setting(Plan.from_pages(2000, 16))).to_dict()

    assert (None, None, 2919) == (
        found["hit_rate_tokens"], found["cached_tokens"], found["all_prompt_tokens"],
    )  # fmt: skip


def test_gzip_and_stdin(read, monkeypatch):
    """Compressed or piped, the trace is the same."""
    text = lines(BAILIAN).encode()
    for sent in (text, gzip.compress(text)):
        piped = io.TextIOWrapper(io.BufferedReader(io.BytesIO(sent)))
        monkeypatch.setattr("sys.stdin", piped)

        assert shape(read(text)) == shape(read(sent, "t.jsonl.gz"))
        assert ("stdin", shape(read(text))) == ((found := read_trace("-")).name, shape(found))
    with pytest.raises(TraceError, match="it is damaged"):
        read(gzip.compress(text)[:-12], "t.gz")


def test_no_more_is_read_than_wanted(read):
    """The file's first requests, whatever stands below them; then they are sorted."""
    times = [5, 3, 9, 1]
    text = lines({"arrival": at, "input_length": 5, "output_length": 1} for at in times)

    assert [0.0, 2.0] == [at for at, *_ in shape(read(text + "damaged", requests=2))]
    with pytest.raises(TraceError, match="line 5"):
        read(text + "damaged")


def test_prompts_of_aiperf(read):
    """Texts and whole conversations beside lengths; those of a session follow it, or repeat it."""
    said = [
        {"role": "system", "content": "You are kind. "},
        {"role": "user", "content": "What is it?!"},
        {"role": "assistant", "content": None, "tool_calls": [{"name": "look"}]},
        {"role": "user", "content": "Tell me."},
    ]
    history = [
        {"session_id": "s", "messages": said[:2], "output_length": 50, "timestamp": 0},
        {"session_id": "s", "messages": said, "output_length": 30, "delay": 2000},
    ]
    first, second = (trace := read(lines(history))).requests
    whole = [{**line, "session_id": None, "delay": None} for line in history[:1]]
    delta = [line | {"message_mode": "delta", "messages": part} for line, part in zip(
        history, (said[:2], said[3:]), strict=True)]  # fmt: skip

    assert "prompts" == trace.form
    assert [(0.0, 7, 50), (2.0, 13, 30)] == shape(trace)
    assert (first.prompt()[:6] == second.prompt()[:6]).all()
    assert [(0.0, 7, 50)] == shape(read(lines(whole)))
    assert [(0.0, 7, 50), (2.0, 59, 30)] == shape(read(lines(delta)))
    texts = [
        {"timestamp": 0, "text_input": "abcdefgh", "output_length": 4},
        {"timestamp": 500, "input_length": 9, "output_length": 4, "text_input": None},
    ]
    assert [(0.0, 2, 4), (0.5, 9, 4)] == shape(read(lines(texts)))
    assert any("1 of 2 requests have only a length" in n for n in read(lines(texts)).notes)


def test_conversations_without_roles_or_of_agents(read):
    """Without roles every second message is an answer; tools are asked for and answer."""
    bare = {"conversation": [{"content": "What is it?"}, {"value": "A page."}, {"content": "?"}]}
    tools = {
        "messages": [
            {"role": "developer", "content": "Look."},
            {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]},
            {"role": "tool", "content": "five"},
            {"role": "assistant", "content": "It is five."},
        ]
    }

    assert [(0.0, 3, 2)] == shape(read(lines([bare])))
    assert [(0.0, 2, 4), (0.0, 7, 3)] == shape(read(lines([tools])))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\n\n"),
        lambda text: "\n" + text.rstrip("\n"),
        lambda text: "".join(sorted(text.splitlines(keepends=True), reverse=True)),
        lambda text: text.replace("{", '{"trailing": {"a": [1]}, '),
        lambda text: text.replace('"hash_ids": [', '"hash_ids": [').replace(" ", ""),
        lambda text: text.replace("600", "600.0"),
        lambda text: text.replace('"type"', '"session_id": null, "delay": null, "type"'),
        lambda text: text.replace("1, ", '"00ff", ', 1).replace("[1, ", '["00ff", '),
        lambda text: text.replace("[1, ", f"[{2**64}, "),
    ],
)
def test_the_same_trace_however_written(read, change):
    """Ends of lines, marks of byte order, gaps, order, other fields, nulls, ids of any kind."""
    assert shape(read(lines(BAILIAN))) == shape(read(change(lines(BAILIAN))))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: "\n".join(",".join(reversed(row.split(","))) for row in text.splitlines()),
        lambda text: text.replace("Timestamp", '"Timestamp"').replace("472", '"472"'),
        lambda text: text.replace("472", "472.0").replace("5,Chat", "5.0,Chat"),
        lambda text: text.replace("Log Type\n", "Log Type,Session ID\n").replace(" log\n", ",x\n"),
        lambda text: text.replace("\n5,", "\n1970-01-01 00:00:05,"),
    ],
)
def test_the_same_table_however_written(read, change):
    """Columns in any order, more of them, quoted, as tables with gaps write them, other times."""
    assert shape(read(BURSTGPT)) == shape(read(change(BURSTGPT)))


def test_whole_seconds_since_1970(read):
    """As milliseconds they would be of January 1970: taken as seconds, which is said."""
    line = {"input_length": 5, "output_length": 1}
    trace = read(lines({"timestamp": 1_700_000_000 + 60 * n, **line} for n in range(2)))

    assert [0.0, 60.0] == [request.arrival for request in trace.requests]
    assert any("seconds since 1970" in note for note in trace.notes)


def test_whole_numbers_are_taken_as_milliseconds(read):
    """The unit is assumed, and that is said; not where it was given, or where all times are 0."""
    line = {"input_length": 16, "output_length": 1, "hash_ids": [1]}
    text = lines({"timestamp": n, **line} for n in range(2))
    at_once = lines({"timestamp": 0, **line} for _ in range(2))

    assert any("taken as milliseconds" in note for note in read(text).notes)
    assert not any("taken as" in note for note in read(text, time_unit="s").notes)
    assert not any("taken as" in note for note in read(at_once).notes)


def test_delays_without_times(read):
    """Sessions begin at once, and a turn comes after its delay: both are said."""
    line = {"input_length": 300, "output_length": 20}
    turns = [{"session_id": "s"}, {"session_id": "s", "delay": 1000}, {"session_id": "t"}]
    trace = read(lines(turn | line for turn in turns))

    assert [0.0, 0.0, 1.0] == [request.arrival for request in trace.requests]
    told = "It has delays and no times, so sessions begin at once and go on after these."
    assert told in trace.notes
    assert not any("come at once" in note for note in trace.notes)


def test_lines_without_a_time(read):
    """Among lines with one they are refused, or counted; a trace may have none at all."""
    line = {"input_length": 5, "output_length": 1}
    with pytest.raises(TraceError, match="line 2: it lacks a timestamp; other lines have one"):
        read(lines([{"timestamp": 5, **line}, line]))
    skipped = read(lines([{"timestamp": 5, **line}, line]), skip_bad=True)
    assert (1, 1) == (skipped.bad_lines, len(skipped.requests))
    timeless = read(lines([line | {"hash_ids": [7]}] * 2))

    assert [0.0, 0.0] == [request.arrival for request in timeless.requests]
    assert any("no times" in note for note in timeless.notes)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"requests": 0}, LengthError),
        ({"block_size": -1}, LengthError),
        ({"time_unit": "m"}, PlanError),
    ],
)
def test_options_that_cannot_be(read, options, error):
    """They are named before the file is read."""
    with pytest.raises(error, match=next(iter(options))):
        read(lines(BAILIAN), **options)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"session_id": 1.5, "input_length": 1, "output_length": 1}, "session_id must be"),
        ({"session_id": 1, "timestamp": 0, "messages": [], "output_length": 1}, "prompt is empty"),
        (
            {"total_input_tokens": 5, "total_output_tokens": 5},
            "--save-detailed .* --output-details",
        ),
        ({"input_lens": [1], "output_lens": [1], "start_times": [0, 1]}, "2 start_times"),
        ({"session_id": 1, "delay": -1, "input_length": 1, "output_length": 1}, "delay is -1"),
        ({"conversations": "none"}, "conversations must be a list"),
        ({"conversations": [1]}, "each a JSON object"),
        ({"conversations": [{"from": "me", "value": "x"}]}, "the role of a message is 'me'"),
        ({"messages": [{"role": "user", "content": 5}]}, "content is 5; it must be text"),
        ({"prompt": "", "output_tokens": 1}, "prompt is empty"),
        ({"input_lens": 3, "output_lens": 3}, "must be lists"),
        ({"timestamp": 1, "input_length": 3, "output_length": 1, "hash_ids": []}, "hash_ids must"),
    ],
)
def test_bad_objects(read, line, why):
    """Each is refused with its place, as a line and in an array."""
    with pytest.raises(TraceError, match=f"line 1: .*{why}"):
        read(lines([line]))
    with pytest.raises(TraceError, match=f"object 1: .*{why}"):
        read(json.dumps([line]))


def test_texts_that_begin_alike():
    """Ids agree as far as texts do, to the token."""
    first, second = text_tokens("The page of a plan"), text_tokens("The page of the plan")

    assert (3, 5, 5) == (int(np.argmin(first == second)), first.size, second.size)
