#!/bin/sh
# Runs test programs one after another, shows what they print, counts cmocka's tests, and names the
# five programs that took longest.
#     run-tests.sh PROGRAM...
# One that hangs ends after a quarter of an hour, and counts as failed.
set -u

passed=0 failed=0 bad=
log=$(mktemp)
times=$(mktemp)
trap 'rm -f "$log" "$times"' EXIT
for t in "$@"; do
	echo "== $t"
	# shellcheck disable=SC2086 # a command and its options
	begin=$(date +%s)
	timeout 900 ${RUN:-} "$t" >"$log" 2>&1
	status=$?
	echo "$(($(date +%s) - begin)) s  $t" >>"$times"
	cat "$log"
	p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test(s)\.$/\1/p' "$log" | tail -n 1)
	f=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test(s), listed below:$/\1/p' "$log" | tail -n 1)
	passed=$((passed + ${p:-0}))
	failed=$((failed + ${f:-0}))
	# A program that ends badly without saying so of a test counts as one.
	if [ $status -ne 0 ]; then
		[ "${f:-0}" -gt 0 ] || failed=$((failed + 1))
		bad="$bad $t($status)"
	fi
done
echo "longest:"
sort -rn "$times" | head -n 5
[ -z "$bad" ] || echo "failed:$bad"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
