"""Write a table of docs/performance.md as JSON. `make docs` makes the page from bench/results.

A file has one table: title, question, machine, date, peers, repeat, columns, rows, notes. Scripts write it with --results FILE.
If FILE exists, its title, question and notes are kept. Read the notes again: they describe the earlier run.
"""

import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import re
import shlex
import sys

KEYS = ("title", "question", "machine", "date", "peers", "repeat", "columns", "rows", "notes")
LISTS = ("peers", "repeat", "notes")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")


def cell(value):
    """Return a cell as JSON. A text that is a decimal number becomes a number with the same digits."""
    return value if NUMBER.fullmatch(value) else json.dumps(value, ensure_ascii=False)


def encode(table):
    """Return a table as JSON, with a line for each row."""
    parts = []
    for key in KEYS:
        value = table[key]
        if key == "rows":
            for row in value:
                if len(row) != len(table["columns"]):
                    raise ValueError(f"{len(row)} cells in {len(table['columns'])} columns: {row}")
            text = "[\n" + ",\n".join("\t\t[" + ", ".join(map(cell, row)) + "]" for row in value) + "\n\t]"
        elif key in LISTS and value:
            text = "[\n" + ",\n".join("\t\t" + json.dumps(x, ensure_ascii=False) for x in value) + "\n\t]"
        else:
            text = json.dumps(value, ensure_ascii=False)
        parts.append(f'\t"{key}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def write(path, table):
    """Write a table, by default with today's date and this command. Keep title, question and notes of an existing file."""
    path = pathlib.Path(path)
    table = {"notes": [], "date": today(), "repeat": [command()]} | table
    if path.exists():
        old = json.loads(path.read_text())
        table |= {key: old[key] for key in ("title", "question", "notes")}
        lost = [x for x in old["columns"] if x not in table["columns"]]
        print(f"{path}: check its notes" + (f"; columns without new figures are gone: {', '.join(lost)}" if lost else ""), file=sys.stderr)
    path.write_text(encode(table))


def today():
    return datetime.date.today().isoformat()


def versions(*packages):
    """Return names and versions of the installed packages, such as ["PyTorch 2.11.0"]. packages are pairs of a name and a distribution."""
    found = []
    for name, distribution in packages:
        try:
            found.append(f"{name} {importlib.metadata.version(distribution).partition('+')[0]}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return found


def processor():
    """Return the processor's name, or None outside Linux."""
    found = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()) if os.path.exists("/proc/cpuinfo") else None
    return found and found[1]


def machine():
    """Return the processor's name and number of CPUs."""
    name = processor() or platform.processor() or platform.machine()
    return f"{name}, {len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} CPUs"


def command():
    """Return the command line of this run."""
    return shlex.join(["python", "bench/peers/" + os.path.basename(sys.argv[0]), *sys.argv[1:]])
