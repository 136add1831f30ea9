/* What the library tells of the machine, with the fake driver and without. */
#include "cupola/facts.h"

#include <stdlib.h>
#include <string.h>

#include "cupola/cupola.h"
#include "support.h"
#include "test.h"

TEST(facts_of_no_gpu)
{
    char why[64];
    cup_gpu gpu;
    cup_library_facts library;
    setenv("CUP_LIBCUDA", "off", 1);
    EXPECT_INT(cup_gpu_count(NULL, 0), 0);
    EXPECT_INT(cup_gpu_count(why, sizeof why), 0);
    EXPECT(strlen(why) > 10 && strlen(why) < sizeof why);
    EXPECT_INT(cup_gpu_look(0, &gpu), CUP_NO_DEVICE);
    EXPECT(!gpu.usable && strlen(gpu.why) > 10);
    EXPECT_INT(cup_library_look(CUP_LIBRARY_DRIVER, &library), CUP_OK);
    EXPECT(!library.found && library.text[0] && library.cure[0]);
    EXPECT_INT(cup_library_look(CUP_LIBRARY_BLAS, &library), CUP_OK);
    EXPECT(library.text[0]);
    setenv("CUP_LIBCUFFT", "off", 1);
    setenv("CUP_LIBCUSOLVER", "off", 1);
    EXPECT_INT(cup_library_look(CUP_LIBRARY_CUFFT, &library), CUP_OK);
    EXPECT_TEXT(library.name, "cuFFT");
    EXPECT_INT(cup_library_look(CUP_LIBRARY_CUSOLVER, &library), CUP_OK);
    EXPECT_TEXT(library.name, "cuSOLVER");
    EXPECT_TEXT(library.text, "CUP_LIBCUSOLVER=off");
    setenv("CUP_LIBCUDNN", "off", 1);
    EXPECT_INT(cup_library_look(CUP_LIBRARY_CUDNN, &library), CUP_OK);
    EXPECT(!library.found);
    EXPECT_TEXT(library.name, "cuDNN");
    EXPECT_INT(cup_library_look((cup_library)8, &library), CUP_ARGUMENT);
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT(!cup_gpu_of(c, &gpu));
    EXPECT_INT(cup_error(c), CUP_OK);
    EXPECT(cup_device_computes_in(c, CUP_F32) && !cup_device_computes_in(c, CUP_BF16));
    cup_context_free(c);
}

TEST(facts_of_a_gpu)
{
    char why[64] = "old";
    cup_gpu gpu, same;
    fake_begin();
    int count = cup_gpu_count(why, sizeof why);
    EXPECT(count > 0);
    EXPECT_TEXT(why, "");
    EXPECT_INT(cup_gpu_look(0, &gpu), CUP_OK);
    EXPECT(gpu.usable && !gpu.why[0] && gpu.name[0] && gpu.memory_bytes > 0);
    EXPECT(!strncmp(gpu.arch, "sm_", 3) && gpu.major >= 7 && gpu.multiprocessors > 0);
    EXPECT_INT(cup_gpu_look(count, &same), CUP_NO_DEVICE);
    EXPECT_CONTAINS(same.why, "cuda:");
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda"));
    EXPECT(cup_gpu_of(c, &same));
    EXPECT_TEXT(same.name, gpu.name);
    EXPECT(cup_device_computes_in(c, CUP_BF16) == (gpu.major >= 8));
    EXPECT(!cup_device_computes_in(c, CUP_I32));
    cup_context_free(c);
}

TEST(facts_of_ops)
{
    cup_op_facts op;
    cup_op_way way;
    int gelu = cup_op_find("gelu"), count = 0;
    EXPECT(cup_op_at(gelu, &op));
    EXPECT_TEXT(op.name, "gelu");
    EXPECT(op.is_public && op.has_gradient && !op.is_view && op.words[0]);
    EXPECT(cup_op_way_at(gelu, 0, &way) && way.name[0]);
    while (cup_op_way_at(gelu, count, &way))
        count++;
    EXPECT(count >= 2 && !way.is_cuda);
    EXPECT_INT(cup_op_find("gelo"), -1);
    EXPECT(!cup_op_at(-1, &op) && !cup_op_way_at(-1, 0, &way) && !cup_op_way_at(gelu, -1, &way));
    for (count = 0; cup_op_at(count, &op); count++)
        EXPECT_INT(cup_op_find(op.name), count);
    EXPECT(count > 100);
}

static char told[4000];

static void tell(const char *sentence, bool counts, void *user)
{
    snprintf(told + strlen(told), sizeof told - strlen(told), "%s%s\n", counts ? "" : "(no) ",
             sentence);
    ++*(int *)user;
}

TEST(facts_of_variables)
{
    cup_variable variable;
    int count = 0, found = 0;
    setenv("CUP_TUNING", "off", 1);
    setenv("CUP_THREADS", "3", 1);
    EXPECT_INT(cup_variables_check(tell, &found), CUP_OK);
    EXPECT_TEXT(told, "");
    EXPECT_INT(cup_threads(), 3);
    for (; cup_variable_at(count, &variable); count++)
        if (!strcmp(variable.name, "CUP_THREADS")) {
            EXPECT_TEXT(variable.value, "3");
            EXPECT_TEXT(variable.standard, "0");
        }
    EXPECT(count > 10 && !cup_variable_at(-1, &variable));
    setenv("CUP_THREADS", "x", 1);
    setenv("CUP_IMPL", "gelo=a,gelu=b", 1);
    EXPECT_INT(cup_variables_check(tell, &found), CUP_ARGUMENT);
    EXPECT_INT(found, 3);
    EXPECT_CONTAINS(told, "there is no op gelo");
    EXPECT_CONTAINS(told, "gelu has no implementation \"b\"");
    EXPECT_CONTAINS(told, "CUP_THREADS=x");
    EXPECT_INT(cup_variables_check(NULL, NULL), CUP_ARGUMENT);
    EXPECT(cup_threads() >= 1);
}

TEST(facts_of_variables_that_cost_little)
{
    char path[4400];
    int found = 0;
    snprintf(path, sizeof path, "%s/r.tsv", test_folder());
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_file_write(c, path, "nonsense\n", 9), CUP_OK);
    cup_context_free(c);
    setenv("CUP_TUNING", path, 1);
    EXPECT_INT(cup_variables_check(tell, &found), CUP_OK);
    EXPECT_INT(found, 1);
    EXPECT_CONTAINS(told, "(no) ");
}
