# The short way in; CMakeLists.txt and CMakePresets.json do the work.
#   make              build/release/vitrum            make quickstart   build, then train on Fashion-MNIST
#   make test         build, then the fast tests      make slow-test    the slow ones
#   make asan ubsan   tests under a sanitizer         make format       clang-format over all sources
#   make style        is everything formatted?        make install      into PREFIX (/usr/local)
#   make deps         install missing packages        make clean        remove build/
#   make fuzz         each fuzzer for FUZZ_SECONDS (needs clang)
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
LABELS ?= fast
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
BUILD := build/release

ifdef CUDA
$(error CUDA=1 is reserved for the CUDA backend, which this version does not have)
endif

.PHONY: all quickstart test slow-test asan ubsan dev fuzz style format install deps clean
.DELETE_ON_ERROR:

all: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS) --target vitrum-cli

quickstart: all
	@tools/quickstart.sh $(BUILD)/vitrum

test: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) -L '^fast$$' --no-tests=error --output-on-failure -j 2
	@echo "make test: all fast tests passed"

slow-test: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) -L '^slow$$' --no-tests=error --output-on-failure
	@echo "make slow-test: all slow tests passed"

# make asan LABELS='fast|slow' runs everything
asan ubsan dev: %: build/%/build.ninja
	cmake --build build/$@ -j $(JOBS)
	ctest --test-dir build/$@ -L '^($(LABELS))$$' --no-tests=error --output-on-failure -j 2
	@echo "make $@: all tests passed"

# make fuzz FUZZ_TARGETS='pickle npz' runs only these
fuzz: build/fuzz/build.ninja
	cmake --build build/fuzz -j $(JOBS) --target fuzzers
	fuzz/run.sh build/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

style: $(BUILD)/build.ninja
	ctest --test-dir $(BUILD) -L '^style$$' --no-tests=error --output-on-failure

format:
	find vitrum tests bench examples fuzz -name '*.h' -o -name '*.cpp' 2>/dev/null | xargs clang-format -i

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

deps:
	@tools/install-deps.sh

clean:
	rm -rf build

# Ninja reruns CMake by itself; only the first configuration and changed presets come through here.
build/%/build.ninja: CMakePresets.json packages.txt | deps
	cmake --preset $*
	@touch $@
