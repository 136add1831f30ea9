/* tools/interface: an interface that programs were built with does not change under them. */
#include "test.h"

static char out[40000];

/* Holds this tree against a list: that of this version, edited. */
static int compare(const char *folder, const char *edit)
{
    return test_command(out, sizeof out,
                        "tools/interface >'%s/was.txt' && sed -i '%s' '%s/was.txt' && "
                        "tools/interface --compare '%s/was.txt' 2>&1",
                        folder, edit, folder, folder);
}

TEST(interface_says_what_it_is)
{
    static const char *const lines[] = {
        "call cup_add: cup_tensor *(cup_context *, cup_tensor *, cup_tensor *)",
        "struct cup_ints: 16 bytes", "field cup_ints.count: at 8",
        "enumerator cup_split.CUP_SPLIT_VALIDATION: 1", "field cup_training_hooks.saved: at 16"};
    const char *folder = test_folder();
    EXPECT_INT(test_command(out, sizeof out, "tools/interface >'%s/now.txt'", folder), 0);
    for (int i = 0; i < 5; i++)
        if (test_command(out, sizeof out, "grep -xF '%s' '%s/now.txt'", lines[i], folder))
            test_fail(__FILE__, __LINE__, "there is no line \"%s\"", lines[i]);
}

TEST(interface_may_grow)
{
    EXPECT_INT(compare(test_folder(), "/^call cup_add:/d"), 0);
    EXPECT_CONTAINS(out, ": 0 lines of the interface are gone or others, 1 new");
}

TEST(interface_changes_with_the_version_only)
{
    static const char *const edits[] = {
        "s/^call cup_add:/call cup_plus:/", "s/^call cup_add: cup_tensor/call cup_add: void/",
        "s/^struct cup_ints: 16/struct cup_ints: 24/", "s/^field cup_ints.count: at 8/&0/",
        "s/CUP_SPLIT_VALIDATION: 1/CUP_SPLIT_VALIDATION: 2/"};
    const char *folder = test_folder();
    for (int i = 0; i < 5; i++) {
        EXPECT_INT(compare(folder, edits[i]), 1);
        EXPECT_CONTAINS(out, "include: no longer as in ");
        EXPECT_CONTAINS(out, "raise the version in include/cupola/base.h");
    }
    /* Of an older series it may be. */
    EXPECT_INT(compare(folder, "s/^version .*/version 0.0.7/; s/^call cup_add:/call cup_no:/"), 0);
    EXPECT_CONTAINS(out, " against 0.0.7: 1 lines of the interface are gone or others, 1 new");
}

/* A library that is newer than a program must see where the program's structs end. */
TEST(interface_structs_that_callers_fill_have_a_size)
{
    /* What the library fills; elements of lists, and of options that have a size. */
    static const char *const others =
        "cup_bench_result|cup_cached_kernel|cup_ceiling|cup_check_result|cup_hold|cup_preset|"
        "cup_training_point|cup_tune_result|cup_plan_op|cup_loader_state|"
        "cup_kernel_argument|cup_loader_array|cup_named|cup_parameter|cup_schedule";
    const char *folder = test_folder();
    int failed = test_command(
        out, sizeof out,
        "tools/interface >'%s/now.txt' && grep -o 'const cup_[a-z0-9_]* [*]' '%s/now.txt' | "
        "cut -d' ' -f2 | sort -u | grep -vxE '%s|cup_[a-z0-9_]*_layer' | while read -r type; do "
        "if grep -q \"^struct $type:\" '%s/now.txt' && "
        "! grep -qxF \"field $type.size: at 0\" '%s/now.txt'; then echo \"$type\"; fi; done",
        folder, folder, others, folder, folder);
    EXPECT_INT(failed, 0);
    EXPECT_TEXT(out, "");
    EXPECT_INT(compare(folder, "s/^struct cup_options: [0-9]*/struct cup_options: 16/"), 0);
    EXPECT_CONTAINS(out, ": 0 lines of the interface are gone or others, 1 new");
    EXPECT_INT(compare(folder, "s/^struct cup_options: [0-9]*/struct cup_options: 1600/"), 1);
}
