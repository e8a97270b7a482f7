"""The error tree: each error is a builtin too, has its facts as fields and says what is right."""

import ast
import builtins
import copy
import importlib
import inspect
import multiprocessing
import pickle
import pkgutil
import re
import threading

import numpy as np
import pytest

import octavo
from octavo import errors
from octavo.testing import CaseFailed

TREE = [
    (errors.OutOfPages, MemoryError),
    (errors.NeverFits, errors.OutOfPages),
    (errors.CapacityError, ValueError),
    (errors.UnknownSequence, KeyError),
    (errors.StaleSequence, errors.UnknownSequence),
    (errors.DuplicateSequence, ValueError),
    (errors.LengthError, ValueError),
    (errors.TokenError, ValueError),
    (errors.StepError, RuntimeError),
    (errors.CacheInUse, RuntimeError),
    (errors.LoopDied, RuntimeError),
    (errors.CopyError, TypeError),
    (errors.RollbackUnsupported, ValueError),
    (errors.IntegrityError, AssertionError),
    (errors.KernelMismatch, AssertionError),
    (errors.ConfigError, ValueError),
    (errors.UnknownArchitecture, errors.ConfigError),
    (errors.PlanError, ValueError),
    (errors.BudgetTooSmall, errors.PlanError),
    (errors.BudgetTooSmall, MemoryError),
    (errors.UnsupportedModel, ValueError),
    (errors.UnsupportedField, errors.UnsupportedModel),
    (errors.UnsupportedField, errors.ConfigError),
    (errors.PageFileError, ValueError),
    (errors.PageFileMismatch, errors.PageFileError),
    (errors.ModelError, OSError),
    (errors.PullError, errors.ModelError),
]

