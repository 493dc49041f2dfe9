# The commands of this repository, by name. Everything is built by CMake (CMakePresets.json) into
# build/<preset>; this file only strings the steps together.

# What `make demo` replays: capacity far below the trace's 182,790 distinct blocks, so that blocks
# are evicted all the time, and every byte read from the pool is checked.
DEMO_FLAGS := --trace tests/assets/traces/conversation_trace.jsonl.gz --engines 4 \
  --block-bytes 65536 --capacity-blocks 20000 --speed max --verify full

# What it prints at its end: tests/guide/demo_test.py runs it.
DEMO_NEXT_IS := hit rates of other capacities and policies; then README.md, from "Two processes share a prefix" on
DEMO_NEXT := '  PATH=$$PWD/build/release/apps/cachalot:$$PATH' \
  '  cachalot hitrate --trace tests/assets/traces/conversation_trace.jsonl.gz --policy all --capacity-blocks 500..200000,inf'

JOBS ?= $(shell nproc)
# Two at a time, the tests waited for nearly half of their time: for outages, deadlines, other processes.
TEST_JOBS ?= 4
TEST_ARGS ?=
FUZZ_SECONDS ?= 600
FUZZ_TARGETS ?= $(patsubst tests/fuzz/%_fuzz.cpp,%,$(wildcard tests/fuzz/*_fuzz.cpp))
PYTHON ?= python3
PYTEST_ARGS ?=
LLAMA_BENCH_ARGS ?=
DEMO_VLLM_ARGS ?=
DEMO_SGLANG_ARGS ?=
CACHALOT := build/release/apps/cachalot/cachalot

# c++ if it is version 12 or later, else g++-12 (Ubuntu 22.04). Looked up when a build starts, after the setup; CXX=... on
# the command line or in the environment wins. c++ is also what `pip install .` takes: what one has compiled, the other has.
ifeq ($(origin CXX),default)
  CXX = $(shell v=$$(c++ -dumpversion 2>/dev/null | cut -d. -f1); \
    if [ "$${v:-0}" -ge 12 ] || ! command -v g++-12 >/dev/null; then echo c++; else echo g++-12; fi)
endif

# What clang-format looks at; paths without spaces.
SOURCES = $(shell find include src apps bench bindings engines examples tests \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.c' -o -name '*.cu' -o -name '*.cuh' \) -print 2>/dev/null | sort)

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup-run setup-test setup-lint setup-dev setup-python setup-python-storage setup-llama build-llama demo demo-llama build-vllm demo-vllm build-sglang demo-sglang build-lmcache build test test-guide test-gpu-kit test-python test-python-storage test-nixl test-llama test-vllm test-vllm-gpu test-sglang test-lmcache test-transformers wheel test-wheel setup-vm test-vm test-deploy test-asan test-tsan fuzz soak soak-fsck soak-storage soak-hosts soak-transfer soak-system coverage bench bench-llama bench-vllm bench-sglang \
  lint tidy warnings format clean

help: ## list the targets
	@echo "usage: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

setup-run:
	@tools/setup --for run
setup-test:
	@tools/setup --for test
setup-lint:
	@tools/setup --for lint
setup-dev:
	@tools/setup --for dev

setup-python:
	@tools/setup --for python

# $(call configure,preset). A new folder compiles many sources as one: half the time from nothing. A folder in which
# `cmake --preset` was called compiles each file alone: for daily work, where one file has changed.
configure = CXX="$(CXX)" cmake --preset $(1) $(if $(shell grep -sx CACHALOT_UNITY:BOOL=OFF build/$(1)/CMakeCache.txt),,-DCACHALOT_UNITY=ON)

# $(call build,preset[,targets]): configure and build, everything or these targets only.
define build
	$(call configure,$(1))
	cmake --build --preset $(1) --parallel $(JOBS) $(if $(2),--target $(2))
endef

demo: setup-run ## install, build and replay a production trace with four engine processes
	$(call build,release,cachalot)
	$(CACHALOT) replay $(DEMO_FLAGS)
	@printf '%s\n' '' 'Next: $(DEMO_NEXT_IS)' $(DEMO_NEXT)

build: setup-run ## build the programs and libraries (release)
	$(call build,release)

test: setup-test ## install, build and run all tests; TEST_ARGS goes to ctest
	$(call build,dev)
	ctest --preset dev -j$(TEST_JOBS) $(TEST_ARGS)

test-guide: setup-test ## every command of README.md and docs/guide, the long ones too: half an hour
	$(call build,dev)
	$(PYTHON) tests/guide/pages_test.py . build/dev --slow

test-python: setup-test setup-python ## build the Python package into build/venv and run its tests; PYTEST_ARGS goes to pytest
	$(PYTHON) -m venv build/venv
	CXX="$(CXX)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/venv/bin/python -m pip install --quiet '.[test]'
	build/venv/bin/python -m pytest $(PYTEST_ARGS)

setup-llama:
	@CXX="$(CXX)" tools/setup --for test --with-llama --with-llama-server

# What the tests of engines/llama are made of: nothing else is built for them.
LLAMA_TESTS := llama_test llama_api_test cachalot cachalot-llama cachalot_llama_preload
test-llama: setup-llama ## get and build llama.cpp, then the tests of engines/llama; TEST_ARGS goes to ctest
	$(call configure,dev)
	cmake --build --preset dev --parallel $(JOBS) --target $(LLAMA_TESTS)
	ctest --preset dev -j$(TEST_JOBS) -L llama --no-tests=error $(TEST_ARGS)

# vLLM's CPU build needs 6 GB below build/; tools/setup-vllm finds what is there already.
build-vllm: setup-python
	tools/setup-vllm build/vllm
	CXX="$(CXX)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/vllm/venv/bin/python -m pip install --quiet . pytest

test-vllm: build-vllm ## get vLLM's CPU build (6 GB) and run the connector in it; PYTEST_ARGS goes to pytest
	CACHALOT_VLLM_MODELS=$(CURDIR)/build/vllm/models build/vllm/venv/bin/python -m pytest tests/vllm $(PYTEST_ARGS)

# Needs nvcc: a package without kernels refuses a GPU.
VLLM_GPU_TESTS := test_gpu_pages.py test_share.py test_failures.py test_transfer.py
test-vllm-gpu: build-vllm setup-test ## the connector with KV caches on an emulated GPU, in vLLM's CPU build; PYTEST_ARGS goes to pytest
	$(call build,dev,fake_libcuda)
	CACHALOT_FAKE_LIBCUDA=$(CURDIR)/build/dev/tests/torch/libcuda.so.1 CACHALOT_VLLM_MODELS=$(CURDIR)/build/vllm/models \
	  build/vllm/venv/bin/python -m pytest $(addprefix tests/vllm/,$(VLLM_GPU_TESTS)) $(PYTEST_ARGS)

# SGLang needs 6 GB below build/; tools/setup-sglang finds what is there already.
build-sglang: setup-python
	tools/setup-sglang build/sglang
	CXX="$(CXX)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/sglang/venv/bin/python -m pip install --quiet .

test-sglang: build-sglang ## get SGLang (6 GB) and run its connector there; PYTEST_ARGS goes to pytest
	CACHALOT_SGLANG_MODELS=$(CURDIR)/build/sglang/models build/sglang/venv/bin/python -m pytest tests/sglang $(PYTEST_ARGS)

# LMCache needs 6 GB below build/; tools/setup-lmcache finds what is there already.
build-lmcache: setup-python
	tools/setup-lmcache build/lmcache
	CXX="$(CXX)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/lmcache/venv/bin/python -m pip install --quiet --no-deps .

test-lmcache: build-lmcache ## get LMCache (6 GB) and run its L2 adapter there; PYTEST_ARGS goes to pytest
	build/lmcache/venv/bin/python -m pytest tests/lmcache $(PYTEST_ARGS)

# PyTorch and transformers need 6 GB below build/.
test-transformers: setup-python ## get PyTorch and transformers (6 GB) and run examples/transformers; PYTEST_ARGS goes to pytest
	$(PYTHON) -m venv build/transformers/venv
	build/transformers/venv/bin/python -m pip install --quiet torch==2.14.1 transformers==5.19.0 numpy pytest
	CXX="$(CXX)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/transformers/venv/bin/python -m pip install --quiet .
	CACHALOT_TRANSFORMERS_MODELS=$(CURDIR)/build/transformers/models build/transformers/venv/bin/python -m pytest tests/transformers \
	  $(PYTEST_ARGS)

setup-python-storage:
	@tools/setup --for python-storage

# The virtual environment is of the Python that the plug-in embeds. --no-deps: NIXL would bring PyTorch.
test-python-storage: setup-python-storage ## get Mooncake Store and NIXL (0.5 GB) and keep blocks in both; PYTEST_ARGS goes to pytest
	$(call configure,dev)
	cmake --build --preset dev --parallel $(JOBS) --target cachalot cachalot_python_storage
	python$$(pkg-config --modversion python3-embed) -m venv build/python-storage
	build/python-storage/bin/python -m pip install --quiet numpy pytest
	build/python-storage/bin/python -m pip install --quiet --no-deps mooncake-transfer-engine-non-cuda nixl-cu12
	build/python-storage/bin/python -m pytest tests/python_storage --programs build/dev $(PYTEST_ARGS)

test-nixl: setup-python ## get NIXL (0.5 GB) and exchange KV with an engine that speaks NIXL only; PYTEST_ARGS goes to pytest
	$(PYTHON) -m venv build/nixl
	CXX="$(CXX)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) build/nixl/bin/python -m pip install --quiet . numpy pytest
	build/nixl/bin/python -m pip install --quiet --no-deps nixl-cu12
	build/nixl/bin/python -m pytest tests/nixl $(PYTEST_ARGS)

setup-vm:
	@CXX="$(CXX)" tools/setup --for vm
test-vm: setup-vm ## two virtual machines that map one pool: killed, paused, booted (gets 70 MB of a kernel); VM_ARGS names tests
	$(call build,dev,cachalot cachalot_pool_load)
	$(PYTHON) tests/vm/two_hosts_test.py build/dev/apps/cachalot/cachalot build/dev/tests/vm/cachalot_pool_load $(VM_ARGS)

test-deploy: setup-test setup-python ## the files of deploy/, also against Kubernetes' schemas (23 MB from PyPI)
	$(call build,dev,cachalot)
	$(PYTHON) -m venv build/deploy
	build/deploy/bin/python -m pip install --quiet kubernetes-validate
	build/deploy/bin/python tests/deploy/deploy_test.py . build/dev/apps/cachalot/cachalot

# The interpreters that wheels are built for; 3.12 stands for all later ones.
WHEEL_PYTHONS ?= $(foreach v,3.10 3.11 3.12,$(firstword $(wildcard $(HOME)/.pyenv/versions/$(v).*/bin/python3) $(shell command -v python$(v))))
wheel: setup-run ## build wheels for any Linux with glibc 2.28 or later, into build/wheels; needs Debian 12 and mmdebstrap
	CXX="$(CXX)" CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) tools/build-wheel $(WHEEL_PYTHONS)

