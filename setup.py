"""The one thing that pyproject.toml cannot say: a compiled module that is left out where no compiler is.

A wheel with it is for its platform (any CPython from 3.11: the limited API); one without it is for all.
"""

from __future__ import annotations

from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel

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
    cmdclass={"bdist_wheel": Wheel},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