SAID = [
    (
        errors.OutOfPages(5, 1, 2, {"full": 2}),
        {"need": 5, "free": 1, "evictable": 2, "short": {"full": 2}},
        "need 5 pages but 1 are free and 2 evictable (short 2 in full)",
    ),
    (
        errors.OutOfPages(1_250, 1_000, 0, {"full": 1_250}),
        {"need": 1_250, "free": 1_000, "evictable": 0, "short": {"full": 1_250}},
        "need 1,250 pages but 1,000 are free and 0 evictable (short 1,250 in full)",
    ),
    (
        errors.NeverFits(9, 7, {"full": 2}),
        {"need": 9, "total": 7, "free": 7, "evictable": 0, "short": {"full": 2}, "why": ""},
        "need 9 pages but the whole pool has 7: this can never fit",
    ),
    (
        errors.CapacityError("limit", 9, 8, "max_length of the cache"),
        {"name": "limit", "value": 9, "limit": 8},
        "limit is 9, at most 8 is possible: max_length of the cache",
    ),
    (errors.UnknownSequence("r"), {"id": "r"}, "sequence 'r' is not known to this cache"),
    (
        errors.StaleSequence(3),
        {"id": 3},
        "sequence 3 has been released; its handle is stale",
    ),
    (
        errors.DuplicateSequence("r"),
        {"id": "r"},
        "sequence 'r' is already admitted; release it first",
    ),
    (
        errors.LengthError("kept", -1, 0, 4),
        {"name": "kept", "value": -1, "low": 0, "high": 4},
        "kept is -1; it must be an int of at least 0 and at most 4",
    ),
    (
        errors.LengthError("count", 1.5, 0, None, "whole tokens"),
        {"name": "count", "value": 1.5, "low": 0, "high": None},
        "count is 1.5; it must be an int of at least 0 (whole tokens)",
    ),
    (
        errors.TokenError(2, -7),
        {"index": 2, "value": -7},
        "token 2 is -7; token ids are ints in 0..2147483647",
    ),
    (
        errors.RollbackUnsupported("window_4", 12),
        {"group": "window_4", "kept_from": 12},
        (
            "group window_4 can go back no further than to 12 tokens; "
            "a cache made with a larger rollback keeps more"
        ),
    ),
    (
        errors.IntegrityError("free == 3", 2, 3),
        {"equation": "free == 3", "left": 2, "right": 3},
        "free == 3: 2 != 3",
    ),
    (
        errors.ConfigError("head_dim", 0, "it must be an int of at least 1"),
        {"field": "head_dim", "value": 0},
        "config field head_dim is 0; it must be an int of at least 1",
    ),
    (
        errors.UnknownArchitecture("other", ["gpt2", "llama"], "model_type"),
        {
            "architecture": "other",
            "known": ("gpt2", "llama"),
            "field": "model_type",
            "value": "other",
        },
        "config field model_type is 'other'; known architectures are: gpt2, llama",
    ),
    (
        errors.PlanError("page_size", 0, "it must be an int of at least 1"),
        {"field": "page_size", "value": 0},
        "page_size is 0; it must be an int of at least 1",
    ),
    (
        errors.BudgetTooSmall(512, 100, "2 pages"),
        {"need": 512, "have": 100, "field": "memory", "value": 100},
        "memory is 100; at least 512 bytes are needed: 2 pages",
    ),
    (
        errors.UnsupportedModel("window", "not here"),
        {"what": "window", "why": "not here"},
        "window: not here",
    ),
    (
        errors.UnsupportedField("hidden_act", "xielu", "exported are silu, gelu"),
        {
            "field": "hidden_act",
            "value": "xielu",
            "what": "hidden_act",
            "why": "exported are silu, gelu",
        },
        "config field hidden_act is 'xielu'; exported are silu, gelu",
    ),
    (
        errors.KernelMismatch("decode", "out", "out differs", "ignores the window", row=2, page=7),
        {
            **dict.fromkeys(("token", "head", "position", "expected", "actual")),
            "case": "decode",
            "what": "out",
            "fault": "ignores the window",
            "row": 2,
            "page": 7,
        },
        "out differs\ncase: decode",
    ),
    (errors.PageFileError("p", "damaged"), {"path": "p"}, "p: damaged"),
    (
        errors.PageFileMismatch("p", "order", "token", "head"),
        {"path": "p", "field": "order", "saved": "token", "here": "head"},
        "p: order is 'token' in the file and 'head' here",
    ),
    (errors.ModelError("a/b", "no such folder"), {"path": "a/b"}, "a/b: no such folder"),
    (errors.PullError("a/b", "no such model"), {"path": "a/b"}, "a/b: no such model"),
    (errors.OctavoError("a failure"), {}, "a failure"),
    (errors.StepError("1 step is open"), {}, "1 step is open"),
    (
        errors.UnknownGroup("w", ["full", "state"]),
        {"name": "w", "known": ("full", "state")},
        "no group 'w'; the plan's groups are full, state",
    ),
    (
        errors.LoopDied(ValueError("a cause")),
        {},
        ("the thread that ran the engine died of ValueError: a cause; start() it anew"),
    ),
    (
        errors.CacheInUse("extend"),
        {"verb": "extend"},
        (
            "extend was called while another verb is inside this cache: a cache is for one thread "
            "at a time, and nothing a verb calls may call it back"
        ),
    ),
    (
        errors.CopyError("Engine", "make another from its model"),
        {"kind": "Engine", "why": "make another from its model"},
        "an Engine cannot be copied or pickled: make another from its model",
    ),
    (
        errors.IdentityError("Salt.value", 3, "it must be text"),
        {"name": "Salt.value", "value": 3},
        "Salt.value is 3; it must be text",
    ),
    (
        errors.SamplingError("top_k", -1, "it must be an int of at least 0"),
        {"field": "top_k", "value": -1},
        "top_k is -1; it must be an int of at least 0",
    ),
    (
        errors.TraceError("t.csv", 4, "no time"),
        {"path": "t.csv", "line": 4},
        "t.csv: line 4: no time",
    ),
    (
        CaseFailed("A01", 2, "stats", {"free": 3}, {"free": 4}),
        {
            "case": "A01",
            "step": 2,
            "where": "stats",
            "expected": {"free": 3},
            "actual": {"free": 4},
        },
        "case A01, step 2, stats: expected {'free': 3}, actual {'free': 4}",
    ),
]
EXAMPLES = [error for error, _, _ in SAID]


@pytest.mark.parametrize(("error", "base"), TREE, ids=lambda kind: kind.__name__)
def test_errors_are_what_a_caller_would_catch(error, base):
    """Each error is an OctavoError and the builtin, or the wider error, beside it."""
    assert issubclass(error, base)
    assert issubclass(error, errors.OctavoError)


