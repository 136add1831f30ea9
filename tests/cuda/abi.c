/* Our declarations against NVIDIA's headers, where a toolkit is installed. */
#include "test.h"

TEST(abi_agrees_with_nvidia)
{
    char out[2000];
    int code = test_command(out, sizeof out, "tools/abi");
    if (code == 77)
        test_skip("%.120s", out);
    if (code)
        test_fail(__FILE__, __LINE__, "%s", out);
}
