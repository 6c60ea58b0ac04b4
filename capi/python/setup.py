"""The wheel's tag: any Python 3, this platform, and the C library that libflashkit.so asks for."""

import pathlib
import re
import sysconfig

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel

LIBRARY = pathlib.Path(__file__).with_name("src") / "flashkit" / "libflashkit.so"


def platform() -> str:
    """Return the platform's tag, manylinux by PEP 600: the newest symbol version decides."""
    name = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    if not LIBRARY.exists():
        raise SystemExit(f"{LIBRARY} is missing; `make wheel` builds and copies it")
    minors = [int(minor) for minor in re.findall(rb"\0GLIBC_2\.(\d+)(?:\.\d+)?(?=\0)", LIBRARY.read_bytes())]
    if not name.startswith("linux_") or not minors:
        return name
    return f"manylinux_2_{max(minors)}_{name.removeprefix('linux_')}"


class Wheel(bdist_wheel):
    """Not pure, for it holds a library, but for any Python."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", platform()


setup(cmdclass={"bdist_wheel": Wheel})
