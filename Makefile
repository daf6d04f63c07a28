# gradcast's only build system.  `make help` lists the targets.  V=1 shows the commands.
#
# Sources are found by folder: a new .cc file under runtime, transport, nn, algos or datasets is built without a line here.  A file named
# *.isa.cc is compiled once for each instruction set, with GC_ISA set to its name; *.amx.cc for AMX alone.

BUILD    ?= build
# All cores, unless the caller says how many.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif
CXX      ?= g++
MODE     ?=
OPT      ?= -O2 -g1
CXXFLAGS ?=

PACKAGES := make g++ pkg-config liburing-dev libhdf5-dev libdnnl-dev libssl-dev libtomlplusplus-dev nlohmann-json3-dev \
            libcpp-httplib-dev libcli11-dev libspdlog-dev libfmt-dev libsystemd-dev zlib1g-dev liblzma-dev libpng-dev libjpeg-dev \
            libisal-dev libgtest-dev libbenchmark-dev dataset-fashion-mnist iproute2 hdf5-tools
PACKAGES_DEV := clang-format clang-tidy clang libclang-rt-14-dev
# gradcast-lab and its test; what bench/load asks with.
PACKAGES_LAB    := iproute2 nftables iperf3 python3 wrk
# RDMA, where it is wanted; and what tests/rdma boots.
PACKAGES_RDMA   := libibverbs-dev librdmacm-dev
PACKAGES_VM     := $(PACKAGES_RDMA) ibverbs-providers perftest qemu-system-x86 busybox-static cpio kmod xz-utils iproute2
# What tests/slurm starts.
PACKAGES_SLURM  := slurmctld slurmd slurm-client munge iproute2 python3 openssl
# What tests/systemd boots.
PACKAGES_SYSTEMD := systemd-container systemd-sysv dbus python3
# What tools/deb and tests/deb work with.
PACKAGES_DEB := dpkg-dev lintian debootstrap
# What tests/control and tests/daemon check metrics with.
PACKAGES_MONITORING := prometheus python3-prometheus-client
# What tests/page opens the status page in.
PACKAGES_PAGE := chromium python3
PACKAGES_RIVALS := python3-torch libopenblas0-pthread openmpi-bin libopenmpi-dev python3-h5py

PC_CORE  := liburing openssl spdlog fmt zlib liblzma libpng libjpeg hdf5 libisal
PC_ALL   := $(PC_CORE) cpp-httplib libsystemd
# -ffp-contract=off: a fused multiply-add would make results depend on the compiler.
# Asked once, when make deps has installed it.
PC_FLAGS  = $(eval PC_FLAGS := $(shell pkg-config --cflags $(PC_ALL)))$(PC_FLAGS)
FLAGS     = -std=c++20 $(OPT) -Wall -Wextra -Wshadow -ffp-contract=off -pthread -MMD -MP -I. $(PC_FLAGS) $(MODE) $(CXXFLAGS)
LIBS      = $(shell pkg-config --libs $(PC_ALL)) -ldnnl -lgomp -ldl -pthread
STRICT   := -fno-exceptions -fno-rtti

ifeq ($(V),)
Q := @
say = @printf '  %-5s %s\n' $(1) $(2)
endif

LIB_DIRS   := runtime transport nn algos datasets
LIB_SOURCES := $(filter-out runtime/daemon/main.cc transport/rdma/%,$(shell find $(LIB_DIRS) -name '*.cc' -not -path '*/cuda/*'))
ISA_SOURCES := $(filter %.isa.cc,$(LIB_SOURCES))
LIB_OBJECTS := $(patsubst %.cc,$(BUILD)/obj/%.o,$(filter-out %.isa.cc,$(LIB_SOURCES))) \
               $(foreach isa,portable avx2 avx512,$(patsubst %.isa.cc,$(BUILD)/obj/%.$(isa).o,$(ISA_SOURCES)))
LIBRARY    := $(BUILD)/libgradcast.a