WHEEL_ROOTS ?= bookworm trixie
test-wheel: ## install the wheels of `make wheel` in bare roots of Debian 12 and 13, and use them there; as root
	$(PYTHON) tests/wheel/wheel_test.py build/wheels build/wheel-roots $(WHEEL_ROOTS)

# The packs for a machine with a GPU, on an emulated one, and in a Python such as it has.
GPU_KIT := build/gpu-kit
PYTHON312 ?= $(firstword $(wildcard $(HOME)/.pyenv/versions/3.12*/bin/python3) python3.12)
GPU_PYTHON_HAS := torch==2.11.0 transformers==5.17.0 accelerate aiohttp cloudpickle einops numba nvidia-ml-py \
  opencv-python-headless peft pillow prometheus-client protobuf psutil py-cpuinfo pyyaml regex requests safetensors \
  sentencepiece setuptools six tiktoken tqdm uvloop
test-gpu-kit: setup-test ## make the packs for a machine with a GPU (gets 4 GB) and run them on an emulated one: an hour of one core
	$(call build,dev,emulated_gpu)
	tools/check-gpu --pack $(GPU_KIT)/gpu
	tools/pack-vllm --python $(PYTHON312) $(GPU_KIT)/vllm
	$(PYTHON312) -m venv $(GPU_KIT)/python
	$(GPU_KIT)/python/bin/python3 -m pip install --quiet $(GPU_PYTHON_HAS)
	$(PYTHON) tests/gpu/kit_test.py $(GPU_KIT)/gpu build/dev/tests/emulated_gpu $(GPU_KIT)/vllm $(GPU_KIT)/python/bin/python3

