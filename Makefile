# nanoserve. `make help` lists the targets. One file, no recursion; everything goes to build/<variant>/.
VARIANT ?= release
B := build/$(VARIANT)
CC ?= gcc
CXX ?= g++
NVCC ?= nvcc
PYTHON ?= python3

WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wpointer-arith
ifdef CI
WARN += -Werror
endif
OPT.release := -O2 -DNDEBUG
OPT.debug := -O1 -DNSV_DEBUG
OPT.asan := -O1 -DNSV_DEBUG -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT.tsan := -O1 -DNSV_DEBUG -fsanitize=thread
OPT.fuzz := -O1 -DNSV_DEBUG -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
OPT.valgrind := -O1 -DNSV_DEBUG
ifeq ($(VARIANT),fuzz)
CC := clang
endif
# -ffp-contract=off: an FMA is where the source says fma(), nowhere else (promise 1).
CFLAGS_ALL := -std=gnu17 -I. -Iclient/include -g $(OPT.$(VARIANT)) $(WARN) -D_GNU_SOURCE -fPIC -pthread \
	-fvisibility=hidden -ffp-contract=off -MMD -MP $(CFLAGS)
LDFLAGS_ALL := -pthread $(filter -fsanitize%,$(OPT.$(VARIANT))) $(LDFLAGS)
LIBS_DAEMON := -l:liburing.a -lsystemd -ljansson -l:libutf8proc.a -lm
LIBS_CLI := -ljansson -ledit

src = $(sort $(wildcard $(1)))
obj = $(patsubst %.c,$(B)/obj/%.o,$(1))

SHM_SRC := $(call src,shm/*.c)
KERNELS_SRC := $(call src,kernels/*.c kernels/ref/*.c kernels/cpu/*.c)
CACHE_SRC := $(call src,cache/*.c)
DAEMON_SRC := $(filter-out daemon/main.c,$(call src,daemon/*.c daemon/model/*.c daemon/load/*.c daemon/tok/*.c))
CLIENT_SRC := $(call src,client/*.c)
CLI_SRC := $(call src,client/cli/*.c)
CORE_OBJ := $(call obj,$(SHM_SRC) $(KERNELS_SRC) $(CACHE_SRC) $(DAEMON_SRC))

all: $(B)/nanoserved $(B)/nanoserve $(B)/libnanoserve-client.so ## build the daemon, the client library and the command line

# Instruction-set flags belong to a file by its name: <op>-<isa>.c
isa_flags = $(if $(findstring -avx2,$(1)),-mavx2 -mfma -mf16c)$(if $(findstring -avx512,$(1)),-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl)$(if $(findstring -vnni,$(1)),-mavx512vnni)$(if $(findstring -bf16,$(1)),-mavx512bf16)$(if $(findstring -amx,$(1)),-mamx-tile -mamx-int8 -mamx-bf16)
conv_flags = $(if $(filter shm/% cache/%,$(1)),-Wconversion)

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(call isa_flags,$(<F)) $(call conv_flags,$<) -c -o $@ $<

$(B)/core.a: $(CORE_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(B)/nanoserved: $(call obj,daemon/main.c) $(B)/core.a
	$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_DAEMON) -ldl

$(B)/libnanoserve-client.so.0: $(call obj,$(CLIENT_SRC) $(SHM_SRC)) client/libnanoserve-client.map
	$(CC) $(LDFLAGS_ALL) -shared -Wl,-soname,libnanoserve-client.so.0 -Wl,--version-script=client/libnanoserve-client.map \
		-o $@ $(filter %.o,$^)

$(B)/libnanoserve-client.so: $(B)/libnanoserve-client.so.0
	ln -sf libnanoserve-client.so.0 $@

$(B)/nanoserve: $(call obj,$(CLI_SRC)) $(B)/libnanoserve-client.so
	$(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) -L$(B) -lnanoserve-client -Wl,-rpath,'$$ORIGIN' $(LIBS_CLI)

# ---- Tests: every tests/unit/<folder>/test_*.c and tests/ops/test_*.c is a cmocka program
UNIT_SRC := $(call src,tests/unit/*/test_*.c tests/ops/test_*.c tests/integration/test_*.c)
TOOL_SRC := $(filter-out $(UNIT_SRC),$(call src,tests/tools/*.c tests/ops/*.c))
UNIT_BIN := $(patsubst tests/%.c,$(B)/tests/%,$(UNIT_SRC))
$(B)/tests/%: $(B)/obj/tests/%.o $(call obj,$(TOOL_SRC)) $(call obj,$(CLIENT_SRC)) $(B)/core.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LIBS_DAEMON) -ldl -lcmocka

# ---- Fuzzing: every tests/fuzz/fuzz_*.c is a libFuzzer target with a corpus of its name (VARIANT=fuzz)
FUZZ_SRC := $(call src,tests/fuzz/fuzz_*.c)
FUZZ_BIN := $(patsubst tests/fuzz/%.c,$(B)/fuzz/%,$(FUZZ_SRC))
$(B)/fuzz/%: $(B)/obj/tests/fuzz/%.o $(call obj,$(CLIENT_SRC)) $(B)/core.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS_ALL) -fsanitize=fuzzer -o $@ $^ $(LIBS_DAEMON) -ldl

.SECONDARY:
-include $(shell test -d build && find build -name '*.d' 2>/dev/null)
