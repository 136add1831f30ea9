# The only build. `make help` lists what it makes; sources are found by globs, so there is no list
# to keep.
CC ?= gcc
BUILD ?= build
OPT ?= -O2
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Werror=implicit
SANITIZE ?=
CPPFLAGS := -D_GNU_SOURCE -Iinclude -Isrc -I. -I$(BUILD)/gen
CFLAGS := -std=c11 $(OPT) -g $(WARN) -fPIC -fvisibility=hidden -fopenmp -ffp-contract=off -fno-math-errno $(SANITIZE)
LDLIBS := -lpcre2-8 -lm -ldl -lpthread -fopenmp
PREFIX ?= /usr/local
VERSION := $(shell sed -n 's/^.define CUP_VERSION_[A-Z]* //p' include/cupola/base.h | paste -sd.)
# V=1 shows the commands whole.
Q := $(if $(V),,@)
MAJOR := $(firstword $(subst ., ,$(VERSION)))

LIB_C := $(wildcard src/*/*.c)
LIB_O := $(LIB_C:%.c=$(BUILD)/%.o) $(BUILD)/gen/kernels.o
CLI_O := $(patsubst %.c,$(BUILD)/%.o,$(wildcard cli/*.c))
TEST_O := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/*.c tests/*/*.c))
DEVICE := $(wildcard src/kernels/*.cuh src/ops/*.cu src/optim/*.cu)
LIB := $(BUILD)/libcupola.a
COMMAND := $(if $(CLI_O),$(BUILD)/cupola)

.PHONY: all
all: $(COMMAND) $(BUILD)/libcupola.so ## the library and the command (default)

$(LIB): $(LIB_O)
	@rm -f $@
	$(Q)ar rcs $@ $^

$(BUILD)/libcupola.so: $(LIB_O) src/cupola.map
	$(Q)$(CC) $(SANITIZE) -shared -Wl,-soname,libcupola.so.$(MAJOR) -Wl,--version-script=src/cupola.map \
	    -Wl,-z,defs -o $@ $(LIB_O) $(LDLIBS)

$(BUILD)/cupola: $(CLI_O) $(LIB)
	$(Q)$(CC) $(SANITIZE) -o $@ $(CLI_O) $(LIB) $(LDLIBS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D) && echo "  CC $<"
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/gen/%.o: $(BUILD)/gen/%.c
	$(Q)$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/tests/%.o: CPPFLAGS += -Itests

# Tools that run while building.
$(BUILD)/tools/%: tools/%.c
	@mkdir -p $(@D)
	$(Q)$(CC) -std=c11 -O1 -Wall -Wextra -D_GNU_SOURCE -Iinclude -Isrc -o $@ $<

$(BUILD)/gen/kernels.c: $(BUILD)/tools/embed $(DEVICE)
	@mkdir -p $(@D)
	$(BUILD)/tools/embed $(DEVICE) > $@.tmp && mv $@.tmp $@

.PHONY: gen
gen: $(BUILD)/tools/gen_ops ## what is written from tables: ops.h and its companions, man pages, completions
	$(BUILD)/tools/gen_ops src/ops/ops.def
	$(Q)$(MAKE) --no-print-directory $(BUILD)/cupola
	$(BUILD)/cupola write-pages docs

# The command's parts are tested inside the test program too, all but its main.
TEST_O += $(filter-out $(BUILD)/cli/cupola.o,$(CLI_O))
$(BUILD)/test: $(TEST_O) $(LIB)
	$(Q)$(CC) $(SANITIZE) -o $@ $(TEST_O) $(LIB) -lcheck -lsubunit -lrt $(LDLIBS)

.PHONY: test
test: $(BUILD)/test $(COMMAND) ## all tests; K=word runs those with the word in their name
	BUILD=$(BUILD) $(BUILD)/test $(K)

# Programs of bench/ may look inside the library.
$(BUILD)/bench/%: $(BUILD)/bench/%.o $(LIB)
	$(Q)$(CC) $(SANITIZE) -o $@ $^ $(LDLIBS)

.PHONY: asan ubsan tsan
asan: ## the tests under AddressSanitizer
	$(MAKE) BUILD=build/asan OPT=-O1 SANITIZE="-fsanitize=address -fno-omit-frame-pointer" test
ubsan: ## the tests under UndefinedBehaviorSanitizer
	$(MAKE) BUILD=build/ubsan OPT=-O1 SANITIZE="-fsanitize=undefined -fno-sanitize-recover" test

.PHONY: clean
clean: ## removes build/
	rm -rf build

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z][a-z -]*\):.*## /\1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "make %-14s %s\n", $$1, $$2}'

-include $(wildcard $(BUILD)/*/*.d $(BUILD)/*/*/*.d)
