"""What pyproject.toml cannot say: a compiled module that is left out where no compiler is; the pages and the examples.

A wheel with the module is for its platform (any CPython from 3.11: the limited API); one without it is for all. The
folders `docs` and `examples` are below `klamm/pages` in a wheel, where `klamm docs` finds them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCES = sorted(str(path) for path in Path("src/klamm/core/records/native").glob("*.c"))


class Wheel(bdist_wheel):
    """Tagged by what was built."""

    def run(self) -> None:
        build = self.get_finalized_command("build_ext")
        self.run_command("build_ext")
        self.root_is_pure = not all(Path(path).exists() for path in build.get_outputs())
        if self.root_is_pure:
            self.py_limited_api = ""
            self.distribution.ext_modules = []
        super().run()


class Pages(build_py):
    """Copies the pages and the examples, without pictures."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for name in ("docs", "examples"):
                left_out = shutil.ignore_patterns("*.png", "*.svg", "__pycache__", "*.egg-info", "build")
                shutil.copytree(name, Path(self.build_lib, "klamm", "pages", name), ignore=left_out, dirs_exist_ok=True)


setup(
    ext_modules=[
        Extension(
            "klamm.core.records._native",
            sources=SOURCES,
            depends=["src/klamm/core/records/native/native.h"],
            define_macros=[("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=["-std=c11", "-O3", "-Wall", "-Wextra"],
            py_limited_api=True,
            optional=True,
        )
    ],
    cmdclass={"bdist_wheel": Wheel, "build_py": Pages},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
