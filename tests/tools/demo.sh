#!/bin/sh
# The main job once: a private daemon with the default model, and an answer streamed to the
# terminal.
set -eu

build=${1:-build/release}
model=$(tests/tools/fetch-model.sh)
dir=$(mktemp -d)
"$build/nanoserved" --model "$model" --socket "$dir/sock" 2>"$dir/log" &
daemon=$!
trap 'kill $daemon 2>/dev/null; wait $daemon 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 130' INT TERM
until grep -q 'ready after' "$dir/log" || ! kill -0 $daemon 2>/dev/null; do
	sleep 0.05
done
cat "$dir/log"
grep -q 'ready after' "$dir/log" || exit 1
prompt='Explain in two sentences what an operating system does.'
echo
echo "> $prompt"
"$build/nanoserve" --socket "$dir/sock" generate --stats -n 120 "$prompt"
