/* Training by several processes on GPUs, on the stand-ins for the driver and for NCCL. */
#include <stdlib.h>

#include "cuda/support.h"
#include "data/shapes.h"
#include "test.h"

/* How many times NCCL was called in the last step before a product of backward, and how often a
 * step was not captured. */
static const char count[] =
    "grep -v '^\\[1\\]' log | awk '/launch: NCCL/ {n++} /launch: matmul/ {m = n} "
    "/launch: adamw/ {s = m - before; before = n} /not captured/ {w++} "
    "END {print (s > 1 ? \"some\" : s), w + 0}'";

static void expect_code(int code, int expected, const char *out)
{
    if (code != expected)
        test_fail(__FILE__, __LINE__, "code %d, expected %d: %s", code, expected, out);
}

static void train(const char *folder, const char *bucket, const char *expected)
{
    char out[4000];
    setenv("CUP_COMM_BUCKET", bucket, 1);
    int code = test_command(
        out, sizeof out,
        "build=$(realpath '%s') && cd '%s' && seq 3000 >t && "
        "CUP_LIBCUDA=$build/fake/libcuda.so.1 CUP_LIBNVRTC=$build/fake/libnvrtc.so "
        "CUP_LIBNCCL=$build/fake/libnccl.so FAKE_NVRTC_ANY=1 CUP_LOG=launch $build/cupola train "
        "--processes 2 --device cuda --data t --layers 3 --width 256 --heads 4 --context 16 "
        "--batch 2 --accumulate 2 --steps 3 --evaluate-texts 2 --overwrite --out o >log 2>&1 || "
        "{ tail -5 log; exit 1; }; %s",
        test_build(), folder, count);
    expect_code(code, 0, out);
    EXPECT_TEXT(out, expected);
}

TEST(together_gpus_add_up_gradients_within_backward)
{
    const char *folder = fake_begin();
    unsetenv("CUP_KERNELS");
    train(folder, "1", "some 0\n");
    train(folder, "0", "0 0\n");
}

/* Where others share out the model, its experts or its texts, backward calls NCCL in any case, and
 * in the first of several stages more often where it adds up gradients meanwhile. */
static int calls_within(const char *folder, const char *way, const char *bucket)
{
    char out[4000];
    setenv("CUP_COMM_BUCKET", bucket, 1);
    int code = test_command(
        out, sizeof out,
        "build=$(realpath '%s') && cd '%s' && seq 3000 >t && "
        "CUP_LIBCUDA=$build/fake/libcuda.so.1 CUP_LIBNVRTC=$build/fake/libnvrtc.so "
        "CUP_LIBNCCL=$build/fake/libnccl.so FAKE_NVRTC_ANY=1 FAKE_CUDA_DEVICES=4 CUP_LOG=launch "
        "$build/cupola train --processes 4 --device cuda --data t --layers 2 --width 256 "
        "--heads 4 --context 16 --batch 2 --accumulate 2 --steps 4 --evaluate-texts 2 --overwrite "
        "--parallel %s --out o >log 2>&1 || { tail -5 log; exit 1; }; "
        "! grep -q 'not captured' log && grep -v '^\\[[123]\\]' log | "
        "awk '/launch: NCCL/ {n++} /launch: (matmul|linear)/ {m = n} "
        "/launch: adamw/ {s = m - before; before = n} END {print s}'",
        test_build(), folder, way);
    expect_code(code, 0, out);
    return atoi(out);
}

TEST(together_gpus_add_up_gradients_beside_what_they_share_out)
{
    static const char *const ways[] = {"tp=2",
                                       "tp=2 --zero 2",
                                       "tp=2 --sequence-parallel --dropout 0",
                                       "pp=2",
                                       "pp=2 --zero 2",
                                       "cp=2 --dropout 0",
                                       "ep=2 --experts 4",
                                       "ep=2,tp=2 --experts 4"};
    const char *folder = fake_begin();
    unsetenv("CUP_KERNELS");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        int behind = calls_within(folder, ways[i], "0");
        int beside = calls_within(folder, ways[i], "1");
        if (beside <= behind)
            test_fail(__FILE__, __LINE__, "%s: %d and %d calls of NCCL", ways[i], behind, beside);
    }
}

