#!/bin/bash
# Runs test programs, as many at once as there are processors, shows in the order given what they
# print, counts cmocka's tests, and names the five programs that took longest.
#     run-tests.sh PROGRAM...
# JOBS= says how many at once. One that hangs ends after a quarter of an hour, and counts as failed.
set -u

programs=("$@")
jobs=${JOBS:-$(nproc)}
next=0 passed=0 failed=0 bad=
index=() began=() took=() statuses=()
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
# shellcheck disable=SC2046 # one word a process
trap 'kill $(jobs -p); exit 130' INT TERM

# A shell lets what it runs beside itself ignore SIGINT; tests are to find it as usual.
start() {
	[ $next -lt ${#programs[@]} ] || return 0
	# shellcheck disable=SC2086 # a command and its options
	env --default-signal=INT,QUIT timeout 900 ${RUN:-} "${programs[next]}" \
		>"$logs/$next" 2>&1 &
	index[$!]=$next
	began[next]=$SECONDS
	next=$((next + 1))
}

# Waits for one of those that run to end, and starts another.
finish() {
	local pid status=0 i
	wait -n -p pid || status=$?
	i=${index[pid]}
	statuses[i]=$status
	took[i]=$((SECONDS - began[i]))
	start
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

while [ $next -lt "$jobs" ] && [ $next -lt ${#programs[@]} ]; do
	start
done
for i in "${!programs[@]}"; do
	until [ -n "${statuses[i]:-}" ]; do
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
