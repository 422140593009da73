"""Writes oracles.lock from oracles.in: for Python 3.11 and 3.12 on x86-64 and aarch64.

Use: lock_oracles.py   (in setup/; needs a network; pip of Python 3.11 or later)
Only for changing the pins; ./orrery test installs what the lock says.
"""

import json
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHONS = ("311", "312")
MACHINES = ("x86_64", "aarch64")
GLIBC = [28, 27, 26, 25, 24, 17, 12, 5]


def read_input():
    together, alone = [], []
    for line in open(os.path.join(HERE, "oracles.in")):
        name, _, comment = line.partition("#")
        if name.strip():
            (alone if comment.strip() == "alone" else together).append(name.strip())
    return together, alone


def resolve(names, python, machine, extra):
    """Returns [(name, version, sha256)] as pip resolves them for that Python and machine."""
    platforms = ["manylinux_2_%d_%s" % (n, machine) for n in GLIBC] + ["manylinux2014_" + machine]
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
                   "--only-binary=:all:", "--implementation=cp", "--python-version", python,
                   "--target", folder, "--report", report, *extra, *names]
        for name in platforms:
            command += ["--platform", name]
        subprocess.run(command, check=True, stdout=sys.stderr)
        with open(report) as file:
            installs = json.load(file)["install"]
    return [(i["metadata"]["name"].lower().replace("_", "-").replace(".", "-"), i["metadata"]["version"],
             i["download_info"]["archive_info"]["hashes"]["sha256"]) for i in installs]


def main():
    together, alone = read_input()
    locked = {}
    for python in PYTHONS:
        for machine in MACHINES:
            found = resolve(together, python, machine, []) + resolve(alone, python, machine, ["--no-deps"])
            for name, version, digest in found:
                locked.setdefault(name, {}).setdefault(version, set()).add(digest)
            print("python %s, %s: %d packages" % (python, machine, len(found)), file=sys.stderr)
    with open(os.path.join(HERE, "oracles.lock"), "w") as file:
        file.write("# Made from oracles.in by lock_oracles.py: Python 3.11 and 3.12, x86-64 and aarch64.\n")
        for name in sorted(locked):
            if len(locked[name]) != 1:
                sys.exit("%s resolves to several versions: %s" % (name, ", ".join(locked[name])))
            version, digests = next(iter(locked[name].items()))
            hashes = " ".join("--hash=sha256:" + digest for digest in sorted(digests))
            file.write("%s==%s %s\n" % (name, version, hashes))


if __name__ == "__main__":
    main()
