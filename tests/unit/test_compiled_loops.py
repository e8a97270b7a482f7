"""The loops that every step runs are C from end to end: none of them calls into Python."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.core import build

ROOT = Path(__file__).parents[2]

HOT: dict[str, list[str]] = {
    "arena": ["Arena.free"],
    "blocks": [
        "StepBlocks.fill",
        "StepBlocks.fill_tokens",
        "StepBlocks.fill_slots",
        "StepBlocks.fill_states",
        "StepBlocks.gather_rows",
    ],
    "commits": ["Core.check_commit", "Core.check_row", "Core.check_drafts", "Core.keep"],
    "emit": [
        "Source.read",
        "Source.measure",
        "Slots.write",
        "Ids.write",
        "Positions.write",
        "Last.write",
        "QueryStarts.write",
        "Base.write",
        "Keys.write",
        "PastKeys.write",
        "KeyStarts.write",
        "LastLengths.write",
        "Requests.write",
        "RequestPast.write",
        "RequestContext.write",
        "PageTarget.copy_rows",
        "PageTarget.convert_rows",
        "Pages.write",
        "Table.change",
    ],
    "groups": [
        "Group.floor",
        "Group.entry",
        "Group.put",
        "Group.take",
        "Group.cut",
        "Group.open_page",
        "Group.slide",
    ],
    "index": [
        "PrefixIndex.same",
        "PrefixIndex.new",
        "PrefixIndex.add",
        "PrefixIndex.hash",
        "PrefixIndex.come",
    ],
    "moves": ["Moves.cut", "Moves.end_of_cut", "Moves.settle"],
    "pages": [
        "PagePool.take",
        "PagePool.choose",
        "PagePool.resting_or_free",
        "PagePool.rouse",
        "PagePool.enliven",
        "PagePool.retain",
        "PagePool.reuse",
        "PagePool.quieten",
        "PagePool.settle",
        "PagePool.publish",
        "PagePool.unpublish",
        "PagePool.give_up_parent",
        "PagePool.list_vacant",
        "PagePool.is_short",
    ],
    "prefixes": [
        "SharedPrefixes.serve",
        "SharedPrefixes.hold_tokens",
        "SharedPrefixes.come",
        "SharedPrefixes.turn_back",
        "SharedPrefixes.stand",
        "SharedPrefixes.publish",
    ],
    "rows": ["Places.note"],
    "sequences": ["Sequences.span", "Sequences.want", "Sequences.clear_wants"],
    "spaces": [],  # arrays and no methods
    "eviction": ["Lanes.join", "Lanes.put", "Lanes.leave", "Lanes.coldest"],
    "snapshots": [],  # lists and sets, once a prompt
    "steps": [
        "Steps.check_end",
        "Steps.reserve_columns",
        "Steps.begin_pages",
        "Steps.take_columns",
        "Steps.take",
    ],
}
"""Module of the core -> its functions and methods that must not call into Python."""

HARMLESS = re.compile(
    # what happens where a check fails, and asking whether one did
    r"__Pyx_RaiseBufferIndexError|PyErr_SetString|PyErr_Occurred|__Pyx_AddTraceback|__PYX_ERR"
    # arithmetic by Python's rules
    r"|__Pyx_(div|mod)_\w+|__Pyx_UNARY_NEG_WOULD_OVERFLOW"
    # counts of references
    r"|__Pyx_X?(INCREF|DECREF|GOTREF|GIVEREF)(_SET)?|__Pyx_RefNanny\w+"
    r"|__PYX_\w+_MEMVIEW|__Pyx_MemoryView_Len"
    # an item of a list, of a class that the .pxd names
    r"|__Pyx_PyList_GET_\w+|__Pyx_GetItemInt_List|__Pyx_TypeTest"
    r"|PyDict_CheckExact|__Pyx_RaiseUnexpectedTypeError"
    # the core's own functions
    r"|__pyx_f_6octavo_4core_\w+"
)
CALL = re.compile(r"\b(_*[Pp]y\w*|__PYX\w*)\(")
LINE = re.compile(r'/\* "octavo/core/\w+\.py":(\d+)$')
TRANSLATE = """\
import pathlib, sys
from hatch_build import translated
translated([pathlib.Path(name) for name in sys.argv[1:]])
"""

SUMS = """\
def typed(numbers, count):
    total = 0
    for i in range(count):
        total += numbers[i] // count
    return total


