# The archive that runs where it is unpacked (tools/dist/README.md), and its tests.

.PHONY: dist dist-built dist-test

# In makes of their own: what is built depends on the headers that deps-dist installs.
dist: deps deps-dist
	@$(MAKE) --no-print-directory dist-built
dist-built: $(BUILD)/dist.made
	$(call say,pack,$(BUILD)/dist)
	@tools/dist/pack $(BUILD)
dist-test: deps deps-dist deps-dist-test
	@$(MAKE) --no-print-directory dist-built
	@tests/dist/run $(BUILD) $(DIST_TESTS)

$(BUILD)/launcher: tools/dist/launcher.cc runtime/core/archive.h | $(BUILD)/.dir
	$(call say,link,$@)
	$(Q)$(CXX) -std=c++20 -Os -Wall -Wextra -Wshadow $(STRICT) -I. -static -s -o $@ $<
# Its folder, which tests/dist runs.
$(BUILD)/dist.made: $(PROGRAMS) $(BUILD)/launcher tools/dist/tree tools/dist/first-page tools/gradcast-lab $(PAGES) $(wildcard tools/python/gradcast/*)
	$(call say,tree,$(BUILD)/dist)
	$(Q)MAKE='$(MAKE)' STATIC='$(HDF5_STATIC)' tools/dist/tree $(BUILD) >$@.new && mv $@.new $@
