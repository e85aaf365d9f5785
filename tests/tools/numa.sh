#!/bin/sh
# Boots Debian's kernel on a machine of two nodes of memory, emulated by QEMU, and runs the daemon
# there (numa-guest.sh). QEMU computes what the machine would: no KVM is needed, and no speed seen.
#     numa.sh BUILD MODEL
set -eu

build=$1 model=$2
dir=build/numa
root=$dir/root
here=$(dirname "$0")

fetch_kernel() {
	[ ! -e $dir/vmlinuz ] || return 0
	echo "fetching Debian's kernel"
	mkdir -p $dir
	package=$(apt-cache depends linux-image-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p')
	(cd $dir && apt-get -qq download "$package")
	dpkg -x $dir/linux-image-*.deb $dir/kernel
	mv $dir/kernel/boot/vmlinuz-* $dir/vmlinuz
	rm -r $dir/kernel $dir/linux-image-*.deb
}

copy_with_libraries() {
	cp "$1" $root/bin/
	ldd "$1" | sed -n 's/.*[ \t]\(\/[^ ]*\) (0x.*/\1/p' | while read -r lib; do
		mkdir -p "$root$(dirname "$lib")"
		cp -L "$lib" "$root$lib"
	done
}

make_root() {
	rm -rf $root
	mkdir -p $root/bin $root/dev $root/proc $root/sys $root/tmp $root/cg
	cp /bin/busybox $root/bin/
	for applet in sh awk cat grep kill mkdir mount poweroff sed sleep; do
		ln -s busybox $root/bin/$applet
	done
	copy_with_libraries "$build/nanoserved"
	copy_with_libraries "$build/nanoserve"
	copy_with_libraries "$build/tests/integration/test_nodes"
	cp "$build/libnanoserve-client.so.0" $root/bin/
	cp "$model" $root/model
	cp "$here/numa-guest.sh" $root/init
	(cd $root && find . | /bin/busybox cpio -o -H newc 2>/dev/null) >$dir/initrd
}

fetch_kernel
make_root
timeout -s KILL 900 qemu-system-x86_64 -accel tcg -cpu max -smp 4 -m 1G \
	-object memory-backend-ram,id=m0,size=512M -object memory-backend-ram,id=m1,size=512M \
	-numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 \
	-kernel $dir/vmlinuz -initrd $dir/initrd -append "console=ttyS0 panic=-1 quiet" \
	-display none -vga none -nic none -serial stdio -no-reboot </dev/null | tee $dir/log
grep -q "^numa: all is where it should be" $dir/log