/* Where sums have one order, those of gradients are ops of ours, in the step that is captured. */
TEST(together_gpus_add_up_in_one_order)
{
    char out[4000];
    const char *folder = fake_begin();
    unsetenv("CUP_KERNELS");
    for (int stage = 0; stage < 3; stage++) {
        int code = test_command(
            out, sizeof out,
            "build=$(realpath '%s') && cd '%s' && seq 3000 >t && "
            "CUP_LIBCUDA=$build/fake/libcuda.so.1 CUP_LIBNVRTC=$build/fake/libnvrtc.so "
            "CUP_LIBNCCL=$build/fake/libnccl.so FAKE_NVRTC_ANY=1 CUP_LOG=launch $build/cupola "
            "train --deterministic --processes 2 --device cuda --data t --layers 2 --width 64 "
            "--heads 2 --context 16 --batch 2 --accumulate 2 --steps 4 --evaluate-texts 2 "
            "--zero %d --overwrite --out o >log 2>&1 || { tail -5 log; exit 1; }; "
            "grep -c 'not captured' log; awk '/^\\[1\\].*NCCL for sum/ {n++} END {print (n > 0)}' "
            "log; grep -c 'launch: reduce_columns for sum' log",
            test_build(), folder, stage);
        expect_code(code, 0, out);
        EXPECT(!strncmp(out, "0\n", 2) && atoi(strchr(out + 2, '\n') + 1) > 60);
    }
}

/* Sums of batchnorms go through NCCL within the step that is captured; the step that is only
 * rehearsed calls nobody. */
TEST(together_gpus_share_batches_of_images)
{
    char out[4000];
    const char *folder = fake_begin();
    unsetenv("CUP_KERNELS");
    shapes_write(folder, "train", 60, 1);
    shapes_write(folder, "t10k", 20, 2);
    int code = test_command(
        out, sizeof out,
        "build=$(realpath '%s') && cd '%s' && "
        "printf 'conv 4\\nbatchnorm\\nglobalpool\\nlinear classes\\n' >net && "
        "CUP_LIBCUDA=$build/fake/libcuda.so.1 CUP_LIBNVRTC=$build/fake/libnvrtc.so "
        "CUP_LIBNCCL=$build/fake/libnccl.so FAKE_NVRTC_ANY=1 CUP_LOG=launch $build/cupola train "
        "--task classify --processes 2 --device cuda --data . --network net --mixup 0.2 "
        "--batch 10 --steps 4 --out o >log 2>&1 || { tail -5 log; exit 1; }; "
        "grep -c 'not captured' log; grep -v '^\\[1\\]' log | grep -c 'launch: NCCL'",
        test_build(), folder);
    expect_code(code, 0, out);
    EXPECT(!strncmp(out, "0\n", 2) && atoi(out + 2) > 10);
}

/* What goes between stages, between those that share out a stage, round between those that have
 * parts of texts, or to experts and back, is captured with the step. NCCL is joined behind
 * attention where that is computed while keys are on their way. */
TEST(together_gpus_share_out_a_model)
{
    static const char *const parallel[] = {"pp=2 --dropout 0.1", "tp=2 --dropout 0.1",
                                           "cp=2 --dropout 0", "pp=2 --interleave 2 --dropout 0",
                                           "ep=2 --experts 4 --dropout 0",
                                           "tp=2 --sequence-parallel --dropout 0"};
    static const char *const expected[] = {"0\n1 0\n", "0\n1 0\n", "0\n1 1\n", "0\n1 0\n",
                                           "0\n1 0\n", "0\n1 0\n"};
    const char *folder = fake_begin();
    char out[4000];
    unsetenv("CUP_KERNELS");
    for (int i = 0; i < 6; i++) {
        int code = test_command(
            out, sizeof out,
            "build=$(realpath '%s') && cd '%s' && seq 3000 >t && "
            "CUP_LIBCUDA=$build/fake/libcuda.so.1 CUP_LIBNVRTC=$build/fake/libnvrtc.so "
            "CUP_LIBNCCL=$build/fake/libnccl.so FAKE_NVRTC_ANY=1 CUP_LOG=launch $build/cupola "
            "train --processes 2 --device cuda --data t --layers 4 --width 64 --heads 2 "
            "--context 16 --batch 2 --accumulate 4 --steps 4 --evaluate-texts 2 "
            "--overwrite --parallel %s --out o >log 2>&1 || { tail -5 log; exit 1; }; "
            "grep -c 'not captured' log; awk '/^\\[1\\].*NCCL/ {n++} "
            "/NCCL for attention_lse/ {f++} /NCCL for attention_grad/ {b++} "
            "END {print (n > 40), (f > 4 && b > 4)}' log",
            test_build(), folder, parallel[i]);
        expect_code(code, 0, out);
        EXPECT_TEXT(out, expected[i]);
    }
}

