"""The error tree: each error is a builtin too, has its facts as fields and says what is right."""

import ast
import builtins
import inspect
import re

import pytest

from octavo import errors

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
    (errors.RollbackUnsupported, ValueError),
    (errors.IntegrityError, AssertionError),
    (errors.KernelMismatch, AssertionError),
    (errors.ConfigError, ValueError),
    (errors.UnknownArchitecture, errors.ConfigError),
    (errors.PlanError, ValueError),
    (errors.BudgetTooSmall, errors.PlanError),
    (errors.BudgetTooSmall, MemoryError),
    (errors.UnsupportedModel, ValueError),
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
        errors.NeverFits(9, 7, {"full": 2}),
        {"need": 9, "total": 7, "free": 7, "evictable": 0, "short": {"full": 2}},
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
            "group window_4 can go back to 12 tokens at least; "
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
]


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
