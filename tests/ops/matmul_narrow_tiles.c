/* The narrow tiles of products on Hopper compile. Few calls take them, such as products of few
 * columns whose k is cut, so that no check may meet them. */
#include <string.h>

#include "../cuda/support.h"
#include "base/memory.h"
#include "cuda/loader.h"
#include "cuda/unit.h"
#include "test.h"

#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static void expect_compiles(int64_t columns, int64_t parts)
{
    const cup__knob knobs[] = {
        {"CUP_T", 3},        {"B_T", 3},       {"Y_T", 3},        {"TILE_M", 64},
        {"TILE_N", columns}, {"CONSUMERS", 1}, {"PINGPONG", 0},   {"STAGES", 12},
        {"CLUSTER_M", 1},    {"CLUSTER_N", 1}, {"CLUSTER_K", 1},  {"PARTS", parts},
        {"A_ALONG", 0},      {"B_ALONG", 0},   {"ACTIVATION", 0}, {"ADDING", 0},
        {"BATCH", 0},        {"DROPOUT", 0},   {"FACTOR", 1},     {"GROUPS", 0},
        {"HAS_BIAS", 0},     {"HAS_PRE", 0},   {"OTHER", 0},      {"OTHER_BUFFERS", 1},
        {"PROMOTE", 0},      {"SCALES", 0},    {"SCALE_VEC", 1},  {"STAGING_BUFFERS", 4},
        {"SUM_A", 0},        {"WATCHDOG", 0},  {"Y_DIRECT", 0},
    };
    cup__error error = {0};
    cup__unit unit;
    cup__code code;
    EXPECT_OK(&error, cup__unit_open(&error, "wgmma.cu", NULL, &unit));
    cup__compile_strictly();
    cup_status status = cup__unit_compile(&error, &unit, "sm_90a", knobs, COUNT(knobs), &code);
    cup__unit_close(&unit);
    if (status == CUP_COMPILE && strstr(error.text, "as old as"))
        test_skip("%.150s", error.text);
    EXPECT_OK(&error, status);
    cup__free(code.bytes);
}

TEST(matmul_narrow_tiles_compile)
{
    if (!cup__library_open(CUP__LIBNVRTC))
        test_skip("no NVRTC: %.120s", cup__library_report_of(CUP__LIBNVRTC)->reason);
    for (int parts = 0; parts < 2; parts++) {
        expect_compiles(32, parts);
        expect_compiles(64, parts);
    }
}