# What computes on GPUs is a shared library, opened at run time, so that the programs run where no CUDA is.  It is built where nvcc and cuDNN
# are; CUDA_HOME is where.
NVCC       := $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
CUDA_HOME  ?= $(patsubst %/bin/nvcc,%,$(NVCC))
CUDNN      := $(firstword $(wildcard $(addsuffix /cudnn_version.h,$(CUDA_HOME)/include /usr/include /usr/include/x86_64-linux-gnu)))
CUDA_CODE  := $(shell find $(LIB_DIRS) -path '*/cuda/*.cc' -o -path '*/cuda/*.cu')
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

PROGRAMS   := $(BUILD)/gradcastd $(BUILD)/gradcastctl $(BUILD)/gradcast-bench $(CUDA_SO) $(RDMA_SO)
TESTS      := $(patsubst tests/%,$(BUILD)/tests/%,$(filter-out tests/fuzz tests/cuda,$(patsubst %/,%,$(sort $(dir $(wildcard tests/*/*.cc))))))
FUZZERS    := $(patsubst tests/fuzz/%.cc,%,$(wildcard tests/fuzz/*.cc))

.PHONY: all help deps deps-dev deps-lab deps-rdma deps-rivals deps-monitoring deps-page deps-slurm deps-systemd deps-deb demo nightly test lab-test fault-test rdma-test slurm-test systemd-test deb-test rivals lint tidy format asan tsan fuzz bench install install-pages deb clean features FORCE
.DELETE_ON_ERROR:
.SECONDARY:

all: features $(PROGRAMS)

help:
	@echo 'make            build gradcastd, gradcastctl and gradcast-bench into $(BUILD)/'
	@echo 'make demo       install what is missing, build, train lenet5 on Fashion-MNIST with 4 daemons on loopback'
	@echo 'make test       install what is missing, build, run all tests that need neither root nor a device'
	@echo 'make fault-test a job on daemons on loopback through 30 random faults in 10 minutes; FAULTS="--faults 10 --seconds 60 --seed 1"'
	@echo 'make lab-test   as root: hosts in network namespaces on shaped links, LAB_TESTS="loss slow" for some of them'
	@echo 'make rdma-test  as root: RDMA on soft-RoCE devices in a VM, RDMA_TESTS="suite loss" for some of the checks, all for all'
	@echo 'make slurm-test as root: a cluster of Slurm on this machine, whose srun trains, is requeued and goes on'
	@echo 'make systemd-test as root: the installed unit under a systemd of its own: start, stop, crash, watchdog, reload'
	@echo 'make deb-test   as root: the package installed, upgraded, removed and purged in a fresh Debian'
	@echo 'make nightly    reliable multicast and changes of view over GC_SEEDS=10000 random networks, exchanges over a tenth of that; tidy; asan; tsan; an hour of each fuzz target'
	@echo 'make bench      the Google Benchmark suite and gradcast-bench over loopback'
	@echo 'make rivals     what bench/rivals/run compares with: Gloo (python3-torch) and Open MPI'
	@echo 'make lint       clang-format and include directions                 make tidy     the same with clang-tidy'
	@echo 'make format     rewrite the sources                                 make fuzz     every fuzz target, FUZZ_SECONDS=60 each'
	@echo 'make asan tsan  the fast suites under ASan+UBSan and under TSan'
	@echo 'make device-check  where a GPU is: its tests, accuracy, determinism, speed beside PyTorch; DEVICE_CHECK="--data DIR"'
	@echo 'make device-pack   the same packed into $(BUILD)/gpu.tar.gz for a machine where nothing can be built; MNIST=DIR'
	@echo 'make deps       install the packages it needs (Debian)              make install DESTDIR= PREFIX=/usr'
	@echo 'make deb        a Debian package of it in $(BUILD)/'

# ---- packages ------------------------------------------------------------------------------------------------------------------

# As root, or through sudo; one at a time, as apt-get does not wait for another.
define install_packages
@exec 9>$(BUILD)/apt.lock; flock -w 1800 9; missing=''; for p in $(1); do dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
if [ -n "$$missing" ]; then echo "installing:$$missing"; sudo=''; [ "$$(id -u)" = 0 ] || sudo='sudo -E'; \
  export DEBIAN_FRONTEND=noninteractive; $$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends $$missing >$(BUILD)/apt.log 2>&1 \
  9>&- || { tail -n 5 $(BUILD)/apt.log; echo "cannot install:$$missing (as root, or with sudo: apt-get install$$missing)"; exit 1; }; fi
endef

deps: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES))
deps-dev: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES) $(PACKAGES_DEV))
deps-lab: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_LAB))
deps-rdma: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_VM))
deps-slurm: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_SLURM))
deps-systemd: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_SYSTEMD))
deps-deb: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_DEB))
deps-page: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_PAGE))
deps-monitoring: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_MONITORING))
deps-rivals: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_LAB) $(PACKAGES_RIVALS))

# Written when they change: what is compiled with them depends on it.
features: $(BUILD)/features.said
FORCE:
$(BUILD)/features.said: FORCE | $(BUILD)/.dir
	@printf '%s\n' '$(CUDA_SAID)' '$(RDMA_SAID)' >$(BUILD)/features; \
	cmp -s $(BUILD)/features $@ || { cat $(BUILD)/features; cp $(BUILD)/features $@; }

# ---- compiling -----------------------------------------------------------------------------------------------------------------

# The libraries that throw live here; everything else is compiled without exceptions and run-time types.
throws = $(filter runtime/control/% runtime/daemon/% tools/% bench/% tests/%,$(1))
strict = $(if $(call throws,$(1)),,$(STRICT))

# PREFETCHW: CPUs that have AVX2 and lack it (Haswell) take it for nothing.
ISA_portable := -DGC_ISA=portable
ISA_avx2     := -DGC_ISA=avx2 -mavx2 -mfma -mprfchw
ISA_avx512   := -DGC_ISA=avx512 -mavx512f -mavx512dq -mavx512bw -mavx512vl -mprfchw -mprefer-vector-width=512

define isa_rule
$(BUILD)/obj/%.$(1).o: %.isa.cc | $(BUILD)/.dir
	$$(call say,$(1),$$<)
	$$(Q)mkdir -p $$(@D) && $$(CXX) $$(FLAGS) $$(STRICT) -O3 -fno-math-errno $$(ISA_$(1)) -c $$< -o $$@
endef
$(foreach isa,portable avx2 avx512,$(eval $(call isa_rule,$(isa))))

$(BUILD)/obj/%.amx.o: %.amx.cc | $(BUILD)/.dir
	$(call say,amx,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) $(STRICT) -O3 $(subst =avx512,=amx,$(ISA_avx512)) -c $< -o $@

$(BUILD)/obj/%.o: %.cc | $(BUILD)/.dir
	$(call say,cxx,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) $(call strict,$<) -c $< -o $@

# The same for tests, with instructions that every CPU with AVX-512 has.
$(BUILD)/obj/emulated/%.o: %.amx.cc | $(BUILD)/.dir
	$(call say,amx,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) $(STRICT) -O3 $(subst =avx512,=emulated,$(ISA_avx512)) -DGC_TILES='"tests/nn/emulated_tiles.h"' -c $< -o $@

# What tests check is in the library; they themselves are quick to compile.
$(BUILD)/obj/tests/%.o: OPT := -O1 -g1

# A fuzz target for tests/replay, which calls them all.
$(BUILD)/obj/tests/fuzz/%.replay.o: tests/fuzz/%.cc | $(BUILD)/.dir
	$(call say,cxx,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) -DLLVMFuzzerTestOneInput=fuzz_$* -c $< -o $@

# For GPUs, and once more for tests/cuda/host, which stands in for them: GC_CUDA_HOST is defined there.
$(BUILD)/obj/cuda/%.cc.o: %.cc | $(BUILD)/.dir
	$(call say,cuda,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) $(call strict,$<) -fPIC -isystem $(CUDA_HOME)/include -c $< -o $@
$(BUILD)/obj/cuda/%.cu.o: %.cu | $(BUILD)/.dir
	$(call say,nvcc,$<)
	$(Q)mkdir -p $(@D) && $(NVCC) $(CUDA_FLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(BUILD)/obj/host/%.o: % | $(BUILD)/.dir
	$(call say,host,$<)
	$(Q)mkdir -p $(@D) && $(CXX) -Itests/cuda/host -DGC_CUDA_HOST -fPIC $(FLAGS) $(call strict,$<) -x c++ -c $< -o $@

$(BUILD)/.dir:
	@mkdir -p $(BUILD) && touch $@

$(BUILD)/obj/runtime/control/page.o: runtime/control/page.html

$(LIBRARY): $(LIB_OBJECTS)
	$(call say,ar,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

objects = $(patsubst %.cc,$(BUILD)/obj/%.o,$(sort $(wildcard $(1)/*.cc)))
define program
	$(call say,link,$@)
	$(Q)mkdir -p $(@D) && $(CXX) $(MODE) -o $@ $(filter %.o,$^) $(LIBRARY) $(LIBS) $(1)
endef
# libgradcast_cuda.so and libgradcast_rdma.so take from them what they share with them.
$(PROGRAMS) $(TESTS): LIBS += -Wl,--export-dynamic
$(BUILD)/obj/rdma/%.o: %.cc | $(BUILD)/.dir
	$(call say,rdma,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) $(STRICT) -fPIC -c $< -o $@
$(BUILD)/libgradcast_rdma.so: $(RDMA_CODE:%.cc=$(BUILD)/obj/rdma/%.o)
	$(call say,link,$@)
	$(Q)$(CXX) $(MODE) -shared -o $@ $^ -libverbs -lrdmacm -lfmt -pthread
$(BUILD)/libgradcast_cuda.so: $(CUDA_CODE:%=$(BUILD)/obj/cuda/%.o)
	$(call say,link,$@)
	$(Q)$(CXX) $(MODE) -shared -o $@ $(filter %.o,$^) $(CUDA_LIBS)

$(BUILD)/gradcastd: $(BUILD)/obj/runtime/daemon/main.o $(LIBRARY)
	$(call program)
$(BUILD)/gradcastctl: $(call objects,tools/gradcastctl) $(LIBRARY)
	$(call program)
$(BUILD)/gradcast-bench: $(call objects,bench/comm) $(call objects,bench/net) $(LIBRARY)
	$(call program)
# Bindings for C++ that MPI itself has dropped warn, so they stay out.
$(BUILD)/bench/rivals/mpi: bench/rivals/mpi.cc
	$(call say,mpicxx,$<)
	$(Q)mkdir -p $(@D) && mpicxx -std=c++20 -O2 -Wall -Wextra -Wshadow -DOMPI_SKIP_MPICXX -o $@ $<
rivals: deps-rivals
	@$(MAKE) --no-print-directory $(BUILD)/bench/rivals/mpi
$(BUILD)/bench/micro/micro: $(call objects,bench/micro) $(BUILD)/obj/bench/net/rig.o $(LIBRARY)
	$(call program,-lbenchmark)
$(BUILD)/bench/data/read: $(call objects,bench/data) $(LIBRARY)
	$(call program)

$(BUILD)/tests/replay: $(patsubst %,$(BUILD)/obj/tests/fuzz/%.replay.o,$(FUZZERS))
.SECONDEXPANSION:
$(TESTS): $(BUILD)/tests/%: $$(call objects,tests/%) $(LIBRARY)
	$(call program,-lgtest_main -lgtest)
$(BUILD)/tests/ctl: $(BUILD)/obj/tools/gradcastctl/job_input.o
$(BUILD)/obj/tests/rdma/rdma_test.o: $(BUILD)/features.said
$(BUILD)/obj/tests/rdma/rdma_test.o: FLAGS += $(if $(RDMA_SO),-DGC_RDMA)
$(BUILD)/tests/nn: $(patsubst %.amx.cc,$(BUILD)/obj/emulated/%.o,$(filter %.amx.cc,$(LIB_SOURCES)))

# The same tests against the stand-in and, where there is a GPU, against CUDA.
# Not under TSan, which does not know the stand-in's fibers.
CUDA_TESTS := $(if $(findstring thread,$(MODE)),,$(BUILD)/tests/cuda $(if $(CUDA_SO),$(BUILD)/tests/cuda-device))
$(BUILD)/tests/cuda: $(patsubst %,$(BUILD)/obj/host/%.o,$(CUDA_CODE) $(wildcard tests/cuda/*.cc tests/cuda/host/*.cc)) $(LIBRARY)
	$(call program,-lgtest_main -lgtest)
# What tests/cuda/plans_test.cc puts a described GPU into.
CUDA_WRAPPED := -Wl,--wrap=cudnnBackendSetAttribute,--wrap=cudnnBackendFinalize,--wrap=cudaSetDevice,--wrap=cudaDeviceSynchronize,--wrap=cublasLtMatmulAlgoGetHeuristic
$(BUILD)/tests/cuda-device: $(patsubst %,$(BUILD)/obj/cuda/%.o,$(CUDA_CODE) $(wildcard tests/cuda/*.cc)) $(LIBRARY)
	$(call program,-lgtest_main -lgtest $(CUDA_LIBS) $(CUDA_WRAPPED))

# The programs beside the stand-in, for tests/device and tests/ctl.
HOST_RUN := $(if $(MODE),,$(addprefix $(BUILD)/host/,gradcastd gradcastctl gradcast-bench libgradcast_cuda.so))
$(BUILD)/host/libgradcast_cuda.so: $(patsubst %,$(BUILD)/obj/host/%.o,$(CUDA_CODE) $(wildcard tests/cuda/host/*.cc))
	$(call say,link,$@)
	$(Q)mkdir -p $(@D) && $(CXX) $(MODE) -shared -o $@ $(filter %.o,$^)
$(BUILD)/host/%: $(BUILD)/%
	@mkdir -p $(@D) && ln -f $< $@

# ---- using ---------------------------------------------------------------------------------------------------------------------

demo: deps
	@$(MAKE) --no-print-directory all
	@tools/demo $(BUILD)

test: deps
	@$(MAKE) --no-print-directory test-built

.PHONY: test-built tests suites
suites: $(TESTS) $(CUDA_TESTS) $(BUILD)/gradcastctl $(BUILD)/gradcastd
tests: all $(TESTS) $(CUDA_TESTS) $(HOST_RUN) $(BUILD)/bench/micro/micro $(BUILD)/bench/data/read
test-built: tests
	@tests/run $(BUILD)

# DEVICE_CHECK: more words for it, as "--data DIR".
.PHONY: device-check device-pack
device-check: all $(CUDA_TESTS)
	@tools/device-check $(BUILD) $(DEVICE_CHECK)
# For a machine that has a GPU and lacks what building needs.  MNIST: the folder of its four files.
MNIST ?= ../shared/datasets/mnist
device-pack: deps
	@[ -n '$(CUDA_SO)' ] || { echo '$(CUDA_SAID)'; exit 1; }
	@$(MAKE) --no-print-directory all $(BUILD)/tests/cuda-device
	@$(BUILD)/gradcastctl import mnist --from $(MNIST) --out $(BUILD)/data/mnist
	@tools/device-check $(BUILD) --pack $(BUILD)/gpu --data $(BUILD)/data

fault-test: deps
	@$(MAKE) --no-print-directory all
	@GRADCAST_BUILD=$(BUILD) tests/system/faults $(FAULTS)

lab-test: deps deps-lab
	@$(MAKE) --no-print-directory all
	@GRADCAST_BUILD=$(BUILD) tests/lab/run $(LAB_TESTS)

slurm-test: deps deps-slurm
	@$(MAKE) --no-print-directory $(BUILD)/gradcastd $(BUILD)/gradcastctl
	@GRADCAST_BUILD=$(BUILD) tests/slurm/run

systemd-test: deps deps-systemd
	@$(MAKE) --no-print-directory all
	@MAKE='$(MAKE)' tests/systemd/run $(BUILD)

deb-test: deps deps-deb
	@$(MAKE) --no-print-directory deb
	@tests/deb/run $(BUILD)

# In a make of its own: what is built depends on the headers that deps-rdma installs.
rdma-test: deps deps-rdma
	@$(MAKE) --no-print-directory all $(BUILD)/tests/rdma
	@tests/rdma/run $(BUILD) $(RDMA_TESTS)

# The simulator under chance, for hours.
nightly: export GC_SEEDS ?= 10000
nightly: deps
	@$(MAKE) --no-print-directory $(BUILD)/tests/bulk $(BUILD)/tests/exchange $(BUILD)/tests/view $(BUILD)/tests/sim
	$(BUILD)/tests/bulk --gtest_filter='Bulk*'
	$(BUILD)/tests/view --gtest_filter='View.FromSeeds'
	GC_SEEDS=$$(($$GC_SEEDS / 10)) $(BUILD)/tests/exchange
	GC_SEEDS=$$(($$GC_SEEDS / 5)) $(BUILD)/tests/sim --gtest_filter='JobViews.*'
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory asan UNCHECKED=vptr
	@$(MAKE) --no-print-directory tsan
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=$(FUZZ_NIGHT)

bench: deps
	@$(MAKE) --no-print-directory all $(BUILD)/bench/micro/micro
	$(BUILD)/bench/micro/micro
	$(BUILD)/gradcast-bench allreduce

# Fast suites only: no jobs on daemons, no long simulations (tests/run --fast).  vptr needs the run-time types that most of it is built without.
# oneDNN is not instrumented, so its OpenMP runtime is told to stay single.  null and alignment take a third of the compile time: nightly checks them.
UNCHECKED ?= vptr,null,alignment
asan:
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/asan MODE='-fsanitize=address,undefined -fno-sanitize=$(UNCHECKED) -fno-sanitize-recover=undefined' OPT='-Og -g1' suites
	@LSAN_OPTIONS='suppressions=$(CURDIR)/tests/lsan.suppressions print_suppressions=0' tests/run $(BUILD)/asan --fast
tsan:
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/tsan MODE='-fsanitize=thread' OPT='-Og -g1' suites
	@TSAN_OPTIONS='suppressions=$(CURDIR)/tests/tsan.suppressions halt_on_error=1' tests/run $(BUILD)/tsan --fast

FUZZ_SECONDS ?= 60
FUZZ_NIGHT   ?= 3600
FUZZ_BUILD := $(BUILD)/fuzz
fuzz: deps-dev
	@$(MAKE) --no-print-directory BUILD=$(FUZZ_BUILD) CXX=clang++ MODE='-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize=vptr -fno-sanitize-recover=undefined' OPT='-O1 -g1' $(addprefix $(FUZZ_BUILD)/,$(FUZZERS))
	@for f in $(FUZZERS); do mkdir -p $(FUZZ_BUILD)/corpus/$$f; cp -n tests/fuzz/corpus/$$f/* $(FUZZ_BUILD)/corpus/$$f/ 2>/dev/null; echo "fuzz $$f, $(FUZZ_SECONDS) s"; \
	  LSAN_OPTIONS='suppressions=$(CURDIR)/tests/lsan.suppressions print_suppressions=0' $(FUZZ_BUILD)/$$f -max_total_time=$(FUZZ_SECONDS) -timeout=10 -print_final_stats=1 -verbosity=0 $(FUZZ_BUILD)/corpus/$$f || exit 1; done
# Run by the make above, whose FUZZ_BUILD is BUILD here.
$(addprefix $(BUILD)/,$(FUZZERS)): $(BUILD)/%: $(BUILD)/obj/tests/fuzz/%.o $(LIBRARY)
	$(call say,link,$@)
	$(Q)$(CXX) $(subst fuzzer-no-link,fuzzer,$(MODE)) -o $@ $(filter %.o,$^) $(LIBRARY) $(LIBS)

SOURCES = $(shell git ls-files '*.cc' '*.h' '*.cu')
lint: deps-dev
	@tools/lint $(BUILD) $(SOURCES)
tidy: deps-dev
	@TIDY=1 tools/lint $(BUILD) $(SOURCES)
format:
	clang-format -i $(SOURCES)

PREFIX ?= /usr
# In the shape of the sources, so that links and names of files in pages hold.
PAGES := $(shell find README.md $(LIB_DIRS) tools bench tests -name '*.md') $(wildcard tools/jobs/*.toml) tools/demo.toml $(wildcard bench/results/*.svg bench/results/*.csv)
install-pages:
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/gradcast LICENSE tools/systemd/gradcastd.toml tools/monitoring/alerts.yml tools/monitoring/dashboard.json
	set -e; for page in $(PAGES); do install -D -m 644 $$page $(DESTDIR)$(PREFIX)/share/doc/gradcast/$$page; done
install: all install-pages
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BUILD)/gradcastctl $(BUILD)/gradcast-bench tools/gradcast-lab
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/sbin $(BUILD)/gradcastd
	$(if $(CUDA_SO)$(RDMA_SO),install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib $(CUDA_SO) $(RDMA_SO))
	install -d $(DESTDIR)/etc/gradcast
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system tools/systemd/gradcastd.service
	install -D -m 644 tools/systemd/gradcast.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/gradcast.conf
	sed -E 's,(gradcast/)gradcastd\.toml,\1%i.toml,; s,^((Runtime|State)Directory=gradcast)$$,\1-%i,; s,^(Description=.*),\1 (%i),' tools/systemd/gradcastd.service \
	  >$(DESTDIR)$(PREFIX)/lib/systemd/system/gradcastd@.service
	@mkdir -p $(addprefix $(DESTDIR)$(PREFIX)/share/,man/man1 man/man5 man/man8 bash-completion/completions zsh/vendor-completions fish/vendor_completions.d)
	$(BUILD)/gradcastctl man gradcastctl >$(DESTDIR)$(PREFIX)/share/man/man1/gradcastctl.1
	$(BUILD)/gradcast-bench --man >$(DESTDIR)$(PREFIX)/share/man/man1/gradcast-bench.1
	{ printf '.TH GRADCAST-LAB 1 "" gradcast gradcast\n.SH NAME\ngradcast-lab \\- hosts in network namespaces on shaped links\n.SH DESCRIPTION\n.nf\n'; \
	  tools/gradcast-lab help | sed 's/-/\\-/g'; echo .fi; } >$(DESTDIR)$(PREFIX)/share/man/man1/gradcast-lab.1
	$(BUILD)/gradcastctl man gradcast-job >$(DESTDIR)$(PREFIX)/share/man/man5/gradcast-job.5
	$(BUILD)/gradcastd --man gradcastd.toml >$(DESTDIR)$(PREFIX)/share/man/man5/gradcastd.toml.5
	$(BUILD)/gradcastd --man gradcastd >$(DESTDIR)$(PREFIX)/share/man/man8/gradcastd.8
	set -e; for p in 'gradcastctl completion' 'gradcastd --completion' 'gradcast-bench --completion'; do name=$${p%% *}; \
	  $(BUILD)/$$p bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$name; \
	  $(BUILD)/$$p zsh >$(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_$$name; \
	  $(BUILD)/$$p fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$name.fish; done

# One package of what is built: daemon, client, benchmark, man pages, completion, unit.
deb: all
	@MAKE='$(MAKE)' tools/deb $(BUILD)

clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj -name "*.d" 2>/dev/null)