/* Parameters come and go, and gradients with them, within a step that is captured. */
TEST(together_gpus_split_parameters)
{
    char out[4000];
    const char *folder = fake_begin();
    unsetenv("CUP_KERNELS");
    for (int stage = 2; stage < 4; stage++) {
        int code = test_command(
            out, sizeof out,
            "build=$(realpath '%s') && cd '%s' && seq 3000 >t && CUP_COMM_BUCKET=1 "
            "CUP_LIBCUDA=$build/fake/libcuda.so.1 CUP_LIBNVRTC=$build/fake/libnvrtc.so "
            "CUP_LIBNCCL=$build/fake/libnccl.so FAKE_NVRTC_ANY=1 CUP_LOG=launch $build/cupola "
            "train --processes 2 --device cuda --data t --layers 3 --width 256 --heads 4 "
            "--context 16 --batch 2 --accumulate 4 --steps 4 --evaluate-texts 3 --save-every 2 "
            "--save-background --overwrite --zero %d --out o >log 2>&1 || { tail log; exit 1; }; "
            "grep -c 'not captured' log; awk '/^\\[1\\].*NCCL/ {n++} END {print (n > %d)}' log; "
            "ls o | grep -c model-",
            test_build(), folder, stage, stage == 3 ? 60 : 20);
        expect_code(code, stage == 3 ? 0 : 1, out);
        EXPECT_TEXT(out, stage == 3 ? "0\n1\n2\n" : "0\n1\n0\n");
    }
}

/* And states with them, in the host's memory, of one GPU alone too. */
TEST(together_gpus_keep_states_on_the_host)
{
    static const char *const ways[] = {"--processes 1", "--processes 2", "--processes 2 --zero 1",
                                       "--processes 2 --zero 3"};
    char out[4000];
    const char *folder = fake_begin();
    unsetenv("CUP_KERNELS");
    for (int i = 0; i < 4; i++) {
        int code = test_command(
            out, sizeof out,
            "build=$(realpath '%s') && cd '%s' && seq 3000 >t && CUP_LOG=launch "
            "CUP_LIBCUDA=$build/fake/libcuda.so.1 CUP_LIBNVRTC=$build/fake/libnvrtc.so "
            "CUP_LIBNCCL=$build/fake/libnccl.so FAKE_NVRTC_ANY=1 $build/cupola train %s "
            "--device cuda --optimizer-offload --data t --layers 2 --width 64 --heads 2 "
            "--context 16 --batch 2 --accumulate 2 --steps 4 --evaluate-texts 2 --dtype bf16 "
            "--save-every 2 --overwrite --out o >log 2>&1 || { tail log; exit 1; }; "
            "grep -c 'not captured' log; tail -n 1 o/losses.csv | cut -d, -f1",
            test_build(), folder, ways[i]);
        expect_code(code, 0, out);
        EXPECT_TEXT(out, "0\n4\n");
    }
}

/* By memory a policy is chosen for parts of texts and experts of others, too. */
TEST(together_gpus_choose_a_policy_of_what_they_share_out)
{
    static const char *const ways[] = {"cp=2 --dropout 0", "ep=2 --experts 4",
                                       "cp=2,tp=2 --dropout 0", "ep=2,pp=2 --experts 4"};
    char out[4000];
    const char *folder = fake_begin();
    unsetenv("CUP_KERNELS");
    for (int i = 0; i < 4; i++) {
        int code = test_command(
            out, sizeof out,
            "build=$(realpath '%s') && cd '%s' && seq 3000 >t && "
            "CUP_LIBCUDA=$build/fake/libcuda.so.1 CUP_LIBNVRTC=$build/fake/libnvrtc.so "
            "CUP_LIBNCCL=$build/fake/libnccl.so FAKE_NVRTC_ANY=1 FAKE_CUDA_DEVICES=4 $build/cupola "
            "train --processes 4 --device cuda --data t --layers 4 --width 64 --heads 2 "
            "--context 64 --batch 8 --accumulate 4 --steps 2 --evaluate-texts 2 --recompute auto "
            "--overwrite --parallel %s --out o >log 2>&1 || { tail -5 log; exit 1; }; "
            "grep -c 'policy   none: none needs ' log",
            test_build(), folder, ways[i]);
        expect_code(code, 0, out);
        EXPECT_TEXT(out, "1\n");
    }
}
