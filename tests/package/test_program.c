/* The program of the tests answers its options, and runs nothing then. */
#include <string.h>

#include "../test.h"

TEST(test_program_has_help)
{
    char out[4000];
    EXPECT_INT(test_command(out, sizeof out, "%s/test nothing_ --help", test_build()), 0);
    EXPECT_CONTAINS(out, "usage: test [WORD|-WORD]");
    EXPECT_CONTAINS(out, "TEST_JOBS=N");
    EXPECT(!strstr(out, "passed"));
}

TEST(test_program_refuses_options_that_it_does_not_have)
{
    char out[4000];
    EXPECT_INT(test_command(out, sizeof out, "%s/test nothing_ --jobs=3", test_build()), 2);
    EXPECT_CONTAINS(out, "there is no option --jobs=3; --help tells what there is");
    EXPECT(!strstr(out, "passed"));
}
