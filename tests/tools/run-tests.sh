#!/bin/bash
# Runs test programs, as many at once as there are processors (JOBS= says another number), then those
# after -- one after another. Shows in that order what they print, counts cmocka's tests, and names
# the five programs that took longest.
#     run-tests.sh PROGRAM... [-- PROGRAM...]
# One that hangs ends after a quarter of an hour, and counts as failed.
set -u

jobs=${JOBS:-$(nproc)}
programs=() n_beside=$#
next=0 running=0 passed=0 failed=0 bad=
index=() began=() took=() statuses=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# shellcheck disable=SC2046 # one word a process
trap 'kill $(jobs -p); exit 130' INT TERM

for p in "$@"; do
	if [ "$p" = -- ]; then
		n_beside=${#programs[@]}
	else
		programs+=("$p")
	fi
done

# The next program may begin.
has_room() {
	[ $next -lt ${#programs[@]} ] || return 1
	[ $running -eq 0 ] || { [ $next -lt "$n_beside" ] && [ $running -lt "$jobs" ]; }
}

# A shell lets what it runs beside itself ignore SIGINT; tests are to find it as usual.
start() {
	# shellcheck disable=SC2086 # a command and its options
	env --default-signal=INT,QUIT timeout 900 ${RUN:-} "${programs[next]}" \
		>"$logs/$next" 2>&1 &
	index[$!]=$next
	began[next]=$SECONDS
	next=$((next + 1))
	running=$((running + 1))
}

# Waits for one of those that run to end.
finish() {
	local pid status=0 i
	wait -n -p pid || status=$?
	i=${index[pid]}
	statuses[i]=$status
	took[i]=$((SECONDS - began[i]))
	running=$((running - 1))
}

show() {
	local i=$1 p f
	echo "== ${programs[i]}"
	cat "$logs/$i"
	p=$(sed -n 's/^\[  PASSED  \] \([0-9]*\) test(s)\.$/\1/p' "$logs/$i" | tail -n 1)
	f=$(sed -n 's/^\[  FAILED  \] \([0-9]*\) test(s), listed below:$/\1/p' "$logs/$i" | tail -n 1)
	passed=$((passed + ${p:-0}))
	failed=$((failed + ${f:-0}))
	# A program that ends badly without saying so of a test counts as one.
	if [ "${statuses[i]}" -ne 0 ]; then
		[ "${f:-0}" -gt 0 ] || failed=$((failed + 1))
		bad="$bad ${programs[i]}(${statuses[i]})"
	fi
}

for i in "${!programs[@]}"; do
	until [ -n "${statuses[i]:-}" ]; do
		while has_room; do
			start
		done
		finish
	done
	show "$i"
done
echo "longest:"
for i in "${!programs[@]}"; do
	echo "${took[i]} s  ${programs[i]}"
done | sort -rn | head -n 5
[ -z "$bad" ] || echo "failed:$bad"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
