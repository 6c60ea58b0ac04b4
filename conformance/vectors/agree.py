#!/usr/bin/env python3
"""Check that judge.py and flashrun judge give the same verdicts on kernels with a planted mistake.

    python agree.py flashrun runner [--all]

runner is the program of runners/flashkit. Each mistake has the name of the case that catches it. A
mistake in a memory layout survives here, because the runner stores its tensors dense. Without --all
the script takes 40 mistakes at random, and prints the seed.
"""

import json
import pathlib
import random
import subprocess
import sys
import tempfile

import judge


def verdicts(results):
    """Return what both judges must agree on. JSON stores NaN and infinities as strings in both."""
    keys = ("case", "catches", "status", "judged", "faults", "reason")
    return [{key: r[key] for key in keys if r.get(key)} for r in results]


def main():
    flashrun, runner = (str(pathlib.Path(x).resolve()) for x in sys.argv[1:3])
    names = list(dict.fromkeys(c.record["name"] for c in judge.cases() if c.catches))
    seed = random.randrange(2**32)
    if "--all" not in sys.argv:
        names = random.Random(seed).sample(names, 40)
    caught, wrong = 0, 0
    for mistake in [*names, ""]:
        pattern = (mistake or "causal_*") + "*"
        program = [runner, "mutant:" + mistake]
        done = subprocess.run([flashrun, "judge", "--case", pattern, "--format", "json", "--", *program], capture_output=True, check=False)
        if done.returncode not in (0, 1):
            sys.exit(done.stderr.decode())
        ours = json.loads(done.stdout)
        with tempfile.TemporaryDirectory() as folder:
            theirs = judge.run(" ".join(program), judge.run_program(program, 60), judge.cases(pattern), pathlib.Path(folder))
        caught += any(r["status"] == "failed" for r in ours["results"])
        for a, b in zip(verdicts(ours["results"]), verdicts(theirs["results"]), strict=True):
            if a != b:
                wrong += 1
                print(f"{mistake}: flashrun judge gives\n{json.dumps(a)}\njudge.py gives\n{json.dumps(b)}")
    if "--all" not in sys.argv:
        print(f"seed {seed}")
    print(f"{len(names)} mistakes, {caught} caught, {wrong} verdicts differ")
    sys.exit(bool(wrong or caught < len(names) // 2))


if __name__ == "__main__":
    main()
