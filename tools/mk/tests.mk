# Tests, benchmarks and checks of the sources: what they are built from, and the targets that run them.

TESTS      := $(patsubst tests/%,$(BUILD)/tests/%,$(filter-out tests/fuzz tests/cuda,$(patsubst %/,%,$(sort $(dir $(wildcard tests/*/*.cc))))))
FUZZERS    := $(patsubst tests/fuzz/%.cc,%,$(wildcard tests/fuzz/*.cc))

.PHONY: test test-built tests suites fault-test lab-test rdma-test slurm-test systemd-test deb-test nightly asan tsan fuzz bench rivals lint tidy format

# ---- building ------------------------------------------------------------------------------------------------------------------

# The kernels of AMX for tests, with instructions that every CPU with AVX-512 has.
$(BUILD)/obj/emulated/%.o: %.amx.cc | $(BUILD)/.dir
	$(call say,amx,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) $(STRICT) -O3 $(subst =avx512,=emulated,$(ISA_avx512)) -DGC_TILES='"tests/nn/emulated_tiles.h"' -c $< -o $@

# What tests check is in the library; they themselves are quick to compile.
$(BUILD)/obj/tests/%.o: OPT := -O1 -g1

# A fuzz target for tests/replay, which calls them all.
$(BUILD)/obj/tests/fuzz/%.replay.o: tests/fuzz/%.cc | $(BUILD)/.dir
	$(call say,cxx,$<)
	$(Q)mkdir -p $(@D) && $(CXX) $(FLAGS) -DLLVMFuzzerTestOneInput=fuzz_$* -c $< -o $@

$(BUILD)/tests/replay: $(patsubst %,$(BUILD)/obj/tests/fuzz/%.replay.o,$(FUZZERS))
$(foreach each,$(TESTS),$(eval $(each): $(call objects,$(wildcard $(each:$(BUILD)/%=%)/*.cc))))
$(TESTS): $(LIBRARY)
	$(call program,-lgtest_main -lgtest)
$(BUILD)/tests/ctl: $(BUILD)/obj/tools/gradcastctl/job_input.o
$(BUILD)/obj/tests/rdma/rdma_test.o: $(BUILD)/features.said
$(BUILD)/obj/tests/rdma/rdma_test.o: FLAGS += $(if $(RDMA_SO),-DGC_RDMA)
$(BUILD)/tests/nn: $(patsubst %.amx.cc,$(BUILD)/obj/emulated/%.o,$(filter %.amx.cc,$(LIB_SOURCES)))

# Libraries without content that have names like those of CUDA, which no host has, and a module that needs them, for tests of where CUDA is searched.
CUDA_NAMED := $(BUILD)/tests/cuda-named
$(CUDA_NAMED)/libgradcast_cuda.so: | $(BUILD)/.dir
	$(call say,link,$@)
	$(Q)rm -rf $(CUDA_NAMED) && mkdir -p $(CUDA_NAMED)/host && cd $(CUDA_NAMED) && : >none.c && set -e && \
	  for name in libcudnn-named.so.9 libcublas-named.so.13; do $(CXX) -x c -shared -nostdlib -Wl,-soname,$$name -o host/$$name none.c; done && \
	  $(CXX) -x c -shared -nostdlib -Wl,--no-as-needed -o $(@F) none.c -Lhost -l:libcudnn-named.so.9 -l:libcublas-named.so.13
$(BUILD)/tests/job $(BUILD)/tests/dist: | $(CUDA_NAMED)/libgradcast_cuda.so

# Bindings for C++ that MPI itself has dropped warn, so they stay out.
$(BUILD)/bench/rivals/mpi: bench/rivals/mpi.cc
	$(call say,mpicxx,$<)
	$(Q)mkdir -p $(@D) && mpicxx -std=c++20 -O2 -Wall -Wextra -Wshadow -DOMPI_SKIP_MPICXX -o $@ $<
$(BUILD)/bench/micro/micro: $(call objects,$(wildcard bench/micro/*.cc)) $(BUILD)/obj/bench/net/rig.o $(LIBRARY)
	$(call program,-lbenchmark)
$(BUILD)/bench/data/read: $(call objects,$(wildcard bench/data/*.cc)) $(LIBRARY)
	$(call program)

# ---- running -------------------------------------------------------------------------------------------------------------------

test: deps
	@$(MAKE) --no-print-directory test-built

suites: $(TESTS) $(CUDA_TESTS) $(BUILD)/gradcastctl $(BUILD)/gradcastd
tests: all $(TESTS) $(CUDA_TESTS) $(if $(MODE),,$(BUILD)/dist.made) $(HOST_RUN) $(BUILD)/bench/micro/micro $(BUILD)/bench/data/read
test-built: tests
	@tests/run $(BUILD)

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
	@$(MAKE) --no-print-directory $(BUILD)/tests/bulk $(BUILD)/tests/exchange $(BUILD)/tests/view $(BUILD)/tests/sim $(BUILD)/tests/algos $(BUILD)/tests/nn $(BUILD)/tests/datasets $(BUILD)/tests/system all
	$(BUILD)/tests/bulk --gtest_filter='Bulk*'
	$(BUILD)/tests/view --gtest_filter='View.FromSeeds'
	GC_SEEDS=$$(($$GC_SEEDS / 10)) $(BUILD)/tests/exchange
	GC_SEEDS=$$(($$GC_SEEDS / 5)) $(BUILD)/tests/sim --gtest_filter='JobViews.*'
	GC_SEEDS=$$(($$GC_SEEDS / 100)) $(BUILD)/tests/sim --gtest_filter='SlowExchangeSim.*:SlowViews.*'
	$(BUILD)/tests/sim --gtest_filter='StagesViews.OneNodeByChance:StagesBuddies.NodesByChance'
	GC_SEEDS=$$(($$GC_SEEDS / 10)) $(BUILD)/tests/sim --gtest_filter='*Views.*NodesByChance:*Views.TwoNodes*:*.AnyNodeAtAnyTime:StagesShapes.*'
	GC_SEEDS=$$(($$GC_SEEDS / 50)) $(BUILD)/tests/sim --gtest_filter='Ends.*'
	GC_SEEDS=120 $(BUILD)/tests/sim --gtest_filter='SlowStages.*'
	GC_FLOATS=all $(BUILD)/tests/nn --gtest_filter='Curves.*'
	GC_PICTURES=100000 $(BUILD)/tests/datasets --gtest_filter='SlowMemory.AnImportOfPicturesFits'
	GC_GRIDS=all GRADCAST_BUILD=$(BUILD) $(BUILD)/tests/system --gtest_filter='SystemGrid*:Of/SystemLargeNets.*'
	GC_WIDTH=2100 GRADCAST_BUILD=$(BUILD) $(BUILD)/tests/system --gtest_filter='SystemMemory.*'
	$(BUILD)/tests/algos --gtest_filter='SlowRidgeTest.*'
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/alone PER_UNIT=1 suites
	@$(MAKE) --no-print-directory tidy
	@$(MAKE) --no-print-directory asan UNCHECKED=vptr
	@$(MAKE) --no-print-directory tsan
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=$(FUZZ_NIGHT)

bench: deps
	@$(MAKE) --no-print-directory all $(BUILD)/bench/micro/micro
	$(BUILD)/bench/micro/micro
	$(BUILD)/gradcast-bench allreduce

rivals: deps-rivals
	@$(MAKE) --no-print-directory $(BUILD)/bench/rivals/mpi

# Fast suites only: no jobs on daemons, no long simulations (tests/run --fast).  vptr needs the run-time types that most of it is built without.
# oneDNN is not instrumented, so its OpenMP runtime is set to one thread.  null and alignment take a third of the compile time: nightly checks them.
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
