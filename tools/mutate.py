#!/usr/bin/env python3
"""Put single mistakes into the kernels, and see whether the conformance suite finds them.

    python tools/mutate.py --tree FOLDER [--seed N] [--count 40] [--room ROOM,...] [--json FILE]

Each mistake changes one operator, number or statement at a place drawn by the seed: in
the Go code of backends/simd, in the programs that write its assembly, in the Go and C
code of backends/wasm, or in the host code of backends/cuda, which runs on its fake. A
mistake that does not build, or leaves the generated code as it is, is drawn again. The
suite runs as a third party runs it: TestConformance alone, first brief, then whole. It
needs clang-14 and lld-14 for kernel.wasm.

No mistake is drawn in code of AMX and of arm64, which the machine may lack, nor of a kind
that alters no result:
- code that predicts times, and comparisons with the least time so far
- prefetching, how fast loops are measured to be, and the barriers PIN and HIDE, which order instructions for speed
- poison, which fills workspace in tests
- how many workers share a call, and how many elements the decode kernels take at a time
- which of the registers for broadcasts holds a value
- the order of items, as a comparison function sorts them
- checks in kernel.c of what the backend itself has written
- workspace, or the addend of a rounding up, larger than it must be; a smaller one is drawn
- the argument of math.Inf, of which the sign alone counts, when the sign stays

FOLDER is a clean checkout that the script may change, such as a git worktree. Every
mistake is undone before the next one. The exit status is the number of survivors. A
survivor may still be a change that alters no result: a person has to look at each.
"""

import argparse
import json
import os
import pathlib
import random
import re
import subprocess
import sys
import time

# Code that chooses, predicts, prefetches or reports, and never touches a tensor.
NEUTRAL = re.compile(r"(_test|about|^ahead|^fetch|^poison|^work|cost\w*|peak\w*|pace\w*|tier\w*|limits|memory\w*|main|generator|evex|vex|kernels\w*|matmul\w*|gemm|norm|elements|"
                     r"driver\w*|devices|nccl|peer|images|uncached\w*|trial\w*|kernel)\.go$|_arm64\.go$|neon|amx|(panels|planes|tiles)_amd64\.go$|a[vm]x[^/]*_amd64\.go$")

# Functions and lines in other files that also choose, predict, prefetch or report.
NEUTRAL_FUNCTION = re.compile(r"^workers$|(Times?|[cC]ycles|[cC]ost|[sS]hare|shareOf|balances|evenBlocks)$|[fF]etch|[aA]head|[pP]oison|^fetchNext|Pace$|^pace")
NEUTRAL_LINE = re.compile(r"\b(pace|\w*Pace)\b|(?<!h\.)\b(\w*[cC]ycles|cost)\b|[<>] least\b.*\{$|\bfetchRows\b|= rate\(|\bsplit: |\bbroadcasts\[\d|PREFETCH|\b(PIN|HIDE)\(|return BAD_|[pP]oison")
# Code that computes the size of workspace, and the mistakes that only make workspace larger.
WORKSPACE = re.compile(r"\btake\(|Floats\b|[sS]cratch|\bReserve\(")
WORKSPACE_FUNCTION = re.compile(r"(Floats|Size|Words|[sS]cratch\w*)$")
LARGER = {(" - ", " + "), (" / ", " * "), ("min(", "max(")}

ROOMS = {
    "simd": ("backends/simd/**/*.go", "./backends/simd", "^TestConformance$"),
    "asm": ("backends/simd/_asm/*.go", "./backends/simd", "^TestConformance$"),
    "wasm": ("backends/wasm/*.go", "./backends/wasm", "^TestConformance$"),
    "kernel": ("backends/wasm/kernel/*.[ch]", "./backends/wasm", "^TestConformance$"),
    "cuda": ("backends/cuda/*.go", "./backends/cuda", "^TestConformanceOnFake(Device)?$"),
}
WEIGHTS = {"simd": 14, "asm": 9, "wasm": 6, "kernel": 7, "cuda": 4}

SWAPS = [(" < ", " <= "), (" <= ", " < "), (" > ", " >= "), (" >= ", " > "), (" == ", " != "), (" != ", " == "),
         (" + ", " - "), (" - ", " + "), (" * ", " + "), (" += ", " -= "), (" -= ", " += "), (" && ", " || "), (" || ", " && "),
         ("min(", "max("), ("max(", "min("), ("++", "+= 2"), ("true", "false"), ("false", "true"), (" / ", " * "), (" % ", " / ")]
NUMBER = re.compile(r"(?<![\w.\"'%$])(?<!math\.Inf\()(?<!math\.Inf\(-)(\d{1,3})(?![\w.\"'])(?!\) &\^)")
FUNCTION = re.compile(r"func (?:\([^)]*\) )?(\w+)")
STATEMENT = re.compile(r"^\s+[\w.\[\]()*&, +\-:]+( [-+*|&]?= .*[^{(,]|\([^{}]*\);?)$")


