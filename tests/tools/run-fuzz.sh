#!/bin/sh
# Runs each fuzz target for so many seconds over its corpus; new inputs go to build/, findings too.
#     run-fuzz.sh SECONDS TARGET...
set -u

seconds=$1
shift
failed=0
for t in "$@"; do
	name=$(basename "$t" | sed 's/^fuzz_//')
	new=build/fuzz-corpus/$name
	mkdir -p "$new"
	corpus=
	[ -d "tests/fuzz/corpus/$name" ] && corpus=tests/fuzz/corpus/$name
	log=build/fuzz-corpus/$name.log
	# shellcheck disable=SC2086 # an empty corpus is no argument
	if "$t" -max_total_time="$seconds" -rss_limit_mb=4096 -artifact_prefix="build/fuzz-corpus/$name-" \
		-print_final_stats=1 "$new" $corpus >"$log" 2>&1; then
		echo "$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") executions, nothing found"
	else
		tail -n 40 "$log"
		failed=$((failed + 1))
	fi
done
echo "$(($# - failed)) passed, $failed failed"
[ $failed -eq 0 ]
