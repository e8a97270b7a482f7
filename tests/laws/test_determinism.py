"""The same verbs give the same page ids in every process, and pages the same names."""

import os
import subprocess
import sys

CODE = """
from octavo import Adapter, Cache, CrossInput, Media, Plan, Salt
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
"""


def told(seed):
    """What a fresh interpreter with this hash seed saw."""
    path = os.pathsep.join(part for part in sys.path if part)
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_hash_seeds_do_not_matter():
    """Two interpreters with different hash seeds agree on every page, array and digest."""
    one, other = told("1"), told("271828")

    assert one == other
    assert 12 == one[1].count("', '")