@pytest.mark.parametrize(("error", "fields", "message"), SAID, ids=lambda part: repr(part)[:30])
def test_fields_and_message(error, fields, message):
    """Facts are attributes, and the message names the field, its value and what is right."""
    assert fields == vars(error)
    assert message == str(error)


def test_docstring_draws_the_tree():
    """The tree in the module docstring lists every class with its builtin and its fields."""
    drawn = re.findall(r"[├└]── (\w+)(?: \((\w+)\))?(?: +(\w.*))?$", errors.__doc__, re.MULTILINE)
    defined = [
        node.name
        for node in ast.parse(inspect.getsource(errors)).body
        if isinstance(node, ast.ClassDef) and node.name != "OctavoError"
    ]

    assert defined == [name for name, _, _ in drawn]
    for name, builtin, _ in drawn:
        assert not builtin or issubclass(getattr(errors, name), getattr(builtins, builtin))


# -- errors travel -----------------------------------------------------------------------------


def _every_error(kind=errors.OctavoError):
    """OctavoError and all classes below it, wherever in the package they are defined."""
    yield kind
    for below in kind.__subclasses__():
        yield from _every_error(below)


def test_every_error_has_an_example():
    """The tests here are about all errors there are, in every module that can be imported."""
    for module in pkgutil.walk_packages(octavo.__path__, "octavo."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found = {kind for kind in _every_error() if kind.__module__.startswith("octavo")}

    assert found == set(map(type, EXAMPLES)) | {errors.StaleSequence}


def _assert_same(error, other):
    assert (type(error), str(error), error.args) == (type(other), str(other), other.args)
    assert vars(error) == vars(other)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_are_copied_and_pickled(error):
    """A copy is of the same type, says the same and has the same facts."""
    _assert_same(error, copy.copy(error))
    _assert_same(error, copy.deepcopy(error))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        _assert_same(error, pickle.loads(pickle.dumps(error, protocol)))  # noqa: S301


def test_errors_come_back_from_a_worker():
    """What a process of a pool raises is raised where the result is waited for."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for error in EXAMPLES:
            with pytest.raises(type(error)) as caught:
                pool.apply_async(exec, ("raise error", {"error": error})).get(120)
            _assert_same(error, caught.value)
        with pytest.raises(errors.LengthError, match="num_pages is 1;"):
            pool.apply_async(octavo.Plan.from_pages, (1, 4)).get(120)


def test_what_was_noted_goes_along():
    """Notes are part of what an error says."""
    error = errors.PlanError("page_size", 0, "it must be 1")
    error.add_note("while the draft model was planned")

    assert error.__notes__ == pickle.loads(pickle.dumps(error)).__notes__  # noqa: S301


class _Stubborn:
    """It can be made and not made again, nor shown."""

    def __init__(self, text):
        self.text = text

    def __reduce__(self):
        return type(self), ()

    def __repr__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lambda: 0, "<function <lambda>"),
        ((n for n in range(3)), "<generator object"),
        (threading.Lock(), "<unlocked _thread.lock object"),
        (_Stubborn("x"), "an object of type _Stubborn"),
        ([_Stubborn("x")], "an object of type list"),
    ],
    ids=["function", "generator", "lock", "stubborn", "inside"],
)
def test_values_that_stay_behind(value, text):
    """A value that cannot be pickled arrives as the text that quotes it; copies share it."""
    error = errors.PlanError("policy", value, "it must be a name")
    arrived = pickle.loads(pickle.dumps(error))  # noqa: S301

    assert str(error) == str(arrived)
    assert arrived.value.startswith(text)
    assert value is copy.copy(error).value is copy.deepcopy(error).value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (10**5000, "n is an int of 16,610 bits; "),
        (np.arange(6).reshape(2, 3), "n is array([[0, 1, 2], [3, 4, 5]]); "),
        ("x" * 200, f"n is '{'x' * 59} ... (202 characters); "),
    ],
    ids=["digits", "rows", "long"],
)
def test_values_are_quoted_on_a_line(value, said):
    """A message stays one line of bounded length, whatever it was given."""
    assert str(errors.LengthError("n", value, 1, None)).startswith(said)
