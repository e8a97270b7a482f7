"""The same verbs give the same page ids in every process, and pages the same names.

Whether the core is compiled makes no difference either.
"""

import os
import subprocess
import sys

CODE = """
from octavo import Adapter, Cache, CrossInput, Media, Plan, Salt, core
from octavo.testing import stress
print(stress(1_500, 7).digest)
stored = []
cache = Cache(Plan.from_pages(40, 4), on_event=lambda event: stored.append(event[:2]))
extras = [(), [Salt("a")], [Adapter("a", 1)], [Adapter("a", "1")], [Media("m", 1, 3)],
          [Salt("\\ud800"), Media(b"m", 5, 9)]]
for extra in extras:
    row = cache.admit(range(9), extra=extra)
    cache.commit(cache.extend(row, 9))
print([(digest.hex(), parent.hex()) for digest, parent in stored])
print(core.why_not)
"""


def told(**environment):
    """What a fresh interpreter in this environment saw."""
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"PYTHONPATH": path} | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_hash_seeds_do_not_matter():
    """Two interpreters with different hash seeds agree on every page, array and digest."""
    one, other = told(PYTHONHASHSEED="1"), told(PYTHONHASHSEED="271828")

    assert one == other
    assert 12 == one[1].count("', '")


def test_source_and_compiled_core_agree():
    """The Python source of the core and what was compiled from it give the same, to the digest."""
    source, compiled = told(OCTAVO_PURE="1"), told(OCTAVO_PURE="")

    assert "OCTAVO_PURE is set" == source[-1]
    assert "OCTAVO_PURE is set" != compiled[-1]
    assert source[:-1] == compiled[:-1]
