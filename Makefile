# nanoserve. `make help` lists the targets. One file, no recursion; everything goes to build/<variant>/.
VARIANT ?= release
B := build/$(VARIANT)
CC ?= gcc
CXX ?= g++
NVCC ?= nvcc
PYTHON ?= python3

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith
# Not under sanitizers: their instrumentation makes the compiler see what is not there.
ifneq ($(and $(CI),$(filter release debug,$(VARIANT))),)
WARN += -Werror
endif
OPT.release := -O2 -DNDEBUG
OPT.debug := -O1 -DNSV_DEBUG
OPT.asan := -O1 -DNSV_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT.tsan := -O1 -DNSV_DEBUG -fsanitize=thread
OPT.fuzz := -O1 -DNSV_DEBUG -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
OPT.valgrind := -O1 -DNSV_DEBUG
OPT.arm := -O2 -DNDEBUG
ifeq ($(VARIANT),fuzz)
CC := clang
endif
# -ffp-contract=off: an FMA is where the source says fma(), nowhere else (promise 1).
CFLAGS_ALL := -std=gnu17 -I. -Iclient/include -g $(OPT.$(VARIANT)) $(WARN) -D_GNU_SOURCE -fPIC -pthread \
	-fvisibility=hidden -ffp-contract=off -MMD -MP $(CFLAGS)
LDFLAGS_ALL := -pthread $(filter -fsanitize%,$(OPT.$(VARIANT))) $(LDFLAGS)
LIBS_DAEMON := -l:liburing.a -lsystemd -ljansson -l:libutf8proc.a -l:libsodium.a -lm
LIBS_CLI := -ljansson -ledit

# `make V=1` shows the commands.
Q := $(if $(V),,@)
say = $(if $(V),,@echo '  $(1)	$(2)')

src = $(sort $(wildcard $(1)))
obj = $(patsubst %.c,$(B)/obj/%.o,$(1))

