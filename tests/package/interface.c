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
        "enumerator cup_split.CUP_SPLIT_VALIDATION: 1", "field cup_training_hooks.saved: at 8"};
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
