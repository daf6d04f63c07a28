# What is installed and packaged: pages, programs, man pages, completions, units.

PREFIX ?= /usr
# Elsewhere it is for one user: no service, no system user, nothing outside of PREFIX.
SYSTEM = $(filter /usr /usr/local,$(PREFIX))
SBIN = $(if $(SYSTEM),sbin,bin)
# In the shape of the sources, so that links and names of files in pages hold.
PAGES = $(shell find README.md $(LIB_DIRS) tools bench tests -name '*.md') $(wildcard tools/jobs/*.toml tools/python/examples/*.py tools/python/examples/*.toml) tools/demo.toml $(wildcard bench/results/*.svg bench/results/*.csv)

.PHONY: install install-built install-pages wheel wheel-built deb

install-pages:
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/share/doc/gradcast LICENSE tools/systemd/gradcastd.toml tools/monitoring/alerts.yml tools/monitoring/dashboard.json
	set -e; for page in $(PAGES); do install -D -m 644 $$page $(DESTDIR)$(PREFIX)/share/doc/gradcast/$$page; done
install: all
	@$(MAKE) --no-print-directory install-built
# Of what is built, so that a rule of this make may call it.
install-built: install-pages
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BUILD)/gradcastctl $(BUILD)/gradcast-bench tools/gradcast-lab
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/$(SBIN) $(BUILD)/gradcastd
	$(if $(CUDA_SO)$(RDMA_SO),install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib $(CUDA_SO) $(RDMA_SO))
ifneq ($(SYSTEM),)
	install -d $(DESTDIR)/etc/gradcast
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/lib/systemd/system tools/systemd/gradcastd.service
	install -D -m 644 tools/systemd/gradcast.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/gradcast.conf
	sed -E 's,(gradcast/)gradcastd\.toml,\1%i.toml,; s,^((Runtime|State)Directory=gradcast)$$,\1-%i,; s,^(Description=.*),\1 (%i),' tools/systemd/gradcastd.service \
	  >$(DESTDIR)$(PREFIX)/lib/systemd/system/gradcastd@.service
endif
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

# The package for Python, without the network.
wheel: deps-python
	@$(MAKE) --no-print-directory wheel-built
wheel-built: | $(BUILD)/.dir
	$(call say,wheel,gradcast)
	$(Q)rm -rf $(BUILD)/python && mkdir -p $(BUILD)/python && cp -r tools/python/pyproject.toml tools/python/gradcast $(BUILD)/python
	$(Q)/usr/bin/python3 -m pip -q --disable-pip-version-check wheel --no-index --no-deps --no-build-isolation -w $(BUILD) $(BUILD)/python

# One package of what is built: daemon, client, benchmark, man pages, completion, unit.
deb: all
	@MAKE='$(MAKE)' tools/deb $(BUILD)
