#!/bin/sh
# Who may include whom: shm and nothing; kernels and cache shm/base.h; client shm; daemon shm,
# kernels and cache; tests all. Prints each line that breaks the rule.
set -eu

bad=0
rule() { # FOLDER ALLOWED-PATTERN
	hits=$(grep -rnE '^#include "' "$1" --include='*.[ch]' --include='*.cu' --include='*.cuh' |
		grep -vE "#include \"($2)" || true)
	[ -z "$hits" ] || { echo "$hits"; bad=1; }
}
rule shm 'shm/'
rule kernels 'kernels/|shm/base\.h"'
rule cache 'cache/|shm/base\.h"'
rule client 'client/|shm/'
rule daemon 'daemon/|shm/|kernels/|cache/'
hits=$(grep -rnlE --include='*.[ch]' '#include <(liburing|systemd/)' \
	shm kernels cache client daemon |
	grep -vE '^daemon/(loop|notify)\.c$|^client/examples/' || true)
[ -z "$hits" ] || {
	echo "only daemon/loop.c and daemon/notify.c use these libraries: $hits"
	bad=1
}
[ $bad -eq 0 ] && echo "include rules: kept"
exit $bad
