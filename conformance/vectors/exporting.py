"""What onnx_export.py and flashinfer_export.py share: their command line and the index of exports."""

import argparse
import collections
import contextlib
import json
import pathlib
import random
import shutil
import sys

import numpy as np

import judge


def members(case):
    """Return the case's members and inputs in one dict. An absent input is None."""
    return {**dict.fromkeys(judge.INPUTS), **case.task, **case.inputs}


def sample(chosen, count):
    """Return some of the cases at random. Print the seed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed).sample(chosen, min(count, len(chosen)))


@contextlib.contextmanager
def folder(text):
    """Parse the command line. Give the chosen cases and the emptied folder."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="a new or empty folder, or a folder of exports, which is replaced")
    parser.add_argument("--case", default="*", metavar="PATTERN", help="only cases whose name matches, such as 'causal_*'")
    parser.add_argument("--sample", type=int, metavar="N", help="only N of these cases, at random")
    arguments = parser.parse_args()
    chosen = judge.cases(arguments.case)
    if not chosen:
        parser.error(f"no case matches {arguments.case!r}")
    if arguments.folder.exists() and any(arguments.folder.iterdir()) and not (arguments.folder / "index.json").exists():
        parser.error(f"{arguments.folder} has files, but no index.json of exports")
    shutil.rmtree(arguments.folder, ignore_errors=True)
    arguments.folder.mkdir(parents=True)
    with np.errstate(all="ignore"):
        yield (chosen if arguments.sample is None else sample(chosen, arguments.sample)), arguments.folder


def finish(place, index, wrong, counts):
    """Write the index, print the counts and exit."""
    (place / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    for reason, count in collections.Counter(index["unsupported"].values()).items():
        print(f"unsupported: {reason}: {count} cases")
    for line in wrong:
        print("WRONG " + line)
    print(counts)
    sys.exit(bool(wrong))
