"""examples/dual_ar: cached generation is the training forward's, for batches, voices and requests.

The capacity is that of the system the example is modelled on, 32,768 frames.
"""

import runpy
import sys
from pathlib import Path

import generation
import pytest
import torch
from dual_ar import CODEBOOKS, CODES, END, TEXT, DualAR

import octavo

EXAMPLE = Path(__file__).parents[2] / "examples/dual_ar"
CAPACITY = 32_768


@pytest.fixture
def model():
    """Random weights, wide enough that tokens vary."""
    torch.manual_seed(3)
    model = DualAR()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(3)
    return model


def session(model, batch=1, **options):
    """A session at full capacity."""
    return generation.Session(model, batch=batch, **{"capacity": CAPACITY, **options})


def text(count, seed=0):
    """Frames of text."""
    generator = torch.Generator().manual_seed(seed)
    frames = torch.zeros(count, 1 + CODEBOOKS, dtype=torch.int64)
    frames[:, 0] = torch.randint(TEXT, (count,), generator=generator)
    return frames


def speech(count, seed=1):
    """Frames of a voice."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(CODES, (count, CODEBOOKS), generator=generator)
    return torch.cat([codes[:, :1] + TEXT, codes], 1)


@torch.inference_mode()
def uncached(model, prompt, most):
    """Greedy frames by the forward that training uses: the whole sequence, for every code."""
    frames = prompt
    for _ in range(most):
        token = model(frames[None])[0][0, -1].argmax()
        if token == END:
            break
        frame = torch.zeros(1, 1 + CODEBOOKS, dtype=torch.int64)
        frame[0, :2] = torch.stack([token, (token - TEXT).clamp(0, CODES - 1)])
        frames = torch.cat([frames, frame])
        for code in range(1, CODEBOOKS):
            frames[-1, 1 + code] = model(frames[None])[1][0, -1, code - 1].argmax()
    return frames[len(prompt) :]


@pytest.mark.parametrize("bucket", [1, 16])
def test_batch_equals_the_uncached_forward(model, bucket):
    """Three utterances of different length at once: each one's frames are those of it alone."""
    prompts = [text(5), text(2, seed=4), text(9, seed=5)]
    spoken = session(model, 3, bucket=bucket).generate(prompts, 12)

    for prompt, frames in zip(prompts, spoken, strict=True):
        assert uncached(model, prompt, 12).tolist() == frames.tolist()
    assert len({int(frame[0]) for frames in spoken for frame in frames}) > 6


def test_kv_len_chain(model, monkeypatch):
    """The slow transformer sees 3, 4, 5 frames; the fast one 1 to CODEBOOKS in each frame."""
    chains = {"slow": [], "fast": []}
    begin = octavo.ActivePrefixCache.begin

    def spy(cache, counts=1):
        prefix = begin(cache, counts)
        widths = (prefix.keys[0].shape[2], prefix.values[0].shape[2], prefix.mask.shape[-1])
        chains["slow" if cache.capacity == CAPACITY else "fast"].append(widths)
        return prefix

    monkeypatch.setattr(octavo.ActivePrefixCache, "begin", spy)
    session(model).generate([text(3)], 3)

    assert [(3, 3, 3), (4, 4, 4), (5, 5, 5)] == chains["slow"]
    assert [(width,) * 3 for width in range(1, 1 + CODEBOOKS)] * 3 == chains["fast"]


def test_voice_is_computed_once(model, monkeypatch):
    """Prompts after a voice give what voice + prompt gives; only their own frames are run."""
    speaker, voice = session(model, 2), speech(7)
    speaker.hear(voice)
    seen = []
    embed = model.embed
    monkeypatch.setattr(model, "embed", lambda frames: seen.append(frames.shape) or embed(frames))
    for seed in (6, 7):
        prompts = [text(4, seed), text(3, seed + 10)]
        spoken = speaker.generate(prompts, 6)
        whole = session(model, 2).generate([torch.cat([voice, each]) for each in prompts], 6)
        assert [frames.tolist() for frames in whole] == [frames.tolist() for frames in spoken]

    assert [(2, 4), (2, 11)] == [tuple(shape[:2]) for shape in seen if shape[1] > 1][:2]


def test_another_voice_takes_its_place(model):
    """Nothing of the first voice is left when a second one is heard."""
    speaker = session(model, 2)
    speaker.hear(speech(9, seed=8))
    speaker.generate([text(4), text(5)], 5)
    speaker.hear(speech(4, seed=9))
    fresh = session(model, 2)
    fresh.hear(speech(4, seed=9))
    runs = [each.generate([text(3), text(2)], 5) for each in (speaker, fresh)]

    assert [frames.tolist() for frames in runs[0]] == [frames.tolist() for frames in runs[1]]


def test_request_after_another_equals_a_fresh_one(model):
    """X after Y is X alone, and memory goes back to what X takes."""
    used, fresh = session(model), session(model)
    used.generate([text(400, seed=12)], 4)
    large = used.slow.nbytes
    runs = [each.generate([text(6)], 10)[0].tolist() for each in (used, fresh)]

    assert runs[0] == runs[1]
    assert used.slow.nbytes == fresh.slow.nbytes < large


def test_rows_that_have_ended_sit_out(model):
    """END stops a row at its own time and changes nothing for the others."""
    prompts = [text(5), text(2, seed=4), text(9, seed=5)]
    before = [frames.tolist() for frames in session(model, 3).generate(prompts, 12)]
    token = before[0][4][0]
    with torch.no_grad():  # END is now what `token` was, and the other way round
        weight = model.next_token.weight
        weight[[token, END]] = weight[[END, token]]
    after = [frames.tolist() for frames in session(model, 3).generate(prompts, 12)]

    want = [[frame[0] for frame in row] for row in before]
    cut = [row.index(token) if token in row else len(row) for row in want]
    assert [row[:stop] for row, stop in zip(before, cut, strict=True)] == after
    assert len(set(cut)) > 1


def test_request_beyond_the_capacity_is_refused_up_front(model, monkeypatch):
    """Voice + prompt + most frames: one too many is refused before anything is run."""
    speaker = session(model, capacity=16)
    speaker.hear(speech(6))
    assert 4 == len(speaker.generate([text(6)], 4)[0])
    monkeypatch.setattr(model.slow, "forward", lambda *_: pytest.fail("it ran"))

    with pytest.raises(ValueError, match="kv_len is 17, at most 16 is possible"):
        speaker.generate([text(6)], 5)
    with pytest.raises(octavo.CapacityError, match="17 more after 0"):
        speaker.hear(speech(17))


def test_compiled_steps_recompile_at_most_once_a_bucket(model):
    """A compiled slow transformer: a graph for prompts, one for steps, one for later buckets."""
    prompts = [text(5), text(2, seed=4)]
    want = session(model, 2, bucket=8).generate(prompts, 14)
    torch._dynamo.reset()
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    model.slow.compile(backend=backend, fullgraph=True)
    got = session(model, 2, bucket=8).generate(prompts, 14)

    assert [frames.tolist() for frames in want] == [frames.tolist() for frames in got]
    assert 3 == len(graphs)


def test_example_runs(monkeypatch, capsys):
    """`python examples/dual_ar/main.py` speaks twice and says what it took."""
    monkeypatch.setattr(sys, "argv", ["main.py"])
    runpy.run_path(str(EXAMPLE / "main.py"), run_name="__main__")

    assert 2 == capsys.readouterr().out.count("of 32768")