# <op>-<isa>.c is for the processors that have such a thing.
TARGET := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine)))
ISAS := avx2 avx512 neon
ISAS.x86_64 := avx2 avx512
ISAS.aarch64 := neon
isa_src = $(foreach isa,$(1),$(call src,kernels/cpu/*-$(isa).c kernels/cpu/*-$(isa)-*.c))

SHM_SRC := $(call src,shm/*.c)
KERNELS_SRC := $(filter-out $(call isa_src,$(filter-out $(ISAS.$(TARGET)),$(ISAS))), \
	$(call src,kernels/*.c kernels/ref/*.c kernels/cpu/*.c))
CACHE_SRC := $(call src,cache/*.c)
DAEMON_SRC := $(filter-out daemon/main.c,$(call src,daemon/*.c daemon/model/*.c daemon/load/*.c daemon/tok/*.c))
CLIENT_SRC := $(call src,client/*.c)
CLI_SRC := $(call src,client/cli/*.c)
CORE_OBJ := $(call obj,$(SHM_SRC) $(KERNELS_SRC) $(CACHE_SRC) $(DAEMON_SRC))

all: $(B)/nanoserved $(B)/nanoserve $(B)/libnanoserve-client.so ## (default) build the daemon, the client library and the command line

# Instruction-set flags belong to a file by its name: <op>-<isa>.c
isa_flags = $(foreach isa,avx2 avx512 vnni bf16 amx dotprod,$(if $(findstring -$(isa),$(1)),$(ISA.$(isa))))
ISA.avx2 := -mavx2 -mfma -mf16c
ISA.avx512 := $(ISA.avx2) -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprfchw
ISA.vnni := -mavx512vnni
ISA.bf16 := -mavx512bf16
ISA.amx := -mamx-tile -mamx-int8 -mamx-bf16
ISA.dotprod := -march=armv8.2-a+dotprod
conv_flags = $(if $(filter shm/% cache/%,$(1)),-Wconversion)

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) $(CFLAGS_ALL) $(call isa_flags,$(<F)) $(call conv_flags,$<) -c -o $@ $<

$(B)/core.a: $(CORE_OBJ)
	@rm -f $@
	$(call say,AR,$@)
	$(Q)ar rcs $@ $^

$(B)/nanoserved: $(call obj,daemon/main.c) $(B)/core.a
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_DAEMON) -ldl

$(B)/libnanoserve-client.so.0: $(call obj,$(CLIENT_SRC) $(SHM_SRC)) client/libnanoserve-client.map
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,libnanoserve-client.so.0 -Wl,--version-script=client/libnanoserve-client.map \
		-o $@ $(filter %.o,$^)

$(B)/libnanoserve-client.so: $(B)/libnanoserve-client.so.0
	ln -sf libnanoserve-client.so.0 $@

$(B)/nanoserve: $(call obj,$(CLI_SRC)) $(B)/libnanoserve-client.so
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) -L$(B) -lnanoserve-client -Wl,-rpath,'$$ORIGIN:$$ORIGIN/../lib' $(LIBS_CLI)

# ---- Tests: every tests/unit/<folder>/test_*.c and tests/ops/test_*.c is a cmocka program
UNIT_SRC := $(call src,tests/unit/*/test_*.c tests/ops/test_*.c tests/integration/test_*.c)
# What plays the service manager is a program of its own, which tests of restarts run.
FDSTORE := $(B)/tests/tools/fdstore
TOOL_SRC := $(filter-out $(UNIT_SRC) tests/tools/fdstore.c,$(call src,tests/tools/*.c tests/ops/*.c))
UNIT_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(UNIT_SRC))
$(B)/tests/%: $(B)/obj/tests/%.o $(call obj,$(TOOL_SRC)) $(call obj,$(CLIENT_SRC)) $(B)/core.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_DAEMON) -ldl -lcmocka

$(foreach t,drain limits restart takeover watchdog,$(B)/tests/integration/test_$(t)): | $(FDSTORE)
$(B)/tests/integration/test_restart: | $(B)/tests/stress/kills
$(B)/bench/adopt: | $(FDSTORE)

# ---- Examples, built as their readers would build them
EXAMPLES := $(patsubst client/examples/%.c,$(B)/examples/%,$(wildcard client/examples/*.c))
$(B)/examples/%: client/examples/%.c client/include/nanoserve/client.h $(B)/libnanoserve-client.so
	@mkdir -p $(@D)
	$(call say,CC,$@)
	$(Q)$(CC) -Wall -Wextra -Werror -Iclient/include $(filter -fsanitize%,$(OPT.$(VARIANT))) -o $@ $< -L$(B) -lnanoserve-client \
		-Wl,-rpath,'$$ORIGIN/..' $(if $(findstring io_uring,$@),-luring)
$(B)/tests/integration/test_examples: | $(EXAMPLES)

# ---- Fuzzing: every tests/fuzz/fuzz_*.c is a libFuzzer target with a corpus of its name (VARIANT=fuzz)
FUZZ_SRC := $(call src,tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(FUZZ_SRC))
$(B)/fuzz/%: $(B)/obj/tests/fuzz/%.o $(call obj,tests/tools/gguf_write.c $(CLIENT_SRC)) $(B)/core.a
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -fsanitize=fuzzer -o $@ $^ $(LIBS_DAEMON) -ldl

# ---- What people type
MODEL := $(shell echo $${XDG_CACHE_HOME:-$$HOME/.cache})/nanoserve/models/SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: all kills demo model tests check check-tests check-asan check-tsan check-valgrind check-arm check-numa check-abi check-includes update-abi lint format fuzz soak soak-model chaos bench cuda install help clean

demo: ## install what is missing, build, fetch the default model, answer a prompt
	@tests/tools/install-deps.sh build
	@$(MAKE) --no-print-directory all
	@tests/tools/demo.sh $(B)

model: ## fetch the default model into the cache
	@tests/tools/fetch-model.sh

check: ## install what the tests need, build, run all tests
	@tests/tools/install-deps.sh test
	@tests/tools/fetch-model.sh
	@$(MAKE) --no-print-directory all check-tests

# Programs whose threads take all processors would get in each other's way: they run alone.
BUSY_TESTS := $(addprefix $(B)/tests/integration/test_,model_% serve engine branches tiny kv_dtype)
run_tests = tests/tools/run-tests.sh $(filter-out $(BUSY_TESTS),$(1)) -- $(filter $(BUSY_TESTS),$(1))

TESTS ?= $(UNIT_BIN)
tests: all $(UNIT_BIN) ## build all test programs

check-tests: all $(TESTS) check-abi check-includes
	@tests/tools/check-man.sh
	@$(call run_tests,$(TESTS))

check-includes: ## that no folder includes what it may not
	@tests/tools/check-includes.sh

# Numbers are graded in release; with sanitizers the real model's long runs would take minutes each.
QUICK_TESTS = $(filter-out $(B)/tests/integration/test_model_%,$(UNIT_BIN))
check-asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(MAKE) --no-print-directory VARIANT=asan all quick-tests
quick-tests: all $(QUICK_TESTS)
	@NANOSERVE_QUICK=1 $(call run_tests,$(QUICK_TESTS))

check-tsan: ## the tests where threads meet under ThreadSanitizer
	@$(MAKE) --no-print-directory VARIANT=tsan all tsan-tests

TSAN_TESTS := unit/kernels/test_team unit/shm/test_ring unit/client/test_client unit/daemon/test_mailbox unit/daemon/test_sample_team integration/test_tiny integration/test_engine integration/test_branches integration/test_restart
tsan-tests: $(TSAN_TESTS:%=$(B)/tests/%)
	@NANOSERVE_QUICK=1 $(call run_tests,$^)

VALGRIND_TESTS := $(filter-out $(B)/tests/integration/%,$(UNIT_BIN))
check-valgrind: ## the unit tests under valgrind, with the instruction sets that it knows
	@$(MAKE) --no-print-directory VARIANT=valgrind valgrind-tests
valgrind-tests: $(VALGRIND_TESTS)
	@NANOSERVE_EMULATED=1 NANOSERVE_CPU_ISA=avx2 NANOSERVE_QUICK=1 \
		RUN="valgrind -q --error-exitcode=9 --leak-check=full" tests/tools/run-tests.sh $^

# On a processor that has all; then the choice of a row on one without SDOT.
ARM_ROOT := $(CURDIR)/build/arm-root
ARM_TESTS := $(filter $(B)/tests/ops/% $(B)/tests/unit/kernels/%,$(UNIT_BIN))
check-arm: ## build all for AArch64 and run the tests of kernels there, emulated by QEMU
	@tests/tools/install-deps.sh arm
	@tests/tools/arm-root.sh $(ARM_ROOT)
	@$(MAKE) --no-print-directory VARIANT=arm CC="aarch64-linux-gnu-gcc --sysroot=$(ARM_ROOT)" all arm-tests
arm-tests: $(ARM_TESTS)
	@NANOSERVE_EMULATED=1 RUN="qemu-aarch64 -L $(ARM_ROOT)" tests/tools/run-tests.sh $^
	@RUN="qemu-aarch64 -L $(ARM_ROOT) -cpu cortex-a53" tests/tools/run-tests.sh $(filter %/test_registry,$^)

check-numa: all $(B)/tests/integration/test_nodes ## the daemon on a machine with two memory nodes, emulated by QEMU (x86-64, some minutes)
	@tests/tools/install-deps.sh numa
	@tests/tools/fetch-model.sh
	@tests/tools/numa.sh $(B) $(MODEL)

check-abi: $(B)/libnanoserve-client.so ## the public headers alone as C11 and C++17, the library's names and binary interface
	@tests/abi/headers.sh $<
	@tests/abi/abi.sh check $<
	@tests/abi/abi.sh test

update-abi: $(B)/libnanoserve-client.so ## take the library's binary interface as the one that programs rely on
	@tests/abi/abi.sh update $<

lint: ## cppcheck (some minutes) and shellcheck
	@tests/tools/install-deps.sh lint
	cppcheck --quiet -j2 --enable=warning,performance,portability --inline-suppr --suppress=missingIncludeSystem \
		--error-exitcode=1 -I. -Iclient/include shm kernels/*.c kernels/ref kernels/cpu cache client daemon
	shellcheck tests/tools/*.sh tests/abi/*.sh .ci/run

format: ## clang-format every source
	clang-format -i $(shell git ls-files '*.c' '*.h')

SECONDS_EACH = $(or $(SECONDS),60)
fuzz: ## fuzz each parser for SECONDS= (60) seconds
	@$(MAKE) --no-print-directory VARIANT=fuzz fuzz-run
fuzz-run: $(FUZZ_BIN)
	@tests/tools/run-fuzz.sh $(SECONDS_EACH) $^

LIVES ?= 10000
chaos: all $(B)/tests/stress/chaos ## LIVES= (10,000) hostile lives beside an honest stream
	@$(B)/tests/stress/chaos $(LIVES)

MINUTES ?= 10
soak-model: all $(B)/tests/stress/soak-model ## MINUTES= (10) of random requests to the real model with a tiny pool, each compared with its solitary run
	@$(B)/tests/stress/soak-model $(MINUTES)

STEPS ?= 10000000
KILLS := $(B)/tests/stress/kills
N ?= 1000
kills: all $(KILLS) $(FDSTORE) ## kill the daemon N= (1,000) times under streams that must not notice
	@$(KILLS) $(N)

soak: $(B)/tests/unit/daemon/test_sched_soak ## drive scheduler, cache and audit through STEPS= (10,000,000) random steps
	@NANOSERVE_SOAK_STEPS=$(STEPS) $<

NAME ?= cpu
bench: all $(B)/bench/$(NAME) ## measure NAME=adopt|batch|cpu|forward|ipc|prefix|read|sample|sched, or attention (CUDA): a table, and build/bench/NAME.json
	@mkdir -p build/bench
	@$(B)/bench/$(NAME)

# A bench NAME is tests/bench/NAME.c and, where it has parts, tests/bench/NAME-*.c.
.SECONDEXPANSION:
$(B)/bench/%: $(B)/obj/tests/bench/%.o $$(call obj,$$(wildcard tests/bench/$$*-*.c)) $(call obj,$(TOOL_SRC)) \
		$(call obj,$(CLIENT_SRC)) $(B)/core.a | $(FDSTORE)
	@mkdir -p $(@D)
	$(call say,LD,$@)
	$(Q)$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_DAEMON) -ldl -lcmocka

PREFIX ?= /usr/local
# Where the linker does not look by itself, programs are told where the library is.
comma := ,
PC_RPATH = $(if $(filter /usr /usr/local,$(PREFIX)),,-Wl$(comma)-rpath$(comma)$$\{libdir\})
install: all ## install to PREFIX= (/usr/local) under DESTDIR=
	install -D -m 755 $(B)/nanoserved $(DESTDIR)$(PREFIX)/bin/nanoserved
	install -D -m 755 $(B)/nanoserve $(DESTDIR)$(PREFIX)/bin/nanoserve
	install -D -m 644 $(B)/libnanoserve-client.so.0 $(DESTDIR)$(PREFIX)/lib/libnanoserve-client.so.0
	ln -sf libnanoserve-client.so.0 $(DESTDIR)$(PREFIX)/lib/libnanoserve-client.so
	install -D -m 644 client/include/nanoserve/client.h $(DESTDIR)$(PREFIX)/include/nanoserve/client.h
	sed 's|@PREFIX@|$(PREFIX)|g; s| *@RPATH@| $(PC_RPATH)|; s| *$$||' client/nanoserve-client.pc.in | \
		install -D -m 644 /dev/stdin $(DESTDIR)$(PREFIX)/lib/pkgconfig/nanoserve-client.pc
	for m in client/man/*.[0-9] daemon/man/*.[0-9]; do s=$${m##*.}; d=$(DESTDIR)$(PREFIX)/share/man/man$$s; \
		install -D -m 644 $$m $$d/$${m##*/}; \
		for n in $$(tests/tools/man-names.sh $$m); do \
			[ -e $$d/$$n.$$s ] || ln -s $${m##*/} $$d/$$n.$$s; done; done
	install -d $(DESTDIR)$(PREFIX)/share/doc/nanoserve/examples
	install -m 644 README.md LICENSE shm/PROTOCOL.md shm/abi.h $(DESTDIR)$(PREFIX)/share/doc/nanoserve
	install -m 644 client/examples/* $(DESTDIR)$(PREFIX)/share/doc/nanoserve/examples
	if [ -z "$(DESTDIR)" ] && [ "$$(id -u)" = 0 ]; then ldconfig; fi

clean: ## remove build/
	rm -rf build

help: ## this list
	@grep -hE '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

include kernels/cuda/cuda.mk

cuda: $(B)/nanoserve-cuda.so $(B)/tests/ops/cuda/attention $(B)/tests/ops/cuda/pool $(B)/tests/ops/cuda/shared $(B)/tests/ops/cuda/plan $(B)/tests/bench/attention $(B)/tests/bench/read $(B)/tests/bench/storage ## the CUDA kernels and their tests, where nvcc is (the daemon does not open them yet)

# Objects that only a pattern names are kept. By name: programs that are missing, as fdstore, must be
# made though what runs them be there.
.SECONDARY: $(call obj,$(call src,tests/*/*.c tests/*/*/*.c)) \
	$(patsubst %.cu,$(B)/obj/%.cu.o,$(call src,tests/ops/cuda/*.cu tests/bench/*.cu))
-include $(shell test -d build && find build -path build/arm-root -prune -o -name '*.d' -print 2>/dev/null)
