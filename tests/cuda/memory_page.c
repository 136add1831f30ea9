/* The page of a context's memory, on the fake driver. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "cupola/prof.h"
#include "support.h"
#include "tensor/context.h"
#include "test.h"

static char path[4400];

static cup_context *begin(int64_t limit)
{
    snprintf(path, sizeof path, "%s/page.html", fake_begin());
    cup_context *c =
        cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda:0", .memory_limit = limit));
    EXPECT_TEXT(cup_error_text(c), "");
    return c;
}

static char *page(void)
{
    char *text;
    EXPECT_INT(cup__file_read(NULL, path, 1 << 26, &text, NULL), CUP_OK);
    return text;
}

static void allocate(cup_context *c, size_t bytes, const char *tag, void **out)
{
    EXPECT_INT(c->device->calls->allocate(c->device, bytes, tag, out), CUP_OK);
}

TEST(memory_page_tells_now_and_the_peak)
{
    cup_context *c = begin(0);
    void *weights, *activations, *small;
    allocate(c, 3 << 20, "weights", &weights);
    allocate(c, 5 << 20, "activations <&>", &activations);
    allocate(c, 100, "small", &small);
    cup_memory_user users[2];
    EXPECT_INT(cup_memory_users(c, users, 2), 2);
    EXPECT_TEXT(users[0].tag, "activations <&>");
    EXPECT_TEXT(users[1].tag, "weights");
    EXPECT_INT(users[1].bytes, 3 << 20);
    EXPECT_INT(users[1].blocks, 1);
    EXPECT_INT(cup_memory_users(NULL, users, 2), 0);
    c->device->calls->release(c->device, activations);
    EXPECT_INT(cup_memory_page(c, path), CUP_OK);
    char *text = page();
    EXPECT_CONTAINS(text, "</html>");
    EXPECT_CONTAINS(text, "weights</td><td>3.0 MiB</td><td>1</td><td>3.0 MiB</td>");
    EXPECT_CONTAINS(text, "activations &#60;&#38;&#62;</td><td>0 B</td><td>0</td>"
                          "<td>5.0 MiB</td>");
    EXPECT_CONTAINS(text, "data-t=\"weights\"><title>weights, 3.0 MiB (3145728 bytes)");
    EXPECT(!strstr(text, "<title>activations"));
    EXPECT_CONTAINS(text, "large blocks: 32.0 MiB, 3.0 MiB in use");
    cup__free(text);
    c->device->calls->release(c->device, weights);
    c->device->calls->release(c->device, small);
    cup_context_free(c);
}

TEST(memory_page_after_running_out)
{
    cup_context *c = begin(64 << 20);
    void *first, *second;
    allocate(c, 40 << 20, "weights", &first);
    EXPECT_INT(c->device->calls->allocate(c->device, 50 << 20, "logits", &second), CUP_MEMORY);
    EXPECT_INT(cup_error(c), CUP_MEMORY);
    const char *words = cup_error_text(c);
    EXPECT_CONTAINS(words, "50.0 MiB for logits");
    EXPECT_CONTAINS(words, "40.0 MiB in 1 block of weights");
    EXPECT_CONTAINS(words, "the largest free block is");
    EXPECT_CONTAINS(words, "the limit of 64.0 MiB would be passed");
    EXPECT_CONTAINS(words, "raising memory_limit to");
    EXPECT_INT(cup_memory_page(c, path), CUP_OK);
    char *text = page();
    EXPECT_CONTAINS(text, "[4,52428800,");
    cup__free(text);
    EXPECT_INT(cup_memory_page(c, "/nowhere/at/all.html"), CUP_IO);
    EXPECT_INT(cup_error(c), CUP_MEMORY);
    c->device->calls->release(c->device, first);
    cup_context_free(c);
}

/* More events than the history holds, and as many blocks as a model has. */
TEST(memory_page_of_a_long_life)
{
    cup_context *c = begin(0);
    static void *held[600];
    static const char *const tags[] = {"linear", "gelu", "layernorm", "attention", "gradient",
                                       "weights", "adamw"};
    for (int i = 0; i < 20000; i++) {
        int k = (int)(test_random() % 600);
        size_t bytes = 1 + (size_t)(test_random() % (k % 30 ? 200000 : 3 << 20));
        if (held[k])
            c->device->calls->release(c->device, held[k]);
        held[k] = NULL;
        if (i < 19000 || k % 2)
            allocate(c, bytes, tags[k % 7], &held[k]);
    }
    EXPECT_INT(cup_memory_page(c, getenv("PAGE") ? getenv("PAGE") : path), CUP_OK);
    for (int k = 0; k < 600; k++)
        if (held[k])
            c->device->calls->release(c->device, held[k]);
    cup_context_free(c);
}

TEST(memory_page_of_a_cpu)
{
    cup_context *c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu"));
    EXPECT_INT(cup_memory_page(c, "page.html"), CUP_UNSUPPORTED);
    EXPECT_CONTAINS(cup_error_text(c), "cup_memory_use");
    cup_context_free(c);
    EXPECT_INT(cup_memory_page(NULL, "page.html"), CUP_MEMORY);
}

TEST(memory_page_survives_failed_allocations)
{
    cup_context *c = begin(0);
    void *memory;
    allocate(c, 1000, "weights", &memory);
    for (long n = 1;; n++) {
        cup__memory_fail_at(n, false);
        cup_status status = cup_memory_page(c, path);
        cup__memory_fail_at(0, false);
        if (status == CUP_OK)
            break;
        EXPECT_INT(cup_error(c), CUP_MEMORY);
        cup_error_clear(c);
        EXPECT(n < 500);
    }
    c->device->calls->release(c->device, memory);
    cup_context_free(c);
}

TEST(memory_share_and_trim)
{
    fake_begin();
    cup_context *c =
        cup_context_new(CUP_OPTIONS(cup_options, .device = "cuda:0", .memory_share = 0.0625));
    cup_memory use;
    void *memory;
    EXPECT_INT(cup_memory_use(c, &use), CUP_OK);
    EXPECT_INT(use.limit, use.device_total / 16);
    EXPECT_INT(c->device->calls->allocate(c->device, 70 << 20, "logits", &memory), CUP_MEMORY);
    EXPECT_CONTAINS(cup_error_text(c), "the limit of 64.0 MiB would be passed");
    cup_error_clear(c);
    allocate(c, 50 << 20, "logits", &memory);
    EXPECT_INT(cup_memory_trim(c), 0);
    c->device->calls->release(c->device, memory);
    EXPECT(cup_memory_trim(c) >= 50 << 20);
    EXPECT_INT(cup_memory_trim(NULL), 0);
    cup_context_free(c);
    c = cup_context_new(CUP_OPTIONS(cup_options, .device = "cpu", .memory_share = 1.5));
    EXPECT_INT(cup_error(c), CUP_ARGUMENT);
    cup_context_free(c);
}
