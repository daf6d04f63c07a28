# Packages of Debian that gradcast needs, and the targets that install them: deps and deps-*.

PACKAGES := make g++ pkg-config liburing-dev libhdf5-dev libdnnl-dev libssl-dev libtomlplusplus-dev nlohmann-json3-dev \
            libcpp-httplib-dev libcli11-dev libspdlog-dev libfmt-dev libsystemd-dev zlib1g-dev liblzma-dev libpng-dev libjpeg-dev \
            libisal-dev libgtest-dev libbenchmark-dev dataset-fashion-mnist iproute2 nftables hdf5-tools
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
# What make dist takes beside the programs; what tests/dist/run starts.
PACKAGES_DIST := $(PACKAGES_RDMA) ibverbs-providers xz-utils
PACKAGES_DIST_TEST := debootstrap qemu-system-x86 busybox-static cpio kmod python3
# What tests/control and tests/daemon check metrics with.
PACKAGES_MONITORING := prometheus python3-prometheus-client
# What tests/page opens the status page in.
PACKAGES_PAGE := chromium python3
# What make wheel and tests/python work with.
PACKAGES_PYTHON := python3 python3-numpy python3-pip python3-setuptools python3-wheel
PACKAGES_RIVALS := python3-torch libopenblas0-pthread openmpi-bin libopenmpi-dev python3-h5py bible-kjv

.PHONY: deps deps-dev deps-lab deps-rdma deps-rivals deps-monitoring deps-page deps-slurm deps-systemd deps-deb deps-dist deps-dist-test deps-python deps-onnx

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
deps-dist: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_DIST))
deps-dist-test: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_DIST_TEST))
deps-page: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_PAGE))
deps-monitoring: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_MONITORING))
deps-python: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_PYTHON))
# A reader of ONNX files for tests/job, from npm, which need not be Debian's.
deps-onnx: | $(BUILD)/.dir
	$(if $(shell command -v npm),,$(call install_packages,nodejs npm))
	@[ -d $(BUILD)/npm/node_modules/onnxruntime-web ] || npm install --silent --ignore-scripts --prefix $(BUILD)/npm onnxruntime-web@1
deps-rivals: | $(BUILD)/.dir
	$(call install_packages,$(PACKAGES_LAB) $(PACKAGES_RIVALS))
