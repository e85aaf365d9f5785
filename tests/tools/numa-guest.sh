#!/bin/sh
# What numa.sh boots as the first process of a machine of two nodes of memory, with two processors
# each: runs the daemon there and looks where its memory and its threads are.
export PATH=/bin NANOSERVE_SOCKET=/tmp/socket
n_failed=0 pid=

expect() {
	if [ "$2" = "$3" ]; then
		echo "ok: $1: $2"
	else
		echo "FAILED: $1: $2, expected $3"
		n_failed=$((n_failed + 1))
	fi
}

# The daemon, in a control group, until it serves.
start() {
	echo "# nanoserved $*"
	: >/tmp/log
	before0=$(shared 0) before1=$(shared 1)
	sh -c 'echo $$ >"/cg/$0/cgroup.procs" && exec nanoserved "$@"' "$@" --model /model \
		--socket $NANOSERVE_SOCKET --kv-blocks 400 --batch-tokens 64 --no-prefix-cache \
		2>/tmp/log &
	pid=$!
	until grep -q "ready after" /tmp/log; do
		kill -0 $pid || break
		sleep 0.2
	done
	grep -v "^clients can pass" /tmp/log
}

stop() {
	kill $pid
	wait $pid
	expect "its exit" $? 0
}

# Pages of the weights on node $1.
pages() {
	awk -v "node=^N$1=" '
		/memfd:nsv-weights/ { for (i = 1; i <= NF; i++) if (sub(node, "", $i)) n += $i }
		END { print n + 0 }' /proc/$pid/numa_maps
}

# KiB of shared memory on node $1: of all regions, whether they have been touched or not.
shared() {
	awk '$3 == "Shmem:" { print $4 }' /sys/devices/system/node/node"$1"/meminfo
}

# "both": half of it is on each node, nearly, or they differ by $3 at most; else the node that has
# nearly all.
where() {
	awk -v "a=$1" -v "b=$2" -v "few=${3:-0}" 'BEGIN {
		x = a + b > 0 ? a / (a + b) : 2
		half = x > 0.48 && x < 0.52 || a - b <= few && b - a <= few
		print (x > 1 ? "nowhere" : x > 0.99 ? "node 0" : x < 0.01 ? "node 1" : \
			half ? "both" : a " and " b) }'
}

weights() {
	where "$(pages 0)" "$(pages 1)"
}

regions() {
	where $(($(shared 0) - before0)) $(($(shared 1) - before1))
}

# KiB of it in huge pages.
huge() {
	awk '$3 == "ShmemHugePages:" { print $4 }' /sys/devices/system/node/node"$1"/meminfo
}

# Processors of the threads of a name; others may end meanwhile.
stays() {
	for t in "/proc/$pid/task"/*; do
		grep -q "^$1\$" "$t/comm" || continue
		awk '/^Cpus_allowed_list/ { print $2 }' "$t/status"
	done 2>/dev/null
}

# Until the KV pool has the huge pages that it gets.
joined() {
	while [ -n "$(stays nsv-join)" ]; do sleep 0.2; done
}

answer() {
	nanoserve generate -n 6 --temperature 0 "What is a page table?"
}

# Whether a thread comes to stay on these processors, within two minutes.
comes_to() {
	tries=0
	until [ "$(stays "$1")" = "$2" ]; do
		tries=$((tries + 1))
		[ $tries -lt 600 ] || break
		sleep 0.2
	done
	expect "$1's processors, $3" "$(stays "$1")" "$2"
}

spin() {
	while :; do :; done
}

status() {
	nanoserve status --json | sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"
}

mount -t devtmpfs devtmpfs /dev
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /cg
echo "+cpuset" >/cg/cgroup.subtree_control
mkdir /cg/all /cg/memory-of-1 /cg/processors-of-1
echo 1 >/cg/memory-of-1/cpuset.mems
echo 2-3 >/cg/processors-of-1/cpuset.cpus

NANOSERVE_TEST_MODEL=/model test_nodes >/tmp/tested 2>&1
sed -n '/threads:\|ERROR/p' /tmp/tested
expect "weights of members" "$(sed -n 's/^\[  PASSED  \] //p' /tmp/tested)" "1 test(s)."

start all --threads 4
expect nodes "$(status nodes)" 2
said=$(answer)
expect weights "$(weights)" both
expect "all regions" "$(regions)" both
joined
expect "huge pages" "$(where "$(huge 0)" "$(huge 1)" 8192)" both
expect "most of the KV pool in huge pages" \
	"$([ $(($(huge 0) + $(huge 1))) -gt 100000 ] && echo yes)" yes
expect "engine's processors" "$(stays nsv-engine)" 0-1
expect "a member's" "$(stays nsv-work/1)" 0-1
expect "a member's" "$(stays nsv-work/2)" 2-3
expect "a member's" "$(stays nsv-work/3)" 2-3
expect "io thread's" "$(stays nanoserved)" 0-3
stop

start all --threads 4 --no-numa
expect nodes "$(status nodes)" 1
expect "an answer" "$(answer)" "$said"
expect "a member's processors" "$(stays nsv-work/2)" 0-3
stop

# Fewer members, while programs keep them from their processors, are spread as well, and so are more.
start all
answer >/dev/null
expect "a member's processors" "$(stays nsv-work/1)" 0-1
(while :; do answer; done) >/dev/null 2>&1 &
asker=$!
spinners=
for _ in 1 2; do
	spin &
	spinners="$spinners $!"
done
comes_to nsv-work/1 2-3 "crowded"
# shellcheck disable=SC2086 # a list of numbers
kill $spinners
comes_to nsv-work/1 0-1 "no longer crowded"
kill $asker
stop

start memory-of-1 --threads 4
expect nodes "$(status nodes)" 1
expect weights "$(weights)" "node 1"
expect "all regions" "$(regions)" "node 1"
joined
expect "KiB in huge pages on node 0" "$(huge 0)" 0
expect "a member's processors" "$(stays nsv-work/2)" 0-3
stop

start processors-of-1
expect nodes "$(status nodes)" 1
expect threads "$(status threads)" 2
expect weights "$(weights)" "node 1"
stop

[ $n_failed = 0 ] && echo "numa: all is where it should be"
poweroff -f
