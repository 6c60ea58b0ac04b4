#!/usr/bin/env python3
"""Write the tables of field-report.md from reports that judge.py wrote with --format json.

    python field_report.py FOLDER field-report.md [gpu]

The script replaces the page's text between its two marks and keeps the rest. With gpu it takes the
marks of the tables for a machine with a GPU.
"""

import collections
import datetime
import fnmatch
import json
import pathlib
import platform
import re
import sys

BEGIN = {"cpu": "<!-- made by make field-report -->", "gpu": "<!-- made by field_report.py on a machine with a GPU -->"}
END = "<!-- end -->"

# Kinds of differences, by patterns of traps; the first match counts. R and H come from the faults.
KINDS = {
    "N": ("NaN or infinity of a hidden key reaches the results", "nan_be* inf_behind_mask mask_nan mask_tiles mask_first_tile edge_nan_b* edge_band_* edge_mask_* edge_dbias_* edge_empty_rows edge_masked_rows bias_band bias_behind_mask"),
    "R": ("a row that sees no key is not 0: a convention", ""),
    "E": ("an error for an empty tensor", "no_* dbias_no_* *_empty sequence_no_keys"),
    "M": ("scores near the lowest or largest finite number become infinite", "bias_min_* bias_1e30 bias_largest alibi_huge"),
    "S": ("NaN or infinity of a row is lost, or reaches keys that the row does not see", "nan_query bias_inf bias_nan sink_nan sink_inf"),
    "B": ("a bias or mask that repeats over rows is refused, or gets wrong gradients", "bias_one_row dbias_rows mask_one_row"),
    "X": ("another error", "*"),
    "P": ("scores lose precision", "very_negative_lse rising_max* far_* last_key huge_* finite_sentinel mask_finite"),
    "H": ("only 16-bit types exceed the bound", ""),
    "D": ("another difference", "*"),
}


def base(case):
    return re.sub(r"-(f16|bf16)$", "", case)


def kind(trap, results):
    """Return the letter of a failed trap."""
    failed = [r for r in results if r["status"] == "failed"]
    faults = [f for r in failed for f in r.get("faults", [])]
    exact = [r for r in failed if r["case"] == trap] or failed
    rows = [f for r in exact for f in r.get("faults", []) if f["output"] in ("o", "lse", "dq")]
    if rows and all(f["empty"] for f in rows):
        return "R"
    known = {"N": any(f["got"] == "NaN" for f in faults), "E": any("reason" in r for r in failed), "X": any("reason" in r for r in failed)}
    letter = next(k for k, (_, patterns) in KINDS.items() if known.get(k, True) and any(fnmatch.fnmatchcase(trap, p) for p in patterns.split()))
    if letter in "PD" and any(r["case"] == trap and r["status"] == "passed" for r in results):
        return "H"
    return letter


def shown(name):
    """Return an implementation's name; of a program without its folder."""
    return name.split("/")[-1].replace("judge-runner", "flashkit")


def cells(report):
    """Return {trap: letter}: '.' passed, '' unsupported, else the kind."""
    traps = collections.OrderedDict()
    for r in report["results"]:
        if r["catches"]:
            traps.setdefault(base(r["case"]), []).append(r)
    cell = {}
    for trap, results in traps.items():
        states = {r["status"] for r in results}
        cell[trap] = kind(trap, results) if "failed" in states else "." if "passed" in states else ""
    return cell


def tables(reports, where):
    table = [cells(r) for r in reports]
    yield f"{datetime.date.today()}" + (f", Python {platform.python_version()}, {platform.machine()}.\n" if where == "cpu" else ".\n")
    yield "| | implementation | outputs | traps that pass | fail | unsupported | grid cases that fail |\n|---|---|---|---|---|---|---|"
    for i, (r, cell) in enumerate(zip(reports, table)):
        judged = dict.fromkeys(x for y in r["results"] for x in y.get("judged", []))
        grid = sum(not x["catches"] and x["status"] == "failed" for x in r["results"])
        values = list(cell.values())
        fails = len(values) - values.count(".") - values.count("")
        yield f"| {i + 1} | {shown(r['name'])} | {' '.join(judged)} | {values.count('.')} | {fails} | {values.count('')} | {grid} |"
    yield "\nThe columns of the next table are the rows of the last. A dot is a trap that passes in each type that the implementation supports. An empty"
    yield "cell is a trap that it cannot express. Traps that no implementation fails are left out. Letters:\n"
    used = {letter for cell in table for letter in cell.values()}
    yield from (f"- {letter}: {text}" for letter, (text, _) in KINDS.items() if letter in used)
    yield "\n| trap | catches | " + " | ".join(str(i + 1) for i in range(len(reports))) + " |\n|---|---|" + "---|" * len(reports)
    catches = {base(x["case"]): x["catches"] for r in reports for x in r["results"] if x["catches"]}
    for trap in catches:
        row = [cell.get(trap, "") for cell in table]
        if set(row) - {".", ""}:
            yield f"| `{trap}` | {catches[trap]} | " + " | ".join(row) + " |"
    silent = sum(not {cell.get(trap, "") for cell in table} - {".", ""} for trap in catches)
    yield f"\nNo implementation fails the other {silent} of {len(catches)} traps."


def main():
    folder, page = (pathlib.Path(x) for x in sys.argv[1:3])
    reports = [r for path in sorted(folder.glob("*.json")) for r in json.loads(path.read_text())]
    if not reports:
        sys.exit(f"no reports in {folder}")
    where = sys.argv[3] if len(sys.argv) > 3 else "cpu"
    before, rest = page.read_text().split(BEGIN[where])
    page.write_text(before + BEGIN[where] + "\n\n" + "\n".join(tables(reports, where)) + "\n\n" + rest[rest.index(END):])


if __name__ == "__main__":
    main()
