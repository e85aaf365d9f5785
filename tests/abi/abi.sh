#!/bin/sh
# The library's binary interface against the one on record, which programs were built with: names,
# signatures, sizes and offsets of what client.h declares. The record is libabigail's, of public
# types only.
#     abi.sh check LIBRARY     fails and says what changed
#     abi.sh update LIBRARY    takes the library's interface as the new record
#     abi.sh test              does `check` see a change of the interface, and no other?
# from the repository's root.
set -eu

record=$PWD/tests/abi/libnanoserve-client.abi
header=client/include/nanoserve/client.h # as the compiler saw it: the types of this file count
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# The kernel's entry of a ring is no type of ours, and grows with the kernel's headers.
printf '[suppress_type]\n  name = io_uring_sqe\n  drop = yes\n' >"$tmp/not-ours"

dump() { # LIBRARY
	abidw --exported-interfaces-only --drop-undefined-syms --drop-private-types \
		--header-file $header --suppressions "$tmp/not-ours" --no-corpus-path \
		--no-comp-dir-path --no-show-locs --no-elf-needed --no-parameter-names \
		--no-write-default-sizes --type-id-style hash "$1"
}

check() { # LIBRARY
	if ! command -v abidw >/dev/null; then
		echo "abi: skipped: abidw is not installed (abigail-tools)"
	elif [ "$(uname -m)" != x86_64 ]; then
		echo "abi: skipped: the record is of x86_64"
	else
		dump "$1" >"$tmp/now"
		# Types that it does not find pass for equal.
		grep -q "name='nsv_client_params' size" "$tmp/now" || {
			echo "abi: no types in $1"
			return 1
		}
		if ! abidiff "$record" "$tmp/now" >"$tmp/changes"; then
			cat "$tmp/changes"
			echo "abi: not what $record says;" \
				"if programs built before still run: make update-abi"
			return 1
		fi
		echo "abi: as on record"
	fi
}

# ---- test: the library built from a copy of the sources with one line changed

build() { # FILE SED-SCRIPT
	rm -rf "$tmp/src"
	mkdir "$tmp/src"
	cp -r client shm "$tmp/src"
	sed -i.before "$2" "$tmp/src/$1"
	! cmp -s "$tmp/src/$1" "$tmp/src/$1.before" || {
		echo "abi: nothing changed in $1: $2"
		exit 1
	}
	(cd "$tmp/src" && ${CC:-gcc} -std=gnu17 -g -fPIC -shared -fvisibility=hidden \
		-D_GNU_SOURCE -I. -Iclient/include \
		-Wl,--version-script=client/libnanoserve-client.map \
		-Wl,-soname,libnanoserve-client.so.0 -o changed.so client/*.c shm/*.c)
}

expect() { # pass|fail FILE SED-SCRIPT
	build "$2" "$3"
	got=pass
	(cd "$tmp/src" && check changed.so) >"$tmp/said" 2>&1 || got=fail
	[ "$got" = "$1" ] || { cat "$tmp/said"; echo "abi: $1 was expected of $2: $3"; exit 1; }
}

test_it() {
	expect pass client/session.h 's/^\tint fd;/\tlong more; int fd;/'
	expect fail $header 's/^\tsize_t n_token;/\tuint32_t n_token;\n\tuint32_t more;/'
	expect fail $header 's/^\tuint32_t n_slot;/\tuint64_t n_slot;/'
	expect fail $header 's/^\tfloat top_p;/\tint32_t top_p;/'
	expect fail client/libnanoserve-client.map '/nsv_request_cancel;/d'
	echo "abi: a changed member and a missing function are seen, a private change is not"
}

case ${1:-} in
check) check "$2" ;;
update) dump "$2" >"$record" ;;
test) test_it ;;
*) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
