"""Compiles the core where there is a C compiler; without one the wheel is pure Python.

The extensions go where `src/octavo/core/build.py` says: into the wheel, or into the tree for an
editable install. What is unchanged is not compiled again: sources are copied to a folder in build/
where they differ from what is there, and the folder's name covers whatever else goes into them.
"""

import contextlib
import hashlib
import os
import runpy
import shutil
import sysconfig
from pathlib import Path

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,  # the types of C are those of the .pxd files alone
    "infer_types": True,
    "auto_pickle": False,  # what the core holds is nobody's to copy
    "boundscheck": True,
    "wraparound": False,  # no index is negative
    "initializedcheck": False,
    "cdivision": False,  # // and % as Python has them
}
LIMITED = not sysconfig.get_config_var("Py_GIL_DISABLED")  # one build for 3.11 and later
OPTIONS = ["-O3", "-g0", "-falign-loops=32"]
"""Of the compiler. A loop that begins where it may costs a quarter more after an edit elsewhere."""
MACROS = [("Py_LIMITED_API", "0x030B0000"), ("CYTHON_LIMITED_API", "1")] if LIMITED else []
INTERPRETED, COMPILED = b"from octavo.core import nocython as cython", b"import cython"
SHARED = "_octavo_shared"  # what Cython would put into each module: a third of the time to compile
PLATFORM = sysconfig.get_platform()


class CoreBuildHook(BuildHookInterface):
    """What hatchling calls before it writes a wheel."""

    def initialize(self, version, build_data):
        """Compile, and say what the wheel holds; a failure is a warning."""
        core = runpy.run_path(str(Path(self.root, "src/octavo/core/build.py")))
        folder, editable = core["folder"](), version == "editable"
        if editable:
            shutil.rmtree(folder.parent, ignore_errors=True)
        if core["pure"]() or not core["modules"]():
            return
        try:
            built = compiled(core["sources"](), Path(self.root, "build"))
        except Exception as error:  # noqa: BLE001  # whatever a compiler or its absence brings
            self.app.display_warning(f"octavo's core is not compiled: {error}")
            return
        if editable:
            shutil.copytree(built, folder)
        else:
            build_data["force_include"][str(built)] = f"octavo/core/__compiled__/{folder.name}"
        build_data["pure_python"] = False
        build_data["infer_tag"] = not LIMITED
        if LIMITED:
            build_data["tag"] = f"cp311-abi3-{PLATFORM.replace('-', '_').replace('.', '_')}"


def compiled(sources, build):
    """The folder in ``build`` that has the extensions of the sources, and nothing else."""
    from Cython import __version__ as cython
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    made_by = f"{Path(__file__).read_text(encoding='utf-8')} {cython} {PLATFORM} {LIMITED}"
    folder = build / f"core-{hashlib.sha256(made_by.encode()).hexdigest()[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(folder):  # so that tracebacks name octavo/core/X.py
        command = build_ext(Distribution({"ext_modules": translated(sources)}))
        command.build_lib, command.build_temp, command.parallel = "lib", "temp", os.cpu_count()
        command.ensure_finalized()
        command.run()
        library = Path("lib/octavo/core").absolute()
        made = [Path(path).absolute() for path in command.get_outputs()]
        for path in set(library.iterdir()) - set(made):
            path.unlink()  # of a module that is gone
        return library


def translated(sources):
    """The sources as C, in the current folder, where they are copied to: setuptools' extensions."""
    from Cython.Build import cythonize
    from setuptools import Extension

    package = Path("octavo/core")
    package.mkdir(parents=True, exist_ok=True)
    for path in (package.parent, package):
        path.joinpath("__init__.py").touch()
    for source in sources:
        copy, text = package / source.name, source.read_bytes().replace(INTERPRETED, COMPILED)
        if not copy.exists() or copy.read_bytes() != text:
            copy.write_bytes(text)
    files = {path.stem: f"octavo/core/{path.name}" for path in sources if path.suffix == ".py"}
    files[SHARED] = f"octavo/core/{SHARED}.c"
    extensions = [
        Extension(
            f"octavo.core.{name}",
            [file],
            define_macros=MACROS,
            py_limited_api=LIMITED,
            extra_compile_args=OPTIONS,
        )
        for name, file in files.items()
    ]
    return cythonize(
        extensions,
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name=f"octavo.core.{SHARED}",
        nthreads=2,
        quiet=True,
    )
