#!/bin/sh
# Runs each fuzz target for so many seconds, two at once for each CPU, over its corpus:
# tests/fuzz/corpus/NAME/ (seeds with names) and NAME.tar.xz (what a long run kept of its finds).
# New inputs go to build/, findings too.
#     run-fuzz.sh SECONDS TARGET...
set -u

seconds=$1
shift

name_of() {
	basename "$1" | sed 's/^fuzz_//'
}

run_one() {
	name=$(name_of "$1")
	new=build/fuzz-corpus/$name
	mkdir -p "$new"
	corpus=tests/fuzz/corpus/$name
	if [ -f "$corpus.tar.xz" ]; then
		tar -xJf "$corpus.tar.xz" -C "$new" || return 1
	fi
	[ -d "$corpus" ] || corpus=
	# shellcheck disable=SC2086 # an empty corpus is no argument
	"$1" -timeout=60 -max_total_time="$seconds" -rss_limit_mb=4096 -print_final_stats=1 \
		-artifact_prefix="build/fuzz-corpus/$name-" "$new" $corpus \
		>"build/fuzz-corpus/$name.log" 2>&1
}

report() {
	name=$(name_of "$1")
	log=build/fuzz-corpus/$name.log
	if [ "$(cat "build/fuzz-corpus/$name.rc")" = 0 ]; then
		n=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
		echo "$name: $n executions, nothing found"
	else
		tail -n 40 "$log"
		return 1
	fi
}

mkdir -p build/fuzz-corpus
at_once=$((2 * $(nproc)))
n=0
for t in "$@"; do
	(
		run_one "$t"
		echo $? >"build/fuzz-corpus/$(name_of "$t").rc"
	) &
	n=$((n + 1))
	[ $((n % at_once)) -eq 0 ] && wait
done
wait

failed=0
for t in "$@"; do
	report "$t" || failed=$((failed + 1))
done
echo "$(($# - failed)) passed, $failed failed"
[ $failed -eq 0 ]