def mistakes(line, function=""):
    """Yield every line that one mistake makes of this one of a function, with its name."""
    code = line.split("//")[0]
    if NEUTRAL_LINE.search(code) or NEUTRAL_FUNCTION.search(function):
        return
    enough = WORKSPACE.search(code) or WORKSPACE_FUNCTION.search(function)
    if not code.strip() or re.match(r"\s*(package|import|func|type|case|\*|/\*|#|return nil|errors?\.|Reason|fmt\.)", code) or "Errorf" in code or '"' in code and "Problem" in code:
        return
    for old, new in SWAPS:
        if enough and (old, new) in LARGER:
            continue
        for m in re.finditer(re.escape(old), code):
            yield f"{old.strip()} -> {new.strip()}", line[:m.start()] + new + line[m.end():]
    for m in () if enough else NUMBER.finditer(code):
        yield f"{m[1]} -> {int(m[1]) + 1}", line[:m.start()] + str(int(m[1]) + 1) + line[m.end():]
    if STATEMENT.match(code.rstrip()) and ":=" not in code and "panic" not in code:
        yield "deleted", "\n"


def drawable(file):
    """Yield the number of each line that a mistake can change, with the Go function that it is of."""
    function, sorting = "", None
    for i, line in enumerate(file.read_text().splitlines(True)):
        if m := FUNCTION.match(line):
            function = m[1]
        indent = len(line) - len(line.lstrip("\t"))
        if sorting is not None and indent <= sorting:
            sorting = None
        elif sorting is None and any(mistakes(line, function)):
            yield i, function
        if "SortFunc(" in line and line.rstrip().endswith("{"):
            sorting = indent
        if line.startswith("}"):
            function = ""


def run(tree, command, limit, **env):
    try:
        done = subprocess.run(command, cwd=tree, shell=isinstance(command, str), text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=limit, env=os.environ | env, start_new_session=True)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as e:
        return 124, f"no end within {e.timeout} s"


def generate(tree, room):
    """Remake what the mistake's source generates; reports whether anything changed."""
    if room == "kernel":
        code, _ = run(tree, "backends/wasm/kernel/build.sh && RELAXED=1 backends/wasm/kernel/build.sh", 600)
        changed = run(tree, "git status --porcelain -- 'backends/wasm/kernel/*.wasm'", 60)[1]
        return code == 0 and changed.strip() != ""
    if room == "asm":
        commands = run(tree, "make --no-print-directory -n asm", 60)[1]
        lines = [m[1] for m in re.finditer(r"run \. (-isa AVX\S+ .*-out \.\./[^.]\S+.*-pkg simd)", commands)]
        programs = " ".join(f"'{line}'" for line in lines)
        code, _ = run(tree / "backends/simd/_asm", f"go build -o .mutant . && for a in {programs}; do ./.mutant $a || exit 1; done; rm -f .mutant", 900)
        changed = run(tree, "git status --porcelain -- 'backends/simd/*_amd64.s'", 60)[1]
        return code == 0 and changed.strip() != ""
    return True


def main():
    o = argparse.ArgumentParser()
    o.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    o.add_argument("--count", type=int, default=40)
    o.add_argument("--room", default=",".join(ROOMS))
    o.add_argument("--tree", type=pathlib.Path, required=True)
    o.add_argument("--json", type=pathlib.Path, help="write the results there after each mistake")
    a = o.parse_args()
    if run(a.tree, "git status --porcelain", 60)[1].strip():
        sys.exit(f"{a.tree}: the checkout has changes of its own")
    rooms = a.room.split(",")
    places = {r: [(f, *x) for f in sorted(a.tree.glob(ROOMS[r][0])) if not NEUTRAL.search(f.name) and ("_asm" not in f.parts or r == "asm")
                  for x in drawable(f)] for r in rooms}
    r = random.Random(a.seed)
    print(f"seed {a.seed}; places: " + ", ".join(f"{k} {len(v)}" for k, v in places.items()), flush=True)
    results, survivors = [], 0
    while len(results) < a.count:
        room = r.choices(rooms, [WEIGHTS[x] for x in rooms])[0]
        file, i, function = r.choice(places[room])
        lines = file.read_text().splitlines(True)
        name, changed = r.choice(list(mistakes(lines[i], function)))
        before, start = lines[i].strip(), time.time()
        lines[i] = changed
        file.write_text("".join(lines))
        at = f"{file.relative_to(a.tree)}:{i + 1}"
        _, package, test = ROOMS[room]
        fate, why = "", ""
        if not generate(a.tree, room) or run(a.tree, f"go vet {package}", 900)[0] != 0:
            fate = "drawn again"
        for flags, env in (("-short", {"FLASHKIT_SEED": "1"}), ("", {"FLASHKIT_SEED": "2"})):
            if fate:
                break
            code, out = run(a.tree, f"go test {flags} -failfast -timeout 20m -run '{test}' {package}", 1300, **env)
            if code != 0:
                fate = "killed"
                why = next((l.strip() for l in out.splitlines() if re.match(r"\s*--- FAIL: \S+/\S+/", l) or "panic:" in l or "build failed" in l), out[-200:])
        run(a.tree, "git checkout -q . && git clean -fdq backends", 60)
        if "build failed" in why:
            fate = "drawn again"
        if fate == "drawn again":
            continue
        fate = fate or "SURVIVED"
        survivors += fate == "SURVIVED"
        results.append(dict(at=at, mistake=name, line=before, fate=fate, why=why, seconds=round(time.time() - start)))
        print(f"{len(results):3} {fate:9} {at}  {name}  | {before} | {why} ({results[-1]['seconds']} s)", flush=True)
        if a.json:
            a.json.write_text(json.dumps(dict(seed=a.seed, mutants=results), indent=1))
    print(f"{survivors} of {len(results)} survived")
    return survivors


if __name__ == "__main__":
    sys.exit(main())
