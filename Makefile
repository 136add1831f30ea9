# The only build. `make help` lists what it makes; sources are found by globs, so there is no list
# to keep.
CC ?= gcc
BUILD ?= build
OPT ?= -O2
# What sanitizers report needs lines only, and -g1 compiles a quarter faster with them.
DEBUG ?= -g
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror=implicit
SANITIZE ?=
CPPFLAGS := -D_GNU_SOURCE -Iinclude -Isrc -Isrc/kernels -I. -I$(BUILD)/gen
# Nothing throws through C, and debuggers have tables of their own; these would be a tenth of the library.
TABLES := -fno-asynchronous-unwind-tables
CFLAGS := -std=c11 $(OPT) $(DEBUG) $(WARN) $(TABLES) -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno $(SANITIZE)
LDLIBS := -lpcre2-8 -lm -ldl -lpthread
# Relative relocations packed, a twelfth of the library, where the C library can read them (glibc 2.36 on).
PACKED := $(shell grep -qs GLIBC_ABI_DT_RELR "$$($(CC) -print-file-name=libc.so.6)" && \
    echo -Wl,-z,pack-relative-relocs)
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^.define CUP_VERSION_[A-Z]* //p' include/cupola/base.h | paste -sd.)
# V=1 shows the commands whole.
Q := $(if $(V),,@)
MAJOR := $(firstword $(subst ., ,$(VERSION)))
MINOR := $(word 2,$(subst ., ,$(VERSION)))
# Programs go on with a library of the same name; before 1.0 a minor version has another interface.
SERIES := $(if $(filter 0,$(MAJOR)),0.$(MINOR),$(MAJOR))

LIB_C := $(wildcard src/*/*.c src/*/*/*.c)
LIB_O := $(LIB_C:%.c=$(BUILD)/%.o) $(BUILD)/gen/kernels.o $(BUILD)/gen/dispatch/table.o
CLI_O := $(patsubst %.c,$(BUILD)/%.o,$(wildcard cli/*.c cli/*/*.c))
TEST_C := $(filter-out tests/fake/% tests/fuzz/%,$(wildcard tests/*.c tests/*/*.c))
TEST_O := $(TEST_C:%.c=$(BUILD)/%.o)
FAKE := $(foreach f,cuda.so.1 nvrtc.so nccl.so cudnn.so cudnn8.so cufft.so cusolver.so,$(BUILD)/fake/lib$f)
DEVICE := $(wildcard src/*/*.cuh src/*/*.cu src/*/*/*.cuh src/*/*/*.cu)
EMBEDDED := $(DEVICE) src/dispatch/tuning.tsv
LIB := $(BUILD)/libcupola.a
COMMAND := $(if $(CLI_O),$(BUILD)/cupola)

.PHONY: all
all: $(COMMAND) $(BUILD)/libcupola.so ## the library and the command (default)

$(LIB): $(LIB_O)
	@rm -f $@
	$(Q)ar rcs $@ $^

$(BUILD)/libcupola.so: $(LIB_O) src/cupola.map
	$(Q)$(CC) $(SANITIZE) -shared -Wl,-soname,libcupola.so.$(SERIES) -Wl,--version-script=src/cupola.map \
	    $(PACKED) -Wl,-z,defs -Wl,-z,nodelete -o $@ $(LIB_O) $(LDLIBS)

$(BUILD)/cupola: $(CLI_O) $(LIB)
	$(Q)$(CC) $(SANITIZE) -o $@ $(CLI_O) $(LIB) $(LDLIBS)

$(BUILD)/%.o: %.c | $(BUILD)/gen/dispatch/attributes.h $(BUILD)/gen/layers.h
	@mkdir -p $(@D) && echo "  CC $<"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

