# gradcast's only build system.  `make help` lists the targets.  V=1 shows the commands.
#
# Sources are found by folder: a new .cc file under runtime, transport, nn, algos or datasets is built without a line here.  A file named
# *.isa.cc is compiled once for each instruction set, with GC_ISA set to its name; *.amx.cc for AMX alone.
#
# Here is what builds the programs.  tools/mk has the rest: packages.mk, devices.mk (CUDA and RDMA), tests.mk, install.mk, dist.mk.

.DEFAULT_GOAL := all
BUILD    ?= build
# All cores, unless the caller says how many.
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif
CXX      ?= g++
MODE     ?=
OPT      ?= -O2 -g1
CXXFLAGS ?=

PC_CORE  := liburing openssl spdlog fmt zlib liblzma libpng libjpeg hdf5 libisal
PC_ALL   := $(PC_CORE) cpp-httplib libsystemd
# Asked once, when make deps has installed it.
PC_FLAGS  = $(eval PC_FLAGS := $(shell pkg-config --cflags $(PC_ALL)))$(PC_FLAGS)
# -ffp-contract=off: a fused multiply-add would make results depend on the compiler.
FLAGS     = -std=c++20 $(OPT) -Wall -Wextra -Wshadow -ffp-contract=off -pthread -MMD -MP -I. $(PC_FLAGS) $(MODE) $(CXXFLAGS)
# HDF5 is linked into the programs where it can be: the shared library loads 30 others, for files on web servers, at each start of a program.
HDF5_STATIC = $(wildcard $(patsubst -L%,%/libhdf5.a,$(shell pkg-config --libs-only-L hdf5)))
LIBS      = $(or $(HDF5_STATIC:%=% -lsz),$(shell pkg-config --libs hdf5)) $(shell pkg-config --libs $(filter-out hdf5,$(PC_ALL))) -ldnnl -lgomp -ldl -pthread
STRICT   := -fno-exceptions -fno-rtti

ifeq ($(V),)
Q := @
say = @printf '  %-5s %s\n' $(1) $(2)
endif

LIB_DIRS   := runtime transport nn algos datasets
LIB_SOURCES := $(filter-out runtime/daemon/main.cc transport/rdma/%,$(shell find $(LIB_DIRS) -name '*.cc' -not -path '*/cuda/*'))
ISA_SOURCES := $(filter %.isa.cc,$(LIB_SOURCES))
LIBRARY    := $(BUILD)/libgradcast.a

# ---- units ---------------------------------------------------------------------------------------------------------------------

# The sources of a folder are compiled PER_UNIT at a time, as a unit that includes them and is named after the first and the last.  The
# compiler parses and instantiates what they include once, so a build from nothing takes 0.6 of the time.  After an edit it compiles the
# whole unit.  Local names of a folder's sources differ, as sources may share a unit.  PER_UNIT=1 compiles each by itself, as in `make nightly`.
# ALONE: sources whose object is named elsewhere, and those that define the same local names, as each kind of layer its `shape`.
PER_UNIT ?= 8
ALONE    := runtime/control/page.cc tools/gradcastctl/job_input.cc bench/net/rig.cc tests/rdma/rdma_test.cc tests/cuda/code_test.cc %.amx.cc \
            nn/graph/% nn/optimisers/% transport/exchange/% bench/micro/%
after    := $(shell expr $(PER_UNIT) + 1)
# FORCE remakes a unit whose list of sources has changed.
listed = $(if $(filter-out %include $(1:%="%"),$(2)),,$(filter $(words $(1) $(1)),$(words $(2))))
define unit_rule
$(BUILD)/unit/$(1): $(2) $(if $(call listed,$(2),$(file <$(BUILD)/unit/$(1))),,FORCE) | $(BUILD)/.dir
	@mkdir -p $$(@D) && printf '#include "%s"\n' $(2) >$$@
endef
unit_of  = $(basename $(firstword $(1)))..$(notdir $(lastword $(1)))
one_unit = $(if $(word 2,$(1)),$(eval $(call unit_rule,$(call unit_of,$(1)),$(1)))$(call unit_of,$(1)),$(1))
units_of = $(if $(1),$(call one_unit,$(wordlist 1,$(PER_UNIT),$(1))) $(call units_of,$(wordlist $(after),$(words $(1)),$(1))))
# units FILES…: the units of these sources; a unit of one source is that source.  A source is passed once only, as each call defines rules.
units    = $(filter $(ALONE),$(1)) \
           $(foreach folder,$(sort $(dir $(1))),$(call units_of,$(sort $(filter-out $(ALONE),$(foreach each,$(1),$(if $(filter $(folder),$(dir $(each))),$(each)))))))
