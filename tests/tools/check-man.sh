#!/bin/sh
# The man pages say what there is: each public function is named by exactly one page of section 3,
# whose synopsis declares it as client.h does; each constant, each member of a public structure,
# each option of the programs, each key of the config and each member of the status is described.
# And README.md shows the first example as it is. From the repository's root.
set -eu

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
header=client/include/nanoserve/client.h
bad=0
fail() {
	echo "man: $1"
	bad=1
}

# One declaration a line, with single spaces.
declarations() {
	tr '\n' ' ' | sed 's/;/;\n/g' | sed -E 's/[[:space:]]+/ /g; s/\( /(/g; s/^ //' |
		grep -E '^[a-z].*\bnsv_[a-z_]+\(.*\);$' || true
}

sed 's|/\*.*\*/||; /\/\*/,/\*\//d; /^#/d; /^extern/d' $header | declarations | sort >"$tmp/declared"
sed -n '/^\.SH SYNOPSIS/,/^\.SH DESCRIPTION/{/^[.#]/d;p}' client/man/nsv_*.3 | declarations |
	sort >"$tmp/described"
diff -u "$tmp/declared" "$tmp/described" || fail "client.h and the synopses differ"

sed -n 's/^\t\(nsv_[a-z_]*\);$/\1/p' client/libnanoserve-client.map | sort >"$tmp/exported"
for page in client/man/*.3; do
	tests/tools/man-names.sh "$page"
done | grep '^nsv_' | sort >"$tmp/named"
diff -u "$tmp/exported" "$tmp/named" || fail "the version map and the names of the pages differ"

described() { # WHAT PATTERN FILE...
	what=$1 pattern=$2
	shift 2
	grep -qE -- "$pattern" "$@" || fail "$what is not in $*"
}

# Members: what stands before the ';' or ',' of a structure's lines.
sed -n '/^struct nsv_client_[a-z]* {/,/^};/p' $header | sed 's|/\*.*||' | grep ';' |
	grep -oE '[a-z_0-9]+( *,|;)' | tr -d ' ,;' | sort -u >"$tmp/members"
while read -r m; do
	described "the member $m" "(^|[^a-z_])$m([^a-z_]|\$)" client/man/*.3
done <"$tmp/members"
[ "$(wc -l <"$tmp/members")" -gt 30 ] || fail "no members found in $header"

# Constants: the members of its enumerations.
sed -n '/^enum nsv_client_[a-z]* {/,/^};/s/^\t\(NSV_CLIENT_[A-Z0-9_]*\) =.*/\1/p' $header \
	>"$tmp/constants"
while read -r c; do
	described "the constant $c" "\\b$c\\b" client/man/*.3
done <"$tmp/constants"
[ "$(wc -l <"$tmp/constants")" -gt 30 ] || fail "no constants found in $header"

# Options, as getopt_long has them; '-' is '\-' in a page.
options() { # SOURCE...
	sed -nE 's/.*\{?"([a-z-]+)", (no|required)_argument.*/\1/p' "$@" | sort -u
}
for o in $(options client/cli/*.[ch]); do
	described "--$o" "\\\\-\\\\-$(echo "$o" | sed 's/-/\\\\-/g')" client/man/nanoserve.1
done
keys=$(sed -nE 's/^\t(KEY|IDS)\(([a-z_]+),.*/\2/p' daemon/config.c)
for k in $keys; do
	described "--$k" "\\\\-\\\\-$(echo "$k" | sed 's/_/\\\\-/g')" daemon/man/nanoserved.8
done
for k in $keys $(sed -nE 's/^\tLIMIT\(([a-z_]+),.*/\1/p' daemon/config.c); do
	described "the key $k" "^\\.(TP|B|BR|I|IR).*\\b$k\\b" daemon/man/nanoserved-config.5
done
# The status: its members are the strings that json_pack is given, and the objects'.
members=$(grep -oE '"[a-z_]+"' daemon/status.c | tr -d '"' | sort -u)
for m in $members; do
	described "the status's $m" "^\\.[BR]+ .*\\b$m\\b" client/man/nanoserve.1
done
[ "$(echo "$members" | wc -w)" -gt 50 ] || fail "no members found in daemon/status.c"
[ "$(echo "$keys" | wc -w)" -gt 10 ] || fail "no keys found in daemon/config.c"

# shellcheck disable=SC2016 # the backquotes are the README's
sed -n '/^```c$/,/^```$/{/^```/d;p}' README.md >"$tmp/shown"
sed 1d client/examples/first.c | cmp -s - "$tmp/shown" || # but its heading
	fail "the first program of README.md is not client/examples/first.c"

if command -v groff >/dev/null; then
	for page in client/man/*.[0-9] daemon/man/*.[0-9]; do
		said=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
		[ -z "$said" ] || fail "$page: $said"
	done
fi
[ $bad -eq 0 ] &&
	echo "man: $(wc -l <"$tmp/exported") functions, $(wc -l <"$tmp/constants") constants," \
		"$(wc -l <"$tmp/members") members, options, keys and the status described"
exit $bad
