# CUDA and RDMA: whether they are here, how libgradcast_cuda.so and libgradcast_rdma.so are built, and the stand-in that tests compute with
# where there is no GPU.  Included after the names of the sources and before those of the programs.

# What computes on GPUs is a shared library, opened at run time, so that the programs run where no CUDA is.  It is built where nvcc and cuDNN
# are; CUDA_HOME is where.
NVCC       := $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA_HOME  ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDNN      := $(firstword $(wildcard $(addsuffix /cudnn_version.h,$(CUDA_HOME)/include /usr/include /usr/include/x86_64-linux-gnu)))
CUDA_CODE  := $(call units,$(shell find $(LIB_DIRS) -path '*/cuda/*.cc')) $(shell find $(LIB_DIRS) -path '*/cuda/*.cu')
CUDA_VERSION  := $(if $(NVCC),$(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p'))
CUDNN_VERSION := $(if $(CUDNN),$(shell awk '/define CUDNN_MAJOR/{a=$$3} /define CUDNN_MINOR/{b=$$3} END{print a"."b}' $(CUDNN)))
# Whether version $(1) is $(2) or newer.
at_least = $(shell [ "$(firstword $(subst ., ,$(1)) 0)" -ge $(2) ] && echo yes)
ifeq ($(NVCC),)
CUDA_SAID  := cuda: no (nvcc not found)
else ifeq ($(call at_least,$(CUDA_VERSION),12),)
CUDA_SAID  := cuda: no (CUDA $(CUDA_VERSION) in $(CUDA_HOME): 12 or newer is needed)
else ifeq ($(CUDNN),)
CUDA_SAID  := cuda: no (cudnn_version.h not found; with nvcc in $(CUDA_HOME))
else ifeq ($(call at_least,$(CUDNN_VERSION),9),)
CUDA_SAID  := cuda: no (cuDNN $(CUDNN_VERSION) in $(CUDNN): 9 or newer is needed)
else
CUDA_SAID  := cuda: yes (nvcc $(CUDA_VERSION), cuDNN $(CUDNN_VERSION))
# Sanitizers see the same code against the stand-in.
CUDA_SO    := $(if $(MODE),,$(BUILD)/libgradcast_cuda.so)
endif
# A100 and H100, and what newer ones compile for themselves.  -fmad=false: as -ffp-contract=off.  fmt 9 does not know nvcc's constexpr.
CUDA_ARCH  ?= -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=[sm_90,compute_90]
CUDA_FLAGS := -std=c++20 -O3 -lineinfo -fmad=false -DFMT_USE_CONSTEXPR=1 $(CUDA_ARCH) -I. -Xcompiler -Wall,-Wextra,-fno-exceptions,-fno-rtti,-fPIC
CUDA_LIBS  := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcudnn -lcublasLt -lcudart_static -lfmt -lrt -ldl -pthread

# RDMA likewise: built where the headers of libibverbs and librdmacm are.
RDMA_CODE  := $(wildcard transport/rdma/*.cc)
RDMA_HEADERS := $(wildcard /usr/include/infiniband/verbs.h) $(wildcard /usr/include/rdma/rdma_cma.h)
RDMA_SO    := $(if $(word 2,$(RDMA_HEADERS)),$(BUILD)/libgradcast_rdma.so)
RDMA_SAID  := rdma: $(if $(RDMA_SO),yes,no (libibverbs-dev and librdmacm-dev not found))

.PHONY: features FORCE device-check device-pack

# Written when they change: what is compiled with them depends on it.
features: $(BUILD)/features.said
FORCE:
$(BUILD)/features.said: FORCE | $(BUILD)/.dir
	@printf '%s\n' '$(CUDA_SAID)' '$(RDMA_SAID)' >$(BUILD)/features; \
	cmp -s $(BUILD)/features $@ || { cat $(BUILD)/features; cp $(BUILD)/features $@; }

# ---- libraries -----------------------------------------------------------------------------------------------------------------

# For GPUs, and once more for tests/cuda/host, which stands in for them: GC_CUDA_HOST is defined there.
define compiled_cuda
	$(call say,cuda,$*)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) $(call strict,$*) -fPIC -isystem $(CUDA_HOME)/include -c $< -o $@
endef
$(BUILD)/obj/cuda/%.cc.o: %.cc | $(BUILD)/.dir
	$(compiled_cuda)
$(BUILD)/obj/cuda/%.cc.o: $(BUILD)/unit/%.cc
	$(compiled_cuda)
$(BUILD)/obj/cuda/%.cu.o: %.cu | $(BUILD)/.dir
	$(call say,nvcc,$<)
	$(Q)mkdir -p $(@D) && $(NVCC) $(CUDA_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
define compiled_host
	$(call say,host,$*)
	$(Q)mkdir -p $(@D) && $(CXX) -Itests/cuda/host -DGC_CUDA_HOST -fPIC $(FLAGS) $(call strict,$*) -x c++ -c $< -o $@
endef
$(BUILD)/obj/host/%.o: % | $(BUILD)/.dir
	$(compiled_host)
$(BUILD)/obj/host/%.o: $(BUILD)/unit/%
	$(compiled_host)

$(BUILD)/obj/rdma/%.o: %.cc | $(BUILD)/.dir
	$(call say,rdma,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) $(STRICT) -fPIC -c $< -o $@
$(BUILD)/libgradcast_rdma.so: $(RDMA_CODE:%.cc=$(BUILD)/obj/rdma/%.o)
	$(call say,link,$@)
	$(Q)$(CXX) $(MODE) -shared -o $@ $^ -libverbs -lrdmacm -lfmt -pthread
$(BUILD)/libgradcast_cuda.so: $(CUDA_CODE:%=$(BUILD)/obj/cuda/%.o)
	$(call say,link,$@)
	$(Q)$(CXX) $(MODE) -shared -o $@ $(filter %.o,$^) $(CUDA_LIBS)

# ---- tests ---------------------------------------------------------------------------------------------------------------------

# tests/cuda against the stand-in and, where CUDA is, against CUDA.
# Not under TSan, which does not know the stand-in's fibers.
CUDA_TESTS := $(if $(findstring thread,$(MODE)),,$(BUILD)/tests/cuda $(if $(CUDA_SO),$(BUILD)/tests/cuda-device))
CUDA_TEST_CODE := $(call units,$(wildcard tests/cuda/*.cc))
$(BUILD)/tests/cuda: $(patsubst %,$(BUILD)/obj/host/%.o,$(CUDA_CODE) $(CUDA_TEST_CODE) $(wildcard tests/cuda/host/*.cc)) $(LIBRARY)
	$(call program,-lgtest_main -lgtest)
# What tests/cuda/plans_test.cc puts a described GPU into.
CUDA_WRAPPED := -Wl,--wrap=cudnnBackendSetAttribute,--wrap=cudnnBackendFinalize,--wrap=cudaSetDevice,--wrap=cudaDeviceSynchronize,--wrap=cublasLtMatmulAlgoGetHeuristic
$(BUILD)/tests/cuda-device: $(patsubst %,$(BUILD)/obj/cuda/%.o,$(CUDA_CODE) $(CUDA_TEST_CODE)) $(LIBRARY)
	$(call program,-lgtest_main -lgtest $(CUDA_LIBS) $(CUDA_WRAPPED))

# The programs beside the stand-in, for tests/device and tests/ctl.
HOST_RUN := $(if $(MODE),,$(addprefix $(BUILD)/host/,gradcastd gradcastctl gradcast-bench libgradcast_cuda.so))
$(BUILD)/host/libgradcast_cuda.so: $(patsubst %,$(BUILD)/obj/host/%.o,$(CUDA_CODE) $(wildcard tests/cuda/host/*.cc))
	$(call say,link,$@)
	$(Q)mkdir -p $(@D) && $(CXX) $(MODE) -shared -o $@ $(filter %.o,$^)
$(BUILD)/host/%: $(BUILD)/%
	@mkdir -p $(@D) && ln -f $< $@

# DEVICE_CHECK: more words for it, as "--data DIR".
device-check: all $(CUDA_TESTS)
	@tools/device-check $(BUILD) $(DEVICE_CHECK)
# For a machine that has a GPU and lacks what building needs.  MNIST: the folder of its four files.
MNIST ?= ../shared/datasets/mnist
device-pack: deps
	@[ -n '$(CUDA_SO)' ] || { echo '$(CUDA_SAID)'; exit 1; }
	@$(MAKE) --no-print-directory all $(BUILD)/tests/cuda-device
	@$(BUILD)/gradcastctl import mnist --from $(MNIST) --out $(BUILD)/data/mnist --force
	@tools/device-check $(BUILD) --pack $(BUILD)/gpu --data $(BUILD)/data