# What no step of a program waits for is made small, so that the library stays within its budget.
SMALL := $(filter-out src/custom/vectors% src/custom/expr_cpu.c, \
    $(wildcard $(foreach d,prof train io nn custom comm,src/$d/*.c) \
    src/ops/*/*_specification.c src/ops/*/*_composed.c \
    $(foreach f,cache code compile device dry explain loader pool_report unit,src/cuda/$f.c) \
    $(foreach f,images_arrays images_files loader mix nfc shards tokenizer_around tokenizer_export tokenizer_published walk, \
        src/data/$f.c) \
    $(foreach f,channels_last cuda cudnn cudnn_graph depthwise halo halo_weight impls mma numbers taps weight_taps wgmma wgmma_blocks \
        wgmma_few wgmma_maps wgmma_reach,src/ops/conv/conv_$f.c) $(wildcard src/ops/conv/scaled_*.c) \
    src/ops/attention/attention_formula.c src/ops/fourier/fft_cufft.c \
    $(wildcard src/ops/linalg/cusolver*.c) \
    $(foreach f,base/env base/json dispatch/tuned dispatch/tuning,src/$f.c)))
$(SMALL:%.c=$(BUILD)/%.o): CFLAGS += $(if $(filter -O2,$(OPT)),-Os)

$(BUILD)/gen/%.o: $(BUILD)/gen/%.c | $(BUILD)/gen/dispatch/attributes.h $(BUILD)/gen/layers.h
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/tests/%.o: CPPFLAGS += -Itests

$(BUILD)/all_kernels: tools/all_kernels.c $(LIB)
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -o $@ $^ $(LDLIBS)

.PHONY: kernels
kernels: $(BUILD)/all_kernels ## compiles every kernel for every architecture, no GPU needed; ARCH="sm_90a sm_80" OP="sum sort" for some
	CUP_CACHE=$(CURDIR)/$(BUILD)/kernels $(BUILD)/all_kernels $(ARCH) $(if $(OP),-- $(OP))

.PHONY: pack
pack: $(COMMAND) ## compiles the common kernels into one file that make install takes along; ARCH="sm_90a sm_80"
	$(BUILD)/cupola kernels build --common --arch $(or $(ARCH),sm_90a) --pack $(BUILD)/kernels.pack

# Tools that run while building.
$(BUILD)/tools/%: tools/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -O1 -Wall -Wextra -D_GNU_SOURCE -Iinclude -Isrc -o $@ $<

$(BUILD)/tools/gen_ops: tools/gen_ops.c tools/gen_ops_rows.c tools/gen_ops.h
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -O1 -Wall -Wextra -D_GNU_SOURCE -o $@ $(filter %.c,$^)

$(BUILD)/gen/kernels.c: $(BUILD)/tools/embed $(EMBEDDED)
	@mkdir -p $(@D)
	$(Q)$(BUILD)/tools/embed $(EMBEDDED) > $@.tmp && mv $@.tmp $@

# The table of ops: attributes and rows for the build, the public header and the page for people.
$(BUILD)/gen/dispatch/attributes.h: $(BUILD)/tools/gen_ops src/dispatch/ops.def
	@mkdir -p $(@D)
	$(Q)$(BUILD)/tools/gen_ops src/dispatch/ops.def $(BUILD)/gen && touch $@
$(BUILD)/gen/dispatch/table.c: $(BUILD)/gen/dispatch/attributes.h ;

# The public header of layers, from their sources.
$(BUILD)/gen/layers.h: tools/gen_layers $(wildcard src/nn/layers*.c)
	@mkdir -p $(@D)
	$(Q)tools/gen_layers >$@ && { cmp -s $@ include/cupola/layers.h || cp $@ include/cupola/layers.h; }

.PHONY: gen
gen: $(BUILD)/gen/dispatch/attributes.h $(BUILD)/gen/layers.h ## what is written from tables: ops.h, layers.h, docs/OPS.md, man pages, completions, docs/PERFORMANCE.md
	$(Q)$(MAKE) --no-print-directory $(BUILD)/cupola
	$(BUILD)/cupola write-pages docs
	$(Q)tools/performance $(BUILD)/cupola

# The command's parts are tested inside the test program too, all but its main.
TEST_O += $(filter-out $(BUILD)/cli/cupola.o,$(CLI_O))
$(BUILD)/test: $(TEST_O) $(LIB)
	$(Q)$(CC) $(SANITIZE) -rdynamic -o $@ $(TEST_O) $(LIB) -lcheck -lsubunit -lrt $(LDLIBS)

# Stand-ins for the driver, NVRTC, NCCL, cuDNN, also an old one, cuFFT and cuSOLVER, for tests without a GPU.
$(BUILD)/fake/libcuda.so.1: $(wildcard tests/fake/cuda*.c) tests/fake/fake.h src/cuda/api.h src/cuda/driver.def
	@mkdir -p $(@D) && echo "  CC $@"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -shared -o $@ $(filter %.c,$^) -lpthread

$(BUILD)/fake/libnccl.so: tests/fake/nccl.c src/cuda/api.h src/cuda/nccl.h src/cuda/nccl.def
	@mkdir -p $(@D) && echo "  CC $@"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -shared -o $@ $(filter %.c,$^)

$(BUILD)/fake/libcudnn.so $(BUILD)/fake/libcudnn8.so: tests/fake/cudnn.c tests/fake/cudnn.h src/cuda/cudnn.h src/cuda/cudnn.def
	@mkdir -p $(@D) && echo "  CC $@"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) $(if $(findstring 8,$(@F)),-DFAKE_CUDNN_8) -shared -o $@ $< -ldl

$(BUILD)/fake/libcufft.so $(BUILD)/fake/libcusolver.so: $(BUILD)/fake/lib%.so: tests/fake/%.c tests/fake/%.h \
    tests/fake/counted.h tests/fake/cusolver_real.h src/cuda/%.h src/cuda/%.def
	@mkdir -p $(@D) && echo "  CC $@"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -shared -o $@ $< -ldl -lm

$(BUILD)/fake/libnvrtc.so: tests/fake/nvrtc.c src/cuda/api.h src/cuda/nvrtc.def
	@mkdir -p $(@D) && echo "  CC $@"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -shared -o $@ $(filter %.c,$^)

.PHONY: test test-build
test-build: $(BUILD)/test $(COMMAND) $(BUILD)/libcupola.so $(FAKE) $(BUILD)/tools/tree
test: test-build ## all tests; K=word runs those with the word in their name, K=-word the others
	BUILD=$(BUILD) SANITIZE="$(SANITIZE)" $(BUILD)/test $(K)

.PHONY: random
random: $(COMMAND) ## random calls of every op on the CPU, others each time; CALLS=n
	$(BUILD)/cupola check --device cpu --random $(or $(CALLS),5000)

.PHONY: gpu
gpu: $(BUILD)/test $(COMMAND) $(BUILD)/tools/tree $(FAKE) ## all that a GPU can tell, and its line in bench/checked.tsv; K=word SEED=1 CALLS=20000 KERNELS=5000 GOALS=1
	$(Q)tools/gpu $(BUILD) $(K)

.PHONY: cards
cards: $(BUILD)/test $(COMMAND) $(BUILD)/bench/gpt_steps $(BUILD)/bench/together ## what several GPUs do together, checked and timed; K="equal tokens apart sums offload shared save large peer" GPUS=n TOTAL=300
	$(Q)tools/cards $(BUILD) $(K)

.PHONY: sanitize
sanitize: $(COMMAND) $(BUILD)/tools/tree ## compute-sanitizer's four tools over every family of kernels on GPUs; CALLS=40 SEED=1 TOOLS="memcheck" FAMILIES="pooling" TOTAL=500
	tools/sanitize $(BUILD)

# Programs of bench/ may look inside the library, so they are built to see whether they still can.
.PHONY: programs
programs: $(patsubst %.c,$(BUILD)/%,$(wildcard bench/*.c)) ## the programs of bench/

$(BUILD)/bench/%: $(BUILD)/bench/%.o $(LIB)
	$(Q)$(CC) $(SANITIZE) -o $@ $^ $(LDLIBS)

# Ours and the peers interleaved, appended to the records; then what changed since, and the page.
.PHONY: bench
bench: all $(BUILD)/bench/prepare ## times every op and its peers (PyTorch, CuPy) on the GPU; ARGS="--only word --no-compile"
	$(Q)$(BUILD)/cupola info --json | grep -q '"usable": true' || \
	    { echo "make bench: there is no GPU here that can be used; cupola info says why"; exit 3; }
	$(Q)cp bench/records.tsv $(BUILD)/records.before.tsv
	$(Q)if python3 -c 'import torch' 2>$(BUILD)/torch.log; then \
	    python3 bench/peers.py --list | $(BUILD)/bench/prepare && \
	    python3 bench/peers.py --lib $(BUILD)/libcupola.so --records bench/records.tsv $(ARGS); \
	else \
	    echo "make bench: there is no PyTorch here, so the calls of bench/goals.tsv are timed alone"; \
	    $(BUILD)/cupola bench --goals bench/goals.tsv --format tsv >$(BUILD)/records.new.tsv && \
	    tail -n +2 $(BUILD)/records.new.tsv >>bench/records.tsv; \
	fi
	$(BUILD)/cupola bench --from bench/records.tsv --format html >$(BUILD)/bench.html
	$(Q)tools/performance $(BUILD)/cupola
	$(BUILD)/cupola bench --compare $(BUILD)/records.before.tsv bench/records.tsv

.PHONY: abi abi-list
abi: ## the interface against the last release's; our declarations of the driver, NVRTC, cuBLASLt, cuDNN, cuFFT and cuSOLVER against NVIDIA's
	CC="$(CC)" tools/interface --compare $(lastword $(shell ls docs/abi/*.txt | sort -V))
	CC="$(CC)" tools/abi $(TOOLKIT)

abi-list: ## at a release: writes its interface to docs/abi, for later versions to be held against
	CC="$(CC)" tools/interface >docs/abi/$(VERSION).txt

# Sanitizers make tests slower, so each has more time.
.PHONY: asan tsan asan-build tsan-build
asan: export CK_TIMEOUT_MULTIPLIER := 5
# Ops make random calls and graphs here, which are small, in place of the fixed calls of each and of
# differences of them, which take minutes and go through the same lines. Left out, too, are calls that
# are held against doubles or differences, and runs that learn; empty tensors, which are drawn at
# random, too; samples that are run again on other numbers of threads, the examples of --help, caches
# of every size, and kills and stops of the command, which have tests of their own beside. Of runs
# that several processes share those left out are others again with dropout, experts, adapters,
# chunks, policies or two ways at once; and kills at each operation leave off what others do to the
# end.
OPS := $(shell sed -n 's/^\(OP\|FUNCTION\|INTERNAL\|OPTIMIZER\).\([a-z0-9_]*\),.*/\2/p' src/dispatch/ops.def)
ASAN_K := $(foreach o,$(OPS),-op_$o -gradient_$o) \
    -deterministic_ops -examples_run -bpe_cache -ends_soon \
    -launchers_ -meets_a_full_disk_ -deterministic_runs_ -equal_losses -matmul_by_named_blas \
    -random_calls_of_every_op \
    -survives_kills -survives_a_stop -killed_at_any -names_who_is_ -training_says_what_ \
    -are_whole_after_a -together_is_whole_after_a -parts_go_on_as -experts_go_on_as \
    -parallel_runs_with_muon -stages_are_the_run_of_one -parallel_experts_are_the_run \
    -launch_train_with_split_states -launch_train_by_many -parallel_chunks_are_the_run \
    -parallel_parts_with_split -parallel_parts_that -parallel_stages_with_split -parallel_stages_of \
    -parallel_experts_that_all_have -parallel_experts_with_split -parallel_experts_beside \
    -parallel_experts_in -parallel_experts_of -parallel_buckets_beside -parallel_tokens_between \
    -parallel_texts_in_parts_beside -parallel_texts_in_parts_drop -parallel_parts_drop \
    -parallel_stages_drop -parallel_stages_are_copied -parallel_chunks_are_copied \
    -parallel_checkpoints -parallel_adapters -parallel_stages_that -parallel_policies \
    -parallel_evaluations -parallel_weights_beside -saved_weights_begin_runs_of_experts \
    -backward_passes_what -run_script_says \
    -stages_take_less -stages_of_a_programs -graph_random_ones -fp8_learns -loss_scale_lets -empty_ \
    -expr_calls_agree -gpt_experts_have_the_slopes -products_of_f32 -convolutions_of_f32 \
    -accuracy_at_the_timed_shape \
    -together_gradients_in_buckets -bench_formats -bench_shapes -bench_goals_behind \
    -together_gpus_add_up -trainer_stops_between -stand_in_random -sanitize_script -install_examples
ASAN := BUILD=build/asan OPT=-O1 DEBUG=-g1 \
    SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover -fno-omit-frame-pointer"
asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(MAKE) $(ASAN) K="$(or $(K),$(ASAN_K))" test
	$(if $(K),,build/asan/cupola check --device cpu --random 3000)
	$(if $(K),,build/asan/cupola check --device cpu --graphs 200)
# Ten times slower than without, so it runs the tests with threads unless K says otherwise; kills
# at each of forty operations, or of one of several processes, runs that processes share in one more
# way, or that resume with one more optimizer, show no more of threads than others do.
TSAN_K := op_gelu op_sum op_softmax_grad op_linear_relu op_adamw tensor_ cuda_ cache_ \
    kernels_t pool_random bpe_ data_ train threads_ -killed_at_any -survives_kills -survives_a_stop \
    -ends_soon -bpe_cache -training_says_what -names_who_is_slow -meets_a_full_disk_ \
    -with_split_states -launch_train_by_many -launch_train_shares_out -launch_train_goes_on \
    -with_other_kinds
tsan: export CK_TIMEOUT_MULTIPLIER := 20
# OpenBLAS has threads of its own when a test forks, and mends itself in the child.
tsan: export TSAN_OPTIONS := die_after_fork=0
TSAN := BUILD=build/tsan OPT=-O1 DEBUG=-g1 SANITIZE=-fsanitize=thread
tsan: ## a part of the tests under ThreadSanitizer
	$(MAKE) $(TSAN) K="$(or $(K),$(TSAN_K))" test
asan-build tsan-build: ## compile what these run, and run nothing
	$(MAKE) $(if $(filter asan%,$@),$(ASAN),$(TSAN)) test-build

# Where make install puts things; a packager sets DESTDIR, PREFIX and LIBDIR.
DESTDIR ?=
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
BINDIR ?= $(PREFIX)/bin
MANDIR ?= $(PREFIX)/share/man
BASH_COMPLETIONS ?= $(PREFIX)/share/bash-completion/completions
ZSH_COMPLETIONS ?= $(PREFIX)/share/zsh/site-functions
DATADIR ?= $(PREFIX)/share/cupola
CMAKEDIR = $(LIBDIR)/cmake/Cupola
FILL = sed -e 's|@PREFIX@|$(PREFIX)|g' -e 's|@LIBDIR@|$(LIBDIR)|g' -e 's|@VERSION@|$(VERSION)|g' \
    -e 's|@INCLUDEDIR@|$(INCLUDEDIR)|g' -e 's|@MAJOR@|$(MAJOR)|g' -e 's|@MINOR@|$(MINOR)|g' -e 's|@SERIES@|$(SERIES)|g' \
    -e "s|@INCLUDE_FROM_LIB@|$$(realpath -m --relative-to='$(LIBDIR)' '$(INCLUDEDIR)')|g"
AT = $(DESTDIR)
SO = libcupola.so

.PHONY: install uninstall
install: all ## library, headers, command, pages; DESTDIR= PREFIX= LIBDIR=
	$(Q)install -d '$(AT)$(LIBDIR)/pkgconfig' '$(AT)$(CMAKEDIR)' '$(AT)$(INCLUDEDIR)/cupola' '$(AT)$(BINDIR)' \
	    '$(AT)$(MANDIR)/man1' '$(AT)$(BASH_COMPLETIONS)' '$(AT)$(ZSH_COMPLETIONS)'
	$(Q)install -m 644 include/cupola/*.h '$(AT)$(INCLUDEDIR)/cupola'
	$(Q)install -m 644 $(LIB) '$(AT)$(LIBDIR)'
	$(Q)install -m 755 $(BUILD)/$(SO) '$(AT)$(LIBDIR)/$(SO).$(VERSION)'
	$(Q)ln -sf $(SO).$(VERSION) '$(AT)$(LIBDIR)/$(SO).$(SERIES)'
	$(Q)ln -sf $(SO).$(SERIES) '$(AT)$(LIBDIR)/$(SO)'
	$(Q)install -m 755 $(BUILD)/cupola '$(AT)$(BINDIR)'
	$(Q)if [ -f $(BUILD)/kernels.pack ]; then install -d '$(AT)$(DATADIR)' && \
	    install -m 644 $(BUILD)/kernels.pack '$(AT)$(DATADIR)'; fi
	$(Q)install -m 644 docs/man/*.1 '$(AT)$(MANDIR)/man1'
	$(Q)install -m 644 docs/completion/cupola.bash '$(AT)$(BASH_COMPLETIONS)/cupola'
	$(Q)install -m 644 docs/completion/_cupola '$(AT)$(ZSH_COMPLETIONS)'
	$(Q)$(FILL) tools/package/cupola.pc.in >'$(AT)$(LIBDIR)/pkgconfig/cupola.pc'
	$(Q)for f in CupolaConfig CupolaConfigVersion; do \
	    $(FILL) tools/package/$$f.cmake.in >'$(AT)$(CMAKEDIR)'/$$f.cmake || exit 1; done
# The loader finds a library in a usual folder by its cache, which a packager leaves to the package.
	$(Q)if [ -z '$(DESTDIR)' ] && [ "$$(id -u)" = 0 ]; then PATH="$$PATH:/sbin:/usr/sbin" ldconfig; fi

uninstall: ## removes what make install put there
	$(Q)rm -f '$(AT)$(LIBDIR)/$(notdir $(LIB))' '$(AT)$(LIBDIR)/$(SO)' '$(AT)$(LIBDIR)/$(SO).$(SERIES)' \
	    '$(AT)$(LIBDIR)/$(SO).$(VERSION)' '$(AT)$(LIBDIR)/pkgconfig/cupola.pc' '$(AT)$(BINDIR)/cupola' \
	    '$(AT)$(BASH_COMPLETIONS)/cupola' '$(AT)$(ZSH_COMPLETIONS)/_cupola' \
	    '$(AT)$(MANDIR)'/man1/cupola.1 '$(AT)$(MANDIR)'/man1/cupola-*.1
	$(Q)rm -rf '$(AT)$(CMAKEDIR)' '$(AT)$(DATADIR)' '$(AT)$(INCLUDEDIR)/cupola'

.PHONY: lint size analyze
lint: $(BUILD)/$(SO) $(BUILD)/tools/tree ## the rules of docs/RULES.md that a machine can check
	tools/lint

MOST_BYTES := 3700000
size: all ## what is shipped, stripped, against its budget
	$(Q)strip -o $(BUILD)/stripped.so $(BUILD)/$(SO)
	$(Q)size=$$(stat -c %s $(BUILD)/stripped.so); \
	    echo "$(SO): $$size bytes stripped, at most $(MOST_BYTES)"; test $$size -le $(MOST_BYTES)

analyze: ## gcc's static analyzer over the library and the command
	$(MAKE) BUILD=build/analyze WARN="$(WARN) -fanalyzer" all

# Fuzzers need clang; what they are built with is set by tests/fuzz/run.
SECONDS ?= 10
.PHONY: fuzz
fuzz: ## every fuzzer of tests/fuzz for SECONDS=10; K=word runs those with the word in their name
	tests/fuzz/run $(SECONDS) $(K)

$(BUILD)/fuzz/seeds: $(BUILD)/tests/fuzz/seeds.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(SANITIZE) -fsanitize=address -o $@ $^ $(LDLIBS)

$(BUILD)/fuzz/%: $(BUILD)/tests/fuzz/%.o $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(SANITIZE) -fsanitize=fuzzer -o $@ $^ $(LDLIBS)

.PHONY: clean
clean: ## removes build/
	rm -rf build

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z][a-z -]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-14s %s\n", $$1, $$2}'

-include $(wildcard $(BUILD)/*/*.d $(BUILD)/*/*/*.d $(BUILD)/*/*/*/*.d)
