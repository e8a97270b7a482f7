"""Steps that are recorded: what is computed again, what is refused, and when it is dropped."""

import copy
from types import SimpleNamespace

import pytest
import torch
import transformers
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

import octavo
from octavo.engine import Engine, PromptLookup, SamplingParams, recordings
from octavo.engine.recorded import Arena, Recorded
from octavo.engine.recorder import Recorder, recorder
from octavo.engine.recordings import Recordings
from octavo.errors import CopyError


def record(function, *inputs, known=()):
    """What recorded a function, and what it gave."""
    with torch.inference_mode(), Recorder([*inputs, *known]) as seen:
        found = function(*inputs)
    return seen, found


FUNCTIONS = {
    "views": lambda x: (x.view(2, 3, 4).transpose(0, 1)[1:].reshape(-1, 4) + 1).flip(0),
    "in place": lambda x: (x * 2).add_(1).mul_(x).clamp_(0).unsqueeze(0),
    "several outputs": lambda x: torch.cat([x.sort(-1)[0], x.max(-1, keepdim=True)[0]], -1),
    "numbers of the code": lambda x: x * torch.tensor(3.0) + torch.arange(4),
    "element types": lambda x: x.to(torch.bfloat16).float().to(torch.float32).contiguous(),
    "indexing": lambda x: x[torch.tensor([1, 0, 1])] @ x.t(),
    "memory of its own": lambda x: x.new_zeros(2, 6, 4).copy_(x) + torch.empty_like(x).fill_(2),
    "norms": lambda x: nn.functional.silu(nn.functional.layer_norm(x, (4,)).softmax(-1)),
    "an input": lambda x: x.view(4, 6),
    "nothing": lambda x: x[:0] * 2,
    "dropout that is off": lambda x: nn.functional.dropout(x, 0.5, training=False) + 1,
    "complex": lambda x: torch.view_as_real(torch.view_as_complex(x.view(6, 2, 2)) * 1j),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_recorded_calls_give_what_the_function_gives(function):
    """Of other numbers in the same input, to the bit, as often as they are asked."""
    torch.manual_seed(1)
    x = torch.randn(6, 4)
    seen, found = record(function, x)
    assert seen.why_not is None
    again = Recorded(seen, found, Arena())

    with torch.inference_mode():
        for _ in range(3):
            x.normal_()
            assert torch.equal(function(x), again.run())


def test_what_is_dead_makes_room():
    """A chain of many results needs the memory of two."""
    x = torch.randn(1000)

    def chain(x):
        for _ in range(50):
            x = x + 1
        return x

    seen, found = record(chain, x)
    arena = Arena()
    Recorded(seen, found, arena)

    assert 50 == len(seen.calls)
    assert 2 * 2 * 4096 >= len(arena.of(0))  # twice what was asked for


def test_steps_share_an_arena():
    """A larger one takes another, and the first goes on in its own."""
    arena, x, y = Arena(), torch.randn(8), torch.randn(8000)
    small, large = (Recorded(*record(lambda t: (t + 1) * t, each), arena) for each in (x, y))

    with torch.inference_mode():
        assert torch.equal((x + 1) * x, small.run())
        assert torch.equal((y + 1) * y, large.run())
        assert torch.equal((x + 1) * x, small.run())


STRANGER = torch.ones(4)
REFUSED = {
    "item": lambda x: x * x.sum().item(),
    "if": lambda x: x if x.sum() > 0 else -x,
    "tolist": lambda x: x * len(x.tolist()),
    "numpy": lambda x: torch.from_numpy(x.numpy() + 1),
    "a mask": lambda x: x[x > 0],
    "nonzero": lambda x: x.nonzero(),
    "random": lambda x: x + torch.rand(4),
    "dropout": lambda x: nn.functional.dropout(x, 0.5),
    "a tensor of another": lambda x: x + STRANGER,
    "conjugated": lambda x: torch.view_as_complex(x.view(-1, 2, 2)).conj() + 1,
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_what_depends_on_numbers_is_not_recorded(function):
    """Python has read a number, or drawn one, or knows a tensor that nobody else does."""
    x = torch.randn(6, 4)
    seen, found = record(function, x)

    assert isinstance(seen.why_not, str)
    assert isinstance(found, torch.Tensor)


def test_calls_that_torch_does_not_see_are_noted():
    """Once, as one call; what happens within is not recorded."""
    x, y = torch.ones(4), torch.zeros(4)

    def outside(x, y):
        now = recorder()
        with now.paused():
            y.copy_(x * STRANGER)
        now.note(lambda x, y: lambda: y.copy_(x * 2), (x, y))
        with now.paused():
            made = y * 3
        now.note(lambda y, made: lambda: made.copy_(y * 3), (y,), (made,))
        return made + 1

    seen, found = record(outside, x, y)
    again = Recorded(seen, found, Arena())

    assert 3 == len(seen.calls)
    assert recorder() is None
    with torch.inference_mode():
        assert torch.equal(torch.full((4,), 7.0), again.run())


def test_an_error_within_ends_the_recording():
    """Nothing is recorded behind it."""
    seen = Recorder([])
    with pytest.raises(RuntimeError), seen:
        raise RuntimeError
    torch.ones(2) + 1

    assert recorder() is None
    assert [] == seen.calls


BEFORE, FIRST = recordings.BEFORE, recordings.FIRST


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Shapes are recorded when they come a second time."""
    monkeypatch.setattr(recordings, "BEFORE", 1)


class Chosen(nn.Module):
    """A module whose Python looks at numbers."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x, scale=1):
        """Another sum, and how often it was called."""
        self.calls += 1
        return (x * scale if x.sum().item() > 0 else x - 1), self.calls, x


def test_modules_set_apart_are_called_as_a_whole():
    """With what they are given by then; the rest is recorded."""
    module, x = Chosen(), torch.ones(4)

    def function(x):
        found, _, same = module(x * 2, scale=3)
        return found + same

    seen, _ = record(function, x)
    assert seen.within is module
    with torch.inference_mode(), Recorder([x], [module]) as seen:
        found = function(x)
    assert seen.why_not is None
    assert "forward" not in vars(module)
    again = Recorded(seen, found, Arena())
    before = module.calls

    assert torch.equal(torch.full((4,), 8.0), again.run())
    x.fill_(-1)
    assert torch.equal(torch.full((4,), -5.0), again.run())
    assert before + 2 == module.calls


class Grouped(nn.Module):
    """A module that tells beside what it makes how it went about it, in another shape each time."""

    def __init__(self):
        super().__init__()
        self.groups = 0

    def forward(self, x):
        """Twice the input, and one number more each time."""
        self.groups += 1
        return x * 2, torch.ones(self.groups)


def test_what_is_made_and_never_read_is_not_kept():
    """Its shape may be another, and what makes nothing else is left out."""
    module, x = Grouped(), torch.ones(4)

    def function(x):
        (x + 1).sort()
        return module(x)[0] + 1

    with torch.inference_mode(), Recorder([x], [module]) as seen:
        found = function(x)
    again = Recorded(seen, found, Arena())

    assert 4 == len(seen.calls)
    assert 3 == len(again._calls)  # the sum is read by what is left out
    assert torch.equal(torch.full((4,), 3.0), again.run())
    with torch.inference_mode(), Recorder([x], [module]) as seen:
        found = module(x)[1] + 1
    with pytest.raises(octavo.StepError, match="another shape"):
        Recorded(seen, found, Arena()).run()


class Doubled(nn.Linear):
    """A linear layer and the same again."""

    def forward(self, x):
        """Twice what it gives."""
        return 2 * super().forward(x)


class Model(nn.Module):
    """A model whose forward is counted."""

    def __init__(self):
        super().__init__()
        self.scale, self.config = 1.5, SimpleNamespace(scale=0.5)
        self.wide, self.narrow = nn.Linear(3, 5), nn.Linear(5, 3)
        self.table = torch.randn(7, 3)
        self.seen = []

    @property
    def calls(self):
        """How often it was called."""
        return len(self.seen)

    def forward(self, ids):
        """Rows of a table through two layers."""
        self.seen.append(1)
        return self.narrow(self.wide(self.table[ids]).relu()) * self.scale * self.config.scale


@pytest.fixture
def stepped():
    """A model, and a function that runs a step of so many tokens and tells if it was called."""
    torch.manual_seed(2)
    model = Model().eval()
    steps = Recordings(model)
    begun = []

    @torch.inference_mode()
    def step(count=2):
        ids, before = torch.randint(7, (count,)), model.calls
        begun.append(1)
        found = steps.run([ids], model, lambda: lambda: begun.append(1))
        called = model.calls - before
        assert torch.equal(found, model(ids))
        model.seen.pop()
        return called

    return SimpleNamespace(model=model, steps=steps, step=step, begun=begun)


def test_a_shape_that_comes_again_is_recorded(stepped):
    """Once computed, once recorded, once both; then without the model."""
    assert [1, 1, 1, 0, 0] == [stepped.step() for _ in range(5)]
    assert [1, 1, 1, 0, 0] == [stepped.step(3) for _ in range(5)]
    assert [0, 0] == [stepped.step(), stepped.step(3)]
    assert 12 + 2 == len(stepped.begun)  # a trial begins twice


def test_shapes_that_come_a_few_times_are_not_recorded(stepped, monkeypatch):
    """It costs what some steps gain."""
    monkeypatch.setattr(recordings, "BEFORE", BEFORE)

    assert [1] * FIRST + [0, 0] == [stepped.step() for _ in range(FIRST + 2)]


def test_long_steps_are_not_recorded(stepped):
    """Their calls of modules cost little."""
    assert [1] * 5 == [stepped.step(recordings.MOST_TOKENS + 1) for _ in range(5)]
    assert stepped.steps.why_not is None


def test_shapes_that_did_not_come_for_long_are_forgotten(stepped, monkeypatch):
    """As many are kept as is said."""
    monkeypatch.setattr(recordings, "_KEPT", 2)
    for _ in range(4):
        stepped.step(1)
    assert [1, 1] == [stepped.step(2), stepped.step(3)]

    assert 1 == stepped.step(1)


def test_hooks_are_called(stepped):
    """Whenever there are some, the modules are called."""
    for _ in range(4):
        stepped.step()
    seen = []
    hook = stepped.model.wide.register_forward_hook(lambda *_: seen.append(1))
    assert 1 == stepped.step()
    assert 2 == len(seen)  # the test's own call too
    hook.remove()

    assert 0 == stepped.step()


def test_weights_changed_in_place_are_read(stepped):
    """At once where they lie."""
    for _ in range(4):
        stepped.step()
    stepped.model.wide.weight.data.zero_()

    assert 0 == stepped.step()


CHANGES = {
    "other weights": lambda m: setattr(m.wide.weight, "data", torch.ones(5, 3)),
    "another parameter": lambda m: setattr(m.wide, "weight", nn.Parameter(torch.ones(5, 3))),
    "another module": lambda m: setattr(m, "wide", nn.Linear(3, 5)),
    "another forward": lambda m: setattr(m.wide, "forward", lambda x: x.repeat(1, 2)[:, :5]),
    "another number": lambda m: setattr(m, "scale", 3.0),
    "another number of the config": lambda m: setattr(m.config, "scale", 3.0),
    "another class": lambda m: setattr(m.wide, "__class__", Doubled),
    "weights counted": lambda m: torch.no_grad()(m.wide.weight.add_)(1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("asked", [True, False])
def test_a_model_that_changed_is_recorded_anew(stepped, change, asked):
    """When somebody asks to look, and after some steps."""
    for _ in range(4):
        stepped.step()
    assert 0 == stepped.step()
    stepped.steps.look()
    assert 0 == stepped.step()
    change(stepped.model)
    if asked:
        stepped.steps.look()
    else:
        stepped.steps._unseen = recordings._LOOK - 1

    assert [1, 1, 1, 0] == [stepped.step() for _ in range(4)]


@pytest.mark.parametrize("when", ["enter", "undo"])
@pytest.mark.parametrize("apart", [False, True])
def test_what_an_interrupt_leaves_is_undone(stepped, monkeypatch, when, apart):
    """Of a recording: modules have their forward, and torch is watched no more."""
    model = stepped.model
    if apart:
        stepped.steps._given = {model.wide}
    stepped.step()
    name = {"enter": "__enter__", "undo": "undo"}[when]
    own = getattr(recordings.Recorder, name)

    def interrupted(self):
        monkeypatch.setattr(recordings.Recorder, name, own)
        if when == "enter":
            own(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(recordings.Recorder, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        stepped.step()
    left = "forward" in vars(model.wide), _get_current_dispatch_mode() is not None
    stepped.steps.close()

    assert (apart, True) == left
    assert "forward" not in vars(model.wide)
    assert recorder() is None
    assert _get_current_dispatch_mode() is None
    assert [1, 1, 0] == [stepped.step() for _ in range(3)]


def test_old_weights_live_until_the_model_is_looked_at(stepped):
    """Nothing that is read is freed."""
    for _ in range(4):
        stepped.step()
    storage = stepped.model.wide.weight.untyped_storage().data_ptr()
    stepped.model.wide.weight.data = torch.ones(5, 3)
    held = [each.data_ptr() for each in stepped.steps._watched._kept[1]]

    assert storage in held


def test_a_model_that_reads_numbers_is_left_alone(stepped):
    """Where it is most of the model nothing is recorded any more, and the reason is told."""

    def compute(ids):
        stepped.model.seen.append(1)
        return stepped.model.table[ids] * ids.sum().item()

    ids = torch.tensor([1, 2])
    for _ in range(8):
        with torch.inference_mode():
            stepped.steps.run([ids], compute, lambda: lambda: None)

    assert 8 == stepped.model.calls
    assert "reads numbers" in stepped.steps.why_not


def test_a_recording_that_is_wrong_is_never_used(stepped):
    """What Python remembers between steps shows in the trial."""

    def compute(ids):
        stepped.model.seen.append(1)
        return stepped.model.table[ids] + stepped.model.calls

    found = []
    for _ in range(5):
        with torch.inference_mode():
            ids = torch.tensor([1, 2])
            found.append(stepped.steps.run([ids], compute, lambda: lambda: None).clone())

    assert "gave other numbers" in stepped.steps.why_not
    for at, each in enumerate(found):
        assert torch.allclose(each, stepped.model.table[[1, 2]] + at + 1)


def test_a_model_that_raises_can_go_on(stepped):
    """An error in the step that is recorded, or tried, is the step's."""

    def broken(_):
        raise RuntimeError("no")

    stepped.step()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"), torch.inference_mode():
            stepped.steps.run([torch.tensor([1, 2])], broken, lambda: lambda: None)

    assert [1, 1, 0] == [stepped.step() for _ in range(3)]


def test_threads_are_part_of_a_shape(stepped):
    """Kernels are told how many there are."""
    threads = torch.get_num_threads()
    for _ in range(4):
        stepped.step()
    torch.set_num_threads(threads + 1)
    try:
        assert 1 == stepped.step()
    finally:
        torch.set_num_threads(threads)
    assert 0 == stepped.step()


def test_recordings_are_not_copied(stepped):
    """They have addresses of one model's weights."""
    for each in (stepped.steps, Arena(), Recorder([])):
        with pytest.raises(CopyError):
            copy.deepcopy(each)


def test_a_part_that_reads_numbers_is_set_apart(stepped):
    """Its kind is called, and the rest of the model is not."""
    model, part = stepped.model, Chosen()
    own = model.forward
    model.part = part
    stepped.steps.look()

    def compute(ids):
        return part(own(ids))[0]

    ids = torch.tensor([1, 2])
    for _ in range(7):
        with torch.inference_mode():
            found = stepped.steps.run([ids], compute, lambda: lambda: None)
            assert torch.equal(found, compute(ids))

    assert stepped.steps.why_not is None
    assert 7 + 4 == model.calls  # first, two recordings, a trial
    assert 14 + 1 == part.calls


# -- in an engine ----------------------------------------------------------------------------------


def engine_of(family="Llama", **options):
    """An engine of a tiny random model."""
    torch.manual_seed(5)
    shape = {"vocab_size": 90, "hidden_size": 48, "intermediate_size": 72, "eos_token_id": None}
    heads = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
    kind = {"Gemma3": "Gemma3Text"}.get(family, family)
    config = getattr(transformers, f"{kind}Config")(
        **shape, **heads, head_dim=12, initializer_range=0.3
    )
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    spec = octavo.ModelSpec.from_config(config.to_dict())
    plan = octavo.plan(spec, "8MiB", page_size=4, dtype="fp32", order="head", max_length=128)
    return Engine(model, plan, **options)


def passes(engine):
    """A list that grows with each forward pass of an engine's model."""
    seen, runner = [], engine._core.runner
    own = runner._compute

    def compute(*inputs):
        seen.append(len(inputs[0]))
        return own(*inputs)

    runner._compute = compute
    return seen


def run(engine, prompts, **params):
    """The tokens of some requests beside each other."""
    asked = [engine.submit(list(p), SamplingParams(max_tokens=24, **params)) for p in prompts]
    while engine.step():
        pass
    return [list(each.output) for each in asked]


PROMPTS = [range(5), range(10, 21), range(40, 43)]


@pytest.mark.parametrize(
    "family", ["Llama", "Qwen3", "Gemma2", "Gemma3", "Olmo2", "Mixtral", "Lfm2"]
)
@pytest.mark.parametrize("speculation", [None, PromptLookup()])
def test_answers_are_the_same_without_modules(family, speculation, monkeypatch):
    """Many steps call no module, and every token is what it was."""
    asked = [PROMPTS, PROMPTS[:1], PROMPTS, PROMPTS]
    with engine_of(family, speculation=speculation, prefix=False) as engine:
        seen = passes(engine)
        found = [run(engine, each) for each in asked]
        steps, why_not = engine.stats.steps, engine._core.runner._recordings.why_not
    monkeypatch.setattr(recordings, "MOST_TOKENS", 0)
    with engine_of(family, speculation=speculation, prefix=False) as engine:
        every = passes(engine)
        assert found == [run(engine, each) for each in asked]
        assert len(every) == engine.stats.steps

    assert why_not is None
    assert len(seen) < (0.8 * steps if speculation is None else steps)


def test_a_request_sees_a_model_that_was_changed_before_it():
    """Even where its prompt is found in the cache and its steps are of a shape that is known."""
    with engine_of(prefix=False) as engine:
        model = engine._core.runner.model
        for _ in range(2):
            run(engine, [range(5)])
        seen = passes(engine)
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.data = torch.zeros(48, 72)
        found = run(engine, [range(5)])
        assert seen
    with engine_of(prefix=False) as engine:
        for layer in engine._core.runner.model.model.layers:
            layer.mlp.down_proj.weight.data.zero_()
        assert found == run(engine, [range(5)])


def test_two_engines_of_one_model_quantise_apart():
    """The second finds the layers that the first has taken, and each computes with its own."""
    torch.manual_seed(5)
    shape = {"vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "eos_token_id": None}
    config = transformers.LlamaConfig(**shape, num_hidden_layers=2, num_attention_heads=4)
    model = transformers.LlamaForCausalLM(config).eval()
    spec = octavo.ModelSpec.from_config(config.to_dict())
    plan = octavo.plan(spec, "8MiB", page_size=4, dtype="fp32", order="head", max_length=128)
    with Engine(model, plan) as first:
        exact = run(first, PROMPTS)
        with Engine(model, plan, quantise="int8") as second:
            assert second._core.runner._linears.nbytes
            run(second, PROMPTS)
        assert exact == run(first, PROMPTS)
