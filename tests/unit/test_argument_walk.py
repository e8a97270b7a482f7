"""Every argument of the public callables, given what people pass by mistake.

Each is taken for what it means, or refused by an error of octavo that names the argument and
changes nothing. What is passed is in wrong_values.py, what is called in walk_calls.py and
walk_packages.py.
"""

import inspect
import re

import pytest
import walk_calls
import walk_packages
from wrong_values import wrong_values

from octavo.errors import OctavoError
from octavo.testing import freeze

WALKS = [(walk, name) for walk in (walk_calls, walk_packages) for name in walk.CALLS]


@pytest.mark.filterwarnings("ignore:Plan.* is now:DeprecationWarning")  # it is asked for a dtype
@pytest.mark.parametrize(("walk", "name"), WALKS, ids=[name for _, name in WALKS])
def test_arguments_are_taken_or_refused_by_name(walk, name):
    """No error of Python's or NumPy's gets out of a call, and none leaves anything changed."""
    build = walk.CALLS[name]
    _, right = build(walk.Scene())
    wrong = []
    for argument in right:
        said = re.compile(rf"\b({argument}|{walk_calls.WORDS.get(argument, argument)})")
        scene = None
        for kind, value in wrong_values():
            if scene is None:  # the first call, or the last one did what it does
                scene = walk.Scene()
                before = freeze(scene.cache)
                call, arguments = build(scene)
            try:
                call(**arguments | {argument: value})
                scene = None
            except OctavoError as error:
                if not said.search(str(error)):
                    wrong.append(f"{argument}, {kind}: not named: {error}")
            except Exception as error:  # noqa: BLE001, which is what is looked for
                wrong.append(f"{argument}, {kind}: {error!r}")
                scene = None
        assert scene is None or before == freeze(scene.cache), f"{argument} left something changed"

    assert [] == wrong


@pytest.mark.parametrize(("walk", "name"), WALKS, ids=[name for _, name in WALKS])
def test_right_calls_are_right(walk, name):
    """What the walk changes one argument of is a call that works, with all its arguments."""
    call, right = walk.CALLS[name](walk.Scene())
    call(**right)
    parameters = inspect.signature(call).parameters.values()
    named = {p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}

    assert named <= set(right) | {"self"}
