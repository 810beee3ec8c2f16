#!/usr/bin/env bash
# Installs Debian's Chromium, in which the tests open the operators' page, unless some Chromium is there already. It is
# for tests alone: `make setup` leaves it out, and without it they say so and skip.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if path=$(command -v "$name"); then
        printf 'chromium: %s\n' "$path" >&2
        exit 0
    fi
done
if ! command -v apt-get >/dev/null; then
    printf 'chromium: there is no apt-get here; install it some other way, or name one in KEEPWARM_CHROMIUM\n' >&2
    exit 1
fi
as_root=()
((EUID == 0)) || as_root=(sudo)
"${as_root[@]}" apt-get -qq update
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium fonts-dejavu-core >/dev/null
printf 'chromium: %s\n' "$(command -v chromium)" >&2
