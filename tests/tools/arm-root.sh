#!/bin/sh
# Makes DIR a tree of Debian's arm64 packages to compile and run against: libraries, headers, their
# dependencies, the C library. Nothing of the machine's own packages is touched: apt is given a
# state of its own, in which nothing is installed.
#     arm-root.sh DIR
set -eu

dir=$1
packages="libc6-dev libcmocka-dev liburing-dev libsystemd-dev libjansson-dev libutf8proc-dev
	libsodium-dev libedit-dev"
[ -e "$dir/.complete" ] && exit 0
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$tmp/state/lists/partial" "$tmp/cache/archives/partial" "$tmp/root"
chmod 755 "$tmp"
: >"$tmp/status"

apt() {
	apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 \
		-o APT::Install-Recommends=0 -o APT::Sandbox::User=root -o Acquire::Languages=none \
		-o Dir::State="$tmp/state" -o Dir::State::status="$tmp/status" \
		-o Dir::Cache="$tmp/cache" "$@" >"$tmp/log" 2>&1 || {
		cat "$tmp/log" >&2
		exit 1
	}
}

echo "fetching Debian's arm64 libraries"
apt update
# shellcheck disable=SC2086 # a list of names
apt install -y --download-only $packages
for deb in "$tmp"/cache/archives/*.deb; do
	dpkg -x "$deb" "$tmp/root"
done
: >"$tmp/root/.complete"
rm -rf "$dir"
mkdir -p "$(dirname "$dir")"
mv "$tmp/root" "$dir"
