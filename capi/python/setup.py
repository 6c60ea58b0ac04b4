"""Builds libflashkit.so with Go and _torch.so, and a wheel for any Python 3 on this platform."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
PACKAGE = HERE / "src" / "flashkit"
LIBRARIES = ("libflashkit.so", "_torch.so")
# The library's sources: in a source distribution, or in a clone of the repository.
SOURCES = next((folder for folder in (HERE / "libflashkit", HERE.parents[1]) if (folder / "capi" / "flashkit.h").exists()), None)


def build_library() -> None:
    """Build the library with Go, or say what is missing."""
    if sysconfig.get_platform() != "linux-x86_64" or not os.confstr_names.get("CS_GNU_LIBC_VERSION"):
        sys.exit(f"flashkit: {sysconfig.get_platform()}: must be linux-x86_64 with glibc; libflashkit runs on no other platform")
    if SOURCES is None:
        sys.exit("flashkit: the sources of libflashkit are missing: build from a source distribution or a clone of the repository")
    missing = [tool for tool in ("go", "make", os.environ.get("CC", "cc")) if shutil.which(tool) is None]
    if missing:
        sys.exit(f"flashkit: {', '.join(missing)}: not found; libflashkit is built with Go 1.25 or newer, make and a C compiler")
    subprocess.run(["make", "-C", SOURCES / "capi", "python-lib"], check=True)
    for name in LIBRARIES:
        shutil.copyfile(SOURCES / "bin" / "capi" / name, PACKAGE / name)


class Build(build_py):
    def run(self) -> None:
        build_library()
        super().run()


class Sources(sdist):
    def run(self) -> None:
        if SOURCES != HERE / "libflashkit":
            sys.exit("flashkit: a source distribution needs the sources of libflashkit, which `make -C capi/python sdist` copies")
        super().run()


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        """Return the tag of any Python 3 and manylinux (PEP 600): the newest symbol version of glibc, at least 2.28 as NumPy's wheels."""
        minors = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", b"".join((PACKAGE / name).read_bytes() for name in LIBRARIES))]
        return "py3", "none", f"manylinux_2_{max(28, *minors)}_x86_64"


class Binary(Distribution):
    def has_ext_modules(self) -> bool:
        """Return that the package holds a library, so it is installed into platlib."""
        return True


for name in ("LICENSE", "THIRD_PARTY_NOTICES.md"):
    if SOURCES is not None and not (HERE / name).exists():
        shutil.copyfile(SOURCES / name, HERE / name)
setup(distclass=Binary, cmdclass={"build_py": Build, "sdist": Sources, "bdist_wheel": Wheel})