# What the llama.cpp engine is: nothing else is built for its demonstration.
LLAMA_PROGRAMS := cachalot cachalot-llama cachalot-llama-random-model cachalot_llama_preload
build-llama:
	@CXX="$(CXX)" tools/setup --for run --with-llama
	CXX="$(CXX)" cmake --preset release
	cmake --build --preset release --parallel $(JOBS) --target $(LLAMA_PROGRAMS)

demo-llama: build-llama ## two llama.cpp engines share a prompt: time to first token, and the texts
	$(PYTHON) engines/llama/demo/demo.py

demo-vllm: build-vllm ## get vLLM's CPU build (6 GB); two of its servers share prompts: time to first token
	build/vllm/venv/bin/python examples/vllm/demo.py --models build/vllm/models $(DEMO_VLLM_ARGS)

demo-sglang: build-sglang ## get SGLang (6 GB); two of its servers share prompts: time to first token
	build/sglang/venv/bin/python examples/sglang/demo.py --models build/sglang/models $(DEMO_SGLANG_ARGS)

bench-llama: build-llama ## llama.cpp: time to first token, and conversations between engines; LLAMA_BENCH_ARGS goes to it
	$(PYTHON) engines/llama/demo/bench.py --json build/bench-llama.json --svg build/bench-llama.svg $(LLAMA_BENCH_ARGS)