def untyped(numbers, count):
    total = 0
    total += numbers[0] * count
    return 7

class Sums:
    def lost(self, numbers):
        return numbers[7]

    def python(self):
        return 1
"""
SUMS_TYPES = """\
cimport cython

@cython.locals(total=int, i=Py_ssize_t)
cpdef int typed(int[::1] numbers, int count) except -1
cpdef int untyped(int[::1] numbers, object count) except -1

@cython.final
cdef class Sums:
    cpdef int lost(self, int[::1] numbers) noexcept
"""


def translate(sources, folder):
    """The C of each module among the sources."""
    command = [sys.executable, "-c", TRANSLATE, *map(str, sources)]
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": path}, check=True)
    return {path.stem: path.read_text() for path in folder.glob("octavo/core/*.c")}


def python_calls(text, module, function):
    """``line: call`` of each call into Python in the C of a function, given as ``Class.method``."""
    *classes, name = (f"{len(part)}{part}" for part in function.split("."))
    mangled = "_".join([f"__pyx_f_6octavo_4core_{len(module)}{module}", *classes])
    mangled += "_" + name.lstrip("0123456789")
    head = rf"^static [^;{{]*\b{mangled}\([^;{{]*\{{\n"
    body = re.search(head + r"(.*?)^\}", text, re.MULTILINE | re.DOTALL)
    assert body, f"{module}.{function} has no C function: declare it cdef or cpdef in {module}.pxd"
    line, found = "?", []
    for each in body[1].splitlines():
        line = at[1] if (at := LINE.search(each)) else line
        if not each.lstrip().startswith("*"):  # a comment that quotes the source
            found += [f"{line}: {c}" for c in CALL.findall(each) if not HARMLESS.fullmatch(c)]
    return found


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Module of the core -> its C."""
    return translate(build.sources(), tmp_path_factory.mktemp("core")) if HOT else {}


def test_every_compiled_module_names_its_hot_functions():
    """No module of the core goes unchecked."""
    assert build.modules() == sorted(HOT)


def test_hot_functions_do_not_call_python(core):
    """A variable without a C type, or an error nobody passes on, would show here."""
    found = {f"{m}.{f}": python_calls(core[m], m, f) for m in HOT for f in HOT[m]}
    slow = {function: _but_refusals(function, calls) for function, calls in found.items()}

    assert {} == {function: calls for function, calls in slow.items() if calls}


def _but_refusals(function, calls):
    """Those not on lines that raise or assert: what is refused is not hot."""
    source = ROOT / f"src/octavo/core/{function.partition('.')[0]}.py"
    lines = source.read_text(encoding="utf-8").splitlines()
    numbers = [call.partition(":")[0] for call in calls]
    texts = [lines[int(number) - 1].lstrip() if number.isdigit() else "" for number in numbers]
    pairs = zip(calls, texts, strict=True)
    return [call for call, text in pairs if not text.startswith(("raise ", "assert "))]


def test_check_sees_what_is_not_c(tmp_path):
    """A variable without a type, a lost error and a function of Python alone are each found."""
    tmp_path.joinpath("sums.py").write_text(SUMS)
    tmp_path.joinpath("sums.pxd").write_text(SUMS_TYPES)
    text = translate([tmp_path / "sums.pxd", tmp_path / "sums.py"], tmp_path)["sums"]

    assert [] == python_calls(text, "sums", "typed")
    assert {"10"} == {call.partition(":")[0] for call in python_calls(text, "sums", "untyped")}
    assert ["14: __Pyx_WriteUnraisable"] == python_calls(text, "sums", "Sums.lost")
    with pytest.raises(AssertionError, match="sums.Sums.python has no C function"):
        python_calls(text, "sums", "Sums.python")
