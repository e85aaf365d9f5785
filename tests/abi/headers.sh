#!/bin/sh
# The public headers compile alone as C11 and as C++17, without a warning; what client.h declares,
# what the version map exports, and what the library has are the same names; and a C++ program links
# with all of them.
# usage: tests/abi/headers.sh [libnanoserve-client.so]    from the repository's root
set -eu

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
n=0

compile() { # header, compiler and language
	printf '#include "%s"\n' "$1" >"$tmp/alone.c"
	shift
	"$@" -pedantic -Wall -Wextra -Werror -fsyntax-only -I. -Iclient/include "$tmp/alone.c"
	n=$((n + 1))
}

for header in shm/abi.h nanoserve/client.h; do
	for cc in gcc clang; do
		if command -v $cc >/dev/null; then
			compile $header $cc -x c -std=c11
			compile $header $cc -x c++ -std=c++17
		else
			echo "skipped: $cc is not installed"
		fi
	done
done
[ $n -ge 4 ] || { echo "no compiler"; exit 1; }

sed -n '/^[a-z].*nsv_[a-z_]*(/s/.*\(nsv_[a-z_]*\)(.*/\1/p' client/include/nanoserve/client.h |
	sort >"$tmp/declared"
sed -n 's/^\t\(nsv_[a-z_]*\);$/\1/p' client/libnanoserve-client.map | sort >"$tmp/mapped"
diff -u "$tmp/declared" "$tmp/mapped" || { echo "client.h and the version map differ"; exit 1; }
if [ $# -gt 0 ]; then
	nm -D --defined-only "$1" | sed -n 's/.* T \(nsv_[a-z_]*\)@@NANOSERVE_0$/\1/p' |
		sort >"$tmp/exported"
	diff -u "$tmp/mapped" "$tmp/exported" || { echo "the map and the library differ"; exit 1; }
	needed=$(readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
		grep -v '^libc\.so' || true)
	[ -z "$needed" ] || { echo "the library needs more than libc: $needed"; exit 1; }
	{
		echo '#include <nanoserve/client.h>'
		echo 'void *all[] = {'
		sed 's/.*/(void *)&,/' "$tmp/declared"
		echo '}; int main() { return nsv_client_version()[0] == 0; }'
	} >"$tmp/all.cc"
	${CXX:-g++} -std=c++17 -Wall -Wextra -Werror -Iclient/include -o "$tmp/all" \
		"$tmp/all.cc" "$1"
	LD_LIBRARY_PATH=$(dirname "$1") "$tmp/all"
fi
echo "headers: $n compilations, $(wc -l <"$tmp/declared") names"