bench-vllm: build-vllm ## vLLM with the connector beside its own ways: hits, cold requests, loads, lookups; VLLM_BENCH_ARGS goes to it
	build/vllm/venv/bin/python bench/vllm/connector.py build/vllm/models --json build/bench-vllm.json $(VLLM_BENCH_ARGS)

bench-sglang: build-sglang ## SGLang with the linker beside its own ways: cold requests and hits; SGLANG_BENCH_ARGS goes to it
	build/sglang/venv/bin/python bench/sglang/connector.py build/sglang/models --json build/bench-sglang.json $(SGLANG_BENCH_ARGS)

test-asan: setup-test ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call build,asan)
	ctest --preset asan -j$(TEST_JOBS) $(TEST_ARGS)

test-tsan: setup-test ## the tests under ThreadSanitizer
	$(call build,tsan)
	ctest --preset tsan -j$(TEST_JOBS) -LE "model|slow|crash" $(TEST_ARGS)

fuzz: setup-dev ## feed bad input to what reads pools, messages, storage, traces and settings; FUZZ_SECONDS each, FUZZ_TARGETS
	$(call build,fuzz,fuzzers)
	mkdir -p $(addprefix build/fuzz/corpus/,$(FUZZ_TARGETS))
	for target in $(FUZZ_TARGETS); do \
	  build/fuzz/tests/fuzz/fuzz_$$target -max_total_time=$(FUZZ_SECONDS) -max_len=4096 -timeout=60 \
	    -artifact_prefix=build/fuzz/$$target- build/fuzz/corpus/$$target tests/fuzz/corpus/$$target || exit; \
	done