objects  = $(patsubst %.cc,$(BUILD)/obj/%.o,$(call units,$(1)))

include tools/mk/packages.mk tools/mk/devices.mk

PROGRAMS   := $(BUILD)/gradcastd $(BUILD)/gradcastctl $(BUILD)/gradcast-bench $(CUDA_SO) $(RDMA_SO)

.PHONY: all help demo clean
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
	@echo 'make dist-test  as root: the archive in Debian 11 and 13, in an empty root, and under the kernel 5.10; DIST_TESTS="bullseye vm" for some'
	@echo 'make nightly    reliable multicast and changes of view over GC_SEEDS=10000 random networks, exchanges over a tenth of that; tidy; asan; tsan; an hour of each fuzz target'
	@echo 'make bench      the Google Benchmark suite and gradcast-bench over loopback'
	@echo 'make rivals     what bench/rivals/run compares with: Gloo (python3-torch) and Open MPI'
	@echo 'make lint       clang-format and include directions                 make tidy     the same with clang-tidy'
	@echo 'make format     rewrite the sources                                 make fuzz     every fuzz target, FUZZ_SECONDS=60 each'
	@echo 'make asan tsan  the fast suites under ASan+UBSan and under TSan'
	@echo 'make device-check  where a GPU is: its tests, accuracy, determinism, speed beside PyTorch; DEVICE_CHECK="--data DIR"'
	@echo 'make device-pack   the same packed into $(BUILD)/gpu.tar.gz for a machine where nothing can be built; MNIST=DIR'
	@echo 'make deps       install the packages it needs (Debian)              make install DESTDIR= PREFIX=/usr'
	@echo 'make dist       $(BUILD)/gradcast-VERSION-x86_64.tar.xz, which runs where it is unpacked'
	@echo 'make deb        Debian packages of it in $(BUILD)/                  make wheel   the package for Python, in $(BUILD)/'

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

define compiled
	$(call say,cxx,$*)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) $(call strict,$*) -c $< -o $@
endef
$(BUILD)/obj/%.o: %.cc | $(BUILD)/.dir
	$(compiled)
$(BUILD)/obj/%.o: $(BUILD)/unit/%.cc
	$(compiled)

$(BUILD)/.dir:
	@mkdir -p $(BUILD) && touch $@

$(BUILD)/obj/runtime/control/page.o: runtime/control/page.html

LIB_OBJECTS := $(call objects,$(filter-out %.isa.cc,$(LIB_SOURCES))) \
               $(foreach isa,portable avx2 avx512,$(patsubst %.isa.cc,$(BUILD)/obj/%.$(isa).o,$(ISA_SOURCES)))
$(LIBRARY): $(LIB_OBJECTS)
	$(call say,ar,$@)
	$(Q)rm -f $@ && ar rcs $@ $^

define program
	$(call say,link,$@)
	$(Q)mkdir -p $(@D) && $(CXX) $(MODE) -o $@ $(filter %.o,$^) $(LIBRARY) $(LIBS) $(1)
endef

$(BUILD)/gradcastd: $(BUILD)/obj/runtime/daemon/main.o $(LIBRARY)
	$(call program)
$(BUILD)/gradcastctl: $(call objects,$(wildcard tools/gradcastctl/*.cc)) $(LIBRARY)
	$(call program)
$(BUILD)/gradcast-bench: $(call objects,$(wildcard bench/comm/*.cc bench/net/*.cc)) $(LIBRARY)
	$(call program)

# ---- using ---------------------------------------------------------------------------------------------------------------------

demo: deps
	@$(MAKE) --no-print-directory all
	@tools/demo $(BUILD)

clean:
	rm -rf $(BUILD)

include tools/mk/tests.mk tools/mk/install.mk tools/mk/dist.mk

# libgradcast_cuda.so and libgradcast_rdma.so take from them what they share with them.
$(PROGRAMS) $(TESTS): LIBS += -Wl,--export-dynamic

-include $(shell find $(BUILD)/obj -name "*.d" 2>/dev/null)
