#!/bin/sh
# Installs with apt what is missing: `build` for the programs, `test` for the tests besides, `lint`
# for make lint, `arm` to build for AArch64 and run that, `numa` for make check-numa.
set -eu

build="gcc make libc6-dev liburing-dev libsystemd-dev libjansson-dev libutf8proc-dev libsodium-dev
	libedit-dev python3 python3-pip"
test="libcmocka-dev g++ strace clang libclang-rt-14-dev valgrind abigail-tools pkg-config
	xz-utils"
lint="cppcheck shellcheck"
arm="make gcc-aarch64-linux-gnu qemu-user"
numa="qemu-system-x86 busybox-static"

case "${1:-build}" in
test) want="$build $test" ;;
lint) want=$lint ;;
arm) want=$arm ;;
numa) want=$numa ;;
*) want=$build ;;
esac
missing=
for p in $want; do
	dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q '^install ok installed' ||
		missing="$missing $p"
done
[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
	echo "these packages are missing:$missing" >&2
	exit 1
fi
echo "installing:$missing"
apt-get update -qq
# shellcheck disable=SC2086 # a list of names
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