soak: setup-test ## kill and stop the processes of a pool 10,000 times; SOAK_ARGS goes to it
	$(call build,dev)
	build/dev/tests/crash/cachalot_soak --injections 10000 $(SOAK_ARGS)
	CACHALOT_SOAK_OPERATIONS=1000000 build/dev/tests/model/pool_soak_test

soak-fsck: setup-test ## flip every bit of a small pool's metadata, one at a time, and cut its files at every page: fsck, repair, keeper and readers; half an hour
	$(call build,dev,pool_check_test cachalot process_test)
	CACHALOT_SWEEP_ALL=1 build/dev/src/pool/check/pool_check_test --gtest_filter='DamageSweep.*:*CutDevice.*:*.EveryBit*'
	CACHALOT_SWEEP_ALL=1 build/dev/tests/process/process_test --gtest_filter='CutPool.*'

soak-storage: setup-test ## kill the process of a storage directory 1,000 times; SOAK_ARGS goes to it
	$(call build,dev)
	build/dev/tests/crash/cachalot_storage_soak --kills 1000 $(SOAK_ARGS)

soak-hosts: setup-test ## hosts of a Redis cluster that moves; sixteen peers that come, hang and die for ten minutes; SOAK_ARGS goes to these
	$(call build,dev)
	python3 tests/hosts/redis_cluster.py build/dev/apps/cachalot/cachalot
	python3 tests/hosts/churn.py build/dev/apps/cachalot/cachalot --seconds 600 $(SOAK_ARGS)

soak-transfer: setup-test ## 2,000 faults of processes and links in transfers, needs root; SOAK_ARGS goes to it
	$(call build,dev)
	build/dev/tests/transfer/cachalot_transfer_soak --injections 2000 $(SOAK_ARGS)

soak-system: setup-test ## an hour of a whole system in trouble: engines, keepers, a real Redis, subscribers; SOAK_ARGS goes to it
	$(call build,dev)
	build/dev/tests/crash/cachalot_system_soak --stalls 10 --domain coherent
	build/dev/tests/crash/cachalot_system_soak --stalls 10 --domain noncoherent
	build/dev/tests/crash/cachalot_system_soak --seconds 3600 $(SOAK_ARGS)

coverage: setup-dev ## line coverage of src/, tests left out
	$(call build,coverage)
	find build/coverage -name '*.gcda' -delete
	ctest --preset coverage -j$(TEST_JOBS) $(TEST_ARGS)
	gcovr --root . --filter 'src/' --exclude '.*_(test|bench)\.cpp' -j $(JOBS) \
	  --gcov-executable $(subst c++,gcov,$(subst g++,gcov,$(notdir $(CXX)))) --print-summary \
	  --txt build/coverage/coverage.txt build/coverage
	@cat build/coverage/coverage.txt

bench: setup-run ## every benchmark, each with its limit: five minutes, 8 GiB of memory
	$(call build,release,cachalot cachalot-bench)
	$(CACHALOT) bench all

lint: setup-lint ## check the rules of the tree and the format of all sources
	tools/tidy --selftest
	tools/tidy
	@clang-format --dry-run -Werror $(SOURCES)

tidy: lint setup-dev ## lint, then what clang-tidy finds
	CXX="$(CXX)" cmake --preset dev
	run-clang-tidy -quiet -j $(JOBS) -p build/dev '$(CURDIR)/(src|apps|examples|tests)/'

# clang reads the sources in a quarter of the time that GCC compiles them in: no code is made.
warnings: setup-dev ## what clang warns of, as errors; WARNINGS_ARGS="--except test" leaves the tests out
	$(call configure,dev)
	tools/clang-warnings build/dev --jobs $(JOBS) $(WARNINGS_ARGS)

format: setup-dev ## format all C++ sources in place
	clang-format -i $(SOURCES)

clean: ## remove build/
	rm -rf build
