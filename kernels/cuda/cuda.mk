# nanoserve-cuda.so: built where nvcc is; included by the Makefile.
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(shell command -v $(NVCC) 2>/dev/null || echo /usr/local/cuda/bin/nvcc))
CUDA_ARCH := -gencode=arch=compute_90a,code=sm_90a
NVCC_FLAGS := -O3 -std=c++17 -I. $(CUDA_ARCH) -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra $(NVCCFLAGS)
CUDA_CU := $(call src,kernels/cuda/*.cu)
CUDA_C := $(call src,kernels/cuda/*.c)
CUDA_OBJ := $(patsubst %.cu,$(B)/obj/%.cu.o,$(CUDA_CU)) $(patsubst %.c,$(B)/obj/%.o,$(CUDA_C)) $(call obj,kernels/attn_plan.c kernels/attn_shared.c)

$(B)/obj/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -MMD -MP -c -o $@ $<

$(B)/obj/kernels/cuda/%.o: kernels/cuda/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -isystem $(CUDA_HOME)/include -c -o $@ $<

$(B)/nanoserve-cuda.so: $(CUDA_OBJ)
	$(NVCC) -shared $(CUDA_ARCH) -cudart static -Xlinker --exclude-libs,ALL -o $@ $^ -ldl

# Programs for a machine with a device: they print "N passed, M failed" or a table.
$(B)/tests/ops/cuda/%: $(B)/obj/tests/ops/cuda/%.cu.o $(CUDA_OBJ)
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_ARCH) -cudart static -o $@ $^ -ldl

$(B)/tests/bench/%: $(B)/obj/tests/bench/%.cu.o $(CUDA_OBJ)
	@mkdir -p $(@D)
	$(NVCC) $(CUDA_ARCH) -cudart static -o $@ $^ -ldl

# make bench NAME=attention PEERS=SCRIPT: beside the peers that the script times.
$(B)/bench/attention: $(B)/tests/bench/attention tests/bench/attention.py
	@mkdir -p $(@D)
	@printf '#!/bin/sh\nexec python3 tests/bench/attention.py $< %s\n' '$(PEERS)' >$@
	@chmod +x $@
